"""A ranker of sections and documents by the published embedding model."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from weakincentives._base.imports import import_extra
from weakincentives.adapters.local.cache import existing_file
from weakincentives.adapters.local.embedding import Embedder, usable_cores
from weakincentives.adapters.local.gguf.engine import SHELF, embedding_settings, gguf_embedder
from weakincentives.adapters.local.published import published_embedder
from weakincentives.prompt.disclosure.ranking import VectorRanker


class LocalRanker(VectorRanker):
    """Ranks sections by shared words and by the published embedding model; the local adapter uses a tuned one.

        SearchSections(ranker=LocalRanker())

    Section vectors are cached on disk, so they are computed only once. `model` is a GGUF file (extra `gguf`); it
    defaults to the one in `WINK_LOCAL_RANKER`, else all-MiniLM-L6-v2 from its package. The model is loaded on first
    use; with `threads`, it takes so many cores.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, *, threads: int | None = None) -> None:
        import_extra("numpy", "local", "LocalRanker")
        super().__init__(self._stored, embed_query=self._embedded)
        file = model or os.environ.get("WINK_LOCAL_RANKER")
        self._file = existing_file(file, "LocalRanker's model") if file else None
        self._threads = threads or usable_cores()
        self._loaded: Embedder | None = None

    @property
    def _embedder(self) -> Embedder:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def _load(self) -> Embedder:
        if self._file is None:
            return published_embedder("LocalRanker", tuned=False, threads=self._threads)
        settings = embedding_settings(self._file, self._threads)
        engine = SHELF.take(settings)
        weakref.finalize(self, SHELF.give_back, settings)
        return gguf_embedder(engine)

    def _embedded(self, texts: Sequence[str]) -> Any:
        return self._embedder.vectors(texts)

    def _stored(self, texts: Sequence[str]) -> Any:
        from weakincentives.adapters.local.meaning import StoredVectors

        # A new object each time, since the index already keeps the vectors.
        return StoredVectors(self._embedder).of(texts)
