"""How well sections and sentences fit a question: by an embedding model, else by shared words."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Protocol

from weakincentives.adapters.local.vectors import Vectors
from weakincentives.prompt.ranking import LexicalIndex, SectionText, bm25, sentences

# How much shared words add to the similarity of a section or a sentence; measured in bench/local.
SECTION_WORDS = 0.15
SENTENCE_WORDS = 0.05
# Only the sections that are best by title, summary and words are compared by their text.
CANDIDATES = 8
# Of very long texts only the sentences with the most shared words are compared by meaning.
MAX_COMPARED = 400
MAX_SHOWN = 5
_CLAUSE = re.compile(r"[,;:.]\s+")


class Relevance(Protocol):
    """Scores between about 0 and 1, comparable within one way of scoring; `enough` is a good match for a sentence."""

    name: str
    enough: float

    def sections(self, question: str, sections: Sequence[SectionText]) -> list[float]:
        """A score for each section, by its summary, its text and its tools."""

    def sentences(self, question: str, texts: Sequence[str]) -> list[float]:
        """A score for each text."""


class WordRelevance:
    """Shared words alone."""

    name = "shared words"
    enough = 0.45

    def sections(self, question: str, sections: Sequence[SectionText]) -> list[float]:
        return _index(tuple(sections)).scores(question)

    def sentences(self, question: str, texts: Sequence[str]) -> list[float]:
        return [score / (score + 5) for score in bm25(question, texts)]


class VectorRelevance:
    """Similarity of meaning, to which shared words add a little."""

    enough = 0.45

    def __init__(self, vectors: Vectors, name: str) -> None:
        self.name = name
        self._vectors = vectors

    def sections(self, question: str, sections: Sequence[SectionText]) -> list[float]:
        asked = self._vectors.once([question])[0]
        shared = _index(tuple(sections)).scores(question)
        summaries = self._near(asked, [_clauses(section) for section in sections])
        scores = [near[0] / 2 + SECTION_WORDS * words for near, words in zip(summaries, shared, strict=True)]
        closest = sorted(range(len(scores)), key=lambda place: -scores[place])[:CANDIDATES]
        paragraphs = self._near(asked, [_paragraphs(sections[place]) for place in closest])
        pieces = self._near(asked, [_pieces(sections[place]) for place in closest])
        for place, around, near in zip(closest, paragraphs, pieces, strict=True):
            scores[place] += around[0] + sum(near[:2]) / 4
        return [score / (2 + SECTION_WORDS) for score in scores]

    def sentences(self, question: str, texts: Sequence[str]) -> list[float]:
        asked = self._vectors.once([question])[0]
        shared = bm25(question, texts)
        near = [0.0] * len(texts)
        closest = sorted(range(len(texts)), key=lambda index: -shared[index])[:MAX_COMPARED]
        for index, vector in zip(closest, self._vectors.of([texts[index] for index in closest]), strict=True):
            near[index] = sum(map(mul, asked, vector))
        return [score + SENTENCE_WORDS * words for score, words in zip(near, shared, strict=True)]

    def _near(self, asked: Sequence[float], texts: Sequence[Sequence[str]]) -> list[list[float]]:
        """The similarities of each group of texts, the closest first; at least two."""
        vectors = iter(self._vectors.of([text for group in texts for text in group]))
        scores = [[sum(map(mul, asked, next(vectors))) for _ in group] for group in texts]
        return [sorted([*group, 0.0, 0.0], reverse=True) for group in scores]


class Ranking:
    """Sections with their scores, the best first."""

    def __init__(self, question: str, sections: Sequence[SectionText], relevance: Relevance) -> None:
        scores = relevance.sections(question, sections)
        self.places = sorted(zip(scores, sections, strict=True), key=lambda place: -place[0])
        self._by = relevance.name

    def item(self) -> str:
        """The ranking as it stands in the conversation, for whoever wants to know why."""
        best = [{"key": section.key, "score": round(score, 3)} for score, section in self.places[:MAX_SHOWN]]
        return json.dumps({"type": "ranking", "by": self._by, "of": len(self.places), "best": best})


def _clauses(section: SectionText) -> list[str]:
    """A summary as a whole and in pieces, each under its title: the closest piece tells what a section is about."""
    pieces = [piece.strip(" .") for piece in _CLAUSE.split(section.summary)]
    return [f"{section.title}. {section.summary}", *(f"{section.title}: {piece}" for piece in pieces if piece)]


def _paragraphs(section: SectionText) -> list[str]:
    return [f"{section.title}: {text}" for text in re.split(r"\n\s*\n", section.body) if text.strip()]


def _pieces(section: SectionText) -> list[str]:
    return [*(f"{section.title}: {sentence}" for sentence in sentences(section.body)), *section.tools]


@lru_cache(maxsize=8)
def _index(sections: tuple[SectionText, ...]) -> LexicalIndex:
    return LexicalIndex(sections)
