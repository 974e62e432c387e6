"""Blocking work until a deadline; apart from `_loops`, since asyncio takes long to import."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
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
        value: Any = None
        failure: BaseException | None = None
        try:
            value = context.run(work)
        except BaseException as error:
            failure = error
        if not result.set_running_or_notify_cancel():
            if hasattr(value, "close"):
                value.close()
        elif failure is not None:
            result.set_exception(failure)
        else:
            result.set_result(value)

    threading.Thread(target=run, name="wink-until", daemon=True).start()
    try:
        return result.result(max(0.0, seconds))
    except TimeoutError:
        if result.cancel():
            raise late from None
    return result.result()
