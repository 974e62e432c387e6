"""Finding JSON values inside other text, in one pass over it whatever it holds.

The standard library's decoder could do this, but each of its errors counts the lines before it, so that hostile text
costs its length squared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_DEPTH = 900
_SPACE = r"[ \t\r\n]*+"
_STRING = r'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
_TOKEN = re.compile(rf"{_SPACE}([][{{}},:]|{_STRING}|-?[0-9][-+.0-9eE]*+|true|false|null|)")
# Brackets that begin no value are the common case in prose and in hostile text: leave them to the regular expression.
_START = {
    "{": re.compile(rf"{{(?={_SPACE}(?:}}|{_STRING}{_SPACE}:))"),
    "[": re.compile(rf"\[(?={_SPACE}(?:[][{{0-9tfn-]|{_STRING}{_SPACE}[],]))"),
}
_VALUE = {"{": "first key", "[": "first item", '"': "end", "scalar": "end"}
# What may follow, for each state: the kind of token, and the state after it.
_NEXT = {
    "value": _VALUE,
    "first item": {**_VALUE, "]": "end"},
    "first key": {'"': "colon", "}": "end"},
    "key": {'"': "colon"},
    "colon": {":": "value"},
    "end": {",": "more", "}": "end", "]": "end"},
}
_CLOSING = {"{": "}", "[": "]"}


def values(text: str, opening: str) -> Iterator[str]:
    """The JSON objects (`opening="{"`) or arrays (`"["`) in a text, one after the other.

    After a value that breaks off, the search goes on from where it broke: what lies inside of it is not offered.
    """
    end = 0
    while match := _START[opening].search(text, end):
        end, whole = _extent(text, match.start())
        if whole:
            yield text[match.start() : end]


def _extent(text: str, start: int) -> tuple[int, bool]:
    """Where the value at `start` ends, or where it stops being JSON."""
    closing: list[str] = []
    state = "value"
    position = start
    while match := _TOKEN.match(text, position):
        token = match[1]
        kind = token[:1]
        if kind not in '{}[],:"':
            kind = "scalar"
        following = _NEXT[state].get(kind) if token else None
        if following is None or (kind in "}]" and kind != closing[-1]):
            return max(match.start(1), start + 1), False
        position = match.end()
        if kind in "{[":
            if len(closing) >= MAX_DEPTH:
                return len(text), False
            closing.append(_CLOSING[kind])
        elif kind in "}]":
            closing.pop()
            if not closing:
                return position, True
        state = following if following != "more" else "key" if closing[-1] == "}" else "value"
    return len(text), False
