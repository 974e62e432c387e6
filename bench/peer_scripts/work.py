"""The work that every framework does, and how it is measured; runs in the framework's own environment."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

URL, CALLS, TOOLS, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
CROWD = int(sys.argv[5]) if len(sys.argv) > 5 else 0
KEY = "sk-bench-0123456789"
NAMES = ["alpha", "beta", *(f"spare_{number}" for number in range(TOOLS - 2))]


def made(name: str) -> Callable[[str, int], str]:
    """A tool function of this name."""

    def function(text: str, count: int) -> str:
        """A tool."""
        return "done"

    function.__name__ = function.__qualname__ = name
    return function


def measure(run: Callable[[], Any], run_async: Callable[[], Awaitable[Any]]) -> None:
    """Print the CPU seconds of one run, and the wall seconds of a crowd of them."""
    print(json.dumps(asyncio.run(_crowd(run_async)) if CROWD else {"cpu": min(_timed(run) for _ in range(ROUNDS))}))


def _timed(run: Callable[[], Any]) -> float:
    gc.collect()
    gc.disable()
    start = time.process_time()
    run()
    return time.process_time() - start


async def _crowd(run: Callable[[], Awaitable[Any]]) -> dict[str, float]:
    await run()
    gc.collect()
    gc.freeze()
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(run() for _ in range(CROWD)))
    return {"wall": time.perf_counter() - wall, "cpu": (time.process_time() - cpu) / CROWD}
