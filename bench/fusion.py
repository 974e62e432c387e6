"""How the rankers' weights are chosen, by cross-validation within the public queries; `--data FOLDER` has them.

Every weighting of a grid is measured on each query. The queries cannot tell some of them from the best one: the mean
difference, query by query, is within its standard error. Of these, the one that finds most rare words is chosen. What
such a choice is worth on new queries is measured by making it five times on four fifths of the tasks, each time looking
at the last fifth.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.finding import COLUMNS, Dataset, rankers, read_sets
from bench.finding_words import COMMON, corpora, found, plain_bm25
from bench.row import Row
from weakincentives.prompt.ranking import SectionText, VectorRanker, lexical, vectors

SLOW = True
FOLDS = 5
# The shares of words, of title and summary, and of the best sentence or tool.
SHARES = [
    (words / 20, headline / 20, (20 - words - headline) / 20)
    for words, headline in itertools.product(range(4, 17), range(1, 16))
    if words + headline < 20
]
# Of the built-in ranker: the weights of pieces and headlines, and how BM25 compares these short texts.
GRID = list(
    itertools.product(
        (2.0, 3.5, 5.0, 8.0), (0.4, 0.5, 0.75), (0.5, 1.0, 1.5, 2.0, 3.0, 4.0), (0.0, 0.15, 0.3, 0.5, 0.7, 1.0)
    )
)

Scores = Callable[[str], Any]
"""For a query, an array of scores: a row for each weighting, a column for each section."""


def rows() -> Iterator[Row]:
    sets = read_sets(COLUMNS)
    for name, ranker, _ in rankers():
        yield from _Choice(name, ranker, sets).rows()


class _Choice:
    """Every weighting of a ranker, measured."""

    def __init__(self, name: str, ranker: Any, sets: dict[str, Dataset]) -> None:
        import numpy

        self.numpy = numpy
        self.name = name
        self.ranker = ranker
        self.weightings: list[tuple[float, ...]] = SHARES if isinstance(ranker, VectorRanker) else GRID
        # For each column: the recall of every weighting on each query, and the fold of the query's task.
        self.recalls: dict[tuple[str, str], Any] = {}
        self.folds: dict[tuple[str, str], Any] = {}
        for column in COLUMNS:
            data = sets[column[0]]
            queries = [query for query in data.queries if query.kind == column[1]]
            scores = self._scores(data.sections)
            self.recalls[column] = numpy.array([self._recall(query.gold, scores(query.text)) for query in queries])
            self.folds[column] = numpy.array(
                [zlib.crc32(f"{data.name} {query.task}".encode()) % FOLDS for query in queries]
            )
        self.rare = self._rare_words()

    def rows(self) -> Iterator[Row]:
        chosen = self._chosen(range(FOLDS))
        used = self.weightings.index(self._in_use())
        unseen = {column: [] for column in COLUMNS}
        for fold in range(FOLDS):
            there = self._chosen([other for other in range(FOLDS) if other != fold])
            for column, recalls in self.recalls.items():
                unseen[column] += recalls[self.folds[column] == fold, there].tolist()
        means = self._means(range(FOLDS))
        note = (
            f"{self._written(chosen)} of {len(self.weightings)} weightings; in use {self._written(used)}: "
            f"{means[used]:.1f}; best by these queries alone {self._written(int(means.argmax()))}: {means.max():.1f}"
        )
        yield Row(f"{self.name}: recall@5 of the chosen weighting", means[chosen], "%", note=note)
        mean = float(self.numpy.mean([self.numpy.mean(found) for found in unseen.values()]))
        yield Row(f"{self.name}: recall@5 if chosen on other queries", mean, "%", note=f"{FOLDS} folds by task")
        note = f"in use {self.rare[used]:.0f}, best by the queries alone {self.rare[means.argmax()]:.0f}"
        yield Row(f"{self.name}: rare words, least share of plain BM25", self.rare[chosen], "%", note=note)

    def _chosen(self, folds: Sequence[int]) -> int:
        """The position of the weighting to choose by the queries of these folds."""
        numpy = self.numpy
        means = self._means(folds)
        best = int(means.argmax())
        variance = numpy.zeros(len(self.weightings))
        for column, recalls in self.recalls.items():
            differences = recalls[self._within(column, folds)]
            differences = differences - differences[:, best : best + 1]
            variance += differences.var(axis=0, ddof=1) / len(differences)
        errors = numpy.sqrt(variance) / len(self.recalls)
        equal = means >= means[best] - errors
        # Of weightings that find as many rare words, the one that the queries prefer.
        return int(numpy.where(equal, numpy.minimum(self.rare, 100) + means / 1000, -1).argmax())

    def _means(self, folds: Sequence[int]) -> Any:
        return self.numpy.mean(
            [recalls[self._within(column, folds)].mean(axis=0) for column, recalls in self.recalls.items()], axis=0
        )

    def _within(self, column: tuple[str, str], folds: Sequence[int]) -> Any:
        return self.numpy.isin(self.folds[column], list(folds))

    def _scores(self, sections: Sequence[SectionText]) -> Scores:
        numpy = self.numpy
        if isinstance(self.ranker, VectorRanker):
            index = self.ranker.index_sections(sections)
            shares = numpy.array(self.weightings)
            return lambda query: shares @ numpy.array(index.parts(query))
        short = dict.fromkeys(weighting[:2] for weighting in GRID)
        indexes = [lexical.LexicalIndex(sections, *how) for how in short]
        weights = numpy.array([(1.0, *weighting[2:]) for weighting in GRID[: len(GRID) // len(short)]])
        return lambda query: numpy.concatenate([weights @ numpy.array(index.parts(query)) for index in indexes])

    def _recall(self, gold: Sequence[frozenset[int]], scores: Any, limit: int = 5) -> Any:
        best = self._best(scores, limit)
        return 100 * self.numpy.mean([self.numpy.isin(best, list(group)).any(axis=1) for group in gold], axis=0)

    def _best(self, scores: Any, limit: int) -> Any:
        """The positions of the best sections, a row for each weighting; -1 for sections without a score."""
        numpy = self.numpy
        order = numpy.argsort(-scores, axis=1, kind="stable")[:, :limit]
        return numpy.where(numpy.take_along_axis(scores, order, axis=1) > 0, order, -1)

    def _rare_words(self) -> Any:
        """For each weighting, the least share of plain BM25's questions about a rare word, first and among ten."""
        numpy = self.numpy
        least = numpy.full(len(self.weightings), numpy.inf)
        for sections, questions in corpora(self.name).values():
            scores, plain = self._scores(sections), plain_bm25(sections)
            for common in COMMON:
                asked = [(place, text) for count, place, text in questions if count == common]
                orders = [self._best(scores(text), 10) == place for place, text in asked]
                ours = (
                    sum(order[:, 0].astype(int) for order in orders),
                    sum(order.any(axis=1).astype(int) for order in orders),
                )
                for mine, theirs in zip(ours, found(plain, asked), strict=True):
                    least = numpy.minimum(least, 100 * mine / max(1, theirs))
        return least

    def _in_use(self) -> tuple[float, ...]:
        if isinstance(self.ranker, VectorRanker):
            return vectors.WORDS, vectors.HEADLINE, vectors.PIECE
        return lexical.SHORT_SATURATION, lexical.SHORT_LENGTH, lexical.PIECE, lexical.HEADLINE

    def _written(self, place: int) -> str:
        return "/".join(f"{weight:g}" for weight in self.weightings[place])
