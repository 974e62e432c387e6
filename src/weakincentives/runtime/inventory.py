"""The whole tree of a prompt with tokens shown and tokens in full, section by section."""

from __future__ import annotations

from collections.abc import Callable

from weakincentives.errors import PromptRenderError
from weakincentives.prompt.outline import VISIBILITIES, Node
from weakincentives.prompt.view import View, tool_text
from weakincentives.runtime.events import SectionState

Count = Callable[[str], int]


def inventory(view: View, text: str, count: Count) -> tuple[SectionState, ...]:
    """Every section that exists for these params; those inside a summarized one have visibility None."""
    shown = {span.path: text[span.start : span.end] for span in view.spans(view.pieces())}
    states = []
    for node in view.existing():
        visible = node.path in shown
        states.append(
            SectionState(
                path=node.path,
                title=node.section.title,
                visibility=VISIBILITIES[view.shape.states[node.index]] if visible else None,
                decided_by=view.decided_by(node),
                shown_tokens=count(shown[node.path]) if visible else 0,
                full_tokens=_full_tokens(view, node, count),
                tools=tuple(tool.name for tool in node.all_tools),
                tool_tokens=sum(count(tool_text(tool)) for tool in node.all_tools),
                collapsible=node.summary is not None,
            )
        )
    return tuple(states)


def _full_tokens(view: View, node: Node, count: Count) -> int:
    """0 where the section cannot be rendered: that is an error only for whoever opens it."""
    try:
        return count(view.own_text(node))
    except PromptRenderError:
        return 0
