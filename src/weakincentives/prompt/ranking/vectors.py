"""Rankers that compare meanings: the built-in list of shared words, fused with two lists of vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

from weakincentives._imports import import_extra, require_extra
from weakincentives.prompt.ranking.lexical import LexicalIndex, SectionText, best, in_proportion

BATCH = 64
# The weights of shared words, of the meaning of title and summary, and of that of the best sentence or tool; measured
# in bench/finding.py. More weight for words finds more rare words, less finds more words that mean the same: its
# queries alone would choose 0.3 to 0.4.
WORDS, HEADLINE, PIECE = 0.45, 0.4, 0.15

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]


class VectorRanker:
    """Ranks by shared words and by your own embedding model.

        VectorRanker(lambda texts: client.embed(texts))

    `embed` takes a list of texts and returns a vector for each; `embed_query` is for models that embed questions
    differently. Nearly half of a score is shared words, the rest the similarity of title and summary and of the best
    sentence or tool. Each is measured in its standard deviations above the average, so what stands out counts most.
    """

    def __init__(self, embed: Embed, *, embed_query: Embed | None = None) -> None:
        self._numpy = import_extra("numpy", "finding", type(self).__name__)
        self.embed = embed
        self.embed_query = embed_query or embed

    def index(self, texts: Sequence[str]) -> VectorIndex:
        return self.index_sections([SectionText(body=text) for text in texts])

    def index_sections(self, sections: Sequence[SectionText]) -> VectorIndex:
        return VectorIndex(sections, self.embed, self.embed_query, self._numpy)


class StaticRanker(VectorRanker):
    """Ranks by shared words and by a table that has a vector for each word piece; no model runs (extra `finding`)."""

    def __init__(self) -> None:
        super().__init__(self._means)
        tokenizers = import_extra("tokenizers", "finding", "StaticRanker")
        tensors = import_extra("safetensors.numpy", "finding", "StaticRanker")
        require_extra("wordllama", "finding", "StaticRanker")
        # The package itself takes half a second to import and looks for its files on the network.
        folder = Path(str(find_spec("wordllama").origin)).parent  # type: ignore[union-attr]
        self._tokenizer = tokenizers.Tokenizer.from_file(
            str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json")
        )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        (self._table,) = tensors.load_file(folder / "weights" / "l2_supercat_256.safetensors").values()

    def _means(self, texts: Sequence[str]) -> Any:
        numpy = self._numpy
        found = numpy.zeros((len(texts), self._table.shape[1]), numpy.float32)
        for place, encoded in enumerate(self._tokenizer.encode_batch(list(texts), add_special_tokens=False)):
            if encoded.ids:
                found[place] = self._table[encoded.ids].mean(axis=0, dtype=numpy.float32)
        return found


class VectorIndex:
    """An index of shared words and vectors."""

    def __init__(self, sections: Sequence[SectionText], embed: Embed, embed_query: Embed, numpy: Any) -> None:
        self._numpy = numpy
        self._embed = embed
        self._embed_query = embed_query
        self._words = LexicalIndex(sections)
        pieces = [section.pieces or [section.key or "-"] for section in sections]
        self._starts = [0, *accumulate(map(len, pieces))][:-1]
        self._headlines = self._vectors(
            [section.headline or found[0] for section, found in zip(sections, pieces, strict=True)]
        )
        self._pieces = self._vectors([piece for found in pieces for piece in found])

    def rank(self, query: str, limit: int) -> list[tuple[int, float]]:
        parts = self.parts(query)
        if parts is None:
            return []
        shared, headline, piece = parts
        return best(in_proportion((WORDS * shared + HEADLINE * headline + PIECE * piece).tolist()), limit)

    def parts(self, query: str) -> tuple[Any, Any, Any] | None:
        """For every section, how much its words, its title and summary, and its best sentence or tool stand out."""
        words = self._words.scores(query)
        if not words or not query.strip():
            return None
        numpy = self._numpy
        asked = numpy.asarray(self._embed_query([query])[0], numpy.float32)
        pieces = numpy.maximum.reduceat(self._pieces @ asked, self._starts)
        shared, headline, piece = map(self._above_average, (words, self._headlines @ asked, pieces))
        return shared, headline, piece

    def _above_average(self, scores: Any) -> Any:
        """Each score's excess over the mean, in standard deviations; models differ in how similar any two texts are."""
        numpy = self._numpy
        found = numpy.asarray(scores)
        if len(found) > 1:
            found = (found - found.mean()) / max(found.std(), 1e-9)
        return numpy.maximum(found, 0)

    def _vectors(self, texts: Sequence[str]) -> Any:
        numpy = self._numpy
        batches = [self._embed(texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)]
        vectors = numpy.concatenate([numpy.asarray(batch, numpy.float32) for batch in batches or [[[0.0]]]])
        return vectors / numpy.maximum(numpy.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
