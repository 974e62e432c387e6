"""Parameter descriptions in docstrings, in the Google, NumPy and Sphinx styles."""

from __future__ import annotations

import re
from collections.abc import Iterable

_GOOGLE = re.compile(r"(?:Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments):$")
_GOOGLE_ENTRY = re.compile(r"(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*)|$)")
_NUMPY = re.compile(r"(?:Other )?Parameters$")
_NUMPY_ENTRY = re.compile(r"([\w, ]+?)\s*(?::.*)?$")
_SPHINX_ENTRY = re.compile(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)")
_SPHINX_TYPE = re.compile(r":type\s+\w+\s*:")


def split_docstring(text: str, parameters: Iterable[str]) -> tuple[str, dict[str, str]]:
    """A docstring without its parameter descriptions, and those descriptions by name.

    A part that names none of the parameters is left where it is.
    """
    known = frozenset(parameters)
    kept: list[str] = []
    found: dict[str, list[str]] = {}
    lines = text.expandtabs().splitlines()
    index = 0
    while index < len(lines):
        line, inside = lines[index].strip(), index + 1
        entries: dict[str, list[str]] = {}
        if _GOOGLE.fullmatch(line):
            inside = _end(lines, index, deeper=True)
            entries = _entries(lines[index + 1 : inside], _GOOGLE_ENTRY)
        elif _NUMPY.fullmatch(line) and index + 1 < len(lines) and re.fullmatch(r"\s*-{3,}", lines[index + 1]):
            inside = _end(lines, index + 1, deeper=False)
            entries = _entries(lines[index + 2 : inside], _NUMPY_ENTRY)
        elif _SPHINX_ENTRY.match(line) or _SPHINX_TYPE.match(line):
            inside = _end(lines, index, deeper=True)
            entries = _entries(lines[index:inside], _SPHINX_ENTRY)
        if known & entries.keys() or _SPHINX_TYPE.match(line):
            found |= entries
        else:
            kept += lines[index:inside]
        index = inside
    described = {name: " ".join(filter(None, words)) for name, words in found.items() if name in known}
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), described


def _end(lines: list[str], start: int, *, deeper: bool) -> int:
    """The line after a block: the first that is not indented `deeper`, or the heading of another NumPy section."""
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if not line.strip():
            continue
        if _indent(line) < _indent(lines[start]) or (deeper and _indent(line) == _indent(lines[start])):
            return index
        if not deeper and index + 1 < len(lines) and re.fullmatch(r"\s*-{3,}", lines[index + 1]):
            return index
    return len(lines)


def _entries(lines: list[str], entry: re.Pattern[str]) -> dict[str, list[str]]:
    """The entries, which begin at the indentation of the first; deeper lines continue an entry."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    margin = next((_indent(line) for line in lines if line.strip()), 0)
    for line in lines:
        match = entry.match(line.strip()) if _indent(line) == margin else None
        if match is None:
            current.append(line.strip())
            continue
        current = [match[2] or ""] if entry.groups > 1 else []
        for name in match[1].split(","):
            found[name.strip()] = current
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
