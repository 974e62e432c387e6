"""Ten thousand runs in one process: memory does not grow, and no thread or socket is left.

`WINK_SOAK_RUNS` changes how many.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.adapters import ADAPTERS, done, done_async, template
from bench.model_server import serving
from bench.row import Row
from weakincentives.prompt import Prompt
from weakincentives.session import Session

SLOW = True
RUNS = int(os.environ.get("WINK_SOAK_RUNS", "10000"))
SLACK_MB = 2.0
SLACK_OBJECTS = 200


def rows() -> Iterator[Row]:
    with serving() as url:
        for name, make in ADAPTERS.items():
            for kind, run in (("sync", run_sync), ("async", run_async), ("stream", run_stream)):
                yield from measured(f"{name}, {kind}", lambda: make(f"{url}/k3"), run, RUNS)  # noqa: B023


def measured(name: str, make: Callable[[], Any], run: Callable[[Any, int], None], runs: int) -> Iterator[Row]:
    """Growth after the first tenth, and what is left when the adapter is gone."""
    gc.collect()
    threads, sockets = threading.active_count(), open_sockets()
    adapter = make()
    first = max(1, runs // 10)
    run(adapter, first)
    gc.collect()
    memory, objects = memory_mb(), len(gc.get_objects())
    run(adapter, runs - first)
    gc.collect()
    memory, objects = memory_mb() - memory, len(gc.get_objects()) - objects
    adapter.close()
    adapter.client.close()
    del adapter
    gc.collect()
    soak = f"{runs:,} runs, {name}"
    yield Row(f"{soak}: memory grown after the first {first:,}", memory, "MB", goal=SLACK_MB)
    yield Row(f"{soak}: objects grown after the first {first:,}", objects, "", goal=SLACK_OBJECTS)
    yield Row(f"{soak}: threads left", threading.active_count() - threads, "", goal=0)
    yield Row(f"{soak}: sockets left", open_sockets() - sockets, "", goal=0)


def run_sync(adapter: Any, runs: int) -> None:
    prompts = template(handler=done)
    for _ in range(runs):
        adapter.evaluate(Prompt(prompts), session=Session())


def run_async(adapter: Any, runs: int) -> None:
    prompts = template(handler=done_async)

    async def batch(size: int) -> None:
        await asyncio.gather(*(adapter.evaluate_async(Prompt(prompts), session=Session()) for _ in range(size)))

    for start in range(0, runs, 50):
        asyncio.run(batch(min(50, runs - start)))


def run_stream(adapter: Any, runs: int) -> None:
    prompts = template(handler=done)
    for _ in range(runs):
        for _ in adapter.stream(Prompt(prompts), session=Session()):
            pass


def memory_mb() -> float:
    """What the process holds of its own; pages of files come and go with what else the machine does."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") / 1e6


def open_sockets() -> int:
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except OSError:
            continue
    return found
