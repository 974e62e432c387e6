"""The bridge between sync and async code: a generator of steps, driven from a thread or from an event loop.

A step of a tool call is its handler, timed calls such as those of guards, another function whose result may be
awaitable, or a resource scope to close.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import threading
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from weakincentives._base.fence import Fence
from weakincentives._base.loops import LoopThread
from weakincentives._base.steps import Cursor, run_steps, run_steps_async
from weakincentives._base.threads import until
from weakincentives.errors import AbandonedCallError, EvaluationPhase, PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.resources import ScopedResourceContext

S = TypeVar("S")
T = TypeVar("T")
MAX_PARALLEL = 8
MAX_THREADS = 32
# Of guards, those that were left behind included.
MAX_GUARD_THREADS = 128
# How long a cancelled handler may take to clean up before it is fenced off.
CLEANUP_SECONDS = 5.0
# How long a run waits for the cleanup of an async guard that it leaves behind.
BRIEF_CLEANUP_SECONDS = 0.2


class HandlerTimeout(Exception):
    """A call's deadline passed while its handler was running, which is cancelled, or fenced if it blocks."""


class ThreadsExhausted(Exception):
    """No thread can make a call: each is taken by one that was left behind and has not ended."""


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

    def set(self, _: object = None) -> None:
        """May be called once."""
        self._lock.release()

    def wait(self, seconds: float = -1) -> bool:
        """Wait until it is set; False if that takes too long."""
        if is_set := self._lock.acquire(timeout=seconds):
            self._lock.release()
        return is_set


@dataclass(slots=True, eq=False)
class HandlerCall:
    """A call to a tool handler, behind a fence and up to the deadline.

    `effect` says that it may have external effects to compensate: when stopped, it is first given some time to end, so
    that the compensation comes after what it undoes. So is an async handler, which is cancelled, for its cleanup; a
    handler that does not end in that time `outlives` its call. A call stopped before it began is `dropped`: there is
    nothing to compensate. If its tool has a `timeout`, a handler gets a thread of its own in sync runs too, and a late
    result does not count. `blocking` is what sync runs call in place of an async function. `cancel` cancels an async
    handler from another thread.
    """

    function: Callable[[], Any]
    deadline: Deadline | None
    _: KW_ONLY
    effect: bool = False
    timeout: float | None = None
    blocking: Callable[[], Any] | None = None
    cancel: Callable[[], object] | None = None
    begun: bool = False
    dropped: bool = False
    outlives: bool = False
    fence: Fence = field(init=False)
    ended: Latch = field(default_factory=Latch)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        deadline = self.deadline
        self.fence = Fence(None if deadline is None else lambda: deadline.remaining().total_seconds())

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


@dataclass(slots=True, eq=False)
class TimedCall:
    """A call that has some seconds to end, from when it begins.

    `settle` receives its result or error, or `HandlerTimeout`.
    """

    function: Callable[[], Any]
    seconds: float
    settle: Callable[[Any, BaseException | None], None]
    is_async: bool
    since: float | None = None
    awaitable: Awaitable[Any] | None = None

    def remaining(self) -> float:
        """The seconds that are left; all of them while it waits for its turn."""
        if self.since is None:
            return self.seconds
        return max(0.0, self.since + self.seconds - time.monotonic())


class TimedCalls:
    """Calls that are made one after another, each with its own time; one that is late is left behind.

    Blocking functions come first, all in one thread, so that there is one hand-over for all of them; then the async
    ones, all in one task. What waits for a thread has not begun; after `limit` seconds, every call is late.
    """

    __slots__ = ("_awaited", "_blocking", "_until")

    def __init__(self, calls: Sequence[TimedCall], limit: float | None = None) -> None:
        self._awaited = [call for call in calls if call.is_async]
        self._blocking = [call for call in calls if not call.is_async]
        self._until = inf if limit is None else time.monotonic() + limit

    def perform(self, thread: Callable[[], LoopThread]) -> None:
        """Make the calls from this thread; `thread` gives the event loop for async code."""
        while self._blocking:
            batch, ended = _Batch(self._blocking, self._until, self._awaited), Latch()
            job = guard_threads.submit(batch.work, ended.set)
            try:
                while not ended.wait(batch.seconds()) and not batch.leave_behind():
                    pass
            finally:
                if not ended.wait(0):
                    batch.fence.close()
                    guard_threads.give_back(job)
            batch.check(job.error)
        if self._awaited:
            wait(self._await(), thread())

    async def perform_async(self) -> None:
        """Make the calls from the running task."""
        while self._blocking:
            batch = _Batch(self._blocking, self._until, self._awaited)
            await batch.supervise(guard_threads.call(batch.work))
        await self._await()

    async def _await(self) -> None:
        while self._awaited:
            batch = _Batch(self._awaited, self._until)
            task = asyncio.create_task(batch.work_async())
            try:
                await batch.supervise(task)
            finally:
                if not task.done():
                    # A second cancellation ends what goes on after the first.
                    asyncio.get_running_loop().call_later(CLEANUP_SECONDS, task.cancel)
                    if (cancelled := await finish(task, BRIEF_CLEANUP_SECONDS)) is not None:
                        raise cancelled


class _Batch:
    """Calls that one thread or task makes, behind a fence, until one of them is late; it removes them from the list.

    Blocking calls that turn out to be async are added to `awaited`.
    """

    __slots__ = ("_awaited", "_calls", "_current", "_lock", "_until", "_withdrawn", "fence")

    def __init__(self, calls: list[TimedCall], until: float, awaited: list[TimedCall] | None = None) -> None:
        self.fence = Fence()
        self._calls = calls
        self._until = until
        self._awaited = awaited
        self._lock = threading.Lock()
        self._withdrawn = False
        self._next()

    def work(self) -> None:
        """Make the calls in this thread."""
        with self.fence:
            while (call := self._begin()) is not None:
                result: Any = None
                error: BaseException | None = None
                try:
                    result = call.function()
                except BaseException as raised:
                    error = raised
                self._end(call, result, error)

    async def work_async(self) -> None:
        """Make the calls in this task, which ends even if a call that was left behind does not."""
        with self.fence:
            while (call := self._begin()) is not None:
                result: Any = None
                error: BaseException | None = None
                try:
                    result = await self._drive(_awaiting(call))
                except (KeyboardInterrupt, AbandonedCallError):
                    if not self.fence.closed:
                        raise
                    return
                except BaseException as raised:
                    if self.fence.closed:
                        return
                    error = raised
                self._end(call, result, error)

    @types.coroutine
    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The coroutine's result; once it is left behind, it may clean up after one cancellation, but not go on."""
        sent: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = coroutine.send(sent) if error is None else coroutine.throw(error)
            except StopIteration as end:
                return end.value
            sent = error = None
            try:
                sent = yield waits_for
            except BaseException as raised:
                if self._withdrawn:
                    with contextlib.suppress(BaseException):
                        coroutine.close()
                    raise
                self._withdrawn = self.fence.closed
                error = raised

    def _begin(self) -> TimedCall | None:
        """The next call, whose time begins; None if there is none, or the batch was left behind."""
        with self._lock:
            call = self._current
            if call is None or self.fence.closed:
                return None
            call.since = time.monotonic()
            return call

    def _end(self, call: TimedCall, result: Any, error: BaseException | None) -> None:
        with self._lock:
            if self.fence.closed:
                return
            if self._awaited is not None and inspect.isawaitable(result):
                call.awaitable, call.since = result, None
                self._awaited.append(call)
            elif call.remaining() <= 0:
                # It has kept everybody from noticing.
                call.settle(None, HandlerTimeout())
            else:
                call.settle(result, error)
            self._next()

    def _next(self) -> None:
        self._current = self._calls.pop(0) if self._calls else None

    def seconds(self) -> float:
        """The seconds until the current call is late, or may have begun."""
        call = self._current
        return 1.0 if call is None else max(0.0, min(call.remaining(), self._until - time.monotonic()))

    def leave_behind(self) -> bool:
        """Give up on the current call if its time is over; another thread or task makes those that follow."""
        with self._lock:
            call = self._current
            if call is None or (call.remaining() > 0 and time.monotonic() < self._until):
                return False
            self.fence.close()
            call.settle(None, HandlerTimeout())
            return True

    async def supervise(self, work: asyncio.Future[Any]) -> None:
        """Wait until the calls are made or one is late, and leave it behind."""
        try:
            while not work.done() and not self.leave_behind():
                await asyncio.wait((work,), timeout=self.seconds())
        finally:
            if not work.done():
                self.fence.close()
                work.cancel()
                work.add_done_callback(_ignore)
        if work.done() and not work.cancelled():
            self.check(work.exception())

    def check(self, error: BaseException | None) -> None:
        """Settle the call that no thread could take; raise what else has ended the work."""
        if error is None:
            return
        if not isinstance(error, ThreadsExhausted):
            raise error
        call = self._current
        if call is not None and not self.fence.closed:
            self.fence.close()
            call.settle(None, error)


async def _awaiting(call: TimedCall) -> Any:
    return await (call.function() if call.awaitable is None else call.awaitable)


Step = HandlerCall | TimedCalls | Callable[[], Any] | ScopedResourceContext


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
        if isinstance(step, TimedCalls):
            return step.perform(thread)
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
        if isinstance(step, TimedCalls):
            return await step.perform_async()
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
    task = asyncio.create_task(_awaited(lambda: awaitable))
    if inspect.iscoroutine(awaitable):
        # A task that is cancelled before it begins does not await the coroutine, which then would warn.
        task.add_done_callback(lambda _: awaitable.close())
    return task


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


def in_parallel(functions: Sequence[Callable[[], T]], stop: Callable[[], None]) -> list[T]:
    """Call all functions in threads, each with the current context variables; results are in order.

    On Ctrl-C, `stop` makes those end that are still running.
    """
    with ThreadPoolExecutor(min(len(functions), MAX_PARALLEL)) as pool:
        try:
            futures = [pool.submit(contextvars.copy_context().run, function) for function in functions]
            return [future.result() for future in futures]
        except KeyboardInterrupt:
            stop()
            raise


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

    If they are `bounded`, an abandoned function still counts, and once there is nothing else, others fail with
    `ThreadsExhausted`.
    """

    def __init__(self, name: str, limit: int = MAX_THREADS, *, bounded: bool = False) -> None:
        self._name = name
        self._limit = limit
        self._bounded = bounded
        self._reset()
        if hasattr(os, "register_at_fork"):
            # A forked child has none of its parent's threads.
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = self._idle = self._queued = self._abandoned = 0

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """The function's result; if the future is cancelled, the function continues and its result is dropped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = self.submit(function, functools.partial(_deliver, loop, future))
        future.add_done_callback(lambda ended: self.give_back(job) if ended.cancelled() else None)
        return future

    def submit(self, function: Callable[[], Any], deliver: Callable[[Job], object]) -> Job:
        """Have a thread call the function, and then `deliver` the job there."""
        job = Job(function, deliver)
        with self._lock:
            self._queued += 1
            self._jobs.put(job)
            refused = self._add_thread()
        _refuse(refused)
        return job

    def _add_thread(self) -> list[Job]:
        """Start a thread if one is needed and may be started; return the jobs that no thread will ever take."""
        taken = self._started + (self._abandoned if self._bounded else 0)
        if self._queued > self._idle and taken < self._limit:
            self._started += 1
            self._idle += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        refused: list[Job] = []
        while not self._started and self._queued:
            try:
                refused.append(self._jobs.get_nowait())
            except Empty:
                break
            self._queued -= 1
        return refused

    def give_back(self, job: Job) -> None:
        """No longer count the thread of a job that was abandoned as one that takes others."""
        refused: list[Job] = []
        with self._lock:
            job.abandoned = True
            if job.running:
                self._started -= 1
                self._abandoned += 1
                refused = self._add_thread()
        _refuse(refused)

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
                    self._abandoned -= 1
                    self._add_thread()
                    return
                job.running = False
                # Before the result is set: whoever waits for it may submit the next function, which then needs no new
                # thread.
                self._idle += 1
            job.deliver(job)
            del job


def _refuse(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.error = ThreadsExhausted(
            "every thread is taken by a call that was given up and has not ended; let such calls end, for example by "
            "a timeout of what they wait for"
        )
        job.deliver(job)


@dataclass(slots=True, eq=False)
class Job:
    """A function that is called in a thread, with the context variables of whoever submits it."""

    function: Callable[[], Any]
    deliver: Callable[[Job], object]
    value: Any = None
    error: BaseException | None = None
    running: bool = False
    abandoned: bool = False
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)

    def run(self) -> None:
        try:
            self.value = self._context.run(_call, self.function)
        except BaseException as error:
            self.error = error


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], job: Job) -> None:
    with contextlib.suppress(RuntimeError):  # The event loop is closed, so nobody is waiting.
        loop.call_soon_threadsafe(_settle, future, job)


def _settle(future: asyncio.Future[Any], job: Job) -> None:
    if future.done():
        return
    if job.error is not None:
        future.set_exception(job.error)
    else:
        future.set_result(job.value)


threads = Workers("wink-tools")
# Their own, so that slow tools do not make guards late.
guard_threads = Workers("wink-guards", MAX_GUARD_THREADS, bounded=True)
