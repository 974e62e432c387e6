"""Rankers: find the sections that a text is about."""

from weakincentives.prompt.ranking.finder import CLEAR, WORD_FINDER, Found, SectionFinder, section_text
from weakincentives.prompt.ranking.lexical import (
    Index,
    LexicalIndex,
    LexicalRanker,
    Ranker,
    SectionText,
    bm25,
    sentences,
    terms,
)
from weakincentives.prompt.ranking.vectors import StaticRanker, VectorRanker

__all__ = [
    "CLEAR",
    "WORD_FINDER",
    "Found",
    "Index",
    "LexicalIndex",
    "LexicalRanker",
    "Ranker",
    "SectionFinder",
    "SectionText",
    "StaticRanker",
    "VectorRanker",
    "bm25",
    "section_text",
    "sentences",
    "terms",
]
