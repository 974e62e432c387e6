"""Front matter: the YAML between two `---` lines at the top of a page, read and written without a YAML package.

It reads what people write there: mappings and lists, nested or in brackets, and plain, quoted, literal and folded text.
Every scalar is text, so that `version: 1.10` stays `1.10`. Text that YAML rejects but that can only mean one thing, such
as `description: Deploy: now`, is read as it was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from textwrap import indent

Value = str | list["Value"] | dict[str, "Value"]

MAX_LENGTH = 65_536
MAX_DEPTH = 20
MAX_LINES = 200
"""How far a quoted text or a bracket is followed to its end."""

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_KEY = re.compile(
    r"""(?P<key>"(?:[^"\\]|\\.)*"\s*|'(?:[^']|'')*'\s*|[^\s:"'#\[\]{}][^:]*(?::(?!\s|$)[^:]*)*):(?:\s+(?P<rest>.*))?$"""
)
_QUOTED = {'"': re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL), "'": re.compile(r"'((?:[^']|'')*)'")}
_COMMENT = re.compile(r"(?:^|\s)#.*")
_SCALAR_HEADER = re.compile(r"([|>])([+-]?)([1-9]?)([+-]?)(?:\s+#.*)?$")
_ESCAPE = re.compile(
    r"\\\n[ \t]*|\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U(00[01][0-9A-Fa-f]{5})|\\(.)|(?<![ \t])[ \t]*\n(?:[ \t]*\n)*[ \t]*"
)
_FOLD = re.compile(r"(?<![ \t])[ \t]*\n(?:[ \t]*\n)*[ \t]*")
_ESCAPED = {
    **{"0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b"},
    **{"N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029", " ": " ", '"': '"', "/": "/", "\\": "\\"},
}
_FLOW_PLAIN = re.compile(r"[^\s,\[\]{}](?:[^,\[\]{}:]|:(?!\s|[,\[\]{}]|$))*")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_ ,.;()/+*'=<>-]*")
_NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null"})


def split_front_matter(text: str) -> tuple[dict[str, Value], str]:
    """The fields of a page's front matter, and the text below it; a page that has none is all text."""
    block = _BLOCK.match(text)
    if block is None or len(block[1]) > MAX_LENGTH:
        return {}, text
    fields = _Lines(block[1]).read()
    if not fields and block[1].strip():
        return {}, text
    return fields, text[block.end() :]


def front_matter(fields: Mapping[str, Value]) -> str:
    """The fields as front matter, in block style, which every YAML reader takes."""
    return f"---\n{''.join(_written(fields))}---\n"


def _written(value: Mapping[str, Value]) -> Iterator[str]:
    for key, item in value.items():
        if isinstance(item, str):
            yield f"{_scalar(key)}: {_scalar(item)}\n"
        elif isinstance(item, dict):
            yield f"{_scalar(key)}:\n{indent(''.join(_written(item)), '  ')}"
        else:
            texts = (one if isinstance(one, str) else str(one) for one in item)
            yield f"{_scalar(key)}:\n" + "".join(f"  - {_scalar(text)}\n" for text in texts)


def _scalar(text: str) -> str:
    if _PLAIN.fullmatch(text) and "---" not in text and text == text.strip() and text.lower() not in _NOT_TEXT:
        return text
    escaped = "".join(
        f"\\{char}" if char in '"\\' else char if char.isprintable() else f"\\U{ord(char):08x}" for char in text
    )
    # Some readers end the front matter at any `---`.
    return '"' + escaped.replace("---", "\\x2d--") + '"'


class _Lines:
    """The lines of a block, read from the top."""

    def __init__(self, text: str) -> None:
        self._lines = text.removesuffix("\n").split("\n")
        self._next = 0
        self._depth = 0

    def read(self) -> dict[str, Value]:
        first = self._peek()
        return {} if first is None else self._mapping(_indent(first))

    def _peek(self) -> str | None:
        """The next line that is not blank and not a comment."""
        while self._next < len(self._lines):
            line = self._lines[self._next]
            if line.strip() and not line.lstrip().startswith("#"):
                return line
            self._next += 1
        return None

    def _mapping(self, level: int) -> dict[str, Value]:
        fields: dict[str, Value] = {}
        key = ""
        while (line := self._peek()) is not None and _indent(line) >= level:
            self._next += 1
            match = _KEY.match(line.strip()) if _indent(line) == level else None
            if match is not None:
                key = _unquoted(match["key"].strip())
                fields[key] = self._value(match["rest"] or "", level)
            elif isinstance(text := fields.get(key), str):
                fields[key] = f"{text} {line.strip()}".strip()
        return fields

    def _sequence(self, level: int) -> list[Value]:
        items: list[Value] = []
        while (line := self._peek()) is not None and _indent(line) == level and _is_item(line):
            rest = line.strip()[1:].lstrip()
            inner = len(line.rstrip()) - len(rest)
            if rest and (_is_item(rest) or _KEY.match(rest)) and self._depth < MAX_DEPTH:
                self._lines[self._next] = " " * inner + rest
                items.append(self._block(inner))
            else:
                self._next += 1
                items.append(self._value(rest, level))
        return items

    def _block(self, level: int) -> Value:
        self._depth += 1
        line = self._peek() or ""
        value: Value = self._sequence(level) if _is_item(line) else self._mapping(level)
        self._depth -= 1
        return value

    def _value(self, rest: str, level: int) -> Value:
        """What stands after a key or a dash; `rest` is what its own line has of it."""
        rest = rest.strip()
        if not rest or rest.startswith("#"):
            line = self._peek()
            nested = line is not None and (_indent(line) > level or (_indent(line) == level and _is_item(line)))
            if line is None or not nested or self._depth >= MAX_DEPTH:
                return ""
            if _is_item(line) or _KEY.match(line.strip()):
                return self._block(_indent(line))
            return self._plain("", level)
        if header := _SCALAR_HEADER.match(rest):
            return self._block_scalar(header, level)
        if rest[0] in "\"'[{":
            found = self._delimited(rest)
            if found is not None:
                return found
        return self._plain(rest, level)

    def _plain(self, rest: str, level: int) -> str:
        """Text without quotes, with the deeper lines that continue it."""
        text = _COMMENT.sub("", rest).strip()
        parts, blanks = [text], 0
        while text == rest and self._next < len(self._lines):
            line = self._lines[self._next]
            if line.strip() and (_indent(line) <= level or line.lstrip().startswith("#")):
                break
            self._next += 1
            rest = line.strip()
            text = _COMMENT.sub("", rest).strip()
            if text:
                parts += ["\n" * blanks or " ", text]
            blanks = 0 if text else blanks + 1
        return "".join(parts).strip()

    def _block_scalar(self, header: re.Match[str], level: int) -> str:
        lines: list[str] = []
        while self._next < len(self._lines):
            line = self._lines[self._next]
            if line.strip() and _indent(line) <= level:
                break
            lines.append(line)
            self._next += 1
        filled = [line for line in lines if line.strip()]
        inner = level + int(header[3]) if header[3] else _indent(filled[0]) if filled else 0
        lines = [line[min(inner, _indent(line)) :] if line.strip() else line[inner:] for line in lines]
        text = _folded_lines(lines) if header[1] == ">" else "".join(f"{line}\n" for line in lines)
        chomp = header[2] or header[4]
        if chomp == "+":
            return text
        text = text.rstrip("\n")
        return text if chomp == "-" or not text else f"{text}\n"

    def _delimited(self, rest: str) -> Value | None:
        """A quoted text or a bracketed collection, perhaps of several lines; None if other text follows it."""
        text = "\n".join([rest, *self._lines[self._next : self._next + MAX_LINES]])
        try:
            value, end = _flow(text, 0, 0)
        except ValueError:
            return None
        line_end = text.find("\n", end)
        if _COMMENT.sub("", text[end : None if line_end < 0 else line_end]).strip():
            return None
        self._next += text.count("\n", 0, end)
        return value


def _flow(text: str, start: int, depth: int) -> tuple[Value, int]:
    """The quoted text, list or mapping that starts here, and where it ends; ValueError if there is none."""
    opening = text[start : start + 1]
    if opening in _QUOTED:
        match = _QUOTED[opening].match(text, start)
        if match is None:
            raise ValueError("unclosed quote")
        return _unquoted(match[0]), match.end()
    if not opening or opening not in "[{" or depth > MAX_DEPTH:
        match = _FLOW_PLAIN.match(text, start)
        if match is None:
            raise ValueError("no value")
        return _FOLD.sub(_folded, match[0].strip()), match.end()
    items: list[Value] = []
    fields: dict[str, Value] = {}
    position, closing = _skip_space(text, start + 1), "]" if opening == "[" else "}"
    while not text.startswith(closing, position):
        item, position = _flow(text, position, depth + 1)
        position = _skip_space(text, position)
        if opening == "{":
            fields[str(item)] = ""
            if text.startswith(":", position):
                position = _skip_space(text, position + 1)
                if text[position : position + 1] not in (",", "}"):
                    fields[str(item)], position = _flow(text, position, depth + 1)
                    position = _skip_space(text, position)
        items.append(item)
        if text.startswith(",", position):
            position = _skip_space(text, position + 1)
        elif not text.startswith(closing, position):
            raise ValueError("unclosed bracket")
    return (items if opening == "[" else fields), position + 1


def _skip_space(text: str, position: int) -> int:
    while text[position : position + 1].isspace():
        position += 1
    return position


def _unquoted(text: str) -> str:
    if text[:1] == '"':
        return _ESCAPE.sub(_unescaped, text[1:-1])
    if text[:1] == "'":
        return _FOLD.sub(_folded, text[1:-1].replace("''", "'"))
    return text


def _unescaped(match: re.Match[str]) -> str:
    token = match[0]
    if token.startswith("\\\n"):
        return ""
    if not token.startswith("\\"):
        return _folded(match)
    code = match[1] or match[2] or match[3]
    return chr(int(code, 16)) if code else _ESCAPED.get(match[4], token)


def _folded(match: re.Match[str]) -> str:
    return "\n" * (match[0].count("\n") - 1) or " "


def _folded_lines(lines: list[str]) -> str:
    """Lines of a `>` text: those of the same level become one, a blank line or a deeper one stays apart."""
    text, before, blanks = "", "", 0
    for line in lines:
        if not line.strip(" "):
            blanks += 1
            continue
        joined = before and not before[0].isspace() and not line[0].isspace()
        text += ("\n" * blanks or " ") if joined else "\n" * (blanks + bool(before))
        text, before, blanks = text + line, line, 0
    return text + "\n" * (blanks + bool(before))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _is_item(line: str) -> bool:
    return line.lstrip(" \t").startswith("- ") or line.strip() == "-"
