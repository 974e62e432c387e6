"""One run's connection to a model behind the Claude Code CLI.

The CLI, the MCP server and the SDK's client live on an event loop in a thread of their own, so that blocking and async
callers work the same way.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from weakincentives.adapters.claude_agent_sdk.conversation import Conversation, OnDelta, Settings
from weakincentives.adapters.claude_agent_sdk.home import Home
from weakincentives.adapters.claude_agent_sdk.wire import CliToolUse
from weakincentives.errors import DeadlineExceededError
from weakincentives.runtime import ModelDelta, ModelReply, ModelRequest

logger = logging.getLogger("weakincentives.adapters")
ResultT = TypeVar("ResultT")


class ClaudeChannel:
    """Starts the CLI with the first request and keeps it until `close`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.report: Callable[[CliToolUse], None] | None = None
        self.finalizer: weakref.finalize[Any, Any] | None = None
        self._earlier_cost: float | None = None
        self._home: Home
        self._conversation: Conversation
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run_loop, args=(ready,), name="wink-claude", daemon=True)
        self._thread.start()
        ready.wait()

    @property
    def idle(self) -> bool:
        """Whether the CLI has answered and waits for the user."""
        return self._conversation.idle

    @property
    def cost_usd(self) -> float | None:
        """The cost of everything on this channel, as the CLI reports it."""
        reported = self._conversation.cost_usd
        return self._earlier_cost if reported is None else (self._earlier_cost or 0.0) + reported

    def call(self, request: ModelRequest) -> ModelReply:
        with self._reporting():
            return self._submit(self._turn(request, _ignore)).result()

    async def call_async(self, request: ModelRequest) -> ModelReply:
        with self._reporting():
            return await asyncio.wrap_future(self._submit(self._turn(request, _ignore)))

    def stream(self, request: ModelRequest) -> Iterator[ModelDelta | ModelReply]:
        pieces: queue.SimpleQueue[ModelDelta | None] = queue.SimpleQueue()
        reply = self._submit(self._turn(request, pieces.put))
        reply.add_done_callback(lambda _: pieces.put(None))
        with self._reporting():
            while (piece := pieces.get()) is not None:
                yield piece
        yield reply.result()

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelReply]:
        pieces: asyncio.Queue[ModelDelta | None] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def put(piece: ModelDelta | None) -> None:
            here.call_soon_threadsafe(pieces.put_nowait, piece)

        reply: concurrent.futures.Future[ModelDelta | ModelReply] = self._submit(self._turn(request, put))
        reply.add_done_callback(lambda _: put(None))
        with self._reporting():
            while (piece := await pieces.get()) is not None:
                yield piece
        yield await asyncio.wrap_future(reply)

    def follows_list_changes(self) -> bool:
        """Whether this CLI picks up tools that appear; calls no model."""
        return self._submit(self._conversation.probe()).result()

    def close(self) -> None:
        """Stop the CLI and everything it started; if it is still working, kill it so that it stops spending."""
        if not self._thread.is_alive():
            return
        if not self._conversation.idle:
            self._home.cut()
        self.abandon()
        self._thread.join()
        if self.finalizer is not None:
            self.finalizer.detach()

    def abandon(self) -> None:
        """`close` without waiting for it."""
        with suppress(RuntimeError):  # The loop may be closed already.
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _turn(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        if not self._conversation.continues(request):
            self._earlier_cost = self.cost_usd
            await self._end()
            self._begin()
        seconds = None if request.deadline is None else max(0.0, request.deadline.remaining().total_seconds())
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._conversation.turn(request, on_delta)
        except TimeoutError as error:
            self._home.cut()
            if not limit.expired():
                raise
            raise DeadlineExceededError(
                f"The deadline of prompt '{request.prompt_name}' passed while Claude Code was working.",
                prompt_name=request.prompt_name,
                phase="request",
            ) from error

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report the tools that the CLI has run, in the caller's thread."""
        try:
            yield
        finally:
            uses, report = self._conversation.uses, self.report
            while uses and report is not None:
                report(uses.popleft())

    def _begin(self) -> None:
        settings = self.settings
        self._home = Home(cli=settings.cli, env=settings.env, own_home="user" in settings.setting_sources)
        self._conversation = Conversation(settings, self._home)

    async def _end(self) -> None:
        try:
            await self._conversation.close()
        finally:
            self._home.remove()

    def _submit(self, work: Coroutine[Any, Any, ResultT]) -> concurrent.futures.Future[ResultT]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run_loop(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            self._begin()
            ready.set()
            await self._stop.wait()
            try:
                await self._end()
            except Exception as error:
                logger.warning("The Claude Code CLI could not be stopped in order", exc_info=error)

        with asyncio.Runner() as runner:
            runner.run(main())


def _ignore(delta: ModelDelta) -> None:
    """For callers that do not stream."""
