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


# The weights of the best sentence or tool and of title and summary, beside 1 for the whole section, and how BM25
# compares these short texts. Chosen by cross-validation in bench/fusion.py, among those with which rare words win.
PIECE, HEADLINE = 3.0, 0.5
SHORT_SATURATION, SHORT_LENGTH = 5.0, 0.5


class LexicalRanker:
    """Ranks by sums of BM25 scores: of the whole section, of its best sentence or tool, and of title and summary.

    A word weighs the same in all three, by how many sections have it, and none is scaled to its best section. So a word
    that only one section has outweighs common words in the titles of others.
    """

    def index(self, texts: Sequence[str]) -> LexicalIndex:
        return self.index_sections([SectionText(body=text) for text in texts])

    def index_sections(self, sections: Sequence[SectionText]) -> LexicalIndex:
        return LexicalIndex(sections)


class LexicalIndex:
    """An index of shared words."""

    def __init__(
        self, sections: Sequence[SectionText], saturation: float = SHORT_SATURATION, length: float = SHORT_LENGTH
    ) -> None:
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
        self._whole = Bm25(whole)
        self._pieces = Bm25(pieces, saturation, length)
        self._headlines = Bm25(headlines, saturation, length)
        self._bounds = list(pairwise([*starts, len(pieces)]))

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        return best(self.scores(query), limit)

    def scores(self, query: str) -> list[float]:
        """A score for every section, as a share of the best."""
        parts = zip(*self.parts(query), strict=True)
        return in_proportion([whole + PIECE * piece + HEADLINE * headline for whole, piece, headline in parts])

    def alone(self, query: str) -> set[int]:
        """The sections that have a word of the query which no other has."""
        return self._whole.alone(terms(query))

    def parts(self, query: str) -> tuple[list[float], list[float], list[float]]:
        """For every section, the scores of the whole, of its best sentence or tool, and of title and summary."""
        weights = self._whole.weights(Counter(terms(query)))
        by_piece = self._pieces.scores(weights)
        pieces = [max(by_piece[start:end]) for start, end in self._bounds]
        return self._whole.scores(weights), pieces, self._headlines.scores(weights)


def in_proportion(scores: Sequence[float]) -> list[float]:
    """The scores as shares of the best."""
    most = max(scores, default=0.0)
    return [score / most for score in scores] if most > 0 else list(scores)


def best(scores: Sequence[float], limit: int) -> list[tuple[int, float]]:
    """The positions of the highest scores above 0; ties keep their order."""
    found = nlargest(limit, ((score, -place) for place, score in enumerate(scores) if score > 0))
    return [(-place, score) for score, place in found]
