"""How values show themselves: tables that fit a terminal, and the HTML and Markdown of notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from unicodedata import category, east_asian_width

MIN_FLEXIBLE = 40


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
            f"<table><thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr></thead><tbody>"
            + "".join(f"<tr>{''.join(map(self._html_cell, self.heading, row))}</tr>" for row in body)
            + "</tbody></table>"
        )

    def markdown(self) -> str:
        rule = ["---:" if name in self.right else "---" for name in self.heading]
        return "\n".join(f"| {' | '.join(map(_markdown_cell, row))} |" for row in (self.heading, rule, *self.rows))

    def _html_cell(self, name: str, cell: str) -> str:
        # Notebooks align cells to the right; leading spaces are the depth in a tree.
        depth = len(cell) - len(cell.lstrip())
        style = "right" if name in self.right else f"left; padding-left: {0.5 + depth / 2}em"
        return f'<td style="text-align: {style}">{escape(cell)}</td>'

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


def wrapped(text: str, width: int | None, indent: str = "") -> str:
    """Text whose lines end between words, with `indent` before all but the first; unchanged without a width."""
    from textwrap import wrap  # Not for what never wraps, such as `wink --version`.

    if width is None:
        return text
    lines = (
        wrap(line, max(width, 20), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    )
    return "\n".join(part for line in lines for part in line)


def _padded(cell: str, width: int, *, right: bool) -> str:
    cell = shortened(cell, width)
    space = " " * (width - cell_width(cell))
    return space + cell if right else cell + space


def _markdown_cell(cell: str) -> str:
    return escape(cell, quote=False).replace("|", "\\|").replace("\n", " ").replace("  ", "&emsp;")


@dataclass(frozen=True, slots=True)
class Fold:
    """Text under a label that can be folded away."""

    label: str
    text: str


Shown = str | Table | Fold


class Displayed:
    """Shows itself in a notebook as the parts that `_display` returns: lines of text, tables and folds."""

    __slots__ = ()

    def _display(self) -> Iterable[Shown]:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return "".join(map(_html, self._display()))

    def _repr_markdown_(self) -> str:
        return "\n\n".join(map(_markdown, self._display()))


def _html(part: Shown) -> str:
    if isinstance(part, Table):
        return part.html()
    if isinstance(part, Fold):
        text = f'<pre style="white-space: pre-wrap">{escape(part.text)}</pre>'
        return f"<details><summary>{escape(part.label)}</summary>{text}</details>"
    return f"<p>{escape(part)}</p>"


def _markdown(part: Shown) -> str:
    if isinstance(part, Table):
        return part.markdown()
    if isinstance(part, Fold):
        # Indented text is shown as it is, whatever fences it contains.
        return f"{_plain(part.label)}\n\n" + "\n".join(f"    {line}" for line in part.text.split("\n"))
    return _plain(part)


def _plain(text: str) -> str:
    """Text in which Markdown and HTML have no effect."""
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|!" else letter for letter in text)
