"""An event loop in a thread of its own, and a context manager in a task of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread, until `stop`; then `last` is awaited, and what is left is cancelled.

    `ended` is done when the loop is closed. Threads of `asyncio.to_thread` are not waited for.
    """

    def __init__(self, name: str, last: Callable[[], Coroutine[Any, Any, object]] | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()
        self._stop = asyncio.Event()
        self._last = last
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run the work; RuntimeError if the loop is closed."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        """Begin to stop; may be called again, and from any thread."""
        with suppress(RuntimeError):  # The loop may be closed already.
            self.loop.call_soon_threadsafe(self._stop.set)

    def join(self, seconds: float | None = None) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        main = self.loop.create_task(self._main())
        try:
            while not main.done():
                # asyncio raises a task's SystemExit out of its loop, which others still use.
                with suppress(SystemExit, KeyboardInterrupt):
                    self.loop.run_until_complete(main)
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
            self.ended.set_result(None)

    async def _main(self) -> None:
        await self._stop.wait()
        if self._last is not None:
            await self._last()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


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
