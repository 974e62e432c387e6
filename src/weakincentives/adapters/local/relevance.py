"""How well sections and sentences fit a question: by an embedding model, or by shared words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from weakincentives.adapters.local.embedding import Reading
from weakincentives.prompt.disclosure.ranking import LexicalIndex, SectionText, bm25

_CLAUSE = re.compile(r"[,;:.]\s+")


class Relevance(Protocol):
    """Scores of about 0 to 1, comparable only within one implementation.

    `enough` is a good score for a sentence; one below `answers` does not answer the question, and one below `least` has
    nothing to do with it. `fits` is a good score for the description of a tool. `reading` hears how many tokens have
    been read, and may raise an exception to stop.
    """

    name: str
    enough: float
    fits: float
    answers: float
    least: float

    def sections(self, question: str, sections: Sequence[SectionText], reading: Reading | None = None) -> list[float]:
        """A score for each section, by its summary, its text and its tools."""

    def sentences(self, question: str, texts: Sequence[str], reading: Reading | None = None) -> list[float]:
        """A score for each text."""


class WordRelevance:
    """Shared words alone."""

    name = "shared words"
    enough = fits = 0.45
    answers = least = 0.05

    def sections(self, question: str, sections: Sequence[SectionText], reading: Reading | None = None) -> list[float]:
        return word_index(tuple(sections)).scores(question)

    def sentences(self, question: str, texts: Sequence[str], reading: Reading | None = None) -> list[float]:
        return [score / (score + 5) for score in bm25(question, texts)]


def clauses(section: SectionText) -> list[str]:
    """The whole summary and its clauses, each with the title: the closest clause shows what a section is about."""
    pieces = [piece.strip(" .") for piece in _CLAUSE.split(section.summary)]
    return [f"{section.title}. {section.summary}", *(f"{section.title}: {piece}" for piece in pieces if piece)]


@lru_cache(maxsize=8)
def word_index(sections: tuple[SectionText, ...]) -> LexicalIndex:
    """An index of the words of these sections, which several questions share."""
    return LexicalIndex(sections)
