"""Guards on a tool call with an approval rule that asks nobody: three of them, async and sync, for `bench control`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from bench.row import Row
from weakincentives import MarkdownSection, Prompt, ScriptedAdapter, Session, Tool, tool
from weakincentives.guards import Guard
from weakincentives.runtime import LiveRun, ToolCall, ToolExecutor
from weakincentives.runtime.spi import next_request

CALLS, ROUNDS = 20, 150


class Awaited(Guard):
    async def before_tool(self, call: Any, *, context: Any) -> None:
        return None


class Blocking(Guard):
    def before_tool(self, call: Any, *, context: Any) -> None:
        return None


@tool
async def free(number: int) -> str:
    "Act."
    return "done"


@tool(approval=lambda params: None)
async def ruled(number: int) -> str:
    "Act."
    return "done"


def guard_rows() -> Iterator[Row]:
    what = "guards and an approval rule that asks nobody, on a tool call"
    for where, calling in (("run_async", _awaited), ("run", _blocking)):
        none = calling(free)
        awaited = calling(ruled, Awaited(), Awaited(), Awaited())
        blocking = calling(ruled, Blocking(), Blocking(), Blocking())
        goal = 100.0 if where == "run_async" else None
        yield Row(f"three async {what}, {where}", (awaited - none) * 1e6, "µs", goal=goal)
        yield Row(
            f"three sync {what}, {where}",
            (blocking - none) * 1e6,
            "µs",
            goal=100.0,
            note="one hand-over to a thread for all",
        )


def _executor(act: Tool[Any, Any], guards: tuple[Guard, ...]) -> ToolExecutor:
    section = MarkdownSection(key="t", title="T", template="Act.", tools=[act])
    prompt: Prompt[Any] = Prompt(ns="bench", key="guards", sections=[section], guards=guards)
    session = Session()
    live = LiveRun(ScriptedAdapter([]).run_spec(prompt, {}), session)
    prompt.resources.enter(session)
    live.resources_opened = prompt.resources.opened
    next_request(live)
    return ToolExecutor(live)


def _awaited(act: Tool[Any, Any], *guards: Guard) -> float:
    async def work() -> float:
        executor = _executor(act, guards)

        async def round_of(calls: list[ToolCall]) -> float:
            began = time.perf_counter()
            for call in calls:
                await executor.execute_all_async([call])
            return time.perf_counter() - began

        return min([await round_of(calls) for calls in _rounds(act.name)]) / CALLS

    return asyncio.run(work())


def _blocking(act: Tool[Any, Any], *guards: Guard) -> float:
    executor = _executor(act, guards)

    def round_of(calls: list[ToolCall]) -> float:
        began = time.perf_counter()
        for call in calls:
            executor.execute_all([call])
        return time.perf_counter() - began

    return min(map(round_of, _rounds(act.name))) / CALLS


def _rounds(name: str) -> Iterator[list[ToolCall]]:
    for number in range(ROUNDS):
        yield [ToolCall(f"{number}-{at}", name, '{"number": 1}') for at in range(CALLS)]
