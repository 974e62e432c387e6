"""Counting tokens without a network."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Protocol

from weakincentives._base.imports import import_extra

_WORD = re.compile(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]|\n+")


class Tokenizer(Protocol):
    """Counts the tokens of a text."""

    @property
    def name(self) -> str: ...

    def count(self, text: str) -> int: ...


class EstimatedTokens:
    """An estimate from word lengths, with no dependency; within about 10% of o200k on English prose."""

    name = "estimate"

    def count(self, text: str) -> int:
        return sum(
            1 + (len(word) - 1) // 9 if word[0].isalpha() else (len(word) + 2) // 3 for word in _WORD.findall(text)
        )


class O200kTokens:
    """OpenAI's o200k encoding, exact, from the extra `[tokens]`."""

    name = "o200k"

    def __init__(self) -> None:
        splintr = import_extra("splintr", "tokens", "O200kTokens")
        self._encoding: Any = splintr.Tokenizer.from_pretrained("o200k_base")

    def count(self, text: str) -> int:
        try:
            return len(self._encoding.encode(text))
        except UnicodeEncodeError:
            # A lone surrogate cannot be encoded; adapters send it as a replacement character, too.
            return len(self._encoding.encode(text.encode("utf-8", "replace").decode()))


def tokenizer_named(name: str) -> Tokenizer:
    """The tokenizer of this name, or the default one if the name is that of a model."""
    if name == EstimatedTokens.name:
        return EstimatedTokens()
    return default_tokenizer()


@cache
def default_tokenizer() -> Tokenizer:
    """o200k if the extra is installed, else the estimate."""
    try:
        return O200kTokens()
    except ImportError:
        return EstimatedTokens()
