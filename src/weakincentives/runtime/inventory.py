"""The sections of a prompt: counted in tokens, chosen for closing, and compared with what the model was told."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2b

from weakincentives.content import Media
from weakincentives.errors import PromptRenderError
from weakincentives.prompt import AnyTool, Placed, SectionPath, SectionVisibility, Span, View, media_in
from weakincentives.runtime.events import PromptRendered, SectionState
from weakincentives.runtime.media import estimate_tokens

Count = Callable[[str], int]
CountMedia = Callable[[Media], int]
Define = Callable[[AnyTool], str]
_LEVEL = re.compile(r"#+ ")
_NUMBER = re.compile(r"#+ [\d.]+\. ")
_PRICE = re.compile(r"\n\[Opening it costs about [^\n]*\]\Z")


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
            unloaded=node.path in view.outline.unloaded,
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


class Told:
    """What the model was last told of each section: by the render, or (in `since`) after it."""

    def __init__(self, render: PromptRendered, since: Mapping[str, str]) -> None:
        self.render = render
        self.since = since

    @cached_property
    def spans(self) -> dict[str, Span]:
        return {".".join(span.path): span for span in self.render.spans}

    def state(self, key: str) -> str:
        """What the model has of a section, in the words of `Run.told`."""
        if key in self.since:
            return self.since[key].partition(" ")[0]
        return self.spans[key].visibility if key in self.spans else "absent"

    def has_content(self, key: str, pieces: Sequence[str]) -> bool:
        """Whether the model was told this content, as `View.own_pieces` returns it."""
        if key in self.since:
            return self.since[key].endswith(_digest(pieces))
        span, text = self.spans[key], "".join(pieces)
        shown = _PRICE.sub("", self.render.text[span.start : span.end])
        # Numbers and levels of headings depend on the other sections.
        return _LEVEL.sub("", text, count=1) in (_NUMBER.sub("", shown, count=1), _LEVEL.sub("", shown, count=1))


def after_disclosure(view: View, read: Iterable[str], shut: Iterable[str]) -> dict[str, str]:
    """What the model knows after tools have returned the content of sections, or closed them."""
    learned = {".".join(path): _told(view, path, "summary") for path in filter(None, map(view.find, shut))}
    for path in filter(None, map(view.find, read)):
        for inner, shown in view.within(path):
            closed = shown is SectionVisibility.FULL and not view.is_open(inner)
            learned[".".join(inner)] = _told(view, inner, "read" if closed else shown)
    return learned


@dataclass(slots=True)
class PromptDifference:
    """How a prompt differs from what the model was told; new texts are by section key.

    New content of user sections, in pieces, is what the user says, not an instruction. `applying` are the sections that
    are newly open, with what is in them. `told` is what the model knows once it was told all this.
    """

    changed: dict[str, str] = field(default_factory=dict)
    user_changed: dict[str, list[str]] = field(default_factory=dict)
    applying: dict[str, str] = field(default_factory=dict)
    removed_sections: list[str] = field(default_factory=list)
    removed_tools: Sequence[str] = ()
    told: dict[str, str] = field(default_factory=dict)

    def user_pieces(self) -> list[str]:
        """What the user says anew."""
        return [piece for pieces in self.user_changed.values() for piece in ("\n\n", *pieces)]

    def note(self) -> str:
        """What the model reads, without the texts that begin to apply."""
        parts = []
        if self.changed:
            texts = "\n\n".join(self.changed.values())
            parts.append(f"The instructions have changed. From now on these sections read:\n\n{texts}")
        if self.removed_sections:
            parts.append(f"These sections no longer apply: {', '.join(self.removed_sections)}.")
        if self.removed_tools:
            parts.append(f"These tools are no longer available: {', '.join(self.removed_tools)}.")
        return "\n\n".join(parts)


def prompt_difference(
    told: Told, view: View, removed_tools: Sequence[str] = (), *, texts: bool = True, fresh: bool = False
) -> PromptDifference:
    """Compare what the model was told with today's prompt; without `texts`, only what is open, closed or gone.

    A `fresh` render is today's prompt, also where a section would render another text each time.
    """
    found = PromptDifference(removed_tools=removed_tools)
    same = fresh or (texts and view.renders(told.render.text))
    shown: set[str] = set()
    opened_until = 0
    for node, _ in view.layout.marks:
        key = node.key
        shown.add(key)
        if same and key not in told.since:
            continue
        was = told.state(key)
        now = "read" if was == "read" and not view.is_open(node.path) else str(view.own_visibility(node))
        if now == "full" and was not in ("full", "read") and node.index >= opened_until:
            opened_until = node.end
            if view.is_user(node.path):
                found.user_changed[key] = view.pieces_of(node.path)
            else:
                found.applying[key] = view.content(node.path)
        if node.index < opened_until:
            found.told[key] = _told(view, node.path, now)
        elif texts or was != now:
            _compare(found, told, view, node.path, now)
    for key in {**told.spans, **told.since}:
        if key in shown or (was := told.state(key)) == "absent":
            continue
        path = view.find(key)
        if path is None:
            found.removed_sections.append(key)
            found.told[key] = "absent "
        elif was == "full" and view.visibility_of(view.outline.by_path[path]) is SectionVisibility.SUMMARY:
            _compare(found, told, view, path, "summary")
        elif was == "read" and texts:
            _compare(found, told, view, path, was)
    return found


def _compare(found: PromptDifference, told: Told, view: View, path: SectionPath, now: str) -> None:
    """Add a section if the model was not told its text."""
    key = ".".join(path)
    was, pieces = told.state(key), _own_pieces(view, path, now)
    if was == "absent" or (was, now) == ("full", "summary") or not told.has_content(key, pieces):
        if view.is_user(path):
            found.user_changed[key] = pieces
        else:
            found.changed[key] = "".join(pieces)
    elif was == now:
        return
    found.told[key] = _told(view, path, now)


def _own_pieces(view: View, path: SectionPath, state: str) -> list[str]:
    return view.own_pieces(path, SectionVisibility.SUMMARY if state == "summary" else SectionVisibility.FULL)


def _told(view: View, path: SectionPath, state: str) -> str:
    """What to remember of a section that the model was just told, for `Run.told`."""
    return f"{state} {_digest(_own_pieces(view, path, state))}"


def _digest(pieces: Sequence[str]) -> str:
    media = (part.url or part.file_id if part.blob is None else part.blob.digest for part in media_in(pieces))
    return blake2b("".join((*pieces, *media)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


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


def told_media(view: View, pieces: Sequence[str]) -> dict[str, str]:
    """What to remember of rendered sections with media, of which the text alone says too little, for `Run.told`."""
    shown = view.visibility()
    return {".".join(path): _told(view, path, shown[path]) for path in _media_tokens(view, pieces, estimate_tokens)}


def _media_tokens(view: View, pieces: Sequence[str], count: CountMedia) -> Counter[SectionPath]:
    """The tokens of the media in user sections, by section; other sections cannot have media."""
    marks, first = view.layout.marks, view.layout.user_piece
    tokens: Counter[SectionPath] = Counter()
    for index, piece in enumerate(pieces[first:], start=first):
        if isinstance(piece, Placed):
            tokens[marks[bisect_right(marks, index, key=lambda mark: mark[1]) - 1][0].path] += count(piece.part)
    return tokens
