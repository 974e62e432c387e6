"""The local adapter's embedding model as a ranker of sections."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from weakincentives.adapters.local.adapter import RANKER_CONTEXT, _vector_file
from weakincentives.adapters.local.engine import SHELF, Settings, usable_threads
from weakincentives.adapters.local.vectors import Vectors
from weakincentives.adapters.local.weights import INSTALL, ranker_file
from weakincentives.prompt.ranking import VectorRanker


class LocalRanker(VectorRanker):
    """Ranks sections by shared words and by the local adapter's embedding model.

        SearchSections(ranker=LocalRanker())

    Vectors of sections are kept on disk, so that they are computed once. `model` is a GGUF file; without it, the one in
    `WINK_LOCAL_RANKER`, else all-MiniLM-L6-v2 from its package. The model is loaded on first use.
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
        # A new object each time, since the index keeps the vectors.
        return Vectors(self._embedded, _vector_file(self._file)).of(texts)
