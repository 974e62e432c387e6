"""Waiting in tests: for what must happen, never for a time.

A sleep is too short on a busy machine and too long on any other. `until` and `until_async` wait for a condition, the
latter while other tasks run; `forever` is a call that never returns by itself. A hung wait fails by what it waited for.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

# A core to itself needs milliseconds; a machine that is busy with other things may need very long.
PATIENCE = 120.0
INTERVAL = 0.002


def until(condition: Callable[[], object], what: str = "the condition", patience: float = PATIENCE) -> float:
    """Wait until the condition holds; returns the seconds it took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < patience, f"waited too long for {what}"
        time.sleep(INTERVAL)
    return time.monotonic() - begun


async def until_async(
    condition: Callable[[], object], what: str = "the condition", patience: float = PATIENCE
) -> float:
    """Let other tasks run until the condition holds; returns the seconds it took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < patience, f"waited too long for {what}"
        # At first without a pause: most of what is waited for takes a few turns of the loop.
        await asyncio.sleep(0 if time.monotonic() - begun < INTERVAL else INTERVAL)
    return time.monotonic() - begun


def executes(thread: threading.Thread, function: Any) -> bool:
    """True while this function, or one that it has called, is what the thread executes."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False


async def forever() -> NoReturn:
    """Wait for what never happens; only a cancellation ends it."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable")
