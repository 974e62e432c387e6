"""The event loop of a context: async providers and managers run there, and its async resources are closed there."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from math import inf
from typing import TYPE_CHECKING, Any

from weakincentives._base.fence import seconds_left
from weakincentives.errors import AbandonedCallError
from weakincentives.resources.lifecycle import Creation, Held, OnOwnLoop, Step, creating

# asyncio takes long to import, and most programs have no async resources.
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from weakincentives._base.loops import LoopThread

# How often a thread that runs an event loop checks whether the creation it waits for needs that loop.
POLL_SECONDS = 0.02


class ContextLoop:
    """The loop on which a context was started, else one in a thread of its own, started on first use.

    `dropped` are async resources of failed calls, which could not be closed when they were rolled back.
    """

    def __init__(self) -> None:
        self.dropped: list[Held] = []
        self.reset()
        _loops.add(self)

    def reset(self) -> None:
        """Begin anew, without the loops that there were."""
        self.home: AbstractEventLoop | None = None
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    def thread(self) -> LoopThread:
        """The loop in a thread of its own, which async tools of sync runs use too."""
        from weakincentives._base.loops import LoopThread

        with self._lock:
            if self._thread is None:
                self._thread = LoopThread("wink-async-tools")
            return self._thread

    def block(self, step: Step, *, anywhere: bool) -> Any:
        """Perform a step while this thread waits, on the loop to which it belongs if there is one.

        A creation is cancelled once the tool call that needs it is late; an end is never cut short.
        If this thread runs the loop itself, that raises `OnOwnLoop`, unless the work may be done `anywhere`.
        """
        if isinstance(step, Creation):
            return self._join(step)
        from asyncio import run_coroutine_threadsafe

        creation = _note_awaiting()
        seconds = inf if creation is None else seconds_left()
        target = self._target(step.loop)
        if target is running_loop():
            if not anywhere:
                raise OnOwnLoop
            target = self.thread().loop
        future = run_coroutine_threadsafe(step.run(), target)
        try:
            return future.result(None if seconds == inf else max(0.0, seconds))
        except TimeoutError:
            if not future.cancel():
                return future.result()  # It has just ended, or the error is its own.
            raise AbandonedCallError("The time of this tool call was over while a resource was created.") from None
        except BaseException:
            future.cancel()
            raise

    def _join(self, creation: Creation) -> None:
        """Wait until another thread or task has created the resource, unless that needs the loop of this thread."""
        here = self.is_here()
        while creation.done is not None:
            try:
                return creation.done.result(POLL_SECONDS if here else None)
            except TimeoutError:
                if creation.awaits:
                    raise OnOwnLoop from None

    async def wait(self, step: Step) -> Any:
        """Perform a step on the running event loop, or on the loop to which it belongs."""
        from asyncio import get_running_loop, run_coroutine_threadsafe, shield, wrap_future

        if isinstance(step, Creation):
            if step.done is not None:
                # Others wait for the same creation, also if this caller is cancelled.
                await shield(wrap_future(step.done))
            return None
        _note_awaiting()
        running = get_running_loop()
        if (self.home is None or self.home.is_closed()) and self._thread is None:
            self.home = running
        target = self._target(step.loop)
        if target is running:
            return await step.run()
        return await wrap_future(run_coroutine_threadsafe(step.run(), target))

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

    def _target(self, on: AbstractEventLoop | None) -> AbstractEventLoop:
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


def _note_awaiting() -> Creation | None:
    """Note that what is being created here, and what it is created for, takes an event loop."""
    if (creation := creating.get()) is not None:
        creation.note_awaiting()
    return creation


def running_loop() -> AbstractEventLoop | None:
    """The event loop that runs in this thread."""
    if "asyncio" not in sys.modules:
        return None
    from asyncio import _get_running_loop

    return _get_running_loop()
