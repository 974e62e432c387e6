"""Time as the record has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta


class StepClock:
    """Runs within a step and stands still between steps, at the end of the last one.

    So what the loop writes down between steps carries the same times when it is replayed. Each reading is a
    microsecond after the one before, which keeps things in their order.
    """

    def __init__(self) -> None:
        self._at = datetime.fromtimestamp(0, UTC)
        self._running = False

    def now(self) -> datetime:
        if self._running:
            return datetime.now(UTC)
        self._at += timedelta(microseconds=1)
        return self._at

    def monotonic(self) -> float:
        return self.now().timestamp()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def stand_at(self, moment: datetime) -> None:
        self._at = moment

    @contextmanager
    def running(self) -> Iterator[None]:
        self._running = True
        try:
            yield
        finally:
            self._running = False
