"""Reading answers: a nested output of 20 fields beside `json.loads`, arrays of them, and tagged snapshots."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.measure import compare
from bench.row import Row
from weakincentives.errors import OutputParseError
from weakincentives.prompt.output import parse_structured_output, structured_output
from weakincentives.serde import dump, dump_tagged, encode, load_tagged


@dataclass(frozen=True, slots=True)
class Owner:
    """Who answers for a report."""

    name: str
    email: str
    age: int
    score: float | None
    active: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    title: str
    minutes: int
    done: bool
    tags: list[str]
    cost: float


@dataclass(frozen=True, slots=True)
class Report:
    """Twenty fields over three classes, two of them nested."""

    title: str
    summary: str
    owner: Owner
    findings: list[Finding]
    pages: int
    words: int
    weight: float
    language: str
    note: str | None
    final: bool


FINDING = Finding("Brew green tea", 3, False, ["tea", "green"], 1.25)
REPORT = Report(
    title="Report on tea",
    summary="What was read about tea, and what follows from it.",
    owner=Owner("Ann", "ann@example.com", 41, 1.5, True),
    findings=[FINDING, FINDING],
    pages=3,
    words=420,
    weight=0.5,
    language="en",
    note=None,
    final=True,
)


def rows() -> Iterator[Row]:
    text = encode(REPORT).decode()
    parse, prose, wrong, loads = compare(
        parsing(text),
        parsing(f"Here is the report.\n```json\n{text}\n```\n"),
        failing(text.replace("420", '"420"')),
        lambda: json.loads(text),
    )
    yield Row("20-field nested output", parse * 1e6, "µs", goal=15.0, ratio=parse / loads, baseline="json.loads")
    yield Row("the same in a fence", prose * 1e6, "µs", ratio=prose / loads, baseline="json.loads")
    yield Row("the same with one wrong field", wrong * 1e6, "µs", ratio=wrong / loads, baseline="json.loads")
    sizes = (10, 100, 1_000)
    items = [seconds / size for size, seconds in zip(sizes, compare(*map(parsing_array, sizes)), strict=True)]
    for size, seconds in zip(sizes, items, strict=True):
        ratio_goal = 1.5 if size > 10 else None
        name = f"per item, array of {size:,}"
        yield Row(name, seconds * 1e6, "µs", ratio=seconds / items[0], ratio_goal=ratio_goal, baseline="10")
    reports = [REPORT] * 100
    written = dump_tagged(reports)
    write, read, plain = compare(lambda: dump_tagged(reports), lambda: load_tagged(written), lambda: dump(reports))
    yield Row("dump_tagged, per report", write * 1e4, "µs", ratio=write / plain, baseline="dump")
    yield Row("load_tagged, per report", read * 1e4, "µs", ratio=read / plain, baseline="dump")


def parsing(text: str) -> Callable[[], object]:
    config = structured_output(Report)
    assert parse_structured_output(text, config) == REPORT
    return lambda: parse_structured_output(text, config)


def failing(text: str) -> Callable[[], object]:
    config = structured_output(Report)

    def work() -> object:
        try:
            return parse_structured_output(text, config)
        except OutputParseError as error:
            return error

    assert isinstance(work(), OutputParseError)
    return work


def parsing_array(size: int) -> Callable[[], object]:
    config = structured_output(list[Finding])
    text = encode([FINDING] * size).decode()
    assert parse_structured_output(text, config) == [FINDING] * size
    return lambda: parse_structured_output(text, config)
