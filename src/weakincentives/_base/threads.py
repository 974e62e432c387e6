"""Blocking work until a deadline, and turns; apart from `_loops`, since asyncio takes long to import."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def until(seconds: float | None, work: Callable[[], T], late: Exception) -> T:
    """The result of blocking work, which is done in a daemon thread if there is a limit.

    Raises `late` when the time is over. The work continues; if what it returns then can be closed, it is closed.
    """
    if seconds is None:
        return work()
    result: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            value = context.run(work)
        except BaseException as error:
            if result.set_running_or_notify_cancel():
                result.set_exception(error)
        else:
            if result.set_running_or_notify_cancel():
                result.set_result(value)
            elif hasattr(value, "close"):
                value.close()

    threading.Thread(target=run, name="wink-until", daemon=True).start()
    try:
        return result.result(max(0.0, seconds))
    except TimeoutError:
        if result.cancel():
            raise late from None
    return result.result()


class Turns:
    """Lets one in after the other, in the order of their coming, from threads and from event loops alike."""

    __slots__ = ("_lock", "_taken", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[Future[None]] = deque()

    def take(self) -> Generator[Callable[[], Any], Any, None]:
        """Wait for a turn, which `end` ends; if others are before, this yields a coroutine function to be awaited."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            turn: Future[None] = Future()
            self._waiting.append(turn)

        async def wait() -> None:
            from asyncio import wrap_future

            await wrap_future(turn)

        try:
            yield wait
        except BaseException:
            if not turn.cancel() and not turn.cancelled():
                self.end()
            raise

    def end(self) -> None:
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._taken = False
