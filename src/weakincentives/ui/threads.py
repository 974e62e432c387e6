"""The threads of a web application: a conversation for each, one exchange at a time, in memory and in a store."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request

from weakincentives.errors import WinkError
from weakincentives.prompt import Tool
from weakincentives.runtime import Completed, Conversation, Message, StreamEvent
from weakincentives.runtime.spi import RunOptions, Workers, finish, without_answer
from weakincentives.session import Snapshot
from weakincentives.ui.page import Failed, failure
from weakincentives.ui.questions import Show, check_show, waiting_calls
from weakincentives.ui.requests import (
    BEHIND,
    EFFECTS,
    MAX_ID,
    RECEIVED,
    UNDER_WAY,
    Asked,
    Decision,
    Received,
    Refused,
    answered_calls,
    decisions_of,
    received,
)

logger = logging.getLogger("weakincentives.ui")

T = TypeVar("T")
Chat: TypeAlias = Conversation[Any]
Event: TypeAlias = StreamEvent[Any] | Failed
Stored: TypeAlias = tuple[Snapshot | str | bytes, Any]
Owner: TypeAlias = Callable[[Request], str | Awaitable[str | None] | None]
_storage = Workers("wink-threads")

UNAVAILABLE = "The conversation is not available at the moment. Please try again."
NOT_SAVED = "The answer could not be saved. Please try again."
INTERRUPTED = "Another message of this conversation came before this one was begun."
ANONYMOUS = "Sign in to use this conversation."


class StaleThreadError(WinkError):
    """Raised by `save`: the store has another version of the thread than the one that the exchange began with."""


@dataclass(frozen=True, slots=True)
class ThreadLimits:
    """The limits of requests. Longer bodies and messages are answered with status 413, too many requests with 429.

    `body_bytes` limits one request with its files, and `message_length` its text, names of files included, in
    characters; `requests` limits those of one thread that are waiting or being answered, and `per_minute` those that it
    has begun within a minute. An owner has at most `threads` in memory, where there are at most `in_memory` altogether:
    beyond them, the one that was idle longest leaves. A page may declare at most `page_tools`, together as long as a
    message; 0 refuses them.
    """

    body_bytes: int = 10_000_000
    message_length: int = 50_000
    requests: int = 3
    per_minute: int = 60
    threads: int = 100
    in_memory: int = 1_000
    page_tools: int = 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "page_tools" else 1
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{field.name} must be a whole number of at least {least}, got {value!r}")

    @classmethod
    def given(cls, limits: ThreadLimits | None) -> ThreadLimits:
        if limits is not None and not isinstance(limits, ThreadLimits):
            raise TypeError(f"limits must be ThreadLimits(...), got {limits!r}")
        return cls() if limits is None else limits

    def admit(self, *, begun: int, waiting: int, wait: int = 60) -> None:
        """Refuse a message of a thread that has begun so many within a minute, and has so many waiting."""
        if begun >= self.per_minute:
            raise Refused(429, "Too many messages; wait a moment.", {"retry-after": str(wait)})
        if waiting >= self.requests:
            raise Refused(429, "Earlier messages of this conversation are still waiting.", {"retry-after": "1"})


class Exchange:
    """A message and its answer, in a task of its own: events for one reader, until they end or `stop` is called.

    `waiting` are the calls that waited for a decision before it, and `answered` those among them whose results the page
    has given.
    """

    def __init__(self, asked: Asked, tools: Sequence[Tool[Any, Any]] = ()) -> None:
        self.asked = asked
        self.tools = tools
        self.waiting: frozenset[str] = frozenset()
        self.answered: frozenset[str] = frozenset()
        self.task: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[Chat] = asyncio.get_running_loop().create_future()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    async def begun(self) -> Chat:
        """The conversation, once it answers the message; `Refused` if it does not."""
        return await self._begun

    async def events(self, seconds: float) -> AsyncIterator[Event | None]:
        """The events as they come; None if there was none for some seconds."""
        while True:
            if self._events.empty():
                try:
                    async with asyncio.timeout(seconds):
                        event = await self._events.get()
                except TimeoutError:
                    yield None
                    continue
            else:
                event = self._events.get_nowait()
            if event is None:
                return
            yield event

    def begin(self, chat: Chat, decisions: Mapping[str, Decision]) -> None:
        self.waiting = waiting_calls(chat)
        self.answered = answered_calls(chat, self.asked, decisions)
        if not self._begun.done():
            self._begun.set_result(chat)

    def put(self, event: Event) -> None:
        self._events.put_nowait(event)

    def refuse(self, error: Exception) -> None:
        if not self._begun.done():
            self._begun.set_exception(error)
            self._begun.exception()  # Retrieved, since the page may be gone.

    @property
    def is_over(self) -> bool:
        """True if it was refused or stopped, and only has to end."""
        refused = self._begun.done() and self._begun.exception() is not None
        return refused or (self.task is not None and self.task.cancelling() > 0)

    def end(self) -> None:
        self.refuse(Refused(409, INTERRUPTED))
        self._events.put_nowait(None)

    def answers(self, asked: Asked) -> bool:
        """True if this will answer the message, so that the page has sent it twice."""
        return bool(asked.key) and self.asked.key == asked.key and not asked.again and not self.is_over

    def stop(self) -> None:
        """Stop it where it stands, once: it ends by itself from then on, and the next one waits for that."""
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()


class Thread:
    """A thread in memory: its conversation, which a task keeps open, and its requests."""

    def __init__(self, key: str, owner: str | None) -> None:
        self.key = key
        self.owner = owner
        self.lock = asyncio.Lock()
        self.chat: Chat | None = None
        self.version: Any = None
        self.saved = True
        self.requests = 0
        self.exchange: Exchange | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._recent: deque[float] = deque()
        self._keeper: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._release = asyncio.Event()

    def admit(self, limits: ThreadLimits) -> None:
        """Count a request, or refuse it."""
        now = asyncio.get_running_loop().time()
        while self._recent and self._recent[0] <= now - 60:
            self._recent.popleft()
        wait = int(self._recent[0] + 61 - now) if self._recent else 0
        limits.admit(begun=len(self._recent), waiting=self.requests, wait=wait)
        self._recent.append(now)
        self.requests += 1

    async def open(self) -> None:
        """Enter the conversation, so that its resources live until `close`."""
        assert self.chat is not None
        if self._keeper is None or self._keeper.done():
            self._release = asyncio.Event()
            self._opened = asyncio.get_running_loop().create_future()
            self._keeper = asyncio.create_task(self._keep(self.chat, self._opened, self._release))
        assert self._opened is not None
        try:
            await asyncio.shield(self._opened)
        except BaseException:
            # An opening that hangs ends with the message that waits for it; the next one tries again.
            keeper, self._keeper = self._keeper, None
            keeper.cancel()
            await finish(keeper)
            raise

    async def close(self) -> None:
        """Leave the conversation, so that its resources are closed; it may be opened again."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._release.set()
            cancelled = await finish(keeper)
            if cancelled is not None:
                raise cancelled

    async def _keep(self, chat: Chat, opened: asyncio.Future[None], release: asyncio.Event) -> None:
        # In one task, as context managers of anyio require, which is cancelled when the event loop ends.
        try:
            async with chat:
                opened.set_result(None)
                await release.wait()
        except Exception as error:
            if opened.done():
                logger.warning("Thread %r could not be closed", self.key, exc_info=error)
            else:
                opened.set_exception(error)
        finally:
            if not opened.done():  # Cancelled, perhaps by code of a resource.
                opened.set_exception(RuntimeError("The conversation was cancelled while it was opened"))
            opened.exception()  # Retrieved, since the exchange may have been stopped.


class Threads:
    """Keeps a conversation for each thread of a web application.

    `make(thread, request)` makes the conversation of a thread that is not in memory. With a store, `load(thread)` is
    called before every exchange and returns the stored snapshot (or its text) and its version, or None for an unknown
    thread; a conversation in memory of another version is replaced. `save(thread, chat, version)` is called after every
    exchange, however it ended: it stores the conversation on top of that version (None for a new thread) and returns
    the new one, or raises `StaleThreadError`. Without `load`, it may return nothing. So
    several processes can serve one store, and none overwrites what another has stored. All may be async; if not, they
    run in a worker thread.

    A page chooses the id of its thread. `owner(request)` returns who has sent a request, as your own code has
    authenticated it; ids are then `"owner/thread"`, and a request without an owner (None or "") is refused. `show` says
    what a page sees of a tool's result: it is called with the `ToolEnded` of a call that succeeded and returns True for
    the text, other data to show instead, or False. Called with the `ApprovalNeeded` of a call that waits with its
    effects, it returns True for the effects, other data to show instead, or False for the paths of files alone.
    `options(chat, request)` returns the run options of an exchange,
    such as a deadline, and may bind params. A page may edit an earlier message, or ask for another answer to it: the
    conversation goes back there, but over calls with effects outside only with `over_effects`. Conversations stay open
    between exchanges, and are closed when they have been idle for `idle` seconds; what is not stored stays in memory.
    """

    def __init__(
        self,
        make: Callable[[str, Request], Chat | Awaitable[Chat]],
        load: Callable[[str], Stored | Awaitable[Stored | None] | None] | None = None,
        save: Callable[[str, Chat, Any], object] | None = None,
        *,
        owner: Owner | None = None,
        show: Show | None = None,
        limits: ThreadLimits | None = None,
        idle: float | None = 600,
        options: Callable[[Chat, Request], RunOptions | Awaitable[RunOptions | None] | None] | None = None,
        over_effects: bool = False,
    ) -> None:
        for name, given, function in (
            ("make", "thread, request", make),
            ("load", "thread", load),
            ("save", "thread, chat, version", save),
            ("owner", "request", owner),
            ("options", "chat, request", options),
        ):
            if not callable(function) and (function is not None or name == "make"):
                raise TypeError(f"{name} must be a function, {name}({given}), got {function!r}")
        if load is not None and save is None:
            raise TypeError("load= needs save=, which stores what load(thread) returns; pass both")
        self._make = make
        self._load = load
        self._save = save
        self._owner = owner
        self._idle = idle
        self._options = options
        self._over_effects = over_effects
        self.show = check_show(show)
        self.limits = ThreadLimits.given(limits)
        # Ordered by last use, the most recent last.
        self._threads: dict[str, Thread] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def send(self, request: Request, asked: Asked) -> Exchange:
        """Begin to answer a message; one that is still being answered is stopped first: the user has interrupted it."""
        asked.check_length(self.limits.message_length)
        tools = asked.page_tools(self.limits.page_tools, self.limits.message_length)
        key, owner = await key_of(self._owner, request, asked.thread)
        thread = self._threads.get(key) or self._added(key, owner)
        under_way = thread.exchange
        if under_way is not None and under_way.answers(asked):
            raise Refused(409, RECEIVED)
        if under_way is not None and not asked.content and not under_way.is_over:
            raise Refused(409, UNDER_WAY)
        if under_way is not None and thread.chat is not None and asked.content:
            received(thread.chat, asked)  # A message that is refused stops no other.
        thread.admit(self.limits)
        # Nothing is awaited from here on until it is counted, so that the thread cannot leave memory.
        self._threads[key] = self._threads.pop(key)
        if thread.timer is not None:
            thread.timer.cancel()
        if under_way is not None:
            under_way.stop()
        exchange = thread.exchange = Exchange(asked, tools)
        exchange.task = asyncio.create_task(self._answer(thread, exchange, request))
        exchange.task.add_done_callback(lambda _: self._ended(thread, exchange))
        self._make_room()
        return exchange

    async def read(self, request: Request, thread_id: str) -> Chat | None:
        """The conversation of a thread as it is stored, or as it is now if a message is being answered; None if new."""
        key, owner = await key_of(self._owner, request, thread_id)
        known = self._threads.get(key)
        if known is not None and known.exchange is not None and known.chat is not None:
            return known.chat
        thread = known or Thread(key, owner)
        async with thread.lock:
            await self._refresh(thread, request, create=False)
            return thread.chat

    async def stop(self, request: Request, thread_id: str) -> None:
        """Stop the answer to a message where it stands."""
        known = self._threads.get((await key_of(self._owner, request, thread_id))[0])
        if known is not None and known.exchange is not None:
            known.exchange.stop()

    async def resume(self, request: Request, thread_id: str) -> None:
        """None: the stream of a thread ends with the connection of its page."""

    async def aclose(self) -> None:
        """Stop what is being answered, save it, and close all conversations; they may be used again."""
        for thread in self._threads.values():
            if thread.exchange is not None:
                thread.exchange.stop()
        for thread in list(self._threads.values()):
            async with thread.lock:
                await thread.close()

    def _added(self, key: str, owner: str | None) -> Thread:
        mine = sum(thread.owner == owner for thread in self._threads.values()) if owner is not None else 0
        if mine >= self.limits.threads:
            raise Refused(429, f"At most {self.limits.threads} conversations may be open at once.")
        thread = self._threads[key] = Thread(key, owner)
        return thread

    async def _answer(self, thread: Thread, exchange: Exchange, request: Request) -> None:
        asked = exchange.asked
        async with thread.lock:
            try:
                chat = await self._refresh(thread, request)
                assert chat is not None
                message, point = received(chat, asked) if asked.content else Received()
                decisions = decisions_of(chat, asked, thread.owner or "", self.limits.message_length)
                await thread.open()
                options = (await _called(self._options, chat, request) if self._options is not None else None) or {}
                if point is not None:
                    if not self._over_effects and chat.outside_calls(point):
                        raise Refused(409, EFFECTS)
                    await _waited(_storage.call(partial(chat.rewind, point, over_effects=True)), whole=True)
                    # At once, or after a crash the stored conversation would not match its files.
                    if problem := await self._stored(thread, chat):
                        raise Refused(409, problem.sentence)
            except (Refused, HTTPException) as error:
                return exchange.refuse(error)
            except (Exception, SystemExit) as error:
                logger.error("Thread %r could not be opened", thread.key, exc_info=error)
                return exchange.refuse(Refused(503, UNAVAILABLE))
            exchange.begin(chat, decisions)
            if message is None and asked.content and point is None:
                chat.session[Message].update(without_answer)
            tools = (*(options.get("tools") or ()), *exchange.tools)
            own_options = {"tools": tools, "decisions": decisions or None}
            await self._stream(thread, chat, exchange, message, {**options, **own_options})

    async def _stream(
        self, thread: Thread, chat: Chat, exchange: Exchange, message: Message | None, options: Mapping[str, Any]
    ) -> None:
        # The last event is sent when the exchange is saved: no protocol has a place for an error after it.
        last: Event | None = None
        try:
            async with chat.stream_async(message, **options) as stream:
                async for event in stream:
                    if isinstance(event, Completed):
                        last = event
                    else:
                        exchange.put(event)
        except (Exception, SystemExit) as error:
            logger.warning("An exchange of thread %r failed", thread.key, exc_info=error)
            last = failure(error)
        finally:
            last = await self._stored(thread, chat) or last
            if last is not None:
                exchange.put(last)

    async def _stored(self, thread: Thread, chat: Chat) -> Failed | None:
        """Save to the end, whatever is cancelled: the next exchange must not be saved before this one."""
        if self._save is None:
            return None
        try:
            version = await _called(self._save, thread.key, chat, thread.version, whole=True)
            if version is None and self._load is not None:
                raise TypeError("save must return the new version of the thread, as load will, got None")
            thread.version, thread.saved = version, True
        except StaleThreadError:
            logger.warning("Thread %r was not saved: the store has another version", thread.key)
            thread.chat, thread.saved = None, True
            await thread.close()
            return Failed(BEHIND)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            logger.error("The conversation of thread %r could not be saved", thread.key, exc_info=error)
            thread.saved = False
            return Failed(NOT_SAVED)
        return None

    async def _refresh(self, thread: Thread, request: Request, *, create: bool = True) -> Chat | None:
        """The conversation as it is stored; made, unless the thread is unknown and not to be created."""
        stored: Stored | None = None
        if self._load is not None:
            stored = _checked(await _called(self._load, thread.key))
            if thread.chat is not None and thread.version != (None if stored is None else stored[1]):
                thread.chat, thread.version, thread.saved = None, None, True
                await thread.close()
        if thread.chat is None and (create or stored is not None):
            chat = await _called(self._make, thread.key, request)
            if not isinstance(chat, Conversation):
                raise TypeError(f"make must return a Conversation, got {chat!r}")
            if stored is not None:
                await _storage.call(partial(_restore, chat, stored[0]))
            thread.chat, thread.version = chat, None if stored is None else stored[1]
        return thread.chat

    def _ended(self, thread: Thread, exchange: Exchange) -> None:
        exchange.end()
        thread.requests -= 1
        if thread.exchange is exchange:
            thread.exchange = None
        if thread.requests:
            return
        if thread.chat is None:
            self._threads.pop(thread.key, None)
        elif self._idle is not None:
            loop = asyncio.get_running_loop()
            thread.timer = loop.call_later(self._idle, lambda: self._leave(thread, forget=self._save is not None))

    def _make_room(self) -> None:
        idle = [each for each in self._threads.values() if not each.requests and each.saved]
        for thread in idle[: max(0, len(self._threads) - self.limits.in_memory)]:
            del self._threads[thread.key]
            self._leave(thread, forget=True)

    def _leave(self, thread: Thread, *, forget: bool) -> None:
        task = asyncio.ensure_future(self._left(thread, forget))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _left(self, thread: Thread, forget: bool) -> None:
        async with thread.lock:
            if not thread.requests:
                await thread.close()
            if not thread.requests and forget and thread.saved and self._threads.get(thread.key) is thread:
                del self._threads[thread.key]


async def _called(function: Callable[..., Any], *arguments: Any, whole: bool = False) -> Any:
    """Call a function of the application; if it is not async, in a thread. If `whole`, it is called to its end."""
    value: Any = None
    if inspect.iscoroutinefunction(function):
        value = function(*arguments)
    else:
        value = await _waited(_storage.call(partial(function, *arguments)), whole)
    return await _waited(asyncio.ensure_future(_contained(value)), whole) if inspect.isawaitable(value) else value


async def _waited(work: asyncio.Future[Any], whole: bool) -> Any:
    if whole:
        await finish(work)
        return work.result()
    return await work


async def _contained(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except SystemExit as error:
        # asyncio would raise it out of the event loop, which others still use.
        raise RuntimeError(f"raised {error!r}") from error


def _checked(stored: Any) -> Stored | None:
    match stored:
        case None:
            return None
        case (Snapshot() | str() | bytes(), version) if version is not None:
            return stored[0], version
    raise TypeError(f"load must return a snapshot, or its text, and its version, or None, got {type(stored).__name__}")


def _restore(chat: Chat, stored: Snapshot | str | bytes) -> None:
    chat.session.restore(stored if isinstance(stored, Snapshot) else Snapshot.from_json(stored))


async def key_of(owner_of: Owner | None, request: Request, thread: str) -> tuple[str, str | None]:
    """The id under which a thread is stored, and its owner."""
    if owner_of is None:
        return _quoted(thread, "The id of a thread"), None
    owner = owner_of(request)
    if inspect.isawaitable(owner):
        owner = await owner
    if owner is not None and not isinstance(owner, str):
        raise TypeError(f"owner must return a string, or None for a request without an owner, got {owner!r}")
    if owner is None or not owner.strip():
        raise Refused(401, ANONYMOUS)
    return f"{_quoted(owner, 'The owner of a thread')}/{_quoted(thread, 'The id of a thread')}", owner


def _quoted(name: str, what: str) -> str:
    """A name as a part of a key that a store may use as a file name or in a URL."""
    if not 0 < len(name) <= MAX_ID or name in (".", "..") or not name.isprintable():
        raise Refused(400, f"{what} must have 1 to {MAX_ID} printable characters.")
    return quote(name, safe="@")
