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
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from weakincentives._fence import Fence
from weakincentives._loops import LoopThread
from weakincentives._threads import until
from weakincentives.errors import EvaluationPhase, PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.resources import ScopedResourceContext

S = TypeVar("S")
T = TypeVar("T")
MAX_PARALLEL = 8
MAX_THREADS = 32
# How long a cancelled handler may take to clean up before it is fenced off.
CLEANUP_SECONDS = 5.0


class HandlerTimeout(Exception):
    """A call's deadline passed while its handler was running, which is cancelled, or fenced if it blocks."""


class UserCodeExit(Exception):
    """A handler raised an exception that would end the program, a generator or a task; `error` is that exception.

    It is a failure like any other: only Ctrl-C and cancelling the run itself stop a run.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


_EXITS = (SystemExit, GeneratorExit, StopIteration, asyncio.CancelledError)


def _call(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except _EXITS as error:
        raise UserCodeExit(error) from error


class Latch:
    """A one-shot event, at a fraction of the cost: every call needs two, and hardly anyone waits for them."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """May be called once."""
        self._lock.release()

    def wait(self, seconds: float = -1) -> bool:
        """Wait until it is set; False if that takes too long."""
        if is_set := self._lock.acquire(timeout=seconds):
            self._lock.release()
        return is_set


class HandlerCall:
    """A call to a tool handler, behind a fence and up to the deadline.

    `effect` says that it may have external effects to compensate: when stopped, it is first given some time to end, so
    that the compensation comes after what it undoes. So is an async handler, which is cancelled, for its cleanup; a
    handler that does not end in that time `outlives` its call. A call stopped before it began is `dropped`: there is
    nothing to compensate. If its tool has a `timeout`, a handler gets a thread of its own in sync runs too, and a late
    result does not count. `blocking` is what sync runs call in place of an async function.
    """

    __slots__ = (
        "_lock",
        "begun",
        "blocking",
        "cancel",
        "deadline",
        "dropped",
        "effect",
        "ended",
        "fence",
        "function",
        "outlives",
        "timeout",
    )

    def __init__(
        self,
        function: Callable[[], Any],
        deadline: Deadline | None,
        *,
        effect: bool = False,
        timeout: float | None = None,
        blocking: Callable[[], Any] | None = None,
    ) -> None:
        self.function = function
        self.blocking = blocking
        self.effect = effect
        self.fence = Fence(None if deadline is None else lambda: deadline.remaining().total_seconds())
        self.begun = self.dropped = self.outlives = False
        self.ended = Latch()
        # Cancels an async handler from another thread.
        self.cancel: Callable[[], object] | None = None
        self._lock = threading.Lock()
        self.deadline = deadline
        self.timeout = timeout

    def seconds(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline.remaining().total_seconds())

    def call(self) -> Any:
        """Call the handler; if it is async, whoever awaits what this returns sets `ended`."""
        with self._lock:
            if self.dropped:
                return None
            self.begun = True
        value = None
        try:
            value = _call(self.function)
        finally:
            if not (is_async := inspect.isawaitable(value)):
                self.ended.set()
        if not is_async:
            self.check_time()
        return value

    def check_time(self) -> None:
        """If the tool has a timeout, raise if its time is over; else what the call has left running has no limit."""
        if self.timeout is None:
            return
        if self.deadline is not None and self.deadline.expired:
            raise HandlerTimeout
        self.fence.lift_limit()

    def drop(self) -> None:
        """Keep the handler from beginning, if it has not begun."""
        with self._lock:
            self.dropped = not self.begun

    def abandon(self) -> None:
        """Stop the handler from another thread: cancel it if it is async, give it some time to end, and fence it."""
        self.drop()
        if self.cancel is not None:
            self.cancel()
        try:
            if (self.effect or self.cancel is not None) and not self.dropped:
                self.outlives = not self.ended.wait(CLEANUP_SECONDS)
        finally:
            self.fence.close()


Step = HandlerCall | Callable[[], Any] | ScopedResourceContext


def wait(awaitable: Any, thread: LoopThread, call: HandlerCall | None = None) -> Any:
    """The awaitable's result, from an event loop in another thread.

    On a timeout or interrupt it is cancelled, and has ended before this raises.
    """
    call = call or HandlerCall(lambda: None, None)
    task: asyncio.Task[Any] | None = None

    async def work() -> Any:
        nonlocal task
        task = asyncio.current_task()
        try:
            return await _Waiting().handle(call, _task(awaitable))
        finally:
            call.ended.set()

    def cancel() -> None:
        with contextlib.suppress(RuntimeError):  # The loop may be closed already.
            # Not before the work has begun, for it to end in order.
            thread.loop.call_soon_threadsafe(thread.loop.call_soon, lambda: task and task.cancel())

    call.cancel = cancel
    try:
        return thread.submit(work()).result()
    except BaseException:
        cancel()
        call.ended.wait(2 * CLEANUP_SECONDS)
        raise


class Cursor(Generic[S, T]):
    """A generator of steps, advanced by one outcome at a time; `step` is None once it has ended."""

    __slots__ = ("_error", "_result", "_steps", "step")

    def __init__(self, steps: Generator[S, Any, T]) -> None:
        self._steps = steps
        self._result: T | None = None
        self._error: BaseException | None = None
        self.step: S | None = None
        self.answer(None)

    def answer(self, outcome: Any, error: BaseException | None = None) -> None:
        """Send the outcome of the step, or throw in the error that it raised."""
        try:
            self.step = self._steps.send(outcome) if error is None else self._steps.throw(error)
        except StopIteration as stop:
            self.step, self._result = None, stop.value
        except BaseException as raised:
            self.step, self._error = None, raised

    def fail(self, error: BaseException) -> None:
        self.answer(None, error)

    def result(self) -> T:
        """The value that the generator returned, or the error that it ended with."""
        if self._error is None:
            return cast("T", self._result)
        try:
            raise self._error
        finally:
            # The traceback refers to the frame that refers to this cursor.
            self._error = None


def run_steps(steps: Generator[S, Any, T], perform: Callable[[S], Any]) -> T:
    """Drive the generator in this thread."""
    cursor = Cursor(steps)
    while (step := cursor.step) is not None:
        try:
            outcome = perform(step)
        except BaseException as error:
            cursor.fail(error)
        else:
            cursor.answer(outcome)
    return cursor.result()


async def run_steps_async(steps: Generator[S, Any, T], perform: Callable[[S], Awaitable[Any]]) -> T:
    """`run_steps` on the running event loop."""
    cursor = Cursor(steps)
    while (step := cursor.step) is not None:
        try:
            outcome = await perform(step)
        except BaseException as error:
            cursor.fail(error)
        else:
            cursor.answer(outcome)
    return cursor.result()


def contained(steps: Generator[S, Any, T], prompt_name: str, phase: EvaluationPhase) -> Generator[S, Any, T]:
    """The steps; if their own code raises SystemExit, such as a selector that exits, that is a failure of the run."""
    cursor, thrown = Cursor(steps), None
    while (step := cursor.step) is not None:
        try:
            outcome = yield step
        except BaseException as error:
            thrown = error
            cursor.fail(error)
        else:
            cursor.answer(outcome)
    try:
        return cursor.result()
    except SystemExit as error:
        if error is thrown:
            raise
        raise exited(error, prompt_name, phase) from error
    finally:
        thrown = None


def exited(error: SystemExit, prompt_name: str, phase: EvaluationPhase) -> PromptEvaluationError:
    problem = f"Code of prompt '{prompt_name}' raised {error!r}; raise an Exception instead."
    return PromptEvaluationError(problem, prompt_name=prompt_name, phase=phase)


def call_sync(steps: Generator[Step, Any, T], thread: Callable[[], LoopThread]) -> T:
    """Make a tool call in this thread; `thread` gives the event loop for async code."""

    def perform(step: Step) -> Any:
        if isinstance(step, ScopedResourceContext):
            return step.close()
        if isinstance(step, HandlerCall):
            step.function = step.blocking or step.function
            with step.fence:
                return _handle(step, thread) if step.timeout is None else _in_own_thread(step, thread)
        value = _call(step)
        return wait(value, thread()) if inspect.isawaitable(value) else value

    return run_steps(steps, perform)


def _handle(call: HandlerCall, thread: Callable[[], LoopThread]) -> Any:
    value = call.call()
    return wait(value, thread(), call) if inspect.isawaitable(value) else value


def _in_own_thread(call: HandlerCall, thread: Callable[[], LoopThread]) -> Any:
    """Call the handler in a thread, so that the run can go on without it when its time is over or on Ctrl-C."""
    try:
        return until(call.seconds(), functools.partial(_handle, call, thread), HandlerTimeout())
    except BaseException as error:
        if isinstance(error, HandlerTimeout) or not isinstance(error, Exception):
            call.abandon()
        raise


async def call_async(steps: Generator[Step, Any, T]) -> T:
    """Make a tool call on the running event loop; blocking functions are called in a thread.

    Whoever is cancelled meanwhile, once or at every await as by anyio, waits until the call has ended: the handler is
    cancelled once, and what follows it, such as its compensation, not at all.
    """
    waiting = _Waiting()
    try:
        outcome = await run_steps_async(steps, waiting.perform)
    except BaseException as error:
        if waiting.cancelled is not None and waiting.cancelled is not error:
            raise waiting.cancelled from error
        raise
    if waiting.cancelled is not None:
        raise waiting.cancelled
    return outcome


class _Waiting:
    """Performs the steps of a call on an event loop; `cancelled` is the first cancellation of the waiting task."""

    def __init__(self) -> None:
        self.cancelled: asyncio.CancelledError | None = None

    async def perform(self, step: Step) -> Any:
        if isinstance(step, HandlerCall):
            with step.fence:
                value = await self.handle(step, _start(step.call, step.function))
                return await self.handle(step, _task(value)) if inspect.isawaitable(value) else value
        if isinstance(step, ScopedResourceContext):
            return await self._end(_task(step.aclose())) if step.holds_any else step.close()
        value = await self._end(_start(step, step))
        return await self._end(_task(value)) if inspect.isawaitable(value) else value

    async def _end(self, work: asyncio.Future[Any]) -> Any:
        await self._wait(work)
        return _result(work)

    async def handle(self, call: HandlerCall, work: asyncio.Future[Any]) -> Any:
        """The result of a handler's work, unless the run is stopped or late: then it is ended first."""
        # The run may be cancelled as a function returns the awaitable to wait for here.
        reason: BaseException = self.cancelled or HandlerTimeout()
        try:
            await asyncio.wait((work,), timeout=call.seconds() if self.cancelled is None else 0)
        except asyncio.CancelledError as error:
            self.cancelled = reason = self.cancelled or error
        is_async = isinstance(work, asyncio.Task)
        if work.done():
            value = _result(work)
            if is_async:
                call.check_time()
            return value
        call.drop()
        if is_async:
            work.cancel()
            work.add_done_callback(_ignore)
        if (is_async or call.effect) and not call.dropped:
            await self._wait(work, CLEANUP_SECONDS)
            call.outlives = not work.done()
        call.fence.close()
        if not is_async:
            work.cancel()
        raise reason

    async def _wait(self, work: asyncio.Future[Any], seconds: float | None = None) -> None:
        cancelled = await finish(work, seconds)
        self.cancelled = self.cancelled or cancelled


async def finish(work: asyncio.Future[Any], seconds: float | None = None) -> asyncio.CancelledError | None:
    """Wait until the work has ended, however often the waiting task is cancelled; return the first cancellation."""
    cancelled: asyncio.CancelledError | None = None
    loop = asyncio.get_running_loop()
    until = None if seconds is None else loop.time() + seconds
    while not work.done() and (until is None or loop.time() < until):
        try:
            await asyncio.wait((work,), timeout=None if until is None else until - loop.time())
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    return cancelled


def _start(function: Callable[[], Any], declared: Callable[[], Any]) -> asyncio.Future[Any]:
    # Calling a coroutine function only creates the coroutine, so it needs no thread.
    return asyncio.create_task(_awaited(function)) if _is_async(declared) else threads.call(function)


def _task(awaitable: Awaitable[Any]) -> asyncio.Future[Any]:
    return asyncio.create_task(_awaited(lambda: awaitable))


async def _awaited(function: Callable[[], Any]) -> Any:
    """Call and await; an exit is returned, since asyncio would raise a task's SystemExit out of its event loop."""
    try:
        value = function()
        return await value if inspect.isawaitable(value) else value
    except (SystemExit, GeneratorExit) as error:
        return UserCodeExit(error)


def _ignore(work: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging what a stopped handler raises."""
    if not work.cancelled():
        work.exception()


def _result(work: asyncio.Future[Any]) -> Any:
    value = _call(work.result)
    if isinstance(value, UserCodeExit):
        raise value
    return value


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


class Workers:
    """Calls blocking functions in threads, which are started on demand and kept.

    It does what `asyncio.to_thread` does at less cost, which matters when hundreds of runs call quick tools
    at once, and leaves asyncio's own few threads to name resolution. A function whose future was cancelled no longer
    counts: another thread takes the place of the one it still occupies. The threads do not delay the program's exit: a
    function still running by then has been abandoned.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._reset()
        if hasattr(os, "register_at_fork"):
            # A forked child has none of its parent's threads.
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._jobs: SimpleQueue[_Job[Any]] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = self._idle = self._queued = 0

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """The function's result; if the future is cancelled, the function continues and its result is dropped."""
        job: _Job[T] = _Job(self, function, contextvars.copy_context())
        with self._lock:
            self._queued += 1
            self._add_thread()
        self._jobs.put(job)
        return job

    def _add_thread(self) -> None:
        if self._queued > self._idle and self._started < MAX_THREADS:
            self._started += 1
            self._idle += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()

    def give_back(self, job: _Job[Any]) -> None:
        """No longer count the thread of a job that was abandoned."""
        with self._lock:
            job.abandoned = True
            if job.running:
                self._started -= 1
                self._add_thread()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            with self._lock:
                self._idle -= 1
                self._queued -= 1
                job.running = not job.abandoned
            if job.running:
                job.run()
            with self._lock:
                if job.running and job.abandoned:
                    return
                job.running = False
                # Before the result is set: whoever waits for it may submit the next function, which then needs no new
                # thread.
                self._idle += 1
            job.deliver()
            del job


class _Job(asyncio.Future[T]):
    """The result of a function that is called in a thread."""

    def __init__(self, workers: Workers, function: Callable[[], T], context: contextvars.Context) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._workers = workers
        self._function = function
        self._context = context
        self._outcome: tuple[T | None, BaseException | None] = (None, None)
        self.running = self.abandoned = False

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        self._workers.give_back(self)
        return True

    def run(self) -> None:
        try:
            self._outcome = self._context.run(_call, self._function), None
        except BaseException as error:
            self._outcome = None, error

    def deliver(self) -> None:
        # The event loop is closed, so nobody is waiting.
        with contextlib.suppress(RuntimeError):
            self.get_loop().call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        value, error = self._outcome
        if self.cancelled():
            return
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(cast("T", value))


threads = Workers("wink-tools")
