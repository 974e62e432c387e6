"""The built-in ranker: shared words, in any script and without a package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain, pairwise
from typing import Protocol

from weakincentives.prompt.ranking.text import Bm25, sentences, terms


@dataclass(frozen=True, slots=True)
class SectionText:
    """The searchable parts of a section; `tools` has a line for each tool: its name and its description."""

    key: str = ""
    title: str = ""
    summary: str = ""
    body: str = ""
    tools: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        return f"{self.title}. {self.summary}" if self.summary and self.summary != self.title else self.title

    @property
    def text(self) -> str:
        """All parts as one text."""
        return "\n".join(part for part in (self.headline, self.body, *self.tools) if part)

    @property
    def pieces(self) -> list[str]:
        """What can be quoted as a match: the summary, a sentence, or a tool."""
        return [piece for piece in (self.summary or self.title, *sentences(self.body), *self.tools) if piece]


class Index(Protocol):
    """Sections that can be searched."""

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        """The best `limit` sections, best first: the position of each in the index, with its positive score."""
        ...


class Ranker(Protocol):
    """Builds an index of a template's sections, once.

    A ranker that also has `index_sections(sections)` receives a `SectionText` for each instead of a single text.
    """

    def index(self, texts: Sequence[str]) -> Index: ...


class LexicalRanker:
    """Ranks by three lists of BM25 scores: whole sections, titles with summaries, and the best sentence or tool.

    The three have equal weight, each scaled to its best section.
    """

    def index(self, texts: Sequence[str]) -> LexicalIndex:
        return self.index_sections([SectionText(body=text) for text in texts])

    def index_sections(self, sections: Sequence[SectionText]) -> LexicalIndex:
        return LexicalIndex(sections)


class LexicalIndex:
    """An index of shared words."""

    def __init__(self, sections: Sequence[SectionText]) -> None:
        known: dict[str, str] = {}

        def terms_of(text: str) -> list[str]:
            return [known.setdefault(term, term) for term in terms(text)]

        headlines, whole = [], []
        pieces: list[list[str]] = []
        starts: list[int] = []
        for section in sections:
            title, headline = terms_of(section.title), terms_of(section.headline)
            others = [terms_of(piece) for piece in (*sentences(section.body), *section.tools)]
            headlines.append(headline)
            whole.append([*headline, *chain.from_iterable(others)])
            starts.append(len(pieces))
            pieces += [headline, *([*title, *other] for other in others)]
        self._headlines, self._whole, self._pieces = Bm25(headlines), Bm25(whole), Bm25(pieces)
        self._bounds = list(pairwise([*starts, len(pieces)]))

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        return best(self.scores(query), limit)

    def scores(self, query: str) -> list[float]:
        """A score between 0 and 1 for every section."""
        question = Counter(terms(query))
        weights = self._whole.weights(question)
        by_piece = self._pieces.scores(weights)
        pieces = [max(by_piece[start:end]) for start, end in self._bounds]
        lists = (self._whole.scores(weights), self._headlines.scores(self._headlines.weights(question)), pieces)
        return [sum(scores) / 3 for scores in zip(*map(in_proportion, lists), strict=True)]


def in_proportion(scores: Sequence[float]) -> list[float]:
    """The scores as shares of the best."""
    most = max(scores, default=0.0)
    return [score / most for score in scores] if most > 0 else list(scores)


def best(scores: Sequence[float], limit: int) -> list[tuple[int, float]]:
    """The positions of the highest scores above 0; ties keep their order."""
    found = nlargest(limit, ((score, -place) for place, score in enumerate(scores) if score > 0))
    return [(-place, score) for score, place in found]
