"""Reads the handbook: one markdown file per section, with its title and its summary on top."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Page:
    """A section of the handbook as it was written."""

    key: str
    title: str
    summary: str
    body: str


@cache
def pages() -> tuple[Page, ...]:
    """All sections, in the order of their keys."""
    folder = files("weakincentives.demo") / "handbook"
    texts = {entry.name.removesuffix(".md"): entry.read_text(encoding="utf-8") for entry in folder.iterdir()}
    return tuple(_page(key, texts[key]) for key in sorted(texts))


def _page(key: str, text: str) -> Page:
    title, summary, body = text.split("\n\n", 2)
    return Page(key, title.removeprefix("# ").strip(), summary.removeprefix("> ").strip(), body.strip())
