"""Threads that call blocking functions for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
MAX_THREADS = 32


class Threads:
    """Calls blocking functions in threads, which are started when needed and kept.

    It does what `asyncio.to_thread` does at a tenth of the cost, which shows where hundreds of runs call quick tools at
    once. The threads do not hold up the end of the program: a function that is still running then was given up.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Any], contextvars.Context, asyncio.Future[Any]]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """What the function returns; if the future is cancelled the function goes on, and its result is dropped."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((function, contextvars.copy_context(), future))
        if not self._idle.acquire(blocking=False) and self._started < MAX_THREADS:
            self._started += 1
            threading.Thread(target=self._work, name=f"wink-tools-{self._started}", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            function, context, future = self._jobs.get()
            value, error = None, None
            try:
                value = context.run(function)
            except BaseException as raised:
                error = raised
            # An event loop that has been closed has nobody waiting.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_settle, future, value, error)
            del function, context, future, value, error
            self._idle.release()


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


threads = Threads()


def _after_fork() -> None:
    # A child has none of its parent's threads.
    threads.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
