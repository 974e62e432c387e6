"""The bridge between sync and async code: a generator of steps, driven from a thread or from an event loop.

A step of a tool call is its handler, another function whose result may be awaitable, or a resource scope to close.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from weakincentives._fence import Fence
from weakincentives.limits import Deadline
from weakincentives.resources import ScopedResourceContext

S = TypeVar("S")
T = TypeVar("T")
MAX_PARALLEL = 8
MAX_THREADS = 32
# How long a cancelled handler may take to clean up before it is fenced off.
CLEANUP_SECONDS = 5.0


class HandlerTimeout(Exception):
    """The deadline passed while a handler was running; the handler is cancelled, or fenced if it blocks."""


class HandlerCall:
    """A call to a tool handler, behind a fence and up to the deadline.

    `effect` says that it may have external effects to compensate: when stopped, it is first given some time to end, so
    that the compensation comes after what it undoes. A call stopped while waiting for a thread is `dropped`: it never
    begins, and there is nothing to compensate.
    """

    __slots__ = ("_deadline", "_lock", "dropped", "ended", "fence", "function", "waits")

    def __init__(self, function: Callable[[], Any], deadline: Deadline | None, *, effect: bool = False) -> None:
        self.function = function
        self.fence = Fence(None if deadline is None else lambda: deadline.expired)
        self.ended = threading.Event() if effect else None
        self.waits = self.dropped = False
        self._lock = threading.Lock()
        self._deadline = deadline

    def seconds(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline.remaining().total_seconds())

    def call(self) -> Any:
        with self._lock:
            self.waits = False
            if self.dropped:
                return None
        try:
            return self.function()
        except StopIteration as error:
            # A future cannot carry this exception: awaiting it would hang.
            raise RuntimeError("raised StopIteration") from error
        finally:
            if self.ended is not None:
                self.ended.set()

    def abandon(self) -> None:
        """Fence the handler off, wherever it runs; one with effects is first given some time to end."""
        with self._lock:
            self.dropped = self.waits
        if self.ended is not None and not self.dropped:
            self.ended.wait(CLEANUP_SECONDS)
        self.fence.close()


Step = HandlerCall | Callable[[], Any] | ScopedResourceContext


class AsyncBridge:
    """Runs async handlers of sync runs on an event loop in its own thread, started on first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def wait(self, awaitable: Any, seconds: float | None = None, fence: Fence | None = None) -> Any:
        """The awaitable's result. On a timeout or interrupt it is cancelled, and has ended before this raises."""
        loop = self._started()
        future: Future[Any] = Future()
        task: asyncio.Task[None] | None = None
        stopped = False

        async def run() -> None:
            try:
                future.set_result(await awaitable)
            except BaseException as error:
                future.set_exception(error)

        def start() -> None:
            nonlocal task
            task = loop.create_task(run(), context=context)
            if stopped:
                loop.call_soon(task.cancel)

        def cancel() -> None:
            nonlocal stopped
            stopped = True
            if task is not None:
                task.cancel()

        context = contextvars.copy_context()
        try:
            loop.call_soon_threadsafe(start)
            return future.result(seconds)
        except BaseException as error:
            if future.done():
                raise
            loop.call_soon_threadsafe(cancel)
            try:
                future.exception(CLEANUP_SECONDS)
            except BaseException:
                if fence is not None:
                    fence.close()
            if isinstance(error, TimeoutError):
                raise HandlerTimeout from None
            raise

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


def run_steps(steps: Generator[S, Any, T], perform: Callable[[S], Any]) -> T:
    """Drive the generator in this thread: send it what each step returns, or throw in what the step raises."""
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


async def run_steps_async(steps: Generator[S, Any, T], perform: Callable[[S], Awaitable[Any]]) -> T:
    """`run_steps` on the running event loop."""
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


def call_sync(steps: Generator[Step, Any, T], bridge: AsyncBridge) -> T:
    """Make a tool call in this thread."""

    def perform(step: Step) -> Any:
        if isinstance(step, ScopedResourceContext):
            return step.close()
        if isinstance(step, HandlerCall):
            with step.fence:
                value = step.call()
                return bridge.wait(value, step.seconds(), step.fence) if inspect.isawaitable(value) else value
        value = step()
        return bridge.wait(value) if inspect.isawaitable(value) else value

    return run_steps(steps, perform)


async def call_async(steps: Generator[Step, Any, T]) -> T:
    """Make a tool call on the running event loop; blocking functions are called in a thread."""
    return await run_steps_async(steps, _perform_async)


async def _perform_async(step: Step) -> Any:
    if isinstance(step, ScopedResourceContext):
        return await step.aclose()
    if isinstance(step, HandlerCall):
        with step.fence:
            return await _handle(step)
    value = step() if _is_async(step) else await threads.call(step)
    return await value if inspect.isawaitable(value) else value


async def _handle(call: HandlerCall) -> Any:
    # Calling a coroutine function only creates the coroutine, so it needs no thread.
    value = call.function() if _is_async(call.function) else await _in_thread(call)
    return await _in_time(call, value) if inspect.isawaitable(value) else value


async def _in_thread(call: HandlerCall) -> Any:
    """Call a blocking handler; if it has begun when it is cancelled or late, it continues behind its fence."""
    call.waits = True
    work = threads.call(call.call)
    try:
        return await _in_time(call, work)
    finally:
        if work.cancelled():
            # Not in a handler thread: all of those may hang.
            await asyncio.to_thread(call.abandon)


async def _in_time(call: HandlerCall, work: Awaitable[Any]) -> Any:
    try:
        async with asyncio.timeout(call.seconds()) as limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise HandlerTimeout from None
        raise


def in_parallel(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Call all functions in threads, each with the current context variables; results are in order."""
    with ThreadPoolExecutor(min(len(functions), MAX_PARALLEL)) as pool:
        futures = [pool.submit(contextvars.copy_context().run, function) for function in functions]
        return [future.result() for future in futures]


async def in_parallel_async(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all calls, even if one fails or the caller is cancelled: none may still be running when its run is over."""
    results: list[T] = []
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


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


class Threads:
    """Calls blocking functions in threads, which are started on demand and kept.

    It does what `asyncio.to_thread` does at a tenth of the cost, which matters when hundreds of runs call quick tools
    at once. The threads do not delay the program's exit: a function still running by then has been abandoned.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Any], contextvars.Context, asyncio.Future[Any]]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """What the function returns; if the future is cancelled, the function continues and its result is dropped."""
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
            # Before the result is set: whoever waits for it may submit the next function, which then needs no new
            # thread.
            self._idle.release()
            # The event loop is closed, so nobody is waiting.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_settle, future, value, error)
            del function, context, future, value, error


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


threads = Threads()


def _after_fork() -> None:
    # A forked child has none of its parent's threads.
    threads.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
