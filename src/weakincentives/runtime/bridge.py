"""The bridge between sync and async code: one generator of steps, driven from a thread or from an event loop.

A step is a function to call, whose result may be awaitable, or a resource scope to close.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast

from weakincentives.resources import ScopedResourceContext

T = TypeVar("T")
Step = Callable[[], Any] | ScopedResourceContext
MAX_SIDE_BY_SIDE = 8


class AsyncBridge:
    """Runs async handlers of sync runs on an event loop in its own thread, started on first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def wait(self, awaitable: Any) -> Any:
        loop = self._started()
        future: Future[Any] = Future()

        async def run() -> None:
            try:
                future.set_result(await awaitable)
            except BaseException as error:
                future.set_exception(error)

        context = contextvars.copy_context()
        loop.call_soon_threadsafe(lambda: loop.create_task(run(), context=context))
        return future.result()

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="wink-async-tools", daemon=True
                )
                self._thread.start()
            return self._loop


def call_sync(steps: Generator[Step, Any, T], bridge: AsyncBridge) -> T:
    """Drive the generator in this thread."""

    def perform(step: Step) -> Any:
        if isinstance(step, ScopedResourceContext):
            return step.close()
        value = step()
        return bridge.wait(value) if inspect.isawaitable(value) else value

    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(value) if error is None else steps.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        try:
            value, error = perform(step), None
        except BaseException as raised:
            value, error = None, raised


async def call_async(steps: Generator[Step, Any, T]) -> T:
    """Drive the generator on the running event loop; blocking functions are called in a thread."""

    async def perform(step: Step) -> Any:
        if isinstance(step, ScopedResourceContext):
            return await step.aclose()
        # Calling a coroutine function only creates the coroutine, so it needs no thread.
        value = step() if _is_async(step) else await asyncio.to_thread(_without_stop_iteration, step)
        return await value if inspect.isawaitable(value) else value

    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(value) if error is None else steps.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        try:
            value, error = await perform(step), None
        except BaseException as raised:
            value, error = None, raised


def side_by_side(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Call all functions in threads, each with the current context variables; results come in order."""
    with ThreadPoolExecutor(min(len(functions), MAX_SIDE_BY_SIDE)) as pool:
        futures = [pool.submit(contextvars.copy_context().run, function) for function in functions]
        return [future.result() for future in futures]


async def side_by_side_async(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all calls, even if one fails: none may still be running when its run is over."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("list[T]", results)


def _without_stop_iteration(step: Callable[[], T]) -> T:
    """Replace StopIteration, which a future cannot carry: awaiting it would hang."""
    try:
        return step()
    except StopIteration as error:
        raise RuntimeError("raised StopIteration") from error


def _is_async(step: Callable[[], Any]) -> bool:
    return inspect.iscoroutinefunction(step.func if isinstance(step, functools.partial) else step)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_rest())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _cancel_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
