"""What guards cost: three of them on a tool call, async and sync, on an event loop and without one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from bench.row import Row
from weakincentives import MarkdownSection, Prompt, ScriptedAdapter, Session, tool
from weakincentives.guards import Guard
from weakincentives.runtime import ToolCall, ToolExecutor

CALLS, ROUNDS = 20, 150


class Awaited(Guard):
    async def before_tool(self, call: Any, *, context: Any) -> None:
        return None


class Blocking(Guard):
    def before_tool(self, call: Any, *, context: Any) -> None:
        return None


@tool(read_only=True)
async def look(number: int) -> str:
    "Look."
    return "seen"


def rows() -> Iterator[Row]:
    for where, calling in (("run_async", _awaited), ("run", _blocking)):
        groups: list[list[Guard]] = [[], [Awaited(), Awaited(), Awaited()], [Blocking(), Blocking(), Blocking()]]
        none, awaited, blocking = map(calling, groups)
        goal = 20.0 if where == "run_async" else None
        yield Row(f"three async guards on a tool call, {where}", (awaited - none) * 1e6, "µs", goal=goal)
        yield Row(
            f"three sync guards on a tool call, {where}",
            (blocking - none) * 1e6,
            "µs",
            goal=100.0,
            note="one hand-over to a thread for all",
        )


def _executor(guards: list[Guard]) -> ToolExecutor:
    section = MarkdownSection(key="t", title="T", template="Look.", tools=[look])
    prompt: Prompt[Any] = Prompt(ns="bench", key="guards", sections=[section], guards=guards)
    session = Session()
    loop = ScriptedAdapter([]).loop(prompt, session)
    prompt.resources.enter(session)
    loop.next_request()
    return loop.executor


def _awaited(guards: list[Guard]) -> float:
    async def work() -> float:
        executor = _executor(guards)

        async def round_of(calls: list[ToolCall]) -> float:
            began = time.perf_counter()
            for call in calls:
                await executor.execute_all_async([call])
            return time.perf_counter() - began

        return min([await round_of(calls) for calls in _rounds()]) / CALLS

    return asyncio.run(work())


def _blocking(guards: list[Guard]) -> float:
    executor = _executor(guards)

    def round_of(calls: list[ToolCall]) -> float:
        began = time.perf_counter()
        for call in calls:
            executor.execute_all([call])
        return time.perf_counter() - began

    return min(map(round_of, _rounds())) / CALLS


def _rounds() -> Iterator[list[ToolCall]]:
    for number in range(ROUNDS):
        yield [ToolCall(f"{number}-{at}", "look", '{"number": 1}') for at in range(CALLS)]
