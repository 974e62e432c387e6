"""What a run needs to know about its adapter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weakincentives.content import Media, Part
from weakincentives.prompt import AnyTool, portable_name
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.media import estimate_tokens
from weakincentives.runtime.messages import Message, Settings
from weakincentives.runtime.sections import Count, Define


@dataclass(frozen=True, slots=True)
class InnerLoopConfig:
    """What the loop needs to know about its adapter.

    `define_tool` returns a tool as the adapter sends it; `check_content` raises for parts that its model does not
    accept, and `check_amount` if a conversation has too many. `binds_reasoning` says whether a message has reasoning
    that its provider accepts only with the prompt it was written under. If tools of closed sections are sent for the
    provider to search, `found_tools` reads from a reply which ones it found. `reserved_names` are the names of tools
    that the provider adds itself.
    """

    adapter: str = ""
    model: str = ""
    supports_dynamic_tools: bool = False
    tool_route: str = "append"
    output_retries: int = 1
    hosted_tool_codecs: Mapping[str, HostedToolCodec[Any, Any]] = field(default_factory=dict)
    count_tokens: Count = len
    tokenizer: str = ""
    define_tool: Define = field(default=lambda tool: tool.definition)
    check_content: Callable[[Sequence[Part]], None] = field(default=lambda parts: None)
    check_amount: Callable[[Sequence[Part]], None] = field(default=lambda parts: None)
    count_media: Callable[[Media], int] = estimate_tokens
    supports_operator_text: bool = False
    binds_reasoning: Callable[[Message], bool] = field(default=lambda message: False)
    settings: Settings = field(default_factory=Settings)
    found_tools: Callable[[Sequence[str]], tuple[str, ...]] | None = None
    max_tool_description: int | None = None
    sends_tools: bool = True
    reserved_names: Collection[str] = ()

    def check_parts(self, parts: Sequence[Part], earlier: Iterable[Message] = ()) -> None:
        """Raise if the model does not accept these parts, or not as many together with those of earlier messages."""
        if any(isinstance(part, Media) for part in parts):
            self.check_content(parts)
            self.check_amount([*(part for message in earlier for part in message.parts), *parts])

    def sent_tool(self, tool: AnyTool) -> str:
        """A tool as it reaches the model: its definition, and its full description if that is sent as text."""
        return self.define_tool(tool) + self.long_description(tool) if self.sends_tools else ""

    def long_description(self, tool: AnyTool) -> str:
        """The full description as text, if the provider accepts only its beginning."""
        limit = self.max_tool_description
        if limit is None or len(tool.description) <= limit:
            return ""
        return f"The tool {portable_name(tool.name)}, in full: {tool.description}"
