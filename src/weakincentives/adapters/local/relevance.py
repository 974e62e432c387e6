"""How well sections and sentences fit a question: by an embedding model, else by shared words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Protocol

from weakincentives.adapters.local.outlook import Choice, Outlook
from weakincentives.adapters.local.text import bm25, clauses
from weakincentives.adapters.local.vectors import Vectors

# How much a shared rare word adds to the similarity of a sentence; measured in bench/local.
WORD_WEIGHT = 0.05
# Of very long texts only the sentences with the most shared words are compared by meaning.
MAX_COMPARED = 400
MAX_SHOWN = 5


class Relevance(Protocol):
    """Scores between about 0 and 1, comparable within one way of scoring; `enough` is a good match."""

    name: str
    enough: float

    def sections(self, question: str, choices: Sequence[tuple[str, str]]) -> list[float]:
        """A score for each (title, summary)."""

    def sentences(self, question: str, texts: Sequence[str]) -> list[float]:
        """A score for each text."""


class WordRelevance:
    """Shared words alone."""

    name = "shared words"
    enough = 0.45

    def sections(self, question: str, choices: Sequence[tuple[str, str]]) -> list[float]:
        return self.sentences(question, [f"{title} {summary}" for title, summary in choices])

    def sentences(self, question: str, texts: Sequence[str]) -> list[float]:
        return [score / (score + 5) for score in bm25(question, texts)]


class VectorRelevance:
    """Similarity of meaning; for sentences, shared words count a little as well."""

    enough = 0.45

    def __init__(self, vectors: Vectors, name: str) -> None:
        self.name = name
        self._vectors = vectors

    def sections(self, question: str, choices: Sequence[tuple[str, str]]) -> list[float]:
        asked = self._vectors.once([question])[0]
        pieces = [clauses(title, summary) for title, summary in choices]
        vectors = iter(self._vectors.of([text for texts in pieces for text in texts]))
        return [max(sum(map(mul, asked, next(vectors))) for _ in texts) for texts in pieces]

    def sentences(self, question: str, texts: Sequence[str]) -> list[float]:
        asked = self._vectors.once([question])[0]
        shared = bm25(question, texts)
        near = [0.0] * len(texts)
        closest = sorted(range(len(texts)), key=lambda index: -shared[index])[:MAX_COMPARED]
        for index, vector in zip(closest, self._vectors.of([texts[index] for index in closest]), strict=True):
            near[index] = sum(map(mul, asked, vector))
        return [score + WORD_WEIGHT * words for score, words in zip(near, shared, strict=True)]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Choices with their scores, the best first."""

    by: str
    places: Sequence[tuple[float, Choice]]

    @property
    def choices(self) -> list[Choice]:
        return [choice for _, choice in self.places]

    def item(self) -> str:
        """The ranking as it stands in the conversation, for whoever wants to know why."""
        best = [{"key": choice.key, "score": round(score, 3)} for score, choice in self.places[:MAX_SHOWN]]
        return json.dumps({"type": "ranking", "by": self.by, "of": len(self.places), "best": best})


def ranked(outlook: Outlook, relevance: Relevance) -> Ranking:
    """Rank what can be opened now."""
    pairs = [(choice.title, choice.summary) for choice in outlook.choices]
    scores = relevance.sections(outlook.question, pairs)
    return Ranking(relevance.name, sorted(zip(scores, outlook.choices, strict=True), key=lambda place: -place[0]))
