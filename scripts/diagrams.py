"""Draw the `diagram` blocks of the docs as SVG; in the repository they are read as the text they are.

    you -> run: a question               an arrow between two lifelines
    run: takes a snapshot                a step on one lifeline
    -- the process ends --               a line across all of them

    request 2: [rules | question] | orders, with its tool      a request by its parts; those in brackets are cached

    run: one message                     boxes inside boxes, by indentation; a request in one of them is drawn as above
      turn: one model call

Drawings are narrow, so that their text stays legible on a phone, and take their colours from the page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import takewhile

WIDTH = 420  # units; text of 13 is still legible where a phone shows 340 pixels of them
GLYPH = 7.0  # the mean width of a letter, with room to spare
LINE = 16
BLOCK = re.compile(r"^```diagram\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """An arrow, a step on one lifeline (`end` is empty), or a line across all of them (both are empty)."""

    start: str
    end: str
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request by its parts; those that the provider has cached come first."""

    name: str
    cached: tuple[str, ...]
    new: tuple[str, ...]


def drawn(page: str) -> str:
    """The page with its diagrams as figures."""
    return BLOCK.sub(lambda found: figure(found[1]), page)


def figure(source: str) -> str:
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    if re.search(r"^ ", source, re.MULTILINE):
        parts, height = boxes([line.rstrip() for line in source.splitlines() if line.strip()])
    else:
        parts, height = requests(lines) if all("|" in line or "[" in line for line in lines) else sequence(lines)
    label = escape("; ".join(lines), quote=True)
    opening = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}">'
    return "\n".join(['<figure class="diagram">', opening, *parts, "</svg>", "</figure>"])


def requests(lines: Sequence[str]) -> tuple[list[str], float]:
    """A bar for each request: its parts in order, the cached ones pale."""
    parts, top = bars([request(line) for line in lines], 0.0, 0.0, WIDTH)
    return [*parts, *legend(top)], top + 18


def bars(parsed: Sequence[Request], x: float, top: float, width: float) -> tuple[list[str], float]:
    labels = {label: textwrap.wrap(label, 12) for each in parsed for label in (*each.cached, *each.new)}
    widths = {label: max(map(len, wrapped)) * GLYPH + 18 for label, wrapped in labels.items()}
    deep = max(map(len, labels.values())) * LINE + 10
    parts = []
    for each in parsed:
        parts.append(text(x, top + 13, each.name, "name"))
        left, top = x, top + 20
        for label in (*each.cached, *each.new):
            kind = "cached" if label in each.cached else "new"
            parts.append(box(left, top, widths[label], deep, kind))
            parts += centred(labels[label], left + widths[label] / 2, top + deep / 2)
            left += widths[label] + 3
        check_width(left - 3 - x + WIDTH - width, each.name)
        top += deep + 12
    return parts, top


def legend(top: float) -> list[str]:
    return [
        *(box(0, top, 14, 14, "cached"), text(20, top + 12, "read from the provider's cache", "note")),
        *(box(230, top, 14, 14, "new"), text(250, top + 12, "new in this request", "note")),
    ]


def boxes(lines: Sequence[str]) -> tuple[list[str], float]:
    """Boxes inside boxes: a line holds the lines below it that are indented further."""
    parts, top = nest(lines, 0.0, 0.0, WIDTH)
    if any("|" in line for line in lines):
        return [*parts, *legend(top + 4)], top + 22
    return parts, top


def nest(lines: Sequence[str], x: float, top: float, width: float) -> tuple[list[str], float]:
    parts: list[str] = []
    while lines:
        first, rest = lines[0], lines[1:]
        inside = list(takewhile(lambda line, depth=indent(first): indent(line) > depth, rest))  # type: ignore[misc]
        lines = rest[len(inside) :]
        if "|" in first:
            drawing, top = bars([request(first.strip())], x, top, width)
            parts += drawing
            continue
        name, _, note = first.strip().partition(": ")
        words = textwrap.wrap(note, int((width - 16) / GLYPH))
        written = [text(x + 8, top + 17, name, "name")]
        written += [text(x + 8, top + 17 + LINE * (n + 1), line, "note") for n, line in enumerate(words)]
        drawing, below = nest(inside, x + 8, top + 26 + LINE * len(words), width - 16)
        parts += [box(x, top, width, below - top, "step"), *written, *drawing]
        top = below + 8
    return parts, top


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def sequence(lines: Sequence[str]) -> tuple[list[str], float]:
    """Lifelines with arrows between them, from top to bottom."""
    steps = [step(line) for line in lines]
    actors = list(dict.fromkeys(name for each in steps for name in (each.start, each.end) if name))
    gap = (WIDTH - 90) / max(1, len(actors) - 1)
    lanes = {name: 45 + gap * number for number, name in enumerate(actors)}
    parts, top = [], 40.0
    for each in steps:
        drawing, top = one_step(each, lanes, gap, top)
        parts += drawing
    heads: list[str] = []
    for name, x in lanes.items():
        heads += [f'<line class="life" x1="{x:.1f}" y1="28" x2="{x:.1f}" y2="{top:.1f}"/>']
        heads += [box(x - 44, 2, 88, 26, "actor"), text(x, 19, name, "middle name")]
        check_width(len(name) * GLYPH + WIDTH - 88, name)
    return [*heads, *parts], top + 4


def one_step(each: Step, lanes: dict[str, float], gap: float, top: float) -> tuple[list[str], float]:
    if not each.start:
        lines = textwrap.wrap(each.text, int(WIDTH / GLYPH))
        middle = top + 10 + len(lines) * LINE / 2
        band = box(0, top + 4, WIDTH, len(lines) * LINE + 12, "band")
        return [band, *centred(lines, WIDTH / 2, middle, "note")], top + len(lines) * LINE + 22
    start, end = lanes[each.start], lanes.get(each.end)
    if end is None:
        lines = textwrap.wrap(each.text, int(min(gap * 1.3, 190) / GLYPH))
        wide = max(map(len, lines)) * GLYPH + 16
        left = min(max(start - wide / 2, 0), WIDTH - wide)
        deep = len(lines) * LINE + 8
        return [
            box(left, top + 4, wide, deep, "step"),
            *centred(lines, left + wide / 2, top + 4 + deep / 2),
        ], top + deep + 12
    lines = textwrap.wrap(each.text, int((abs(end - start) - 8) / GLYPH))
    line = top + len(lines) * LINE + 6
    tip, back = (end - 2, end - 9) if end > start else (end + 2, end + 9)
    arrow = f'<line class="arrow" x1="{start:.1f}" y1="{line:.1f}" x2="{back:.1f}" y2="{line:.1f}"/>'
    head = f'<path class="head" d="M{tip:.1f} {line:.1f}L{back:.1f} {line - 4:.1f}L{back:.1f} {line + 4:.1f}Z"/>'
    words = centred(lines, (start + end) / 2, line - 3 - len(lines) * LINE / 2, "halo")
    return [arrow, head, *words], line + 8


def request(line: str) -> Request:
    name, _, rest = line.partition(":")
    cached, bracket, new = rest.strip().removeprefix("[").partition("]")
    if not bracket:
        cached, new = "", cached
    return Request(name.strip(), split(cached), split(new))


def split(parts: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in parts.split("|") if part.strip())


def step(line: str) -> Step:
    if line.startswith("--"):
        return Step("", "", line.strip("- "))
    names, colon, words = line.partition(":")
    if not colon:
        raise ValueError(f"A line of a diagram is 'a -> b: text', 'a: text' or '-- text --', got {line!r}")
    start, _, end = names.partition("->")
    return Step(start.strip(), end.strip(), words.strip())


def check_width(width: float, name: str) -> None:
    if width > WIDTH:
        raise ValueError(f"{name!r} needs {width:.0f} of {WIDTH} units; shorten its texts")


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"/>'


def text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def centred(lines: Sequence[str], x: float, y: float, kind: str = "") -> Iterator[str]:
    first = y - (len(lines) - 1) * LINE / 2 + 4
    for number, words in enumerate(lines):
        yield text(x, first + number * LINE, words, f"middle {kind}".strip())
