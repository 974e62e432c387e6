"""Front matter: the YAML between two `---` lines at the top of a page, read and written without a YAML package.

It reads the YAML that people write there: nested mappings, lists of text, and plain, quoted, literal (`|`) and folded
(`>`) text. Every scalar is text, so `version: 1.10` stays `1.10`. Anything else is an error that names
the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from textwrap import dedent, indent
from typing import NoReturn

from weakincentives.errors import PromptValidationError

Value = str | list["Value"] | dict[str, "Value"]

MAX_LEVEL = 40
"""How far a nested mapping may be indented."""

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_KEY = re.compile(r"""(?P<key>"[^"]*"|'[^']*'|\w[^:]*):(?:\s+(?P<rest>.*))?$""")
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""", re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s)#.*", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_ ,.;()/+-]*")
_NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null"})


def split_front_matter(text: str, where: str) -> tuple[dict[str, Value], str]:
    """The fields of a page's front matter, and the text below it; a page that has none is all text."""
    block = _BLOCK.match(text)
    if block is None:
        return {}, text
    reader = _Reader(block[1], where)
    first = reader.peek()
    if first is not None and not _KEY.match(first.strip()):
        return {}, text
    return reader.mapping(0), text[block.end() :]


def front_matter(fields: Mapping[str, Value]) -> str:
    """The fields as front matter, in block style, which every YAML reader takes."""
    return f"---\n{''.join(_lines(fields))}---\n"


def _lines(fields: Mapping[str, Value]) -> Iterator[str]:
    for key, value in fields.items():
        if isinstance(value, str):
            yield f"{key}: {_scalar(value)}\n"
        elif isinstance(value, dict):
            yield f"{key}:\n{indent(''.join(_lines(value)), '  ')}"
        else:
            yield f"{key}:\n" + "".join(f"  - {_scalar(str(item))}\n" for item in value)


def _scalar(text: str) -> str:
    # Some readers end the front matter at any `---`.
    if _PLAIN.fullmatch(text) and "---" not in text and text == text.strip() and text.lower() not in _NOT_TEXT:
        return text
    return json.dumps(text, ensure_ascii=False).replace("---", "\\u002d--")


class _Reader:
    """The lines of a block, read from the top."""

    def __init__(self, block: str, where: str) -> None:
        self._lines = block.removesuffix("\n").split("\n")
        self._where = where
        self._next = 0

    def peek(self) -> str | None:
        """The next line that is not blank and not a comment."""
        while self._next < len(self._lines):
            line = self._lines[self._next]
            if line.strip() and not line.lstrip().startswith("#"):
                return line
            self._next += 1
        return None

    def mapping(self, level: int) -> dict[str, Value]:
        fields: dict[str, Value] = {}
        while (line := self.peek()) is not None and _level(line) >= level:
            match = _KEY.match(line.strip())
            if _level(line) > level or level > MAX_LEVEL or match is None:
                self._fail(f"expected 'key: value' at column {level + 1}, got {line.strip()!r}", self._next)
            key = match["key"].strip("\"' ")
            if key in fields:
                self._fail(f"the key {key!r} is there twice", self._next)
            self._next += 1
            fields[key] = self._value((match["rest"] or "").strip(), level)
        return fields

    def _value(self, rest: str, level: int) -> Value:
        """What stands after a key; `rest` is what its own line, the last one taken, has of it."""
        following = self.peek() if not _COMMENT.sub("", rest) else None
        if following is not None and _level(following) >= level and _is_item(following):
            return self._items(_level(following))
        if following is not None and _level(following) > level and _KEY.match(following.strip()):
            return self.mapping(_level(following))
        return self._scalar_or_list(rest, level)

    def _items(self, level: int) -> list[Value]:
        items: list[Value] = []
        while (line := self.peek()) is not None and _level(line) == level and _is_item(line):
            self._next += 1
            items.append(self._scalar_or_list(line.strip()[1:].strip(), level))
        return items

    def _scalar_or_list(self, rest: str, level: int) -> Value:
        first = start = self._next
        while first < len(self._lines) and (not self._lines[first].strip() or _level(self._lines[first]) > level):
            first += 1
        self._next, deeper = first, self._lines[start:first]
        if re.fullmatch(r"[|>][+-]?(?:\s+#.*)?", rest):
            text = dedent("\n".join(deeper)).strip("\n")
            return _folded(text) if rest[0] == ">" else text
        text = "\n".join([rest, *(line.strip() for line in deeper)])
        if rest[:1] in ('"', "'"):
            quoted = _QUOTED.match(text)
            if quoted is None or _COMMENT.sub("", text[quoted.end() :]).strip():
                self._fail(f"the quotes of {rest[:40]!r} do not match", start - 1)
            return self._unquoted(quoted[0], start - 1)
        text = _folded("\n".join(_COMMENT.sub("", line).strip() for line in text.split("\n")))
        if text[:1] == "[" and text[-1:] == "]" and not set(text[1:-1]) & set("[]{}"):
            items = re.findall(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""", text[1:-1])
            return [self._unquoted(item.strip(), start - 1) for item in items if item.strip()]
        if text[:1] in tuple("[]{}&*!%@`,|>") or re.search(r":(?:\s|$)", text):
            self._fail(f"{text[:40]!r} is not supported; put the value in quotes", start - 1)
        return text

    def _unquoted(self, text: str, line: int) -> str:
        if text[:1] not in ('"', "'"):
            return text
        text = _folded(text)
        if text[0] == "'":
            return text[1:-1].replace("''", "'")
        try:
            return str(json.loads(text, strict=False))
        except ValueError as error:
            self._fail(f"{text[:40]!r} has an escape that is not supported: {error}", line)

    def _fail(self, why: str, index: int) -> NoReturn:
        raise PromptValidationError(f"{self._where}, line {index + 2}, front matter: {why}.")


def _folded(text: str) -> str:
    """Lines joined to paragraphs; a blank line separates two."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text).replace("\n\n", "\n").strip()


def _level(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _is_item(line: str) -> bool:
    return line.lstrip().startswith("- ") or line.strip() == "-"
