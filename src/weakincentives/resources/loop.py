"""The event loop of a context: async providers and managers run there, and its async resources are closed there."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Any, TypeAlias

from weakincentives._loops import LoopThread
from weakincentives.errors import AbandonedCallError

Work: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]


class OnOwnLoop(Exception):
    """A blocking wait on the event loop that would have to do the work."""


class ContextLoop:
    """The loop on which a context was started, else one in a thread of its own, started on first use."""

    def __init__(self) -> None:
        self.reset()
        _loops.add(self)

    def reset(self) -> None:
        """Begin anew, without the loops that there were."""
        self.home: asyncio.AbstractEventLoop | None = None
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    def thread(self) -> LoopThread:
        """The loop in a thread of its own, which async tools of sync runs use too."""
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread("wink-async-tools")
            return self._thread

    def block(
        self, work: Work, on: asyncio.AbstractEventLoop | None, *, anywhere: bool = False, seconds: float = inf
    ) -> Any:
        """Do the work while this thread waits, on the loop to which it belongs if there is one.

        After so many seconds it is cancelled, since the tool call that needs it is late.
        If this thread runs the loop itself, that raises `OnOwnLoop`, unless the work may be done `anywhere`.
        """
        target = self._target(on)
        if target is running_loop():
            if not anywhere:
                raise OnOwnLoop
            target = self.thread().loop
        future = asyncio.run_coroutine_threadsafe(work(), target)
        try:
            return future.result(None if seconds == inf else max(0.0, seconds))
        except TimeoutError:
            if not future.cancel():
                return future.result()  # It has just ended, or the error is its own.
            raise AbandonedCallError("The time of this tool call was over while a resource was created.") from None
        except BaseException:
            future.cancel()
            raise

    async def wait(self, work: Work, on: asyncio.AbstractEventLoop | None) -> Any:
        """Await the work, on the loop to which it belongs if there is one."""
        running = asyncio.get_running_loop()
        if (self.home is None or self.home.is_closed()) and self._thread is None:
            self.home = running
        target = self._target(on)
        if target is running:
            return await work()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), target))

    def is_here(self) -> bool:
        """True if this thread runs the loop."""
        here = running_loop()
        return here is not None and here in (self.home, self._thread and self._thread.loop)

    def close(self) -> None:
        """Stop the thread, which cancels what still runs there. Later work starts another."""
        with self._lock:
            thread, self._thread, self.home = self._thread, None, None
        if thread is not None:
            thread.stop()
            if thread.loop is not running_loop():
                thread.join()

    def __del__(self) -> None:
        if self._thread is not None:
            self._thread.stop()

    def _target(self, on: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
        for loop in (on, self.home):
            if loop is not None and loop.is_running():
                return loop
        return self.thread().loop


_loops: weakref.WeakSet[ContextLoop] = weakref.WeakSet()


def _reset_all() -> None:
    """A forked child has none of its parent's threads, so none of the loops in them runs there."""
    for loop in list(_loops):
        loop.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)


class Entered:
    """An async context manager that a task of its own enters and leaves, since some insist on the same task."""

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self._manager = manager
        self.loop: asyncio.AbstractEventLoop | None = None

    async def enter(self) -> Any:
        self.loop = asyncio.get_running_loop()
        entered: asyncio.Future[Any] = self.loop.create_future()
        self._left: asyncio.Future[BaseException | None] = self.loop.create_future()
        self._task = asyncio.create_task(self._hold(entered))
        try:
            await asyncio.wait((self._task, entered), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if not entered.done() and (exited := self._task.result()) is not None:
            raise exited
        return entered.result()

    async def leave(self, error: BaseException | None) -> None:
        if not self._left.done():
            self._left.set_result(error)
        # If its loop has ended, that has cancelled the task, which has left the manager.
        ended = self._task.cancelled() and self._task.get_loop() is not asyncio.get_running_loop()
        if not ended and (exited := await self._task) is not None:
            raise exited

    async def _hold(self, entered: asyncio.Future[Any]) -> SystemExit | None:
        try:
            async with self._manager as value:
                entered.set_result(value)
                if (error := await self._left) is not None:
                    raise error
        except SystemExit as exited:
            # asyncio would raise it out of the event loop, which others still use.
            return exited
        return None


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
