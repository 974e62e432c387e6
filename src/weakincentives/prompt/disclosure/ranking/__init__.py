"""Rankers: find the sections that a text is about."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import public_names
from weakincentives.prompt.disclosure.ranking.finder import (
    CLEAR as CLEAR,
    WORD_FINDER as WORD_FINDER,
    Found as Found,
    PaidRanking as PaidRanking,
    SectionFinder as SectionFinder,
    collecting as collecting,
    section_headline as section_headline,
    section_text as section_text,
)
from weakincentives.prompt.disclosure.ranking.lexical import (
    Index as Index,
    LexicalIndex as LexicalIndex,
    LexicalRanker as LexicalRanker,
    Ranker as Ranker,
    SectionText as SectionText,
    bm25 as bm25,
    sentences as sentences,
    terms as terms,
)
from weakincentives.prompt.disclosure.ranking.vectors import StaticRanker as StaticRanker, VectorRanker as VectorRanker

if not TYPE_CHECKING:
    __all__ = public_names(globals())
