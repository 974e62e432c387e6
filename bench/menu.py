"""Tokens of a menu: the same sections closed with a sentence each, closed with their keys alone, and open.

Counted are the text and the tools of the first request, for 40 sections of one line and for the demo's handbook.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bench.row import Row
from weakincentives.demo.desk import chat
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    ReadSections,
    Section,
    SectionVisibility,
    TextSection,
    default_tokenizer,
)

SECTIONS = 40


def one_line(visibility: SectionVisibility, heading: bool) -> Iterator[Section[Any]]:
    for number in range(SECTIONS):
        yield MarkdownSection(
            key=f"topic-{number}",
            title=f"Topic {number}",
            template=f"Line {number}.",
            summary=f"About topic {number}.",
            visibility=visibility,
            heading=heading,
        )


def handbook(visibility: SectionVisibility, heading: bool) -> Iterator[Section[Any]]:
    for section in chat().sections:
        if isinstance(section, TextSection):
            yield TextSection(
                key=section.key,
                title=section.title,
                text=section.text,
                summary=section.summary,
                visibility=visibility,
                heading=heading,
                tools=section.tools(),
            )


def tokens(sections: Iterable[Section[Any]], disclosure: ReadSections) -> int:
    template = PromptTemplate(ns="bench", key="menu", sections=sections, disclosure=disclosure)
    rendered, count = template.render(), default_tokenizer().count
    return count(rendered.text) + sum(count(tool.definition) for tool in rendered.tools)


def rows() -> Iterator[Row]:
    full, closed, key = SectionVisibility.FULL, SectionVisibility.SUMMARY, ReadSections(suffix="key")
    for name, make, goal in (
        (f"{SECTIONS} one-line sections", one_line, 0.55),
        ("the demo's handbook", handbook, 0.75),
    ):
        base = tokens(make(closed, True), ReadSections())
        yield Row(f"{name}, closed", base, "tokens", note=f"counted by {default_tokenizer().name}")
        for how, figure, most in (
            ('closed, suffix="key"', tokens(make(closed, True), key), goal),
            ('closed, suffix="key", heading=False', tokens(make(closed, False), key), goal),
            ("open", tokens(make(full, True), key), None),
        ):
            yield Row(f"{name}, {how}", figure, "tokens", ratio=figure / base, ratio_goal=most, baseline="closed")
