"""Waiting for a row to change: how long in total, and how long between two looks at it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weakincentives.durable.signals import Waiter

_MIN_POLL_SECONDS = 0.05
_MAX_POLL_SECONDS = 0.5


class Wait:
    """How long to wait in total, and between checks, of which a signal is the end."""

    def __init__(self, timeout: float | None, waiter: Waiter) -> None:
        self._until = None if timeout is None else time.monotonic() + timeout
        self._pause, self._waiter = _MIN_POLL_SECONDS, waiter

    def is_over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def pause(self) -> None:
        """Wait for the next check."""
        self._waiter.wait(self._next())

    async def pause_async(self) -> None:
        await self._waiter.wait_async(self._next())

    def reset(self) -> None:
        """Check often again."""
        self._pause = _MIN_POLL_SECONDS

    def _next(self) -> float:
        pause, self._pause = self._pause, min(self._pause * 1.5, _MAX_POLL_SECONDS)
        return pause if self._until is None else max(0.0, min(pause, self._until - time.monotonic()))
