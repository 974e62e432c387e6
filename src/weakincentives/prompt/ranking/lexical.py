"""The built-in ranker: shared words, in any script and without a package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain
from typing import Protocol

from weakincentives.prompt.ranking.text import Bm25, saturated, sentences, terms

# Only the sections that are best by whole and by summary are compared sentence by sentence.
CANDIDATES = 100


@dataclass(frozen=True, slots=True)
class SectionText:
    """What of a section is searched; `tools` has a line for each tool: its name and its description."""

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
        """All of it as one text."""
        return "\n".join(part for part in (self.headline, self.body, *self.tools) if part)

    @property
    def pieces(self) -> list[str]:
        """What a match can be shown by: the summary, a sentence, or a tool."""
        return [piece for piece in (self.summary or self.title, *sentences(self.body), *self.tools) if piece]


class Index(Protocol):
    """Sections that can be searched."""

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        """The best `limit` sections, best first, by their place in what was indexed, with a positive score each."""
        ...


class Ranker(Protocol):
    """Makes an index of the sections of a template, once.

    A ranker that also has `index_sections(sections)` gets a `SectionText` for each in place of one text.
    """

    def index(self, texts: Sequence[str]) -> Index: ...


class LexicalRanker:
    """Ranks by three lists of BM25 scores: whole sections, titles with summaries, and the best sentence or tool.

    The three count the same, each in proportion to its best section.
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
        self._pieces: list[list[list[str]]] = []
        for section in sections:
            title, headline = terms_of(section.title), terms_of(section.headline)
            others = [terms_of(piece) for piece in (*sentences(section.body), *section.tools)]
            headlines.append(headline)
            whole.append([*headline, *chain.from_iterable(others)])
            self._pieces.append([headline, *([*title, *other] for other in others)])
        self._headlines, self._whole = Bm25(headlines), Bm25(whole)
        lengths = [len(piece) for pieces in self._pieces for piece in pieces]
        self._average = sum(lengths) / len(lengths) if any(lengths) else 1.0

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        return best(self.scores(query), limit)

    def scores(self, query: str) -> list[float]:
        """A score between 0 and 1 for every section."""
        question = Counter(terms(query))
        whole, headlines = self._whole.scores(question), self._headlines.scores(question)
        scores = [a + b for a, b in zip(in_proportion(whole), in_proportion(headlines), strict=True)]
        weights = {term: count * self._whole.rarity(term) for term, count in question.items()}
        pieces = [0.0] * len(scores)
        for place, _ in best(scores, CANDIDATES):
            pieces[place] = max(self._score(piece, weights) for piece in self._pieces[place])
        return [(score + piece) / 3 for score, piece in zip(scores, in_proportion(pieces), strict=True)]

    def _score(self, piece: Sequence[str], weights: Mapping[str, float]) -> float:
        shared = Counter(term for term in piece if term in weights)
        length = len(piece) / self._average
        return sum(weights[term] * saturated(count, length) for term, count in shared.items())


def in_proportion(scores: Sequence[float]) -> list[float]:
    """The scores as shares of the best."""
    most = max(scores, default=0.0)
    return [score / most for score in scores] if most > 0 else list(scores)


def best(scores: Sequence[float], limit: int) -> list[tuple[int, float]]:
    """The places of the highest scores above 0, the first of equals first."""
    found = nlargest(limit, ((score, -place) for place, score in enumerate(scores) if score > 0))
    return [(-place, score) for score, place in found]
