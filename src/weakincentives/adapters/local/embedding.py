"""The interface between an embedding model and what ranks with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

# Called with the tokens that have been read, and their total.
Reading = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """The vectors of the texts at these positions, and how much of all texts was read by then, in tokens."""

    positions: Sequence[int]
    vectors: Sequence[Any]
    tokens: int
    total: int


@dataclass(frozen=True, slots=True)
class Embedder:
    """An embedding model: its name, a version that changes with its vectors, and its unit vectors, some at a time."""

    name: str
    version: str
    encode: Callable[[Sequence[str]], Generator[Encoded, None, None]]

    def vectors(self, texts: Sequence[str]) -> list[Any]:
        """The unit vector of each text."""
        vectors: list[Any] = [None] * len(texts)
        for batch in self.encode(texts):
            for position, vector in zip(batch.positions, batch.vectors, strict=True):
                vectors[position] = vector
        return vectors


def usable_cores() -> int:
    """The cores that this process may use, at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores)
