"""The question about a call on a terminal, line by line as it was made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TextIO

from weakincentives._base.display import wrapped
from weakincentives.cli.output import print_line
from weakincentives.runtime import Question, QuestionPart

STYLES = {"heading": "1", "added": "32", "removed": "31", "changed": "36", "note": "2", "same": ""}
_PROSE = frozenset({"note", "call", "preview", "missing"})
_INDENT = " " * 6


def print_question(question: Question, stream: TextIO, width: int | None = None) -> None:
    """Print a question; only its words are wrapped, as a line of a difference is shown as it is."""
    print_parts(question.parts, stream, width)


def print_parts(parts: Iterable[QuestionPart], stream: TextIO, width: int | None = None) -> None:
    for part in parts:
        print_line(stream=stream)
        for style, text in styled_lines(part, width):
            print_line(text, style=style, stream=stream)


def styled_lines(part: QuestionPart, width: int | None = None) -> Iterator[tuple[str, str]]:
    """The lines of a part, each with its style."""
    for line in part.lines:
        style = "33" if part.kind == "missing" else STYLES[line.kind]
        yield style, wrapped(line.text, width, _INDENT) if part.kind in _PROSE else line.text
