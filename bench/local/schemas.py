"""Runs with random tools and random output types: every call has to validate, every answer has to parse."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, make_dataclass
from typing import Any, Literal

from weakincentives.adapters.local import LocalAdapter
from weakincentives.errors import WinkError
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from weakincentives.runtime import ToolInvoked
from weakincentives.session import Session

_NAMES = ("city", "count", "items", "mode", "owner", "price", "range", "status", "title", "unit", "value", "zone")
_VALUES = ("red", "green", "blue", "low", "mid", "high", "north", "south", "draft", "final", "open", "shut")


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run: the arguments of each call and the parsed answer."""

    calls: int
    invalid: int
    answer: Any
    problem: str


def run_schemas(adapter: LocalAdapter, runs: int, *, first: int = 0) -> int:
    """Print what came of so many runs; 1 if anything did not fit."""
    started, counts = time.perf_counter(), Counter[str]()
    for seed in range(first, first + runs):
        run = random_run(adapter, seed)
        counts.update(runs=1, calls=run.calls, invalid=run.invalid, answers=run.answer is not None)
        if run.invalid or run.problem:
            print(f"seed {seed}: {run.problem or 'invalid call'}", flush=True)
        if counts["runs"] % 50 == 0 or counts["runs"] == runs:
            print(
                f"{counts['runs']} runs, {counts['calls']} calls of which {counts['invalid']} invalid, "
                f"{counts['answers']} answers parsed, {time.perf_counter() - started:.0f} s",
                flush=True,
            )
    return int(counts["invalid"] > 0 or counts["answers"] < runs)


def random_run(adapter: LocalAdapter, seed: int) -> Run:
    """One evaluation of a prompt with random tools and a random structured output."""
    chance = random.Random(seed)
    tools = [_tool(chance, index) for index in range(chance.randint(1, 2))]
    output = _type(chance, f"Answer{seed}", depth=2)
    prompt = Prompt[output](  # type: ignore[valid-type]
        ns="bench",
        key="schemas",
        sections=[
            MarkdownSection(title="Task", key="task", template="Call a tool, then answer.", tools=tools),
        ],
    )
    session = Session()
    try:
        answer, problem = adapter.evaluate(prompt, session=session).output, ""
    except WinkError as error:
        answer, problem = None, f"{type(error).__name__}: {error}"
    calls = session[ToolInvoked].all()
    return Run(len(calls), sum(not call.success for call in calls), answer, problem)


def _tool(chance: random.Random, index: int) -> Tool[Any, Any]:
    params = _type(chance, f"Params{index}", depth=2)
    return Tool(
        name=f"tool_{index}",
        description=f"Does {chance.choice(_NAMES)}.",
        handler=_accept,
        params_type=params,
        read_only=True,
    )


def _accept(params: Any, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("done")


def _type(chance: random.Random, name: str, *, depth: int) -> type:
    names = chance.sample(_NAMES, chance.randint(1, 3))
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    optional = []
    for field in names:
        hint = _hint(chance, f"{name}_{field}", depth)
        if chance.random() < 0.25:
            optional.append((field, hint | None, None))
        else:
            fields.append((field, hint))
    return make_dataclass(name, [*fields, *optional], frozen=True)


def _hint(chance: random.Random, name: str, depth: int) -> Any:
    kind = chance.choice(["str", "int", "float", "bool", "enum", "list", "object", "tuple"])
    if kind == "enum":
        return Literal[tuple(chance.sample(_VALUES, chance.randint(2, 4)))]
    if kind == "object" and depth:
        return _type(chance, name, depth=depth - 1)
    if kind in ("list", "tuple") and depth:
        item = _hint(chance, f"{name}_item", depth - 1)
        return list[item] if kind == "list" else tuple[item, ...]  # type: ignore[valid-type]
    return {"int": int, "float": float, "bool": bool}.get(kind, str)
