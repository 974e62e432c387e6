"""Finds the sections of a prompt that a text is about."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from weakincentives._display import shortened
from weakincentives.prompt.outline import Node, Outline
from weakincentives.prompt.ranking.lexical import Index, LexicalRanker, Ranker, SectionText, bm25
from weakincentives.prompt.section import TemplateText
from weakincentives.prompt.view import View
from weakincentives.prompt.visibility import ABSENT, FULL, SectionVisibility

MAX_SENTENCE = 240
# A score is clear if it is this many times the next.
CLEAR = 1.5


@dataclass(frozen=True, slots=True)
class Found:
    """A section with its score; `closed` if the model does not see its text."""

    node: Node
    score: float
    closed: bool


class SectionFinder:
    """Ranks the sections of prompts; a template's index is built on first use and lives as long as the template."""

    def __init__(self, ranker: Ranker | None = None) -> None:
        self._ranker: Ranker = ranker or LexicalRanker()
        self._indexes: WeakKeyDictionary[Outline, Index] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def has_index(self, outline: Outline) -> bool:
        return outline in self._indexes

    def ranked(self, view: View, text: str, outline: Outline | None = None) -> Iterator[Found]:
        """Every enabled section related to the text, best first.

        Pass the template's `outline` if that is enough: one with sections added by a run needs its own index.
        """
        yield from self._found(view, text, len(view.outline.nodes), outline or view.outline)

    def closed(self, view: View, text: str, limit: int) -> list[Found]:
        """The best closed sections."""
        wanted = limit + view.state.seen.count(FULL) + view.state.seen.count(ABSENT)
        closed = (found for found in self._found(view, text, wanted, view.outline) if found.closed)
        return [found for found, _ in zip(closed, range(limit), strict=False)]

    def _found(self, view: View, text: str, limit: int, outline: Outline) -> Iterator[Found]:
        for place, score in self._index(outline).rank(text, limit):
            node = view.outline.by_path[outline.nodes[place].path]
            visibility = view.visibility_of(node)
            if visibility is not SectionVisibility.ABSENT:
                yield Found(node, score, visibility is not SectionVisibility.FULL)

    def _index(self, outline: Outline) -> Index:
        with self._lock:
            index = self._indexes.get(outline)
            if index is None:
                sections = [section_text(node) for node in outline.nodes]
                by_field: Any = getattr(self._ranker, "index_sections", None)
                index = by_field(sections) if by_field else self._ranker.index([section.text for section in sections])
                self._indexes[outline] = index
            return index


def section_text(node: Node) -> SectionText:
    """The searchable text of a section before any params are bound."""
    return SectionText(
        key=node.key,
        title=node.section.title,
        summary=_literal(node.summary),
        body=_literal(node.text) if node.text is not None else _made_by_code(node),
        tools=tuple(f"{tool.name}: {tool.description}" for tool in node.all_tools),
    )


WORD_FINDER = SectionFinder()
"""The finder that compares words; shared, so that a template is indexed once."""


def matching_sentence(node: Node, text: str) -> str:
    """The sentence or tool that shares most with a text; the first one if none shares anything."""
    pieces = section_text(node).pieces
    scores = bm25(text, pieces)
    best = max(range(len(pieces)), key=scores.__getitem__, default=0)
    return shortened(" ".join(pieces[best].split()) if pieces else node.section.title, MAX_SENTENCE)


def _literal(text: TemplateText | None) -> str:
    return "" if text is None else " ".join(literal for literal in text.literals if literal)


def _made_by_code(node: Node) -> str:
    """The body of a section without params; one that has params, or cannot be rendered now, has only its summary."""
    if node.section.params_type is not None or node.is_late:
        return ""
    try:
        return str(node.section.render_body(None))
    except Exception:
        return ""
