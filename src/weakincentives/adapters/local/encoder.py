"""A BERT encoder on numpy: a unit vector for each text, so that texts of similar meaning have similar vectors.

The weights are used as they are published, in safetensors files: a header, and then raw numbers, which are mapped into
memory and not copied.
"""

from __future__ import annotations

import json
import math
import struct
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from weakincentives.adapters.local.embedding import Encoded
from weakincentives.adapters.local.wordpiece import WordPieces

Floats = NDArray[np.float32]
# The tokens that are encoded at once: with more, the numbers leave the processor's cache.
BATCH_TOKENS = 1024
# Added to the scores of padding, whose share is 0 then.
FAR_BELOW = np.float32(-1e9)
NUMBERS = {"F32": np.float32, "F16": np.float16}


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A matrix, and what is added to its products."""

    weight: Floats
    bias: Floats

    def __call__(self, states: Floats) -> Floats:
        products: Floats = states @ self.weight
        products += self.bias
        return products


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """Scales each state to mean 0 and deviation 1, and then by what was learned. It changes the states in place."""

    weight: Floats
    bias: Floats
    epsilon: np.float32

    def __call__(self, states: Floats) -> Floats:
        states -= states.mean(axis=-1, keepdims=True)
        variance = np.einsum("...i,...i->...", states, states) / np.float32(states.shape[-1])
        states /= np.sqrt(variance + self.epsilon)[..., None]
        states *= self.weight
        states += self.bias
        return states


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer: what each token takes from the others of its text, and what it makes of that."""

    queries: Linear
    keys: Linear
    values: Linear
    attention: Linear
    attention_norm: Norm
    widen: Linear
    narrow: Linear
    norm: Norm


class Encoder:
    """Encodes texts with a published model: `folder` has its `config.json`, `vocab.txt` and `model.safetensors`.

    The tensors in the files `tuned` take the place of those that were published. Calls from several threads queue up.
    """

    def __init__(self, folder: Path, *tuned: Path, threads: int) -> None:
        self._threads = threads
        self._libraries = ThreadpoolController()
        self._lock = threading.Lock()
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
        self._pieces = WordPieces(vocabulary[: config["vocab_size"]])
        self._heads: int = config["num_attention_heads"]
        self.width: int = config["hidden_size"]
        self.longest: int = config["max_position_embeddings"]
        tensors: dict[str, Floats] = {}
        for file in (folder / "model.safetensors", *tuned):
            tensors |= read_tensors(file)
        weights = _Weights(tensors, np.float32(config["layer_norm_eps"]))
        self._words = tensors["embeddings.word_embeddings.weight"]
        self._places = (
            tensors["embeddings.position_embeddings.weight"] + tensors["embeddings.token_type_embeddings.weight"][0]
        )
        self._norm = weights.norm("embeddings.LayerNorm")
        self._layers = [weights.layer(number) for number in range(config["num_hidden_layers"])]

    def encode(self, texts: Sequence[str]) -> Generator[Encoded, None, None]:
        """The unit vectors of texts, some at a time; of a text longer than the model reads, its beginning counts."""
        pieces = [self._pieces.numbers(text, self.longest) for text in texts]
        batches = list(_batches([len(numbers) for numbers in pieces]))
        total = sum(map(len, pieces))
        tokens = 0
        # Each batch has a thread, and each thread one core: those of the matrix library wait for each other by
        # spinning, which takes ten times as long on a busy machine.
        with self._lock, self._libraries.limit(limits=1), ThreadPoolExecutor(self._threads) as pool:
            vectors = [pool.submit(self._vectors, [pieces[row] for row in rows]) for rows in batches]
            try:
                for rows, batch in zip(batches, vectors, strict=True):
                    tokens += sum(len(pieces[row]) for row in rows)
                    yield Encoded(rows, list(batch.result()), tokens, total)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _vectors(self, texts: Sequence[Sequence[int]]) -> Floats:
        """The vectors of texts that are encoded together, the shorter ones filled up."""
        count, longest = len(texts), max(map(len, texts))
        numbers = np.zeros((count, longest), np.int64)
        present = np.zeros((count, longest), np.float32)
        for row, text in enumerate(texts):
            numbers[row, : len(text)] = text
            present[row, : len(text)] = 1
        # One row for each token: numpy would multiply a matrix for each text, which takes several times as long.
        states: Floats = (self._words[numbers] + self._places[:longest]).reshape(count * longest, self.width)
        states = self._norm(states)
        hidden = (1 - present)[:, None, None, :] * FAR_BELOW
        for layer in self._layers:
            attention = layer.attention(self._attended(layer, states, hidden))
            attention += states
            states = layer.attention_norm(attention)
            change = layer.narrow(gelu(layer.widen(states)))
            change += states
            states = layer.norm(change)
        sums = np.einsum("tl,tlw->tw", present, states.reshape(count, longest, self.width))
        vectors: Floats = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return vectors

    def _attended(self, layer: Layer, states: Floats, hidden: Floats) -> Floats:
        """For each token, the values of the tokens of its text, by how well their keys match its query."""
        count, _, _, longest = hidden.shape
        heads = (count, longest, self._heads, self.width // self._heads)
        queries = layer.queries(states).reshape(heads).transpose(0, 2, 1, 3)
        keys = layer.keys(states).reshape(heads).transpose(0, 2, 3, 1)
        values = layer.values(states).reshape(heads).transpose(0, 2, 1, 3)
        shares: Floats = queries @ keys
        shares *= np.float32(1 / math.sqrt(heads[-1]))
        shares += hidden
        shares -= shares.max(axis=-1, keepdims=True)
        np.exp(shares, out=shares)
        shares /= shares.sum(axis=-1, keepdims=True)
        attended: Floats = (shares @ values).transpose(0, 2, 1, 3).reshape(states.shape)
        return attended


@dataclass(frozen=True, slots=True, eq=False)
class _Weights:
    """The tensors of a model by their published names, and what its norms add to a variance."""

    tensors: Mapping[str, Floats]
    epsilon: np.float32

    def linear(self, name: str) -> Linear:
        return Linear(self.tensors[f"{name}.weight"].T, self.tensors[f"{name}.bias"])

    def norm(self, name: str) -> Norm:
        return Norm(self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], self.epsilon)

    def layer(self, number: int) -> Layer:
        name = f"encoder.layer.{number}"
        return Layer(
            queries=self.linear(f"{name}.attention.self.query"),
            keys=self.linear(f"{name}.attention.self.key"),
            values=self.linear(f"{name}.attention.self.value"),
            attention=self.linear(f"{name}.attention.output.dense"),
            attention_norm=self.norm(f"{name}.attention.output.LayerNorm"),
            widen=self.linear(f"{name}.intermediate.dense"),
            narrow=self.linear(f"{name}.output.dense"),
            norm=self.norm(f"{name}.output.LayerNorm"),
        )


def gelu(states: Floats) -> Floats:
    """The activation between the two matrices of a layer, by the usual approximation with tanh."""
    factor = np.float32(math.sqrt(2 / math.pi))
    slopes: Floats = states * states
    slopes *= np.float32(0.044715) * factor
    slopes += factor
    slopes *= states
    np.tanh(slopes, out=slopes)
    slopes += np.float32(1)
    slopes *= states
    slopes *= np.float32(0.5)
    return slopes


def read_tensors(file: Path) -> dict[str, Floats]:
    """The tensors of a safetensors file by name; those of other numbers than floats are left out."""
    with file.open("rb") as opened:
        (header_size,) = struct.unpack("<Q", opened.read(8))
        header: Mapping[str, Any] = json.loads(opened.read(header_size))
    content = np.memmap(file, np.uint8, "r", offset=0)[8 + header_size :]
    tensors = {}
    for name, tensor in header.items():
        numbers = NUMBERS.get(tensor.get("dtype", ""))
        if numbers is not None:
            start, end = tensor["data_offsets"]
            values = content[start:end].view(numbers).reshape(tensor["shape"])
            tensors[name] = np.asarray(values, np.float32)
    return tensors


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The positions of texts that are encoded together: of similar length, and not too many tokens."""
    batch: list[int] = []
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[position] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch
