"""Finding JSON values in other text, in linear time whatever the text contains.

`json.JSONDecoder.raw_decode` would take quadratic time on hostile text, because each of its errors counts the lines
before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_DEPTH = 900
_SPACE = r"[ \t\r\n]*+"
_STRING = r'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
_TOKEN = re.compile(rf"{_SPACE}([][{{}},:]|{_STRING}|-?[0-9][-+.0-9eE]*+|true|false|null|)")
# Most brackets in prose and in hostile text start no value; the regular expressions skip them quickly.
_START = {
    "{": re.compile(rf"{{(?={_SPACE}(?:}}|{_STRING}{_SPACE}:))"),
    "[": re.compile(rf"\[(?={_SPACE}(?:[][{{0-9tfn-]|{_STRING}{_SPACE}[],]))"),
}
_VALUE = {"{": "first key", "[": "first item", '"': "end", "scalar": "end"}
# For each state, the tokens that may follow and the state after each.
_NEXT = {
    "value": _VALUE,
    "first item": {**_VALUE, "]": "end"},
    "first key": {'"': "colon", "}": "end"},
    "key": {'"': "colon"},
    "colon": {":": "value"},
    "end": {",": "more", "}": "end", "]": "end"},
}
_CLOSING = {"{": "}", "[": "]"}


def find_json(text: str, opening: str) -> Iterator[str]:
    """Yield the JSON objects (`opening="{"`) or arrays (`"["`) in a text, in order.

    After a value that breaks off, the search continues where it broke off, not inside it.
    """
    end = 0
    while match := _START[opening].search(text, end):
        end, complete = _extent(text, match.start())
        if complete:
            yield text[match.start() : end]


def _extent(text: str, start: int) -> tuple[int, bool]:
    """Where the value at `start` ends or stops being JSON, and whether it is complete."""
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
