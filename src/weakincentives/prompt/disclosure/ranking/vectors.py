"""Rankers that compare meanings: the built-in list of shared words, fused with two lists of vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

from weakincentives._base.imports import import_extra, require_extra
from weakincentives.prompt.disclosure.ranking.lexical import LexicalIndex, SectionText, best, in_proportion

BATCH = 64
# The weights of shared words, of the meaning of title and summary, of that of the best sentence or tool, and of a word
# that no other section has. Chosen by cross-validation in bench/fusion.py, among those with which rare words win.
WORDS, HEADLINE, PIECE, ALONE = 0.45, 0.4, 0.15, 1.0

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]


class VectorRanker:
    """Ranks by shared words and by your own embedding model.

        VectorRanker(lambda texts: client.embed(texts))

    `embed` takes a list of texts and returns a vector for each; `embed_query` is for models that embed questions
    differently. A score is made of shared words, of the similarity of title and summary, and of that of the best
    sentence or tool, each in its standard deviations above the average, so what stands out counts most. A section with
    a word of the question that no other section has stands out by one more.
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
        if not self._starts or not query.strip():
            return []
        scores = self._numpy.array((WORDS, HEADLINE, PIECE, ALONE)) @ self.parts(query)
        return best(in_proportion(scores.tolist()), limit)

    def parts(self, query: str) -> Any:
        """How much each section stands out, a row for each of the weights and a column for each section."""
        numpy = self._numpy
        asked = numpy.asarray(self._embed_query([query])[0], numpy.float32)
        pieces = numpy.maximum.reduceat(self._pieces @ asked, self._starts)
        alone = numpy.zeros(len(self._starts))
        alone[list(self._words.alone(query))] = 1
        standing_out = map(self._above_average, (self._words.scores(query), self._headlines @ asked, pieces))
        return numpy.array([*standing_out, alone])

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
