"""Ending the life of a resource, whether its `close` is sync or async."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any


def is_closeable(value: object) -> bool:
    kind = type(value)
    return callable(getattr(kind, "close", None)) or callable(getattr(kind, "aclose", None))


def close(value: Any) -> None:
    """Call `close()`, else `aclose()`; what is awaitable is run to its end, on a loop of its own."""
    end = getattr(value, "close", None)
    if not callable(end):
        end = value.aclose
    result = end()
    if inspect.isawaitable(result):
        _run(result)


async def aclose(value: Any) -> None:
    """Call `aclose()`, else `close()`, and await what is awaitable."""
    end = getattr(value, "aclose", None)
    if not callable(end):
        end = value.close
    result = end()
    if inspect.isawaitable(result):
        await result


def _run(result: Awaitable[object]) -> None:
    import asyncio
    import contextvars
    import threading

    async def wait() -> None:
        await result

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(wait())
        return
    # A loop runs in this thread and cannot be re-entered: end the resource on another thread's loop.
    failure: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(wait())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="close-resource")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
