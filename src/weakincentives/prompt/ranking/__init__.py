"""Rankers: find the sections that a text is about."""

from weakincentives.prompt.ranking.lexical import Index, LexicalRanker, Ranker, SectionText

__all__ = ["Index", "LexicalRanker", "Ranker", "SectionText"]
