"""The loop's view of an adapter: the model's capabilities, and how its tools and media are counted and checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from weakincentives.content import Media, Part
from weakincentives.prompt import AnyTool, Tokenizer, default_tokenizer, portable_name
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.media import MediaSupport
from weakincentives.runtime.messages import Message, Settings


@dataclass(frozen=True, slots=True)
class InnerLoopConfig:
    """How one loop runs: whether tools may appear mid-conversation, and the settings of its model."""

    supports_dynamic_tools: bool = False
    settings: Settings = field(default_factory=Settings)


class LoopAdapter:
    """What the loop asks of an adapter; the defaults describe a model that only reads text."""

    name: ClassVar[str] = ""
    model: str = ""
    output_retries: int = 1
    max_tool_description: ClassVar[int | None] = None
    """How long a tool description the provider accepts, in characters; longer ones are also sent in full as text."""
    reserved_names: Collection[str] = ()
    """The names of tools that the provider adds itself."""
    sends_tools: ClassVar[bool] = True
    """Whether requests include the definitions of tools, so that they count as input."""

    @property
    def supports_dynamic_tools(self) -> bool:
        """Whether tools can be added to a conversation; if not, opening a section with tools restarts it."""
        return False

    @property
    def tool_route(self) -> str:
        """The route by which tools appear mid-conversation."""
        return "append" if self.supports_dynamic_tools else "restart"

    @property
    def supports_operator_text(self) -> bool:
        """Whether the model accepts system messages mid-conversation."""
        return False

    @property
    def defers_tools(self) -> bool:
        """Whether the tools of closed sections are sent too, so that the provider's own search can find them."""
        return False

    @property
    def hosted_tool_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        """The codecs of the hosted tools this adapter can offer, by kind."""
        return {}

    @property
    def tokenizer(self) -> Tokenizer:
        return default_tokenizer()

    def count_tokens(self, text: str) -> int:
        return self.tokenizer.count(text)

    @property
    def media(self) -> MediaSupport:
        """The media that the model accepts."""
        return MediaSupport()

    def count_media(self, part: Media) -> int:
        """The tokens of a medium, by the vendor's formula."""
        return self.media.count(part)

    def define_tool(self, tool: AnyTool) -> str:
        """The tool as JSON text, as this adapter sends it to the model."""
        return tool.definition

    def found_tools(self, items: Sequence[str]) -> tuple[str, ...]:
        """The tools that the provider's search found, according to the items of a reply."""
        return ()

    def binds_reasoning(self, message: Message) -> bool:
        """Whether a message has reasoning that the provider accepts only with the prompt it was written under."""
        return False

    def check_content(self, parts: Sequence[Part]) -> None:
        """Raise `PromptEvaluationError` for media that this adapter's model does not accept."""
        self.media.check(parts, self._described)

    def check_parts(self, parts: Sequence[Part], earlier: Iterable[Message] = ()) -> None:
        """Raise if the model does not accept these parts, or not as many together with those of earlier messages."""
        if any(isinstance(part, Media) for part in parts):
            self.check_content(parts)
            said = [part for message in earlier for part in message.parts]
            self.media.check_amount([*said, *parts], self._described)

    @property
    def _described(self) -> str:
        return f"The {self.name} adapter with model '{self.model}'"

    def sent_tool(self, tool: AnyTool) -> str:
        """A tool as it reaches the model: its definition, and its full description if that is sent as text."""
        return self.define_tool(tool) + self.long_description(tool) if self.sends_tools else ""

    def count_tools(self, tools: Iterable[AnyTool]) -> int:
        """The tokens of tools as they reach the model."""
        return sum(self.count_tokens(self.sent_tool(tool)) for tool in tools)

    def long_description(self, tool: AnyTool) -> str:
        """The full description as text, if the provider accepts only its beginning."""
        limit = self.max_tool_description
        if limit is None or len(tool.description) <= limit:
            return ""
        return f"The tool {portable_name(tool.name)}, in full: {tool.description}"
