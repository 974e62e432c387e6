"""`open_sections` as a terminal tool: the turn ends and the caller decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.prompt.disclosure.open_or_read import open_suffix
from weakincentives.prompt.disclosure.strategy import (
    OpenSectionsParams,
    OpenSectionsResult,
    current_view,
    overrides_for,
    requested_paths,
)
from weakincentives.prompt.tool import Tool, ToolResult


@dataclass(frozen=True, slots=True)
class OpenAndHalt:
    """The request comes back to the caller, who opens the sections (or not) and evaluates again."""

    def tools(self, *, with_tools: bool, content_only: bool) -> tuple[Tool[Any, Any], ...]:
        return (OPEN_SECTIONS_AND_HALT,) if with_tools or content_only else ()

    def suffix(self, key: str, *, children: Sequence[str], has_tools: bool) -> str:
        if children:
            return (
                f'[This section is summarized. Call `open_sections` with key "{key}" to view full content including '
                f"subsections: {', '.join(children)}.]"
            )
        return open_suffix(key)


def open_and_halt(params: OpenSectionsParams, *, context: Any) -> ToolResult[OpenSectionsResult]:
    view = current_view(context)
    paths = requested_paths(params, view)
    if isinstance(paths, ToolResult):
        return paths
    overrides = overrides_for(paths, view)
    return ToolResult(
        f"Expansion requested: {', '.join(params.section_keys)}.",
        OpenSectionsResult(requested_overrides=overrides, reason=params.reason),
        disclosure=view.request(params.section_keys, params.reason, overrides=overrides),
    )


OPEN_SECTIONS_AND_HALT: Tool[OpenSectionsParams, OpenSectionsResult] = Tool(
    name="open_sections",
    description="Open summarized sections. This ends the turn; the prompt comes back with the sections opened.",
    handler=open_and_halt,
    params_type=OpenSectionsParams,
    result_type=OpenSectionsResult,
    accepts_overrides=False,
)
