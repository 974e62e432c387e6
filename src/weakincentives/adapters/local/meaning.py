"""Similarity of meaning, by vectors that are kept between runs."""

from __future__ import annotations

import hashlib
import logging
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from weakincentives.adapters.local.cache import cache_folder
from weakincentives.adapters.local.embedding import Embedder, Reading
from weakincentives.adapters.local.encoder import Floats
from weakincentives.adapters.local.published import TUNED
from weakincentives.adapters.local.relevance import clauses, word_index
from weakincentives.prompt.disclosure.ranking import SectionText, bm25, sentences

logger = logging.getLogger("weakincentives.adapters")

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
# The keys that one query asks for; SQLite accepts some 32,000.
QUERY = 500


class VectorRelevance:
    """Similarity of meaning, plus a little for shared words."""

    enough = 0.45
    # Nearly every right answer in bench/local has a higher score.
    least = 0.24

    def __init__(self, embedder: Embedder) -> None:
        self.name = embedder.name
        self._embedder = embedder
        self._stored = StoredVectors(embedder)
        is_tuned = embedder.name == TUNED
        self.answers = ANSWERS if is_tuned else self.least
        self.fits = FITS_TUNED if is_tuned else self.enough

    def sections(self, question: str, sections: Sequence[SectionText], reading: Reading | None = None) -> list[float]:
        query = self._query(question)
        shared_words = word_index(tuple(sections)).scores(question)
        summaries = self._similarities(query, [clauses(section) for section in sections], reading)
        scores = []
        for similarities, words in zip(summaries, shared_words, strict=True):
            scores.append(similarities[0] / 2 + SECTION_WORDS * words)

        candidates = sorted(range(len(scores)), key=lambda position: -scores[position])[:CANDIDATES]
        texts = [_paragraphs(sections[position]) for position in candidates]
        texts += [_pieces(sections[position]) for position in candidates]
        similarities_of_texts = self._similarities(query, texts, reading)
        for index, position in enumerate(candidates):
            paragraphs = similarities_of_texts[index]
            pieces = similarities_of_texts[len(candidates) + index]
            scores[position] += paragraphs[0] + (pieces[0] + pieces[1]) / 4
        return [score / (2 + SECTION_WORDS) for score in scores]

    def sentences(self, question: str, texts: Sequence[str], reading: Reading | None = None) -> list[float]:
        shared_words = bm25(question, texts)
        compared = sorted(range(len(texts)), key=lambda position: -shared_words[position])[:MAX_COMPARED]
        vectors = self._stored.of([texts[position] for position in compared], reading)
        similarities = np.zeros(len(texts), np.float32)
        similarities[compared] = vectors @ self._query(question)
        scores = similarities + np.float32(SENTENCE_WORDS) * np.asarray(shared_words, np.float32)
        return [float(score) for score in scores]

    def _query(self, question: str) -> Floats:
        """The vector of a question, which is not worth keeping."""
        vector: Floats = np.asarray(self._embedder.vectors([question])[0], np.float32)
        return vector

    def _similarities(
        self, query: Floats, groups: Sequence[Sequence[str]], reading: Reading | None
    ) -> list[list[float]]:
        """The similarities of each group of texts, highest first, and at least two of them."""
        texts: list[str] = []
        for group in groups:
            texts += group
        similarities = (self._stored.of(texts, reading) @ query).tolist()
        ranked = []
        start = 0
        for group in groups:
            end = start + len(group)
            ranked.append(sorted([*similarities[start:end], 0.0, 0.0], reverse=True))
            start = end
        return ranked


class StoredVectors:
    """The vector of each text, kept between runs so that a handbook is embedded only once.

    What cannot be read from disk is computed again.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[str, Floats] = {}
        self._warned = False

    @property
    def file(self) -> Path:
        """The database of these vectors; its name changes with the model."""
        return cache_folder() / f"{self._embedder.name}-{self._embedder.version}.sqlite"

    def of(self, texts: Sequence[str], reading: Reading | None = None) -> Floats:
        """The vectors of these texts, in rows."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if missing:
            self._vectors |= self._load(missing)
            missing = [text for text in missing if text not in self._vectors]
        if missing:
            self._compute(missing, reading)
        if not texts:
            return np.zeros((0, 1), np.float32)
        return np.stack([self._vectors[text] for text in texts])

    def _compute(self, texts: Sequence[str], reading: Reading | None) -> None:
        """Compute vectors and keep them, even if the run is stopped before they are complete."""
        computed: dict[str, Floats] = {}
        try:
            with closing(self._embedder.encode(texts)) as batches:
                for batch in batches:
                    for position, vector in zip(batch.positions, batch.vectors, strict=True):
                        computed[texts[position]] = np.asarray(vector, np.float32)
                    if reading is not None:
                        reading(batch.tokens, batch.total)
        finally:
            self._vectors |= computed
            self._store(computed)

    def _load(self, texts: Sequence[str]) -> dict[str, Floats]:
        text_of = {_key(text): text for text in texts}
        keys = list(text_of)
        vectors = {}
        try:
            with _connected(self.file) as database:
                for start in range(0, len(keys), QUERY):
                    chunk = keys[start : start + QUERY]
                    marks = ",".join("?" * len(chunk))
                    rows = database.execute(f"SELECT text, vector FROM vectors WHERE text IN ({marks})", chunk)
                    for key, vector in rows:
                        vectors[text_of[key]] = np.frombuffer(vector, np.float32)
        except (sqlite3.Error, OSError):
            return {}
        return vectors

    def _store(self, vectors: Mapping[str, Floats]) -> None:
        rows = [(_key(text), vector.tobytes()) for text, vector in vectors.items()]
        try:
            with _connected(self.file) as database, database:
                database.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            if not self._warned:
                logger.warning(
                    "The vectors of sections cannot be kept in %s: %s; they are computed again by each process. "
                    "Set WINK_CACHE to a writable folder.",
                    self.file,
                    error,
                )
            self._warned = True


def _paragraphs(section: SectionText) -> list[str]:
    return [f"{section.title}: {text}" for text in re.split(r"\n\s*\n", section.body) if text.strip()]


def _pieces(section: SectionText) -> list[str]:
    return [*(f"{section.title}: {sentence}" for sentence in sentences(section.body)), *section.tools]


@contextmanager
def _connected(file: Path) -> Iterator[sqlite3.Connection]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file, timeout=5)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS vectors (text BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        yield database


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
