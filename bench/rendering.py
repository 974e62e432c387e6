"""Rendering: a flat prompt of many sections, with and without a session, beside a loop of f-strings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.measure import compare
from bench.row import Row
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.session import Session

BODY = "Answer questions about ${topic} from what this section says, and say so when it does not."


@dataclass(frozen=True, slots=True)
class Topic:
    """The one value that every section shows."""

    topic: str


def rows() -> Iterator[Row]:
    render, loop, with_session = compare(
        rendering(1_000), f_strings(1_000), rendering(1_000, session=Session()), rounds=9
    )
    yield Row(
        "1,000 flat sections, one placeholder each",
        render * 1e3,
        "ms",
        goal=1.0,
        ratio=render / loop,
        ratio_goal=3.0,
        baseline="f-strings",
    )
    yield Row(
        "the same with a session",
        with_session * 1e3,
        "ms",
        ratio=with_session / render,
        ratio_goal=1.2,
        baseline="without",
    )
    sizes = (10, 100, 1_000, 10_000)
    per_section = [seconds / size for size, seconds in zip(sizes, compare(*map(rendering, sizes)), strict=True)]
    for size, seconds in zip(sizes, per_section, strict=True):
        yield Row(
            f"per section, {size:,} sections",
            seconds * 1e6,
            "µs",
            ratio=seconds / per_section[2],
            ratio_goal=None if size <= 1_000 else 1.5,
            baseline="1,000",
        )


def rendering(size: int, session: Session | None = None) -> Callable[[], object]:
    prompt = Prompt(template(size)).bind(Topic("tea"))
    assert prompt.render().text == f_strings(size)()
    return lambda: prompt.render(session=session)


def template(size: int) -> PromptTemplate[None]:
    sections = [MarkdownSection[Topic](key=f"s{index}", title=f"Title {index}", template=BODY) for index in range(size)]
    return PromptTemplate(ns="bench", key=f"flat-{size}", sections=sections)


def f_strings(size: int) -> Callable[[], str]:
    """The loop that a program without a library would write for the same text."""
    params = Topic("tea")

    def loop() -> str:
        parts = []
        for index in range(size):
            parts.append(
                f"## {index + 1}. Title {index}\n\nAnswer questions about {params.topic} from what this section says, "
                "and say so when it does not."
            )
        return "\n\n".join(parts)

    return loop
