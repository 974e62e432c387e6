"""Rows in columns, for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """The rows under their heading; the columns in `right` hold numbers."""
    every = [heading, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(heading))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in every
    )
