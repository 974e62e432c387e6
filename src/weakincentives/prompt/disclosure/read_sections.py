"""One tool, `read_section`: content comes back as a result, and tools appear with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt.disclosure.strategy import (
    DisclosureContext,
    ReadSectionParams,
    ReadSectionResult,
    closed_hint,
)
from weakincentives.prompt.tool import Tool, ToolResult


@dataclass(frozen=True, slots=True)
class ReadSections:
    """The default strategy: reading a section shows it, and brings its tools into the same conversation."""

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (READ_SECTION,) if with_tools or content_only else ()

    def suffix(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return read_suffix(key)


def read_suffix(key: str) -> str:
    return f'[This section is summarized. To view full content, call `read_section` with key "{key}".]'


def read_section(params: ReadSectionParams, *, context: DisclosureContext) -> ToolResult[ReadSectionResult]:
    view = context.prompt.view(context.session)
    path = view.find(params.section_key)
    if path is None:
        return ToolResult(f"Unknown section key: '{params.section_key}'. {closed_hint(view)}", success=False)
    if view.is_open(path):
        return ToolResult("Section is already expanded.", ReadSectionResult(view.content(path)))
    opening = view.opening(path)
    content = opening.show() if opening.tools else view.content(path)
    overrides = opening.overrides if opening.tools else {}
    return ToolResult(
        f"Content of section '{params.section_key}':", ReadSectionResult(content, opening.tools, overrides)
    )


READ_SECTION: Tool[ReadSectionParams, ReadSectionResult] = Tool(
    name="read_section",
    description="Read the full content of a summarized section. Tools that belong to the section become available.",
    handler=read_section,
    params_type=ReadSectionParams,
    result_type=ReadSectionResult,
    accepts_overrides=False,
)
