"""Two tools: `open_sections` for sections with tools, `read_section` for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt.disclosure.read_sections import read_section, read_suffix
from weakincentives.prompt.disclosure.strategy import (
    OpenSectionsParams,
    OpenSectionsResult,
    ReadSectionParams,
    ReadSectionResult,
    current_view,
    overrides_for,
    requested_paths,
)
from weakincentives.prompt.tool import Tool, ToolResult
from weakincentives.prompt.visibility import VisibilityExpansionRequired


@dataclass(frozen=True, slots=True)
class OpenOrRead:
    """Sections with tools are opened for good, by a new evaluation; the others are read without changing state."""

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return ((OPEN_SECTIONS,) if with_tools else ()) + ((READ_CONTENT,) if content_only else ())

    def suffix(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        return open_suffix(key) if has_tools else read_suffix(key)


def open_suffix(key: str) -> str:
    return f'[This section is summarized. To view full content, call `open_sections` with key "{key}".]'


def open_sections(params: OpenSectionsParams, *, context: Any) -> ToolResult[OpenSectionsResult]:
    view = current_view(context)
    paths = requested_paths(params, view)
    if isinstance(paths, ToolResult):
        return paths
    raise VisibilityExpansionRequired(
        f"The model asked to open: {', '.join(params.section_keys)}.",
        requested_overrides=overrides_for(paths, view),
        reason=params.reason,
        section_keys=tuple(params.section_keys),
    )


def read_content(params: ReadSectionParams, *, context: Any) -> ToolResult[ReadSectionResult]:
    """`read_section`, which leaves sections with tools to `open_sections`."""
    view, key = current_view(context), params.section_key
    path = view.find(key)
    if path is not None and view.has_tools(path) and not view.is_open(path):
        message = f"Section '{key}' has tools; call open_sections with key '{key}' to open it."
        return ToolResult(message, success=False, disclosure=view.request([key]))
    return read_section(params, context=context)


OPEN_SECTIONS: Tool[OpenSectionsParams, OpenSectionsResult] = Tool(
    name="open_sections",
    description="Open summarized sections: their full content and their tools become available.",
    handler=open_sections,
    params_type=OpenSectionsParams,
    result_type=OpenSectionsResult,
    accepts_overrides=False,
)

READ_CONTENT: Tool[ReadSectionParams, ReadSectionResult] = Tool(
    name="read_section",
    description="Read the full content of a summarized section that has no tools.",
    handler=read_content,
    params_type=ReadSectionParams,
    result_type=ReadSectionResult,
    accepts_overrides=False,
)
