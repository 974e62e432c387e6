"""Front matter: the YAML between two `---` lines at the top of a page, read and written without a YAML package.

It reads the YAML that people write there: nested mappings, lists of text, and plain, quoted, literal (`|`) and folded
(`>`) text. Every scalar is text, so `version: 1.10` stays `1.10`. Anything else is an error that names the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import dedent, indent
from typing import NoReturn

from weakincentives.errors import PromptValidationError

Value = str | list["Value"] | dict[str, "Value"]

_BLOCK = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_KEY = re.compile(r"""(?P<key>"[^"]*"|'[^']*'|\w[^:]*):(?:\s+(?P<rest>.*))?$""")
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""", re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s)#.*")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_ ,.;()/+-]*")
_NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null"})


def split_front_matter(text: str, where: str) -> tuple[dict[str, Value], str]:
    """The fields of a page's front matter, and the text below it; a page that has none is all text."""
    block = _BLOCK.match(text)
    lines = block[1].split("\n") if block else [text]
    first = next((line for line in lines if _COMMENT.sub("", line).strip()), "a:")
    if block is None or not _KEY.match(first):
        return {}, text
    return _Block(where, lines, 2).mapping(), text[block.end() :]


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


class _Block:
    """Lines of one level, the first of which is line `start` of the file."""

    def __init__(self, where: str, lines: Sequence[str], start: int) -> None:
        self.where, self.lines, self.start = where, lines, start

    def mapping(self) -> dict[str, Value]:
        fields: dict[str, Value] = {}
        for index, line, deeper in self.entries():
            match = _KEY.match(line)
            if match is None:
                self.fail(index, f"expected 'key: value', got {line!r}")
            key = match["key"].strip("\"' ")
            if key in fields:
                self.fail(index, f"the key {key!r} is there twice")
            rest = _COMMENT.sub("", match["rest"] or "")
            if rest and any(map(_is_item, deeper)):
                self.fail(index, f"{key!r} has both a value and a list")
            below = _Block(self.where, dedent("\n".join(deeper)).split("\n"), self.start + index + 1)
            first = "" if rest else next((line for _, line, _ in below.entries()), "")
            if _is_item(first):
                fields[key] = [below.item(*entry) for entry in below.entries()]
            elif _KEY.match(first):
                fields[key] = below.mapping()
            else:
                fields[key] = self.scalar(index, match["rest"] or "", deeper)
        return fields

    def entries(self) -> Iterator[tuple[int, str, list[str]]]:
        """Each line of this level, with the deeper lines and the list items that follow it."""
        starts: list[int] = []
        for index, line in enumerate(self.lines):
            if not _COMMENT.sub("", line).strip():
                continue
            if line[0] not in " \t" and not (starts and _is_item(line) and not _is_item(self.lines[starts[0]])):
                starts.append(index)
            elif not starts:
                self.fail(index, f"{line.strip()[:40]!r} is indented deeper than what follows")
        for start, end in pairwise([*starts, len(self.lines)]):
            deeper = ["" if line.startswith("#") else line for line in self.lines[start + 1 : end]]
            yield start, self.lines[start].rstrip(), deeper

    def item(self, index: int, line: str, deeper: Sequence[str]) -> Value:
        if not _is_item(line):
            self.fail(index, f"expected '- ...', got {line!r}")
        return self.scalar(index, line[1:].strip(), deeper)

    def scalar(self, index: int, rest: str, deeper: Sequence[str]) -> Value:
        """The text that begins with `rest` and goes on in the deeper lines, or a list in brackets."""
        if re.fullmatch(r"[|>][+-]?(?:\s+#.*)?", rest):
            text = dedent("\n".join(deeper)).strip("\n")
            return _folded(text) if rest[0] == ">" else text
        text = "\n".join([rest, *(line.strip() for line in deeper)])
        if rest[:1] in ('"', "'"):
            quoted = _QUOTED.match(text)
            if quoted is None or _COMMENT.sub("", text[quoted.end() :]).strip():
                self.fail(index, f"the quotes of {rest[:40]!r} do not match")
            return self.unquoted(index, quoted[0])
        text = _folded("\n".join(_COMMENT.sub("", line).strip() for line in text.split("\n")))
        if text[:1] == "[" and text[-1:] == "]" and not set(text[1:-1]) & set("[]{}"):
            items = re.findall(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""", text[1:-1])
            return [self.unquoted(index, item.strip()) for item in items if item.strip()]
        if text[:1] in tuple("[]{}&*!%@`,|>?") or _is_item(text) or re.search(r":(?:\s|$)", text):
            self.fail(index, f"{text[:40]!r} is not supported; put the value in quotes")
        return text

    def unquoted(self, index: int, text: str) -> str:
        text = _folded(text)
        if text[:1] == "'":
            return text[1:-1].replace("''", "'")
        try:
            return str(json.loads(text, strict=False)) if text[:1] == '"' else text
        except ValueError as error:
            self.fail(index, f"{text[:40]!r} has an escape that is not supported: {error}")

    def fail(self, index: int, why: str) -> NoReturn:
        raise PromptValidationError(f"{self.where}, line {self.start + index}, front matter: {why}.")


def _folded(text: str) -> str:
    """Lines joined to paragraphs; a blank line separates two."""
    return re.sub(r"(?<!\n)\n(?![\n ])", " ", text).replace("\n\n", "\n").strip()


def _is_item(line: str) -> bool:
    return line.startswith("- ") or line.strip() == "-"
