"""Rows as a table for a terminal or a Markdown page, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from bench.row import Row

HEADINGS = ("row", "figure", "goal", "ratio", "ok")
VERDICTS = {True: "yes", False: "NO", None: "-"}


def cells(row: Row) -> tuple[str, ...]:
    sign = "<=" if row.better == "less" else ">="
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}x" + (f" of {row.baseline}" if row.baseline else "")
    if row.ratio_goal is not None:
        ratio += f" ({sign} {row.ratio_goal:g}x)"
    goal = "" if row.goal is None else f"{sign} {row.goal:g} {row.unit}"
    name = f"{row.name} ({row.note})" if row.note else row.name
    return (name, f"{amount(row.figure)} {row.unit}".strip(), goal, ratio, VERDICTS[row.ok])


def amount(figure: float) -> str:
    """Three significant digits, without an exponent."""
    if figure == int(figure) or abs(figure) >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.2f}" if abs(figure) >= 1 else f"{figure:.3g}"


def lines(rows: Sequence[Row]) -> list[str]:
    """The rows as aligned Markdown table lines, which read well on a terminal too."""
    body = [HEADINGS, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in body) for column in range(len(HEADINGS))]
    padded = [[text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in body]
    written = [f"| {' | '.join(line)} |" for line in padded]
    return [written[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *written[1:]]


def as_json(results: Mapping[str, Iterable[Row]]) -> str:
    return json.dumps(
        {topic: [asdict(row) | {"ok": row.ok} for row in rows] for topic, rows in results.items()}, indent=2
    )
