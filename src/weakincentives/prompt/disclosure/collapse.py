"""`collapse_section`: the model closes a section it no longer needs. Off unless the template allows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from weakincentives.prompt.disclosure.strategy import DisclosureContext
from weakincentives.prompt.tool import Tool, ToolResult
from weakincentives.prompt.visibility import CollapseSection


@dataclass(frozen=True, slots=True)
class CollapseSectionParams:
    section_key: str = field(metadata={"description": "Key of the open section to close."})


def collapse_section(params: CollapseSectionParams, *, context: DisclosureContext) -> ToolResult[None]:
    view = context.prompt.view(context.session)
    path = view.find(params.section_key)
    if path is None:
        return ToolResult(f"Unknown section key: '{params.section_key}'.", success=False)
    if not view.is_open(path):
        return ToolResult(f"Section '{params.section_key}' is not expanded.", success=False)
    if not view.collapsible(path):
        return ToolResult(f"Section '{params.section_key}' has no summary, so it stays open.", success=False)
    context.session.dispatch(CollapseSection(path=path))
    return ToolResult(f"Section '{params.section_key}' is closed; its tools are no longer available.")


COLLAPSE_SECTION: Tool[CollapseSectionParams, None] = Tool(
    name="collapse_section",
    description="Close an open section that is no longer needed; its tools stop being available.",
    handler=collapse_section,
    params_type=CollapseSectionParams,
    accepts_overrides=False,
)
