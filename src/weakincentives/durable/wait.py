"""Waiting for a row to change: how long in total, and how long between two looks at it."""

from __future__ import annotations

import time

_MIN_POLL_SECONDS = 0.05
_MAX_POLL_SECONDS = 0.5


class Wait:
    """How long to wait in total, and between checks."""

    def __init__(self, timeout: float | None, *, longest: float = _MAX_POLL_SECONDS) -> None:
        self._until = None if timeout is None else time.monotonic() + timeout
        self._pause, self._longest = _MIN_POLL_SECONDS, longest

    def is_over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def pause(self) -> float:
        pause, self._pause = self._pause, min(self._pause * 1.5, self._longest)
        return pause if self._until is None else max(0.0, min(pause, self._until - time.monotonic()))

    def reset(self) -> None:
        """Check often again."""
        self._pause = _MIN_POLL_SECONDS
