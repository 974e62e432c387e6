"""The sections of a prompt, counted in tokens."""

from __future__ import annotations

from collections.abc import Callable

from weakincentives.errors import PromptRenderError
from weakincentives.prompt import SectionPath, SectionVisibility, View, media_in
from weakincentives.runtime.events import SectionState
from weakincentives.runtime.model import Model


def section_states(view: View, text: str, adapter: Model, base: View | None = None) -> tuple[SectionState, ...]:
    """Every enabled section with its token counts, including its tools as the adapter defines them.

    `base` is the view without the session's overrides.
    """
    base, pieces, count = base or view, view.pieces(), adapter.count_tokens
    shown = {span.path: text[span.start : span.end] for span in view.spans(pieces)}
    placed = {node.path: media_in(own) for node, own in view.layout.by_section(pieces)}
    media = {path: sum(map(adapter.count_media, parts)) for path, parts in placed.items()}
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


def _whole_texts(view: View) -> Callable[[SectionPath], str]:
    """The text of each section in a prompt with everything open."""
    opened = view.opened({node.path: SectionVisibility.FULL for node in view.existing()})
    try:
        pieces = opened.pieces()
        text = "".join(pieces)
        texts = {span.path: text[span.start : span.end] for span in opened.spans(pieces)}
        return lambda path: texts.get(path, "")
    except PromptRenderError:
        return view.whole_text
