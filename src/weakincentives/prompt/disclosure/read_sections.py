"""One tool, `read_section`: content comes back as a result, and tools appear with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt.disclosure.strategy import ReadSectionParams, ReadSectionResult, closed_hint, current_view
from weakincentives.prompt.tool import Tool, ToolResult


@dataclass(frozen=True, slots=True)
class ReadSections:
    """The default strategy: reading a section shows it and brings its tools into the same conversation."""

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (READ_SECTION,) if with_tools or content_only else ()

    def suffix(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return read_suffix(key)


def read_suffix(key: str) -> str:
    return f'[This section is summarized. To view full content, call `read_section` with key "{key}".]'


def read_section(params: ReadSectionParams, *, context: Any) -> ToolResult[ReadSectionResult]:
    view, key = current_view(context), params.section_key
    path = view.find(key)
    if path is None:
        message = f"Unknown section key: '{key}'. {closed_hint(view)}"
        return ToolResult(message, success=False, disclosure=view.request([key]))
    if view.is_open(path):
        result = ReadSectionResult(view.content(path))
        return ToolResult("Section is already expanded.", result, disclosure=view.request([key]))
    reading = view.reading(path)
    return ToolResult(
        f"Content of section '{key}':",
        ReadSectionResult(reading.render(), reading.tools, reading.overrides),
        disclosure=view.request([key], overrides=reading.overrides),
    )


READ_SECTION: Tool[ReadSectionParams, ReadSectionResult] = Tool(
    name="read_section",
    description="Read the full content of a summarized section. Tools that belong to the section become available.",
    handler=read_section,
    params_type=ReadSectionParams,
    result_type=ReadSectionResult,
    accepts_overrides=False,
)
