"""Finds the sections of a prompt that a text is about."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from weakincentives._base.display import shortened
from weakincentives._base.loops import LoopThread
from weakincentives.limits import Prices, TokenUsage
from weakincentives.prompt.disclosure.ranking.lexical import Index, LexicalRanker, Ranked, Ranker, SectionText, bm25
from weakincentives.prompt.outline import Node, Outline
from weakincentives.prompt.section import TemplateText
from weakincentives.prompt.visibility import ABSENT, FULL, SectionVisibility

MAX_SENTENCE = 240
# A score is clear if it is this many times the next.
CLEAR = 1.5


class SearchedView(Protocol):
    """The view of a prompt in which sections are looked for."""

    @property
    def outline(self) -> Outline: ...

    @property
    def seen(self) -> bytes: ...

    def visibility_of(self, node: Node) -> SectionVisibility: ...


class PaidRanking(list[tuple[int, float]]):
    """The ranking of an index that asks a model, with what that took."""

    def __init__(
        self, ranked: Iterable[tuple[int, float]], model: str, usage: TokenUsage, prices: Prices, seconds: float
    ) -> None:
        super().__init__(ranked)
        self.model, self.usage, self.prices, self.seconds = model, usage, prices, seconds


_PAID: ContextVar[list[PaidRanking] | None] = ContextVar("paid", default=None)


@contextmanager
def collecting(rankings: list[PaidRanking]) -> Iterator[None]:
    """Collect the rankings made in the block that have to be paid for."""
    token = _PAID.set(rankings)
    try:
        yield
    finally:
        _PAID.reset(token)


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

    @property
    def ranker(self) -> Ranker:
        return self._ranker

    @property
    def finds_misses(self) -> bool:
        """True if the ranker has an attribute of this name: it looks for sections that a run missed."""
        return bool(getattr(self._ranker, "finds_misses", False))

    def has_index(self, outline: Outline) -> bool:
        return outline in self._indexes

    def ranked(
        self, view: SearchedView, text: str, outline: Outline | None = None, *, limit: int | None = None
    ) -> Iterator[Found]:
        """The enabled sections related to the text, best first.

        Pass the template's `outline` if that is enough: one with sections added by a run needs its own index.
        """
        outline = outline or view.outline
        ranked = _settled(self._index(outline).rank(text, limit or len(view.outline.nodes)))
        if isinstance(ranked, PaidRanking) and (paid := _PAID.get()) is not None:
            paid.append(ranked)
        for place, score in ranked:
            node = view.outline.by_path[outline.nodes[place].path]
            visibility = view.visibility_of(node)
            if visibility is not SectionVisibility.ABSENT:
                yield Found(node, score, visibility is not SectionVisibility.FULL)

    def closed(self, view: SearchedView, text: str, limit: int) -> list[Found]:
        """The best closed sections."""
        wanted = limit + view.seen.count(FULL) + view.seen.count(ABSENT)
        return list(islice((found for found in self.ranked(view, text, limit=wanted) if found.closed), limit))

    def _index(self, outline: Outline) -> Index:
        with self._lock:
            index = self._indexes.get(outline)
            if index is None:
                sections = [section_text(node) for node in outline.nodes]
                by_field: Any = getattr(self._ranker, "index_sections", None)
                index = by_field(sections) if by_field else self._ranker.index([section.text for section in sections])
                self._indexes[outline] = index
            return index


def _settled(ranked: Ranked | Awaitable[Ranked]) -> Ranked:
    """A ranking; an async one is awaited in a thread, because this may run inside an event loop.

    All are awaited in the same loop, which the connections of a client belong to.
    """
    if not isinstance(ranked, Awaitable):
        return ranked

    async def awaited() -> Ranked:
        return await ranked

    return _loop(os.getpid()).submit(awaited()).result()


@cache
def _loop(process: int) -> LoopThread:
    return LoopThread("rankings")


def section_text(node: Node) -> SectionText:
    """The searchable text of a section before any params are bound."""
    return SectionText(
        key=node.key,
        title=node.section.title,
        summary=_literal(node.summary),
        body=_literal(node.text) if node.text is not None else _made_by_code(node),
        tools=tuple(f"{tool.name}: {tool.description}" for tool in node.all_tools),
    )


def section_headline(node: Node) -> str:
    """The title and summary of a section before any params are bound."""
    return SectionText(title=node.section.title, summary=_literal(node.summary)).headline


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
