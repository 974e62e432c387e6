"""The sections of a prompt counted in tokens: what is shown, what is hidden, and what to close first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weakincentives.errors import PromptRenderError
from weakincentives.prompt import AnyTool, SectionPath, SectionVisibility, View
from weakincentives.runtime.events import SectionState

Count = Callable[[str], int]
Define = Callable[[AnyTool], str]


def inventory(
    view: View, text: str, count: Count, define: Define, *, base: View | None = None
) -> tuple[SectionState, ...]:
    """Every enabled section with its tokens, as the tokenizer counts and the adapter defines tools.

    `base` is the view without the session's overrides.
    """
    base = base or view
    shown = {span.path: text[span.start : span.end] for span in view.spans(view.pieces())}
    return tuple(
        SectionState(
            path=node.path,
            title=node.section.title,
            visibility=view.visibility_of(node),
            decided_by=view.decided_by(node),
            shown_tokens=count(shown[node.path]) if node.path in shown else 0,
            full_tokens=_full_tokens(view, node.path, count),
            tools=tuple(tool.name for tool in node.all_tools),
            tool_tokens=sum(count(define(tool)) for tool in node.all_tools),
            collapsible=node.summary is not None,
            base=base.own_visibility(node),
            base_decided_by=base.decided_by(node),
            filled=node.section.params_type is not None,
        )
        for node in view.existing()
    )


def sections_to_close(view: View, last_used: Mapping[str, int], excess: int, count: Count) -> list[SectionPath]:
    """Sections that the session opened, least recently used first, until they make up for the excess tokens."""
    opened = [
        node
        for node in view.existing()
        if view.visibility_of(node) is SectionVisibility.FULL
        and node.summary is not None
        and view.decided_by(node) == "session"
    ]
    opened.sort(key=lambda node: (last_used.get(node.key, 0), node.index))
    closing: list[SectionPath] = []
    for node in opened:
        if excess <= 0:
            break
        excess -= count(view.content(node.path))
        closing.append(node.path)
    return closing


def _full_tokens(view: View, path: SectionPath, count: Count) -> int:
    """0 for a section that cannot be rendered: that is an error only for whoever opens it."""
    try:
        return count(view.own_text(path))
    except PromptRenderError:
        return 0
