"""The difference between what the model has of each section and what its prompt now shows.

`Exposure`, a slice of the session, says where the text of each section stands. The functions here compute how it
changes when a prompt is rendered, when a tool returns the content of sections, and when the prompt itself has changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from weakincentives.content import Media
from weakincentives.prompt import RenderedPrompt, SectionPath, SectionVisibility, View, media_in
from weakincentives.runtime.events import Exposed, Exposure
from weakincentives.runtime.model import Model

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
HAS_TEXT = ("prompt", "conversation")
_LEVEL = re.compile(r"#+ ")
_NUMBER = re.compile(r"#+ [\d.]+\. ")
_PRICE = re.compile(r"\n\[Opening it costs about [^\n]*\]\Z")

Changes = dict[SectionPath, Exposed]


def after_render(rendered: RenderedPrompt[Any], before: Exposure, adapter: Model) -> Changes:
    """The changes made by a render; it keeps tool results, and the last user turn unless there is a new one."""
    view = rendered.view
    now: Changes = {}
    for path, known in before.items():
        said = not rendered.user_text and known.source in HAS_TEXT and is_user(view, path)
        if known.result is not None:
            now[path] = replace(known, prompt="").with_text(known.result[1], known.tokens)
        elif said:
            now[path] = known
        elif known.listed is not None:
            call_id, digest, tokens = known.listed
            now[path] = Exposed("summary", digest, call_id, tokens, listed=known.listed)
    for span, (node, pieces) in zip(rendered.spans, view.layout.by_section(rendered.pieces), strict=True):
        known, media = before[span.path], media_in(pieces)
        shown = rendered.text[span.start : span.end]
        plain = _PRICE.sub("", shown)
        digest = _digest(_NUMBER.sub("", plain, count=1) if node.section.heading else plain, media)
        if span.visibility is FULL:
            tokens = adapter.count_tokens(shown) + sum(map(adapter.count_media, media))
            now[span.path] = replace(known, prompt=digest).with_text(digest, tokens)
        elif span.path not in now or now[span.path].source == "summary":
            call_id, tokens = now.get(span.path, known).call_id, adapter.count_tokens(shown)
            now[span.path] = Exposed("summary", digest, call_id, tokens, listed=known.listed)
    gone = {path: Exposed("none") for path in before if path not in now}
    return {**gone, **{path: exposed for path, exposed in now.items() if before[path] != exposed}}


def after_result(
    view: View, before: Exposure, content: Iterable[SectionPath], call_id: str, adapter: Model
) -> tuple[Changes, dict[SectionPath, SectionVisibility]]:
    """The changes when a tool returns the content of these sections, and the visibility of each section in it."""
    changes: Changes = {}
    shown: dict[SectionPath, SectionVisibility] = {}
    for path in content:
        opened = view.opened({path: FULL})
        for node in view.outline.subtree(view.outline.by_path[path]):
            inner, visibility = node.path, opened.visibility_of(node)
            if visibility not in (FULL, SUMMARY):
                continue
            shown[inner] = FULL if view.is_open(inner) else SUMMARY
            exposed = _exposed(view, inner, visibility, call_id, adapter)
            known = changes.get(inner, before[inner])
            if visibility is FULL:
                known = replace(known, result=(call_id, exposed.digest))
                changes[inner] = known.with_text(exposed.digest, exposed.tokens)
            else:
                changes[inner] = replace(known if known.source in HAS_TEXT else exposed, listed=exposed.listed)
    return changes, shown


def after_search(view: View, before: Exposure, found: Iterable[str], call_id: str, adapter: Model) -> Changes:
    """The changes made by a search that lists these sections."""
    paths = (path for key in found if (path := view.find(key)) is not None and path not in before)
    return {path: _exposed(view, path, SUMMARY, call_id, adapter) for path in paths}


def after_compaction(
    view: View, before: Exposure, gone: Collection[str], adapter: Model, *, notices: bool, user_turn: bool
) -> Changes:
    """The changes when the results of the calls `gone` are no longer sent; notices and the user's turn may go too."""
    changes: Changes = {}
    for path, known in before.items():
        left = replace(
            known,
            result=None if known.result is not None and known.result[0] in gone else known.result,
            listed=None if known.listed is not None and known.listed[0] in gone else known.listed,
            prompt="" if user_turn and is_user(view, path) else known.prompt,
        )
        elsewhere = known.call_id in gone if known.call_id else notices and known.source == "conversation"
        if elsewhere or (known.source == "prompt" and left.prompt != known.digest):
            if left.prompt:
                left = left.with_text(left.prompt, known.tokens)
            elif left.listed is not None:
                left = Exposed("summary", left.listed[1], left.listed[0], left.listed[2], listed=left.listed)
            elif path in view.visibility() and view.outline.by_path[path].summary is not None:
                left = _exposed(view, path, SUMMARY, "", adapter)
            else:
                left = Exposed("none")
        if left != known:
            changes[path] = left
    return changes


@dataclass(slots=True)
class PromptDifference:
    """The difference between a prompt and what the model has; new texts are by section key.

    The changed text of user sections, in pieces, belongs to the user's turn; it is not an instruction. `applying` are
    the sections that are newly open, with their content. `exposed` is what the model has once it was sent all this.
    """

    changed: dict[str, str] = field(default_factory=dict)
    user_changed: dict[str, list[str]] = field(default_factory=dict)
    applying: dict[str, str] = field(default_factory=dict)
    removed_sections: list[str] = field(default_factory=list)
    removed_tools: Sequence[str] = ()
    exposed: Changes = field(default_factory=dict)

    def user_pieces(self) -> list[str]:
        """The changed text of user sections, in pieces."""
        return [piece for pieces in self.user_changed.values() for piece in ("\n\n", *pieces)]

    def note(self) -> str:
        """The text for the model, without the sections that begin to apply."""
        parts = []
        if self.changed:
            texts = "\n\n".join(self.changed.values())
            parts.append(f"The instructions have changed. From now on these sections read:\n\n{texts}")
        if self.removed_sections:
            parts.append(f"These sections no longer apply: {', '.join(self.removed_sections)}.")
        if self.removed_tools:
            parts.append(f"These tools are no longer available: {', '.join(self.removed_tools)}.")
        return "\n\n".join(parts)


@dataclass(slots=True)
class Comparison:
    """Compares a prompt with what the model has of it.

    `shown` is what each section showed when the model was last informed; texts in `trusted` places are not compared.
    After a restart, tool results with an older text follow the prompt's own.
    """

    exposure: Exposure
    shown: Mapping[SectionPath, SectionVisibility]
    view: View
    adapter: Model
    trusted: Collection[str] = ()
    restarted: bool = False
    found: PromptDifference = field(default_factory=PromptDifference)

    def difference(self) -> PromptDifference:
        view, now = self.view, self.view.visibility()
        opened_until = 0
        for node in view.shown:
            path, shows = node.path, now[node.path]
            known, before = self.exposure[path], self.shown.get(path)
            has_text = known.source in HAS_TEXT
            # Text that was sent by the loop, and then closed or removed, is sent again.
            lapsed = before is not FULL and not (known.source == "conversation" and known.call_id)
            if shows is FULL and node.index >= opened_until and (not has_text or lapsed):
                opened_until = node.end
                self._apply(path)
            if node.index < opened_until:
                self._expose(path, shows)
            elif shows is SUMMARY and (before is None or before is FULL):
                self._report(path, SUMMARY)
                if has_text:
                    # A text that has changed as well takes the place of the summary.
                    self._compare(path, FULL)
            elif shows is FULL or has_text:
                self._compare(path, FULL)
            else:
                self._compare(path, SUMMARY)
        for path in self.shown:
            if path not in now:
                self._closed_or_gone(path)
        for path, known in self.exposure.items():
            if path not in now and known.source in HAS_TEXT and view.find(".".join(path)) is not None:
                self._compare(path, FULL)
        return self.found

    def _closed_or_gone(self, path: SectionPath) -> None:
        if self.view.find(".".join(path)) is None:
            self.found.removed_sections.append(".".join(path))
        elif self.shown[path] is FULL and self.view.visibility_of(self.view.outline.by_path[path]) is SUMMARY:
            self._report(path, SUMMARY)

    def _apply(self, path: SectionPath) -> None:
        if self.view.is_user(path):
            self.found.user_changed[".".join(path)] = self.view.pieces_of(path)
        else:
            self.found.applying[".".join(path)] = self.view.content(path)

    def _compare(self, path: SectionPath, visibility: SectionVisibility) -> None:
        known = self.exposure[path]
        outdated = self.restarted and known.source == "prompt" and known.result and known.result[1] != known.digest
        if outdated or (known.source not in self.trusted and known.digest != digest_of(self.view, path, visibility)):
            self._report(path, visibility)

    def _report(self, path: SectionPath, visibility: SectionVisibility) -> None:
        pieces = self.view.own_pieces(path, visibility)
        if self.view.is_user(path):
            self.found.user_changed[".".join(path)] = pieces
        else:
            self.found.changed[".".join(path)] = "".join(pieces)
        self._expose(path, visibility)

    def _expose(self, path: SectionPath, visibility: SectionVisibility) -> None:
        known, exposed = self.exposure[path], _exposed(self.view, path, visibility, "", self.adapter)
        if visibility is FULL:
            self.found.exposed[path] = known.with_text(exposed.digest, exposed.tokens)
        elif known.source not in HAS_TEXT:
            self.found.exposed[path] = exposed


def is_user(view: View, path: SectionPath) -> bool:
    """True for a user section, enabled or not."""
    return path in view.outline.by_path and view.is_user(path)


def digest_of(view: View, path: SectionPath, visibility: SectionVisibility) -> str:
    """A digest of a section's own text, which does not depend on its number or on other sections."""
    pieces = view.own_pieces(path, visibility)
    text = "".join(pieces)
    headed = view.outline.by_path[path].section.heading
    return _digest(_LEVEL.sub("", text, count=1) if headed else text, media_in(pieces))


def _exposed(view: View, path: SectionPath, visibility: SectionVisibility, call_id: str, adapter: Model) -> Exposed:
    pieces, digest = view.own_pieces(path, visibility), digest_of(view, path, visibility)
    tokens = adapter.count_tokens("".join(pieces)) + sum(map(adapter.count_media, media_in(pieces)))
    if visibility is FULL:
        return Exposed("conversation", digest, call_id, tokens)
    return Exposed("summary", digest, call_id, tokens, listed=(call_id, digest, tokens) if call_id else None)


def _digest(text: str, media: Iterable[Media]) -> str:
    names = (part.url or part.file_id if part.blob is None else part.blob.digest for part in media)
    return blake2b("".join((text, *names)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
