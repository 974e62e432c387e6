"""Rankers: find the sections that a text is about."""

from weakincentives.prompt.ranking.finder import Found, SectionFinder
from weakincentives.prompt.ranking.lexical import Index, LexicalRanker, Ranker, SectionText
from weakincentives.prompt.ranking.vectors import StaticRanker, VectorRanker

__all__ = [
    "Found",
    "Index",
    "LexicalRanker",
    "Ranker",
    "SectionFinder",
    "SectionText",
    "StaticRanker",
    "VectorRanker",
]
