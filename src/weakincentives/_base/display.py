"""How values show themselves: tables that fit a terminal, and drawings in the HTML of notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from unicodedata import category, east_asian_width

MIN_FLEXIBLE = 40
MAX_UNFOLDED = 1_200
MAX_DRAWN = 100


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a heading.

    Columns in `right` hold numbers. If a table is too wide, the columns in `drop` are left out one by one, and the
    `flexible` column is cut.
    """

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    drop: Sequence[str] = ()
    flexible: str = ""

    def cells(self, width: int | None = None) -> list[list[str]]:
        """The heading and the rows as padded cells that fit the width."""
        every = [self.heading, *self.rows]
        widths = {name: max(cell_width(row[at]) for row in every) for at, name in enumerate(self.heading)}
        if width is not None:
            self._fit(widths, width)
        kept = [(at, name) for at, name in enumerate(self.heading) if name in widths]
        return [[_padded(row[at], widths[name], right=name in self.right) for at, name in kept] for row in every]

    def text(self, width: int | None = None) -> str:
        return "\n".join("  ".join(row).rstrip() for row in self.cells(width))

    def html(self) -> str:
        head, *body = [self.heading, *self.rows]
        return (
            f"<table><thead><tr>{''.join(map(self._html_head, head))}</tr></thead><tbody>"
            + "".join(f"<tr>{''.join(map(self._html_cell, self.heading, row))}</tr>" for row in body)
            + "</tbody></table>"
        )

    def _html_head(self, name: str) -> str:
        return f'<th style="text-align: {"right" if name in self.right else "left"}">{escape(name)}</th>'

    def _html_cell(self, name: str, cell: str) -> str:
        # Notebooks align cells to the right; leading spaces are the depth in a tree.
        depth = len(cell) - len(cell.lstrip())
        style = "right" if name in self.right else f"left; padding-left: {0.5 + depth / 2}em"
        return f'<td style="text-align: {style}">{_inner(cell)}</td>'

    def _fit(self, widths: dict[str, int], width: int) -> None:
        """Leave out columns, then cut the flexible one, until the table fits."""
        flexible = self.flexible if self.flexible in widths else ""

        def excess(least: int) -> int:
            cut = max(widths[flexible] - least, 0) if flexible else 0
            return sum(widths.values()) + 2 * (len(widths) - 1) - cut - width

        for name in self.drop:
            if excess(MIN_FLEXIBLE) <= 0:
                break
            widths.pop(name, None)
            flexible = flexible if flexible in widths else ""
        if flexible and (over := excess(widths[flexible])) > 0:
            widths[flexible] = max(widths[flexible] - over, 1)


def cell_width(text: str) -> int:
    """How many terminal columns the text occupies."""
    if text.isascii():
        return len(text)
    return sum(
        0 if category(letter) in {"Mn", "Me", "Cf"} else 1 + (east_asian_width(letter) in "WF") for letter in text
    )


def shortened(text: str, width: int) -> str:
    """The text, cut with an ellipsis if it is wider, or has over four characters for each column of the width."""
    head = text[: 4 * width]
    if head.isascii():
        return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"
    end = columns = 0
    for index, letter in enumerate(head, start=1):
        columns += cell_width(letter)
        end = index if columns < width else end
    return text if columns <= width and head == text else f"{text[:end]}…"


def one_line(text: str) -> str:
    """The text with its line ends and runs of spaces as single spaces, for a cell or a line of progress."""
    return " ".join(text.split())


def wrapped(text: str, width: int | None, indent: str = "") -> str:
    """Text whose lines end between words, with `indent` before all but the first; unchanged without a width.

    Lines that fit stay as they are.
    """
    from textwrap import wrap  # Not for what never wraps, such as `wink --version`.

    if width is None:
        return text
    lines = (
        [line]
        if cell_width(line) <= width
        else wrap(line, max(width, 20), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )
    return "\n".join(part for line in lines for part in line)


def _padded(cell: str, width: int, *, right: bool) -> str:
    cell = shortened(cell, width)
    space = " " * (width - cell_width(cell))
    return space + cell if right else cell + space


Shown = str | Table


class Displayed:
    """Shows itself in a notebook as the parts that `_display` returns: lines of text, drawings and tables."""

    __slots__ = ()

    def _display(self) -> Iterable[Shown]:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        # A lone surrogate cannot be sent to a notebook.
        return "".join(map(_html, self._display())).encode("utf-8", "replace").decode()


class Drawn(str):
    """A text that notebooks show as this HTML instead."""

    html: str

    def __new__(cls, text: str, html: str) -> Drawn:
        made = super().__new__(cls, text)
        made.html = html
        return made


# The viewer's colours, in shades that can be seen on white and on black.
_GOOD, _PART, _BAD, _SENT, _REST = "#2a9d78", "#c58a1f", "#d4524c", "#7272e6", "#88888855"
_LINE_TONES = {"added": _GOOD, "removed": _BAD, "changed": _PART, "note": "#888888"}
_TONES = {
    "full": _GOOD,
    "read": _GOOD,
    "passed": _GOOD,
    "summary": _PART,
    "diverged": _PART,
    "failed": _BAD,
    "error": _BAD,
    "user": _SENT,
    "assistant": _GOOD,
}


def toned(word: str) -> Drawn:
    """A state or a verdict with its colour."""
    dot = f'<span style="color: {_TONES.get(word, "#888")}">●</span>'
    return Drawn(word, f'<span style="white-space: nowrap">{dot} {escape(word)}</span>')


def bar(parts: Iterable[tuple[str, int]], whole: int) -> Drawn:
    """Amounts beside each other, each with its tone, as shares of a whole."""
    drawn = "".join(
        f'<span style="width: {100 * amount / max(whole, 1):.1f}%; background: {_TONES.get(tone, _REST)}"></span>'
        for tone, amount in parts
    )
    style = "display: flex; gap: 1px; height: 8px; margin: 3px 0; min-width: 140px; max-width: 480px"
    return Drawn("", f'<div style="{style}">{drawn}</div>')


def strip(turns: Sequence[tuple[int, int]]) -> Drawn:
    """A column for each turn of a run: the tokens that it sent, and those of them that were cached."""
    most = max((sent for sent, _ in turns), default=0) or 1

    def column(number: int, sent: int, cached: int) -> str:
        parts = ((_SENT, sent - cached), (_GOOD, cached))
        drawn = "".join(
            f'<div style="height: {36 * n / most:.0f}px; background: {colour}"></div>' for colour, n in parts
        )
        title = f"turn {number}: {sent:,} tokens sent, {cached:,} cached"
        return f'<div style="flex: 0 1 40px; text-align: center" title="{title}">{drawn}<small>{number}</small></div>'

    numbered = list(enumerate(turns, start=1))[-MAX_DRAWN:]
    columns = "".join(column(number, *turn) for number, turn in numbered)
    caption = f'<small>&nbsp; tokens sent in each turn, <span style="color: {_GOOD}">●</span> cached</small>'
    style = "display: flex; align-items: flex-end; gap: 2px; margin: 6px 0"
    return Drawn(f"{len(turns)} turns", f'<div style="{style}">{columns}{caption}</div>' if turns else "")


def folded(label: str, text: str, *, font: str = "inherit") -> Drawn:
    """A text that can be unfolded under its label."""
    style = f"white-space: pre-wrap; overflow-wrap: anywhere; text-align: left; font-family: {font}"
    words = f'<div style="{style}">{escape(text)}</div>'
    return Drawn(text, f"<details><summary>{escape(label)}</summary>{words}</details>" if label else words)


def said(who: str, text: str) -> Drawn:
    """A message of a conversation; a long one, and the system's, can be unfolded."""
    long = len(text) > MAX_UNFOLDED or who.startswith("system")
    # The columns of a tool's result stay aligned.
    font = "monospace" if who.startswith("tool ") else "inherit"
    words = folded(shortened(one_line(text), 160) if long else "", text, font=font).html
    style = f"border-left: 3px solid {_TONES.get(who.split()[0], _REST)}; padding: 1px 10px; margin: 6px 0"
    return Drawn(f"{who}: {text}", f'<div style="{style}"><small>{escape(who)}</small>{words}</div>')


def lines(rows: Iterable[tuple[str, str]]) -> Drawn:
    """Lines of a question, each with its kind: what is added in green, what is removed in red."""
    drawn: list[str] = []
    texts: list[str] = []
    for kind, text in rows:
        weight = "bold" if kind == "heading" else "normal"
        style = f"color: {_LINE_TONES.get(kind, 'inherit')}; font-weight: {weight}"
        drawn.append(f'<div style="{style}">{escape(text) or "&nbsp;"}</div>')
        texts.append(text)
    box = "font-family: monospace; white-space: pre-wrap; overflow-wrap: anywhere; text-align: left; margin: 6px 0"
    return Drawn("\n".join(texts), f'<div style="{box}">{"".join(drawn)}</div>')


def tree(rows: Iterable[tuple[Any, str, str, int, int]]) -> Table:
    """Nodes of an outline, each with its state, what decided it, and its tokens, those shown and those in full."""
    # What is shown in full counts as it is, with its number.
    counted = [(*row[:3], *((row[3] or row[4],) * 2 if row[1] == "full" else row[3:])) for row in rows]
    most = max((max(row[3:]) for row in counted), default=0)
    drawn = [
        (
            "  " * node.depth + node.section.key,
            toned(state),
            why,
            f"{shown:,}",
            f"{full:,}",
            bar(((state, shown), ("rest", max(0, full - shown))), most),
            ", ".join(tool.name for tool in node.all_tools) or ("not known yet" if node.is_late else ""),
        )
        for node, state, why, shown, full in counted
    ]
    return Table(("section", "shows", "because", "tokens", "in full", "", "tools"), drawn, right=("tokens", "in full"))


def _inner(text: str) -> str:
    return text.html if isinstance(text, Drawn) else escape(text)


def _html(part: Shown) -> str:
    if isinstance(part, Table):
        return part.html()
    return part.html if isinstance(part, Drawn) else f'<p style="white-space: pre-line">{escape(part)}</p>'
