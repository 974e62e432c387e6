"""Markdown set for a terminal as it arrives: headings, bold, code, lists, quotes and tables, wrapped between words.

It is read letter by letter: the beginning of a line says what it is, and only headings, code and tables wait for the
end of their line. Anything else of Markdown is shown as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from weakincentives._base.display import Table, cell_width, wrapped

BOLD, CODE, QUIET = "1", "36", "2"
_BULLET = re.compile(r"( *)([-*+]|\d{1,3}[.)]) $")
# A line that may still become a fence, a heading, a bullet, a table or a quotation.
_UNDECIDED = re.compile(r" *(`{0,2}|#{1,6}|[-*+]|\d{1,3}[.)]?)")
_RULE = re.compile(r"\s*\|?[\s:|-]*-[\s:|-]*\|?\s*")

Write = Callable[[str, str], None]


class Setter:
    """Writes an answer through `write(text, style)`; `width` asks for the columns of the terminal."""

    def __init__(self, write: Write, width: Callable[[], int]) -> None:
        self._write = write
        self._width = width
        self._line = ""
        self._kind = ""
        self._fenced = False
        self._rows: list[str] = []
        self._word: list[tuple[str, str]] = []
        self._space = self._held = ""
        self._column = self._hang = 0
        self._bold = self._code = False

    @property
    def within_line(self) -> bool:
        return bool(self._column)

    def feed(self, text: str) -> None:
        """Set more of the answer."""
        for letter in text:
            if self._kind == "text":
                self._inline(letter)
            elif letter == "\n":
                self._end_line()
            else:
                self._line += letter
                if not self._kind and not self._fenced:
                    self._decide()

    def close(self) -> None:
        """Write what is still held back, and end the line."""
        if self._kind == "text":
            self._end_words()
        elif self._line:
            self._end_line()
        self._end_table()
        if self._column:
            self._new_line()
        self._kind, self._fenced = "", False

    def _decide(self) -> None:
        """Find out what the line is from its beginning."""
        line = self._line
        if bullet := _BULLET.fullmatch(line):
            self._end_table()
            mark = "•" if bullet[2] in "-*+" else bullet[2]
            self._begin_text(f"{bullet[1]}{mark} ")
        elif line.lstrip().startswith("```"):
            self._kind = "fence"
        elif line.lstrip().startswith("|"):
            self._kind = "table"
        elif re.fullmatch(r"#{1,6} ", line):
            self._kind = "heading"
        elif line == "> ":
            self._end_table()
            self._begin_text("│ ")
        elif line.startswith("    ") and line.strip():
            self._kind = "code"
        elif line.strip() and line != ">" and not _UNDECIDED.fullmatch(line):
            self._end_table()
            self._kind, self._line = "text", ""
            self._hang = 0
            for letter in line:
                self._inline(letter)

    def _begin_text(self, mark: str) -> None:
        self._kind, self._line, self._hang = "text", "", len(mark)
        self._put([(mark.rstrip(), "")])
        self._space = " "

    def _end_line(self) -> None:
        """A line whose kind needs all of it: a heading, code, a row of a table, or one that is empty."""
        line, kind = self._line, self._kind
        self._line, self._kind = "", ""
        if kind == "fence" or (self._fenced and line.strip() == "```"):
            self._end_table()
            self._fenced = not self._fenced
        elif kind == "table":
            self._rows.append(line)
        elif self._fenced or kind == "code":
            self._end_table()
            self._write(line if kind == "code" else f"    {line}", CODE)
            self._new_line()
        elif kind == "heading":
            self._end_table()
            self._write(wrapped(line.lstrip("#").strip().replace("**", ""), self._width()), BOLD)
            self._new_line()
        else:
            self._end_table()
            for letter in line:
                self._inline(letter)
            self._end_words()
            self._new_line()

    def _end_table(self) -> None:
        """Write the rows of a table: aligned if they fit, else each as a line of named cells."""
        if not self._rows:
            return
        cells = [[cell.strip().replace("**", "") for cell in row.strip().strip("|").split("|")] for row in self._rows]
        ruled = len(self._rows) > 1 and _RULE.fullmatch(self._rows[1])
        heading, rows = cells[0], cells[2 if ruled else 1 :]
        self._rows = []
        if not all(len(row) == len(heading) for row in rows) or len(set(heading)) < len(heading):
            lines = [" | ".join(row) for row in (heading, *rows)]
        else:
            lines = Table(heading, rows).text().split("\n")
            if max(map(cell_width, lines)) > self._width():
                named = ["; ".join(f"{name}: {cell}" for name, cell in zip(heading, row, strict=True)) for row in rows]
                lines = [wrapped(f"• {line}", self._width(), "  ") for line in named]
                heading = []
        for index, line in enumerate(lines):
            self._write(line, BOLD if index == 0 and heading else "")
            self._new_line()

    def _inline(self, letter: str) -> None:
        """One letter of running text; two stars and a backtick switch a style."""
        held, self._held = self._held, ""
        if held == "**":
            # Two stars between spaces are not markup.
            if self._bold or not letter.isspace():
                self._bold = not self._bold
            else:
                self._add(held)
        elif held == "*" and letter == "*":
            self._held = "**"
            return
        elif held:
            self._add(held)
        if letter == "*" and not self._code:
            self._held = letter
        elif letter == "`":
            self._code = not self._code
            self._add("")
        elif letter == "\n":
            self._end_words()
            self._new_line()
            self._kind, self._hang = "", 0
        elif letter.isspace():
            self._put_word()
            self._space += "    " if letter == "\t" else letter
        else:
            self._add(letter)

    def _add(self, text: str) -> None:
        style = CODE if self._code else BOLD if self._bold else ""
        if self._word and self._word[-1][1] == style:
            self._word[-1] = (self._word[-1][0] + text, style)
        else:
            self._word.append((text, style))

    def _end_words(self) -> None:
        """The end of running text: an unclosed style ends here."""
        if self._held == "*" or (self._held and not self._bold):
            self._add(self._held)
        self._put_word()
        self._held, self._space = "", ""
        self._bold = self._code = False

    def _put_word(self) -> None:
        word, self._word = self._word, []
        if any(text for text, _ in word):
            self._put(word)

    def _put(self, word: list[tuple[str, str]]) -> None:
        size = sum(cell_width(text) for text, _ in word)
        if self._column and self._column + len(self._space) + size > self._width():
            self._new_line()
            self._space = " " * self._hang
        self._write(self._space, "")
        for text, style in word:
            self._write(text, style)
        self._column += len(self._space) + size
        self._space = ""

    def _new_line(self) -> None:
        self._write("\n", "")
        self._column, self._space = 0, ""
