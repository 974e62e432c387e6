"""The conversations of a web application, by the id of their thread, and a turn of one as a response."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from weakincentives.content import Content
from weakincentives.runtime import Conversation, StreamEvent

logger = logging.getLogger("weakincentives.ui")

Endpoint = Callable[[Request], Awaitable[Response]]
Events = AsyncIterator[StreamEvent[Any] | Exception]


class Threads:
    """Keeps a conversation for each thread of a web application.

    `make` is called with the id of a thread that is not in memory, `save` with the id and the conversation after each
    turn, however it ended; both in a thread. The `limit` conversations used last are kept in memory.

    A page chooses the id of its thread. Where people must not see each other's conversations, `owner` says who sent
    a request that your own code has authenticated; ids are then `"owner/thread"`.
    """

    def __init__(
        self,
        make: Callable[[str], Conversation[Any]],
        *,
        save: Callable[[str, Conversation[Any]], object] | None = None,
        owner: Callable[[Request], str] | None = None,
        limit: int = 1000,
    ) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        self._make = make
        self._save = save
        self._owner = owner
        self._limit = limit
        # Those used last stand last.
        self._chats: dict[str, tuple[Conversation[Any], asyncio.Lock]] = {}
        self._turns: dict[str, asyncio.Task[None]] = {}

    def key(self, request: Request, thread: str) -> str:
        """The id under which a thread of this request is known."""
        return thread if self._owner is None else f"{self._owner(request)}/{quote(thread, safe='')}"

    async def events(self, key: str, chat: Conversation[Any], lock: asyncio.Lock, content: Content) -> Events:
        """A turn of a thread; the last event is an exception if it failed. Leaving early stops the turn.

        A turn that is still under way is stopped first: the user spoke over it. Each turn has a task of its own, since
        anyio cancels a request again at every await, which would cut short what a stopped turn has to close.
        """
        queue: asyncio.Queue[StreamEvent[Any] | Exception | None] = asyncio.Queue()

        async def run() -> None:
            async with lock:
                try:
                    async with chat.stream_async(content) as stream:
                        async for event in stream:
                            queue.put_nowait(event)
                except Exception as error:
                    logger.warning("A turn of thread %r failed", key, exc_info=error)
                    queue.put_nowait(error)
                finally:
                    if self._save is not None:
                        await asyncio.to_thread(self._save, key, chat)

        def ended(turn: asyncio.Task[None]) -> None:
            queue.put_nowait(None)
            if self._turns.get(key) is turn:
                del self._turns[key]

        if (before := self._turns.get(key)) is not None:
            before.cancel()
        turn = self._turns[key] = asyncio.create_task(run())
        turn.add_done_callback(ended)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            turn.cancel()

    async def find(self, key: str) -> tuple[Conversation[Any], asyncio.Lock]:
        """The conversation of a thread, and the lock that its turns take."""
        if key not in self._chats:
            chat = await asyncio.to_thread(self._make, key)
            # Another request may have made it meanwhile.
            self._chats.setdefault(key, (chat, asyncio.Lock()))
        found = self._chats[key] = self._chats.pop(key)
        idle = [other for other in self._chats if other not in self._turns and other != key]
        for other in idle[: max(0, len(self._chats) - self._limit)]:
            del self._chats[other]
        return found


def endpoint(
    threads: Threads,
    read: Callable[[bytes], tuple[str, Content, Callable[[Events], AsyncIterator[dict[str, Any]]]]],
    *,
    headers: Mapping[str, str],
    end: str = "",
) -> Endpoint:
    """An endpoint that reads a request into thread, content and encoder, and streams the turn as server-sent events."""

    async def respond(request: Request) -> Response:
        # A page of another site may send anything but JSON without being asked for permission.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return JSONResponse({"error": "The request must be application/json"}, 415)
        try:
            thread, content, encode = read(await request.body())
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        key = threads.key(request, thread)
        chunks = encode(threads.events(key, *await threads.find(key), content))

        async def body() -> AsyncIterator[str]:
            async for chunk in chunks:
                yield f"data: {json.dumps(chunk)}\n\n"
            yield end

        return StreamingResponse(
            body(), media_type="text/event-stream", headers={"cache-control": "no-cache", **headers}
        )

    return respond
