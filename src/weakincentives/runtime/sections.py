"""The sections of a prompt, counted in tokens, and those to close when the context is too large."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from weakincentives.errors import PromptRenderError
from weakincentives.prompt import CollapseSection, SectionPath, SectionVisibility, View, inside
from weakincentives.runtime.context import LoopAdapter, RunContext
from weakincentives.runtime.events import SectionState
from weakincentives.runtime.exposure import media_tokens

_TOO_LARGE = "context is over"


def section_states(view: View, text: str, adapter: LoopAdapter, base: View | None = None) -> tuple[SectionState, ...]:
    """Every enabled section with its token counts, including its tools as the adapter defines them.

    `base` is the view without the session's overrides.
    """
    base, pieces, count = base or view, view.pieces(), adapter.count_tokens
    shown = {span.path: text[span.start : span.end] for span in view.spans(pieces)}
    media = media_tokens(view, pieces, adapter)
    whole = _whole_texts(view)
    return tuple(
        SectionState(
            path=node.path,
            title=node.section.title,
            visibility=view.visibility_of(node),
            decided_by=view.decided_by(node),
            shown_tokens=count(shown[node.path]) + media.get(node.path, 0) if node.path in shown else 0,
            full_tokens=count(whole(node.path)) + media.get(node.path, 0),
            tools=tuple(tool.name for tool in node.all_tools),
            tool_tokens=adapter.count_tools(node.all_tools),
            collapsible=node.summary is not None,
            base=base.own_visibility(node),
            base_decided_by=base.decided_by(node),
            filled=node.section.params_type is not None,
            unloaded=node.path in view.outline.unloaded,
        )
        for node in view.existing()
    )


def close_unused(context: RunContext, context_tokens: int) -> None:
    """Close the least recently used sections if the context exceeds the budget's limit, each of them once.

    What was sent stays in the context, so the text of a closed section is counted as gone, and one that the model opens
    again stays open. Sections that were opened after the last request have not been sent yet.
    """
    limit = context.scope.meter.budget.max_context_tokens
    if limit is None or context_tokens <= limit:
        return
    closed = {each.path for each in context.session[CollapseSection].view() if each.reason.startswith(_TOO_LARGE)}
    sent = context.exposure.items()
    freed = sum(each.tokens for path, each in sent if any(inside(path, up) for up in closed))
    offered = {ref.section_key for ref in context.run.tools if not ref.revoked} - set(map(".".join, closed))
    view, last_used = context.view, context.run.last_used
    opened = [
        node
        for node in view.existing()
        if view.visibility_of(node) is SectionVisibility.FULL
        and node.summary is not None
        and view.decided_by(node) == "session"
        and node.key in offered
    ]
    for node in sorted(opened, key=lambda node: (last_used.get(node.key, 0), node.index)):
        if context_tokens - freed <= limit:
            break
        freed += context.adapter.count_tokens(view.content(node.path))
        context.session.dispatch(CollapseSection(node.path, reason=f"{_TOO_LARGE} {limit} tokens"))


def _whole_texts(view: View) -> Callable[[SectionPath], str]:
    """The text of each section in a prompt with everything open."""
    opened = view.opened({node.path: SectionVisibility.FULL for node in view.existing()})
    try:
        pieces = opened.pieces()
        text = "".join(pieces)
        texts = {span.path: text[span.start : span.end] for span in opened.spans(pieces)}
        return lambda path: texts.get(path, "")
    except PromptRenderError:
        return partial(_whole_text, view)


def _whole_text(view: View, path: SectionPath) -> str:
    """Empty for a section that cannot be rendered: that is an error only if somebody opens it."""
    try:
        return "".join(view.own_pieces(path))
    except PromptRenderError:
        return ""
