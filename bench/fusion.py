"""How the rankers' weights are chosen, by cross-validation within the public queries; `--data FOLDER` has them.

Every weighting of a grid is measured on each query, and on questions about rare words. Of the weightings that find nine
tenths of what plain BM25 finds of these, the best on the public queries is chosen, and of equals within a tenth of a
point the one that finds most rare words; the rankers that compare vectors share theirs. What such a choice is worth on
new queries is measured by making it five times, on four fifths of the tasks, and looking at the last fifth.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench.finding import COLUMNS, Dataset, rankers, read_sets
from bench.finding_words import COMMON, corpora, found, plain_bm25
from bench.row import Row
from weakincentives.prompt.disclosure.ranking import SectionText, VectorRanker, lexical, vectors

SLOW = True
FOLDS = 5
RARE_GOAL = 90
TIE = 0.1
# The shares of words, of title and summary and of the best sentence or tool; and the weight of a word that is alone.
SHARES = [
    (words / 20, headline / 20, (20 - words - headline) / 20, alone)
    for words, headline, alone in itertools.product(range(7, 11), range(3, 10), (0.0, 1.0, 1.1, 1.2, 1.3))
]
# Of the built-in ranker: how BM25 compares short texts, and the weights of pieces and headlines.
SHORT = list(itertools.product((2.0, 3.5, 5.0, 8.0), (0.4, 0.5, 0.75)))
WEIGHTS = list(itertools.product((0.5, 1.0, 1.5, 2.0, 3.0, 4.0), (0.0, 0.15, 0.3, 0.5, 0.7, 1.0)))

Weighting = tuple[float, ...]
Scores = Callable[[str], Any]
"""For a query, an array of scores: a row for each weighting, a column for each section."""


def rows() -> Iterator[Row]:
    sets = read_sets(COLUMNS)
    known = {name: ranker for name, ranker, _ in rankers()}
    lexical_grid = [(*short, *weights) for short, weights in itertools.product(SHORT, WEIGHTS)]
    in_use = lexical.SHORT_SATURATION, lexical.SHORT_LENGTH, lexical.PIECE, lexical.HEADLINE
    yield from _Choice({"built-in": known.pop("built-in")}, lexical_grid, in_use, sets).rows()
    if known:
        in_use = vectors.WORDS, vectors.HEADLINE, vectors.PIECE, vectors.ALONE
        yield from _Choice(known, SHARES, in_use, sets).rows()


class _Choice:
    """Every weighting of some rankers, measured."""

    def __init__(
        self, named: Mapping[str, Any], weightings: Sequence[Weighting], in_use: Weighting, sets: Mapping[str, Dataset]
    ) -> None:
        import numpy

        self.numpy = numpy
        self.weightings = weightings
        self.in_use = in_use
        # By ranker and column: the recall of every weighting on each query, and the fold of the query's task.
        self.recalls: dict[tuple[str, str, str], Any] = {}
        self.folds: dict[tuple[str, str, str], Any] = {}
        self.rare: dict[str, Any] = {}
        for name, ranker in named.items():
            for data in sets.values():
                self._measure(name, data, self._scores(ranker, data.sections))
            self.rare[name] = self._rare_words(name, ranker)

    def rows(self) -> Iterator[Row]:
        chosen, used = self._chosen(range(FOLDS)), self.weightings.index(self.in_use)
        others = [self._chosen([other for other in range(FOLDS) if other != fold]) for fold in range(FOLDS)]
        for name, rare in self.rare.items():
            means = self._means(range(FOLDS), name)
            note = (
                f"{self._written(chosen)} of {len(self.weightings)} weightings; in use {self._written(used)}: "
                f"{means[used]:.1f}; best without rare words {self._written(int(means.argmax()))}: {means.max():.1f}"
            )
            yield Row(f"{name}: recall@5 of the chosen weighting", means[chosen], "%", note=note)
            unseen = self.numpy.mean(
                [
                    self.numpy.concatenate(
                        [recalls[self.folds[column] == fold, others[fold]] for fold in range(FOLDS)]
                    ).mean()
                    for column, recalls in self.recalls.items()
                    if column[0] == name
                ]
            )
            yield Row(f"{name}: recall@5 if chosen on other queries", unseen, "%", note=f"{FOLDS} folds by task")
            note = f"in use {rare[used]:.0f}, best by the queries alone {rare[means.argmax()]:.0f}"
            title = f"{name}: rare words, least share of plain BM25"
            yield Row(title, rare[chosen], "%", goal=RARE_GOAL, better="more", note=note)

    def _chosen(self, folds: Sequence[int]) -> int:
        """The position of the weighting to choose by the queries of these folds."""
        rare = self.numpy.min(list(self.rare.values()), axis=0)
        means = self.numpy.where(rare >= min(RARE_GOAL, rare.max()), self._means(folds), -1)
        return int(self.numpy.argmax(self.numpy.where(means >= means.max() - TIE, rare, -1)))

    def _means(self, folds: Sequence[int], name: str | None = None) -> Any:
        within = [
            recalls[self.numpy.isin(self.folds[column], list(folds))].mean(axis=0)
            for column, recalls in self.recalls.items()
            if name in (None, column[0])
        ]
        return self.numpy.mean(within, axis=0)

    def _measure(self, name: str, data: Dataset, scores: Scores) -> None:
        for kind in (kind for set_name, kind in COLUMNS if set_name == data.name):
            queries = [query for query in data.queries if query.kind == kind]
            folds = [zlib.crc32(f"{data.name} {query.task}".encode()) % FOLDS for query in queries]
            recalls = [self._recall(query.gold, scores(query.text)) for query in queries]
            self.folds[name, data.name, kind] = self.numpy.array(folds)
            self.recalls[name, data.name, kind] = self.numpy.array(recalls)

    def _scores(self, ranker: Any, sections: Sequence[SectionText]) -> Scores:
        numpy = self.numpy
        if isinstance(ranker, VectorRanker):
            index = ranker.index_sections(sections)
            return lambda query: numpy.array(self.weightings) @ index.parts(query)
        indexes = [lexical.LexicalIndex(sections, *short) for short in SHORT]
        weights = numpy.array([(1.0, *pair) for pair in WEIGHTS])
        return lambda query: numpy.concatenate([weights @ numpy.array(index.parts(query)) for index in indexes])

    def _recall(self, gold: Sequence[frozenset[int]], scores: Any, limit: int = 5) -> Any:
        best = self._best(scores, limit)
        return 100 * self.numpy.mean([self.numpy.isin(best, list(group)).any(axis=1) for group in gold], axis=0)

    def _best(self, scores: Any, limit: int) -> Any:
        """The positions of the best sections, a row for each weighting; -1 for sections without a score."""
        order = self.numpy.argsort(-scores, axis=1, kind="stable")[:, :limit]
        return self.numpy.where(self.numpy.take_along_axis(scores, order, axis=1) > 0, order, -1)

    def _rare_words(self, name: str, ranker: Any) -> Any:
        """For each weighting, the least share of plain BM25's questions about a rare word, first and among ten."""
        least = self.numpy.full(len(self.weightings), self.numpy.inf)
        for sections, questions in corpora(name).values():
            scores, plain = self._scores(ranker, sections), plain_bm25(sections)
            for common in COMMON:
                asked = [(place, text) for count, place, text in questions if count == common]
                hits = self.numpy.array([self._best(scores(text), 10) == place for place, text in asked])
                ours = hits[:, :, 0].sum(axis=0), hits.any(axis=2).sum(axis=0)
                for mine, theirs in zip(ours, found(plain, asked), strict=True):
                    least = self.numpy.minimum(least, 100 * mine / max(1, theirs))
        return least

    def _written(self, place: int) -> str:
        return "/".join(f"{weight:g}" for weight in self.weightings[place])
