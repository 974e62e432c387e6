"""The sections of a prompt: counted in tokens, chosen for closing, and compared with those of an earlier render."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from weakincentives.content import Media
from weakincentives.errors import PromptRenderError
from weakincentives.prompt import AnyTool, Placed, SectionPath, SectionVisibility, View
from weakincentives.runtime.events import PromptRendered, SectionState
from weakincentives.runtime.media import estimate_tokens

Count = Callable[[str], int]
CountMedia = Callable[[Media], int]
Define = Callable[[AnyTool], str]
_HEADING = re.compile(r"#+ (?:[\d.]+\. )?")


def inventory(
    view: View,
    text: str,
    count: Count,
    define: Define,
    *,
    count_media: CountMedia = estimate_tokens,
    base: View | None = None,
) -> tuple[SectionState, ...]:
    """Every enabled section with its token counts, including its tools as the adapter defines them.

    `base` is the view without the session's overrides.
    """
    base = base or view
    pieces = view.pieces()
    shown = {span.path: text[span.start : span.end] for span in view.spans(pieces)}
    media = _media_tokens(view, pieces, count_media)
    whole = _whole_texts(view)
    return tuple(
        SectionState(
            path=node.path,
            title=node.section.title,
            visibility=view.visibility_of(node),
            decided_by=view.decided_by(node),
            shown_tokens=count(shown[node.path]) + media[node.path] if node.path in shown else 0,
            full_tokens=count(whole(node.path)) + media[node.path],
            tools=tuple(tool.name for tool in node.all_tools),
            tool_tokens=sum(count(define(tool)) for tool in node.all_tools),
            collapsible=node.summary is not None,
            base=base.own_visibility(node),
            base_decided_by=base.decided_by(node),
            filled=node.section.params_type is not None,
        )
        for node in view.existing()
    )


def sections_to_close(view: View, last_used: Mapping[str, int], excess: int, count: Count) -> dict[SectionPath, int]:
    """Sections that the session opened, least recently used first, enough of them to make up for the excess tokens.

    Only those in `last_used` are considered. Returns their tokens.
    """
    opened = [
        node
        for node in view.existing()
        if view.visibility_of(node) is SectionVisibility.FULL
        and node.summary is not None
        and view.decided_by(node) == "session"
        and node.key in last_used
    ]
    opened.sort(key=lambda node: (last_used[node.key], node.index))
    closing: dict[SectionPath, int] = {}
    for node in opened:
        if sum(closing.values()) >= excess:
            break
        closing[node.path] = count(view.content(node.path))
    return closing


@dataclass(frozen=True, slots=True)
class PromptDifference:
    """Sections whose text has changed (with the new text), and sections and tools that are gone.

    New text of user sections is what the user says, not an instruction.
    """

    changed: dict[str, str]
    user_changed: dict[str, str]
    removed_sections: tuple[str, ...]
    removed_tools: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.changed or self.user_changed or self.removed_sections or self.removed_tools)

    def render(self) -> str:
        """What the model reads."""
        parts = []
        if self.changed:
            texts = "\n\n".join(self.changed.values())
            parts.append(f"The instructions have changed. From now on these sections read:\n\n{texts}")
        if self.removed_sections:
            parts.append(f"These sections no longer apply: {', '.join(self.removed_sections)}.")
        if self.removed_tools:
            parts.append(f"These tools are no longer available: {', '.join(self.removed_tools)}.")
        return "\n\n".join(parts)


def prompt_difference(before: PromptRendered | None, view: View, removed_tools: Sequence[str] = ()) -> PromptDifference:
    """Compare a render with what its sections would show today; `view` is today's prompt."""
    changed: dict[str, dict[str, str]] = {"system": {}, "user": {}}
    removed: list[str] = []
    text, spans = ("", ()) if before is None else (before.text, before.spans)
    for span in spans:
        key = ".".join(span.path)
        if view.find(key) is None:
            removed.append(key)
            continue
        now = view.own_text(span.path, span.visibility)
        # Numbers and levels of headings depend on the other sections.
        if _HEADING.sub("", text[span.start : span.end], count=1) != _HEADING.sub("", now, count=1):
            changed[span.role][key] = now
    return PromptDifference(changed["system"], changed["user"], tuple(removed), tuple(removed_tools))


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
        return view.own_text(path)
    except PromptRenderError:
        return ""


def _media_tokens(view: View, pieces: Sequence[str], count: CountMedia) -> Counter[SectionPath]:
    """The tokens of the media in user sections, by section; other sections cannot have media."""
    marks, first = view.layout.marks, view.layout.user_piece
    tokens: Counter[SectionPath] = Counter()
    for index, piece in enumerate(pieces[first:], start=first):
        if isinstance(piece, Placed):
            tokens[marks[bisect_right(marks, index, key=lambda mark: mark[1]) - 1][0].path] += count(piece.part)
    return tokens
