"""A rendered prompt: the text, the tools, and where each span of the text came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic

from weakincentives._display import Displayed, Fold, Shown, Table
from weakincentives._generics import OutputT
from weakincentives.content import Part, parts_of
from weakincentives.limits import Deadline
from weakincentives.prompt.layout import Placed
from weakincentives.prompt.output import Container, StructuredOutputConfig
from weakincentives.prompt.overrides import PromptDescriptor
from weakincentives.prompt.tool import HostedTool, Tool
from weakincentives.prompt.view import Span, View
from weakincentives.prompt.visibility import SectionPath, SectionVisibility


@dataclass(frozen=True, repr=False)
class RenderedPrompt(Displayed, Generic[OutputT]):
    """What the model sees at the start of a run.

    `text` is all of it: `system_text`, which stays the same from run to run as long as its params do, then `user_text`.
    """

    text: str
    tools: tuple[Tool[Any, Any], ...] = ()
    hosted_tools: tuple[HostedTool[Any], ...] = ()
    structured_output: StructuredOutputConfig | None = None
    deadline: Deadline | None = None
    prompt_name: str = ""
    view: View | None = field(default=None, repr=False, compare=False)
    pieces: list[str] = field(default_factory=list, repr=False, compare=False)
    make_descriptor: Callable[[], PromptDescriptor | None] = field(default=lambda: None, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<RenderedPrompt {self.prompt_name!r}: {len(self.text):,} characters, tools {self._tool_names()}>"

    def _display(self) -> Iterator[Shown]:
        yield f"{self.prompt_name}: {len(self.text):,} characters, tools {self._tool_names()}"
        rows = [
            (
                "  " * (len(span.path) - 1) + ".".join(span.path),
                span.visibility.value,
                span.decided_by,
                f"{span.end - span.start:,}",
            )
            for span in self.spans
        ]
        yield Table(("section", "shows", "because", "characters"), rows, right=("characters",))
        yield Fold("Text", self.text)

    def _tool_names(self) -> str:
        names = [tool.name for tool in self.tools] + [tool.name for tool in self.hosted_tools]
        return ", ".join(names) or "none"

    @property
    def system_text(self) -> str:
        return self.text if self.view is None else "".join(self.pieces[: self.view.layout.user_piece])

    @property
    def user_text(self) -> str:
        """The sections with `role="user"`, which make the first user turn."""
        return "".join(self._user_pieces())

    @property
    def user_parts(self) -> tuple[Part, ...]:
        """The first user turn with its media in their places."""
        content: list[str | Part] = []
        text: list[str] = []
        for piece in self._user_pieces():
            if isinstance(piece, Placed):
                content += ("".join(text).strip(), piece.part)
                text = []
            else:
                text.append(piece)
        return parts_of([*content, "".join(text).strip()])

    def _user_pieces(self) -> list[str]:
        pieces = [] if self.view is None else self.pieces[self.view.layout.user_piece :]
        return [pieces[0].removeprefix("\n\n"), *pieces[1:]] if pieces else []

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Every part of the text with its section, in order."""
        return () if self.view is None else self.view.spans(self.pieces)

    @cached_property
    def descriptor(self) -> PromptDescriptor | None:
        """The content hashes of the template behind this text."""
        return self.make_descriptor()

    @property
    def visibility(self) -> Mapping[SectionPath, SectionVisibility]:
        """What each section in the text shows."""
        return {span.path: span.visibility for span in self.spans}

    @property
    def tool_param_descriptions(self) -> Mapping[str, Mapping[str, str]]:
        return {tool.name: tool.param_descriptions for tool in self.tools if tool.param_descriptions}

    @property
    def output_type(self) -> Any:
        return None if self.structured_output is None else self.structured_output.output_type

    @property
    def container(self) -> Container | None:
        return None if self.structured_output is None else self.structured_output.container

    @property
    def allow_extra_keys(self) -> bool | None:
        return None if self.structured_output is None else self.structured_output.allow_extra_keys
