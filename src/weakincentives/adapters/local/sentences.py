"""Cuts markdown into the units that can be quoted: sentences, list items and table rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
