"""How well sections and sentences fit a question: by an embedding model, else by shared words."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from operator import mul
from pathlib import Path
from typing import Any, Protocol

from weakincentives.adapters.local.engine import SHELF, Settings, usable_threads
from weakincentives.adapters.local.models import INSTALL, TUNED_RANKER, cache_folder, ranker_file
from weakincentives.prompt.disclosure.ranking import LexicalIndex, SectionText, VectorRanker, bm25, sentences

# The weight of shared words in the score of a section or a sentence; measured in bench/local.
SECTION_WORDS = 0.15
SENTENCE_WORDS = 0.03
# Only the best sections by title, summary and shared words are compared by their text.
CANDIDATES = 8
# In very long texts, only the sentences with the most shared words are compared by meaning.
MAX_COMPARED = 400
# With the tuned ranker, most questions that the text answers have a sentence above this, and few others do; measured in
# bench/local. Another ranker has other scores, so with it only what is far away is refused.
ANSWERS = 0.45
# It also scores the descriptions of tools lower than the published ranker does.
FITS_TUNED = 0.38
RANKER_CONTEXT = 512
# Increment when `Engine.embed` computes vectors differently, so that stored ones are recomputed.
EMBEDDING = 2
Embed = Callable[[Sequence[str]], list[list[float]]]
_CLAUSE = re.compile(r"[,;:.]\s+")


class Relevance(Protocol):
    """Scores of about 0 to 1, comparable only within one implementation.

    `enough` is a good score for a sentence; one below `answers` does not answer the question, and one below `least` has
    nothing to do with it. `fits` is a good score for the description of a tool.
    """

    name: str
    enough: float
    fits: float
    answers: float
    least: float

    def sections(self, question: str, sections: Sequence[SectionText]) -> list[float]:
        """A score for each section, by its summary, its text and its tools."""

    def sentences(self, question: str, texts: Sequence[str]) -> list[float]:
        """A score for each text."""


class WordRelevance:
    """Shared words alone."""

    name = "shared words"
    enough = fits = 0.45
    answers = least = 0.05

    def sections(self, question: str, sections: Sequence[SectionText]) -> list[float]:
        return _index(tuple(sections)).scores(question)

    def sentences(self, question: str, texts: Sequence[str]) -> list[float]:
        return [score / (score + 5) for score in bm25(question, texts)]


class VectorRelevance:
    """Similarity of meaning, plus a little for shared words."""

    enough = 0.45
    # Nearly every right answer in bench/local has a higher score.
    least = 0.24

    def __init__(self, vectors: Vectors, name: str) -> None:
        self.name = name
        self._vectors = vectors
        is_tuned = name == TUNED_RANKER
        self.answers = ANSWERS if is_tuned else self.least
        self.fits = FITS_TUNED if is_tuned else self.enough

    def sections(self, question: str, sections: Sequence[SectionText]) -> list[float]:
        asked = self._vectors.once([question])[0]
        shared = _index(tuple(sections)).scores(question)
        summaries = self._near(asked, [clauses(section) for section in sections])
        scores = [near[0] / 2 + SECTION_WORDS * words for near, words in zip(summaries, shared, strict=True)]
        closest = sorted(range(len(scores)), key=lambda place: -scores[place])[:CANDIDATES]
        paragraphs = self._near(asked, [_paragraphs(sections[place]) for place in closest])
        pieces = self._near(asked, [_pieces(sections[place]) for place in closest])
        for place, around, near in zip(closest, paragraphs, pieces, strict=True):
            scores[place] += around[0] + sum(near[:2]) / 4
        return [score / (2 + SECTION_WORDS) for score in scores]

    def sentences(self, question: str, texts: Sequence[str]) -> list[float]:
        asked = self._vectors.once([question])[0]
        shared = bm25(question, texts)
        near = [0.0] * len(texts)
        closest = sorted(range(len(texts)), key=lambda index: -shared[index])[:MAX_COMPARED]
        for index, vector in zip(closest, self._vectors.of([texts[index] for index in closest]), strict=True):
            near[index] = sum(map(mul, asked, vector))
        return [score + SENTENCE_WORDS * words for score, words in zip(near, shared, strict=True)]

    def _near(self, asked: Sequence[float], texts: Sequence[Sequence[str]]) -> list[list[float]]:
        """The similarities of each group of texts, highest first, padded to at least two."""
        vectors = iter(self._vectors.of([text for group in texts for text in group]))
        scores = [[sum(map(mul, asked, next(vectors))) for _ in group] for group in texts]
        return [sorted([*group, 0.0, 0.0], reverse=True) for group in scores]


class LocalRanker(VectorRanker):
    """Ranks sections by shared words and by the published embedding model; the local adapter uses a tuned one.

        SearchSections(ranker=LocalRanker())

    Section vectors are cached on disk, so they are computed only once. `model` is a GGUF file; it defaults to the one
    in `WINK_LOCAL_RANKER`, else all-MiniLM-L6-v2 from its package. The model is loaded on first use.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, *, threads: int | None = None) -> None:
        file = ranker_file(model)
        if file is None:
            raise FileNotFoundError(f"LocalRanker has no model: {INSTALL}, or give a GGUF file: LocalRanker('path').")
        super().__init__(self._stored, embed_query=self._embedded)
        self._file = file
        self._settings = Settings(file, RANKER_CONTEXT, threads or usable_threads(), embedding=True)
        self._engine: Any = None

    def _embedded(self, texts: Sequence[str]) -> list[list[float]]:
        if self._engine is None:
            self._engine = SHELF.take(self._settings)
            weakref.finalize(self, SHELF.give_back, self._settings)
        vectors: list[list[float]] = self._engine.embed(texts)
        return vectors

    def _stored(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        # A new object each time, since the index already keeps the vectors.
        return Vectors(self._embedded, vector_file(self._file)).of(texts)


class Vectors:
    """The vector of each text, kept between runs so that a handbook is embedded only once.

    What cannot be read from disk is computed again.
    """

    def __init__(self, embed: Embed, file: Path) -> None:
        self._embed = embed
        self._file = file
        self._known: dict[str, array[float]] = {}

    def of(self, texts: Sequence[str]) -> list[array[float]]:
        """The vectors of these texts, in order."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if missing:
            stored = self._read(missing)
            fresh = [text for text in missing if text not in stored]
            computed = {text: array("f", vector) for text, vector in zip(fresh, self.once(fresh), strict=True)}
            if computed:
                self._write(computed)
            self._known |= stored | computed
        return [self._known[text] for text in texts]

    def once(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of texts not worth keeping, such as questions."""
        return self._embed(texts) if texts else []

    def _read(self, texts: Sequence[str]) -> dict[str, array[float]]:
        found: dict[str, array[float]] = {}
        with suppress(sqlite3.Error, OSError), _connected(self._file) as database:
            for text in texts:
                row = database.execute("SELECT vector FROM vectors WHERE text = ?", (_key(text),)).fetchone()
                if row is not None:
                    found[text] = array("f", row[0])
        return found

    def _write(self, vectors: dict[str, array[float]]) -> None:
        rows = [(_key(text), vector.tobytes()) for text, vector in vectors.items()]
        with suppress(sqlite3.Error, OSError), _connected(self._file) as database, database:
            database.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)


def clauses(section: SectionText) -> list[str]:
    """The whole summary and its clauses, each with the title: the closest clause shows what a section is about."""
    pieces = [piece.strip(" .") for piece in _CLAUSE.split(section.summary)]
    return [f"{section.title}. {section.summary}", *(f"{section.title}: {piece}" for piece in pieces if piece)]


def vector_file(ranker: Path) -> Path:
    """The vector cache of one model file and one way of embedding; its name identifies both."""
    facts = ranker.stat()
    return cache_folder() / f"{ranker.stem}-{facts.st_size:x}-{facts.st_mtime_ns:x}-{EMBEDDING}.sqlite"


def _paragraphs(section: SectionText) -> list[str]:
    return [f"{section.title}: {text}" for text in re.split(r"\n\s*\n", section.body) if text.strip()]


def _pieces(section: SectionText) -> list[str]:
    return [*(f"{section.title}: {sentence}" for sentence in sentences(section.body)), *section.tools]


@lru_cache(maxsize=8)
def _index(sections: tuple[SectionText, ...]) -> LexicalIndex:
    return LexicalIndex(sections)


@contextmanager
def _connected(file: Path) -> Iterator[sqlite3.Connection]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file, timeout=5)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS vectors (text BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        yield database


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
