"""A rendered prompt: the text, the tools, and where each span of the text came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic

from weakincentives._generics import OutputT
from weakincentives.limits import Deadline
from weakincentives.prompt.hosted import HostedTool
from weakincentives.prompt.output import Container, StructuredOutputConfig
from weakincentives.prompt.overrides import PromptDescriptor
from weakincentives.prompt.tool import Tool
from weakincentives.prompt.view import Span, View
from weakincentives.prompt.visibility import SectionPath, SectionVisibility


@dataclass(frozen=True)
class RenderedPrompt(Generic[OutputT]):
    """What the model sees at the start of a run."""

    text: str
    tools: tuple[Tool[Any, Any], ...] = ()
    hosted_tools: tuple[HostedTool[Any], ...] = ()
    structured_output: StructuredOutputConfig | None = None
    deadline: Deadline | None = None
    prompt_name: str = ""
    view: View | None = field(default=None, repr=False, compare=False)
    pieces: list[str] = field(default_factory=list, repr=False, compare=False)
    make_descriptor: Callable[[], PromptDescriptor | None] = field(default=lambda: None, repr=False, compare=False)

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
