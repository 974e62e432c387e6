"""Blocking work until a deadline; apart from `_loops`, since asyncio takes long to import."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

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
