"""The threads of a web application on many machines: durable conversations, which workers answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from weakincentives.runtime import Conversation, StreamEvent
from weakincentives.ui.page import Failed, failure
from weakincentives.ui.questions import Show, check_show, waiting_calls
from weakincentives.ui.requests import (
    EFFECTS,
    RECEIVED,
    UNDER_WAY,
    Asked,
    Received,
    Refused,
    answered_calls,
    decisions_of,
    received,
)
from weakincentives.ui.threads import UNAVAILABLE, Owner, ThreadLimits, key_of

if TYPE_CHECKING:
    from weakincentives.durable import DurableConversations

logger = logging.getLogger("weakincentives.ui")


class DurableExchange:
    """A message and its answer by a worker, as one page reads them; the run goes on when the page is gone."""

    def __init__(self, key: str, chat: Conversation[Any], stream: Any, answered: Collection[str] = ()) -> None:
        self.waiting = waiting_calls(chat)
        self.answered = frozenset(answered)
        self._key = key
        self._chat = chat
        self._stream = stream

    async def begun(self) -> Conversation[Any]:
        return self._chat

    async def events(self, seconds: float) -> AsyncIterator[StreamEvent[Any] | Failed | None]:
        """The events as they come; None if there was none for some seconds."""
        while True:
            coming = asyncio.ensure_future(anext(self._stream))
            try:
                while not (await asyncio.wait({coming}, timeout=seconds))[0]:
                    yield None
                event = coming.result()
            except StopAsyncIteration:
                return
            except Exception as error:
                logger.warning("An exchange of thread %r failed: %s", self._key, error)
                yield failure(error)
                return
            finally:
                coming.cancel()
            yield event

    def stop(self) -> None:
        """Nothing: the page has left, and the worker goes on."""


class DurableThreads:
    """`Threads` whose conversations are durable: any web process serves them, and any worker answers.

        chats = DurableConversations("support", prepare, adapter, "postgresql://...")
        app = Starlette(routes=[Route("/api/chat", vercel_ai(DurableThreads(chats)), methods=["GET", "POST"])])

    A page that leaves does not stop its run; a new message does, and so does a request with the method DELETE. A page
    that was reloaded reads the stream again from its start, at a route with the id in its path. `tenant(request)` and
    `params(request)` return what `DurableConversations.send` takes; everything else is as for `Threads`.
    """

    def __init__(
        self,
        chats: DurableConversations[Any],
        *,
        owner: Owner | None = None,
        show: Show | None = None,
        limits: ThreadLimits | None = None,
        tenant: Callable[[Request], str | None] | None = None,
        params: Callable[[Request], tuple[Any, ...]] | None = None,
        over_effects: bool = False,
    ) -> None:
        if not hasattr(chats, "stream_async"):
            raise TypeError(f"DurableThreads needs DurableConversations(...), got {chats!r}")
        for name, function in (("owner", owner), ("tenant", tenant), ("params", params)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function, {name}(request), got {function!r}")
        self._chats = chats
        self._owner = owner
        self._tenant = tenant
        self._params = params
        self._over_effects = over_effects
        self.show = check_show(show)
        self.limits = ThreadLimits.given(limits)

    async def send(self, request: Request, asked: Asked) -> DurableExchange:
        """Have a message answered; one that is still being answered is stopped first: the user has interrupted it."""
        asked.check_length(self.limits.message_length)
        tools = asked.page_tools(self.limits.page_tools, self.limits.message_length)
        key, owner = await key_of(self._owner, request, asked.thread)
        flight = await self._chats.in_flight_async(key)
        if flight.number is not None and not asked.content:
            raise Refused(409, UNDER_WAY)
        if asked.key and not asked.again and any(message.key == asked.key for message in flight.messages):
            raise Refused(409, RECEIVED)
        self.limits.admit(begun=flight.sent, waiting=flight.runs)
        chat = await self._read(key, flight.messages)
        message, point = received(chat, asked) if asked.content else Received()
        if point is not None and not self._over_effects and chat.outside_calls(point):
            raise Refused(409, EFFECTS)
        decisions = decisions_of(chat, asked, owner or "", self.limits.message_length)
        if flight.number is not None:
            await self._chats.stop_async(key)
        stream = self._chats.stream_async(
            key,
            None if message is None else (message.parts or message.text),
            decisions=decisions or None,
            params=() if self._params is None else self._params(request),
            tools=tools,
            key=None if message is None else message.key or None,
            again=message is None and point is None and bool(asked.content),
            point="" if point is None else point.id,
            over_effects=self._over_effects,
            tenant=None if self._tenant is None else self._tenant(request),
        )
        await stream.__aenter__()
        return DurableExchange(key, chat, stream, answered_calls(chat, asked, decisions))

    async def resume(self, request: Request, thread_id: str) -> DurableExchange | None:
        """The run under way, from its start, for a page that was reloaded; None if there is none."""
        key, _ = await key_of(self._owner, request, thread_id)
        flight = await self._chats.in_flight_async(key)
        if flight.number is None:
            return None
        stream = self._chats.stream_async(key)
        await stream.__aenter__()
        return DurableExchange(key, await self._read(key, ()), stream)

    async def read(self, request: Request, thread_id: str) -> Conversation[Any] | None:
        """The conversation of a thread, with the messages that are not answered yet; None if it is new."""
        key, _ = await key_of(self._owner, request, thread_id)
        chat = await self._read(key, (await self._chats.in_flight_async(key)).messages)
        return chat if chat.messages else None

    async def stop(self, request: Request, thread_id: str) -> None:
        """Stop the answer to a message where it stands."""
        await self._chats.stop_async((await key_of(self._owner, request, thread_id))[0])

    async def _read(self, key: str, unanswered: Collection[Any]) -> Conversation[Any]:
        try:
            chat = await self._chats.read_async(key)
        except Exception as error:
            logger.error("Thread %r could not be read", key, exc_info=error)
            raise Refused(503, UNAVAILABLE) from error
        for message in unanswered:
            chat.session.dispatch(message)
        return chat
