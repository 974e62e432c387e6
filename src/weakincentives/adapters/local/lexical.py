"""Okapi BM25 over a handful of texts: which of them share rare words with a question."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"[a-z0-9]+")
_ENDINGS = ("ations", "ation", "ings", "ing", "ies", "ied", "ed", "es", "s", "ly")
_COMMON = frozenset(
    _WORD.findall(
        "a an the of to in on for and or is are was be it its my i me you your do does did can could will would what "
        "how when where which who with by from at as that this there have has had not no if so"
    )
)


def bm25(question: str, texts: Sequence[str], *, saturation: float = 1.2, length: float = 0.75) -> list[float]:
    """A score for each text, 0 where no word is shared."""
    counts = [Counter(words(text)) for text in texts]
    sizes = [count.total() for count in counts]
    average = sum(sizes) / len(sizes) if texts and any(sizes) else 1.0
    holding = Counter(word for count in counts for word in count)
    scores = [0.0] * len(texts)
    for word in words(question):
        if not holding[word]:
            continue
        rarity = math.log(1 + (len(texts) - holding[word] + 0.5) / (holding[word] + 0.5))
        for index, count in enumerate(counts):
            if frequency := count[word]:
                norm = saturation * (1 - length + length * sizes[index] / average)
                scores[index] += rarity * frequency * (saturation + 1) / (frequency + norm)
    return scores


def words(text: str) -> list[str]:
    """The words that carry meaning, without their endings."""
    return [_stem(word) for word in _WORD.findall(text.lower()) if word not in _COMMON]


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
