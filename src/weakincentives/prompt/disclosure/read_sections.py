"""One tool, `read_section`: content comes back as a result, and tools appear with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from weakincentives.prompt.disclosure.strategy import (
    ReadSectionParams,
    ReadSectionResult,
    Voice,
    closed_hint,
    current_view,
    read_tool,
)
from weakincentives.prompt.tool import Tool, ToolResult


@dataclass(frozen=True, slots=True)
class ReadSections:
    """The default strategy: reading a section shows it and brings its tools into the same conversation.

    Its text comes back as the tool's result. With `voice="system"` it comes as an operator's message, where the model
    takes one in mid-conversation and the text is the author's alone; text with params never gets that authority.
    """

    voice: Voice = "result"

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        tool = READ_SECTION if self.voice == "result" else READ_SECTION_AS_SYSTEM
        return (tool,) if with_tools or content_only else ()

    def suffix(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return read_suffix(key)


def read_suffix(key: str) -> str:
    return f'[This section is summarized. To view full content, call `read_section` with key "{key}".]'


def read_section(params: ReadSectionParams, *, context: Any, voice: Voice = "result") -> ToolResult[ReadSectionResult]:
    view, key = current_view(context), params.section_key
    path = view.find(key)
    if path is None:
        message = f"Unknown section key: '{key}'. {closed_hint(view)}"
        return ToolResult(message, success=False, disclosure=view.request([key]))
    if view.is_open(path):
        result = ReadSectionResult(view.content(path))
        return ToolResult("Section is already expanded.", result, disclosure=view.request([key]))
    try:
        context.prompt.load(path, context.deadline)
    except Exception as error:
        message = f"Section '{key}' cannot be opened: {error}"
        return ToolResult(message, success=False, disclosure=view.request([key]))
    view = current_view(context)
    if view.find(key) is None:
        return ToolResult(
            f"Section '{key}' is no longer there. {closed_hint(view)}", success=False, disclosure=view.request([key])
        )
    reading = view.reading(path)
    voice = voice if view.is_literal(path) else "result"
    return ToolResult(
        f"Content of section '{key}':",
        ReadSectionResult(reading.render(), reading.tools, reading.overrides, voice),
        disclosure=view.request([key], overrides=reading.overrides),
    )


_WORDS = "Read the full content of a summarized section. Tools that belong to the section become available."
READ_SECTION = read_tool(read_section, _WORDS)
READ_SECTION_AS_SYSTEM = read_tool(partial(read_section, voice="system"), _WORDS)
