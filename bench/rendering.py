"""Rendering: a flat prompt of many sections, with and without a session, beside a loop of f-strings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from typing import Any

from bench.measure import compare
from bench.row import Row
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.session import Session


@dataclass(frozen=True, slots=True)
class Topic:
    """One value that every section shows."""

    topic: str = "tea"


def rows() -> Iterator[Row]:
    shared = Flat(1_000, Topic(), lambda index: "topic")
    render, loop, in_session = compare(shared.rendering(), shared.f_strings, shared.rendering(Session()), rounds=9)
    yield against_f_strings("1,000 flat sections, one placeholder each", render, loop)
    yield Row(
        "the same with a session",
        in_session * 1e3,
        "ms",
        ratio=in_session / render,
        ratio_goal=1.2,
        baseline="without",
    )
    own = Flat(1_000, make_dataclass("Own", [(f"f{index}", str, "tea") for index in range(1_000)])(), "f{}".format)
    render, loop = compare(own.rendering(), own.f_strings, rounds=9)
    yield against_f_strings("1,000 flat sections, a field of its own for each", render, loop)

    sizes = (10, 100, 1_000, 10_000)
    works = [Flat(size, Topic(), lambda index: "topic").rendering() for size in sizes]
    each = [seconds / size for size, seconds in zip(sizes, compare(*works), strict=True)]
    for size, seconds in zip(sizes, each, strict=True):
        goal = 1.5 if size > 1_000 else None
        name = f"per section, of {size:,}"
        yield Row(name, seconds * 1e6, "µs", ratio=seconds / each[2], ratio_goal=goal, baseline="1,000")


def against_f_strings(name: str, render: float, loop: float) -> Row:
    return Row(name, render * 1e3, "ms", goal=1.0, ratio=render / loop, ratio_goal=3.0, baseline="f-strings")


class Flat:
    """A prompt of `size` sections, each with the placeholder that `field` names, and the same text by hand."""

    def __init__(self, size: int, params: Any, field: Callable[[int], str]) -> None:
        self.params = params
        self.fields = [field(index) for index in range(size)]
        sections = [
            MarkdownSection[type(params)](  # type: ignore[misc, operator]
                key=f"s{index}",
                title=f"Title {index}",
                template=f"Answer about ${{{name}}} from this section.",
            )
            for index, name in enumerate(self.fields)
        ]
        self.template: PromptTemplate[None] = PromptTemplate(ns="bench", key=f"flat-{size}", sections=sections)

    def rendering(self, session: Session | None = None) -> Callable[[], object]:
        prompt = Prompt(self.template).bind(self.params)
        assert prompt.render(session=session).text == self.f_strings()
        return lambda: prompt.render(session=session)

    def f_strings(self) -> str:
        """The loop that a program without a library would write."""
        parts = []
        params = self.params
        for index, name in enumerate(self.fields):
            value = getattr(params, name)
            parts.append(f"## {index + 1}. Title {index}\n\nAnswer about {value} from this section.")
        return "\n\n".join(parts)
