"""Rankers: find the sections that a text is about."""

from weakincentives.prompt.ranking.lexical import Index, LexicalRanker, Ranker, SectionText
from weakincentives.prompt.ranking.vectors import StaticRanker, VectorRanker

__all__ = ["Index", "LexicalRanker", "Ranker", "SectionText", "StaticRanker", "VectorRanker"]
