"""Plain rankings to compare with query by query, written as the published figures of `bench finding` were made.

BM25 (k1 1.2, b 0.75) over English words without their endings, reciprocal rank fusion of four such lists, and of that
with two lists of vectors: the clauses of summaries, and the best sentence or tool.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate

from weakincentives.prompt.disclosure.ranking import SectionText, VectorRanker, sentences

_WORD = re.compile(r"[a-z0-9]+")
_ENDINGS = ("ations", "ation", "ings", "ing", "ies", "ied", "ed", "es", "s", "ly")
_COMMON = frozenset(
    _WORD.findall(
        "a an the of to in on for and or is are was be it its my i me you your do does did can could will would what "
        "how when where which who with by from at as that this there have has had not no if so"
    )
)
Analyse = Callable[[str], list[str]]
Scores = Callable[[str], list[float]]


class Baseline:
    """A ranking made of one or more lists of BM25 scores, fused by rank."""

    def __init__(self, name: str, *lists: Callable[[Sequence[SectionText]], Scores]) -> None:
        self.name = name
        self._lists = lists

    def index_sections(self, sections: Sequence[SectionText]) -> _Index:
        return _Index([make(sections) for make in self._lists])


class _Index:
    def __init__(self, lists: Sequence[Scores]) -> None:
        self._lists = lists

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        total: dict[int, float] = {}
        for scores in self._lists:
            found = scores(query)
            for rank, place in enumerate(sorted(range(len(found)), key=lambda place: -found[place])):
                total[place] = total.get(place, 0.0) + 1 / (61 + rank)
        return sorted(total.items(), key=lambda found: -found[1])[:limit]


SUMMARIES = "BM25 summaries"
LEXICAL = "lexical fusion of four"


def lexical_baselines() -> list[Baseline]:
    return [Baseline(SUMMARIES, _summaries), Baseline(LEXICAL, *_LEXICAL)]


def vector_baselines(ranker: VectorRanker, name: str) -> list[Baseline]:
    """What the README of the data compares with for the same vectors."""
    vectors = cache(lambda text: tuple(ranker.embed_query([text])[0]))
    summaries = partial(_nearest, ranker, vectors, _clauses)
    pieces = partial(_nearest, ranker, vectors, _parts)
    return [Baseline(f"{name} summaries", summaries), Baseline(f"lexical + {name}", _fused, summaries, pieces)]


def _summaries(sections: Sequence[SectionText]) -> Scores:
    return _bm25([section.headline for section in sections], words)


def _everything(sections: Sequence[SectionText]) -> Scores:
    return _bm25([section.text for section in sections], words)


def _grams(sections: Sequence[SectionText]) -> Scores:
    return _bm25([section.text for section in sections], grams)


def _fused(sections: Sequence[SectionText]) -> Scores:
    """The four lexical lists as one."""
    index = _Index([make(sections) for make in _LEXICAL])

    def scores(query: str) -> list[float]:
        found = dict(index.rank(query, len(sections)))
        return [found[place] for place in range(len(sections))]

    return scores


def _nearest(
    ranker: VectorRanker,
    vectors: Callable[[str], Sequence[float]],
    divide: Callable[[SectionText], list[str]],
    sections: Sequence[SectionText],
) -> Scores:
    import numpy

    pieces = [divide(section) for section in sections]
    flat = [piece for found in pieces for piece in found]
    batches = [ranker.embed(flat[at : at + 64]) for at in range(0, len(flat), 64)]
    known = numpy.concatenate([numpy.asarray(batch, numpy.float32) for batch in batches])
    known /= numpy.maximum(numpy.linalg.norm(known, axis=1, keepdims=True), 1e-9)
    starts = [0, *accumulate(map(len, pieces))][:-1]

    def scores(query: str) -> list[float]:
        near = known @ numpy.asarray(vectors(query), numpy.float32)
        return [float(score) for score in numpy.maximum.reduceat(near, starts)]

    return scores


def _clauses(section: SectionText) -> list[str]:
    pieces = [piece.strip(" .") for piece in re.split(r"[,;:.]\s+", section.summary)]
    return [f"{section.title}. {section.summary}", *(f"{section.title}: {piece}" for piece in pieces if piece)]


def _parts(section: SectionText) -> list[str]:
    return [section.headline, *sentences(section.body), *section.tools]


def _pieces(sections: Sequence[SectionText]) -> Scores:
    """The best sentence or tool of each section."""
    pieces = [_parts(section) for section in sections]
    scores = _bm25([piece for found in pieces for piece in found], words)

    def best(query: str) -> list[float]:
        found = iter(scores(query))
        return [max(next(found) for _ in within) for within in pieces]

    return best


_LEXICAL = (_summaries, _everything, _pieces, _grams)


def words(text: str) -> list[str]:
    return [_stem(word) for word in _WORD.findall(text.lower()) if word not in _COMMON]


def grams(text: str) -> list[str]:
    """Four letters each, with the beginnings and ends of words marked."""
    marked = (f"^{word}$" for word in words(text))
    return [word[at : at + 4] for word in marked for at in range(max(1, len(word) - 3))]


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _bm25(texts: Sequence[str], analyse: Analyse) -> Scores:
    counts = [Counter(analyse(text)) for text in texts]
    sizes = [count.total() for count in counts]
    average = sum(sizes) / len(sizes) or 1.0
    postings: dict[str, list[tuple[int, float]]] = {}
    for place, count in enumerate(counts):
        norm = 1.2 * (0.25 + 0.75 * sizes[place] / average)
        for word, frequency in count.items():
            postings.setdefault(word, []).append((place, frequency * 2.2 / (frequency + norm)))

    def scores(query: str) -> list[float]:
        found = [0.0] * len(texts)
        for word, times in Counter(analyse(query)).items():
            holding = postings.get(word, ())
            rarity = math.log(1 + (len(texts) - len(holding) + 0.5) / (len(holding) + 0.5))
            for place, weight in holding:
                found[place] += times * rarity * weight
        return found

    return scores
