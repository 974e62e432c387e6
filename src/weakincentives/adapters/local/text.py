"""Text without a model: sentences that can be quoted, and BM25 over shared words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z0-9`\"'(])")
_RULE = re.compile(r"\|[\s:|-]+\|?")
_BULLET = re.compile(r"(?:[-*+]|\d+[.)])\s+")
_NOTE = re.compile(r"\[(?:Tools now available|This section is summarized|Opening it costs)[^\]]*\]|-{3,}")
_CLAUSE = re.compile(r"[,;:.]\s+")


def sentences(markdown: str) -> list[str]:
    """What a reader would point at; headings and the library's own notes are left out."""
    return list(dict.fromkeys(_units(markdown)))


def clauses(title: str, summary: str) -> list[str]:
    """A summary as a whole and in pieces, each under its title: the closest piece tells what a section is about."""
    pieces = [piece.strip(" .") for piece in _CLAUSE.split(summary)]
    return [f"{title}. {summary}", *(f"{title}: {piece}" for piece in pieces if piece)]


def _units(markdown: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", markdown):
        lines = [line.strip() for line in block.strip().split("\n")]
        if lines[0].startswith("|") and len(lines) > 2 and _RULE.fullmatch(lines[1]):
            header = _cells(lines[0])
            for line in lines[2:]:
                yield "; ".join(
                    f"{name}: {cell}" if name else cell for name, cell in zip(header, _cells(line), strict=False)
                )
            continue
        for text in _paragraphs(lines):
            yield from (unit.strip() for unit in _END.split(text) if unit.strip())


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Wrapped lines joined again; list items by themselves."""
    text = ""
    for line in lines:
        bullet = _BULLET.match(line)
        if line.startswith("#") or _NOTE.fullmatch(line) or bullet:
            if text:
                yield text
            text = line[bullet.end() :] if bullet else ""
        else:
            text = f"{text} {line}".strip()
    if text:
        yield text


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


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
