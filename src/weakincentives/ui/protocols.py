"""Serves a web application's conversations in one of two protocols: Vercel's AI message stream (1) or AG-UI.

A page sends its whole history. Only the newest message is used, since the session holds the rest, including which
sections were opened. A file id is rejected: it would let a page read what others uploaded to the provider.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from weakincentives.content import Audio, Content, Document, Image, Part, Text, parts_of, text_of
from weakincentives.runtime import (
    CORRECTION,
    ArgumentsDelta,
    Completed,
    Conversation,
    Message,
    PartialOutput,
    ReasoningDelta,
    Restarted,
    SectionOpened,
    StreamEvent,
    TextDelta,
    ToolEnded,
    ToolStarted,
)
from weakincentives.runtime.bridge import Workers, finish

logger = logging.getLogger("weakincentives.ui")

Endpoint = Callable[[Request], Awaitable[Response]]
Events = AsyncIterator[StreamEvent[Any] | Exception]
_storage = Workers("wink-threads")


class Threads:
    """Keeps a conversation for each thread of a web application.

    `make` is called with the id of a thread that is not in memory, and `save` with the id and the conversation after
    each turn, however it ended; both run in a worker thread. The `limit` most recently used conversations are kept in
    memory, and beyond them those that `save` could not save.

    A page chooses its own thread id. If users must not see each other's conversations, `owner` must return who sent a
    request that your own code has authenticated; ids are then `"owner/thread"`.
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
        # Ordered by last use, the most recent last.
        self._chats: dict[str, tuple[Conversation[Any], asyncio.Lock]] = {}
        self._turns: dict[str, asyncio.Task[None]] = {}
        self._unsaved: set[str] = set()

    def key(self, request: Request, thread: str) -> str:
        """The id under which this request's thread is stored."""
        return thread if self._owner is None else f"{self._owner(request)}/{quote(thread, safe='')}"

    async def events(self, key: str, chat: Conversation[Any], lock: asyncio.Lock, content: Content | None) -> Events:
        """The events of one turn; if it or `save` failed, the last is an exception. Closing it early stops the turn.

        Without content, the last answer is taken back and the model answers again. A turn still in progress is stopped
        first: the user has interrupted it. Each turn has its own task, since anyio cancels a request again at every
        await, which would cut short the cleanup of a stopped turn.
        """
        queue: asyncio.Queue[StreamEvent[Any] | Exception | None] = asyncio.Queue()

        async def run() -> None:
            # The last event is sent when the turn is saved: no protocol has a place for an error after it.
            last: StreamEvent[Any] | Exception | None = None
            async with lock:
                try:
                    if content is None:
                        _take_back_answer(chat)
                    async with chat.stream_async(content) as stream:
                        async for event in stream:
                            if isinstance(event, Completed):
                                last = event
                            else:
                                queue.put_nowait(event)
                except (Exception, SystemExit) as error:
                    logger.warning("A turn of thread %r failed", key, exc_info=error)
                    last = _failed_turn(error)
                finally:
                    unsaved = None
                    if self._save is not None:
                        # To its end, or the next turn would be saved before this one.
                        saving = _storage.call(partial(self._stored, key, chat))
                        await finish(saving)
                        unsaved = saving.result()
                    queue.put_nowait(last if isinstance(last, Exception) else unsaved or last)

        def ended(turn: asyncio.Task[None]) -> None:
            queue.put_nowait(None)
            if self._turns.get(key) is turn:
                del self._turns[key]

        if (before := self._turns.get(key)) is not None:
            _stop(before)
        turn = self._turns[key] = asyncio.create_task(run())
        turn.add_done_callback(ended)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            _stop(turn)

    def _stored(self, key: str, chat: Conversation[Any]) -> Exception | None:
        """Call `save`; its error is logged here, since a cancelled turn no longer waits for it."""
        assert self._save is not None
        try:
            self._save(key, chat)
        except (Exception, SystemExit) as error:
            logger.error("The conversation of thread %r could not be saved", key, exc_info=error)
            self._unsaved.add(key)
            return _failed_turn(error)
        self._unsaved.discard(key)
        return None

    async def find(self, key: str) -> tuple[Conversation[Any], asyncio.Lock]:
        """The conversation of a thread, and the lock that its turns acquire."""
        if key not in self._chats:
            chat = await _storage.call(partial(self._make, key))
            # Another request may have created it in the meantime.
            self._chats.setdefault(key, (chat, asyncio.Lock()))
        found = self._chats[key] = self._chats.pop(key)
        kept = {key, *self._turns, *self._unsaved}
        # A stopped turn holds the lock until it is saved, also if the turn after it has been stopped too.
        idle = [other for other, (_, lock) in self._chats.items() if other not in kept and not lock.locked()]
        for other in idle[: max(0, len(self._chats) - self._limit)]:
            del self._chats[other]
        return found


def _stop(turn: asyncio.Task[None]) -> None:
    """Cancel a turn once: it ends by itself from then on, and the next one waits for that."""
    if not turn.cancelling():
        turn.cancel()


def _failed_turn(error: Exception | SystemExit) -> Exception:
    return RuntimeError(f"raised {error!r}") if isinstance(error, SystemExit) else error


class _Asked(NamedTuple):
    """What a page asks for; `again` if its newest message is to be answered again."""

    thread: str
    content: tuple[Part, ...]
    encode: Callable[[Events], AsyncIterator[dict[str, Any]]]
    again: bool = False


def endpoint(
    threads: Threads,
    read: Callable[[bytes], _Asked],
    *,
    headers: Mapping[str, str],
    end: str = "",
) -> Endpoint:
    """An endpoint that streams the turn that a request asks for as server-sent events."""

    async def respond(request: Request) -> Response:
        # Browsers let a page from another site send anything but JSON without a preflight request.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return JSONResponse({"error": "The request must be application/json"}, 415)
        try:
            asked = read(await request.body())
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        key = threads.key(request, asked.thread)
        chat, lock = await threads.find(key)
        said = [each.text for each in chat.messages if each.by_user] if asked.again else []
        known = text_of(asked.content) in said
        if known and said[-1] != text_of(asked.content):
            return JSONResponse({"error": "Only the last answer of a conversation can be regenerated"}, 409)
        chunks = asked.encode(threads.events(key, chat, lock, None if known else asked.content))

        async def body() -> AsyncIterator[str]:
            async for chunk in chunks:
                yield f"data: {json.dumps(chunk)}\n\n"
            yield end

        return StreamingResponse(
            body(), media_type="text/event-stream", headers={"cache-control": "no-cache", **headers}
        )

    return respond


class _Source(msgspec.Struct, rename="camel"):
    type: Literal["data", "url"]
    value: str
    mime_type: str = ""


class _Part(msgspec.Struct, rename="camel"):
    """A part of a message in either protocol: text, a file (Vercel), or media with a source (AG-UI)."""

    type: str
    text: str = ""
    media_type: str = ""
    url: str = ""
    filename: str = ""
    source: _Source | None = None


class _Message(msgspec.Struct):
    role: str
    parts: list[_Part] = []
    content: str | list[_Part] = ""


class _VercelRequest(msgspec.Struct):
    id: str
    messages: list[_Message]
    trigger: str = "submit-message"


class _AgUiRequest(msgspec.Struct, rename="camel"):
    thread_id: str
    run_id: str
    messages: list[_Message]
    state: Any = None


def vercel_ai(threads: Threads) -> Endpoint:
    """An endpoint for `useChat` and the other clients of Vercel's AI SDK.

    An opened section is sent as a `data-section` part, a typed answer as a `data-output` part, replaced as it grows.
    """

    def read(body: bytes) -> _Asked:
        asked = msgspec.json.decode(body, type=_VercelRequest)
        return _Asked(asked.id, _newest(asked.messages), _vercel_chunks, asked.trigger == "regenerate-message")

    return endpoint(threads, read, headers={"x-vercel-ai-ui-message-stream": "v1"}, end="data: [DONE]\n\n")


async def _vercel_chunks(events: Events) -> AsyncIterator[dict[str, Any]]:
    block, number, step = "", 0, False
    written: set[str] = set()
    open_calls: set[str] = set()
    yield {"type": "start", "messageId": os.urandom(8).hex()}
    async for event in events:
        kind = {TextDelta: "text", ReasoningDelta: "reasoning"}.get(type(event), "")
        if block and kind != block and not isinstance(event, PartialOutput):
            yield {"type": f"{block}-end", "id": str(number)}
            block = ""
        if not step and isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta | ToolStarted):
            step = True
            yield {"type": "start-step"}
        if kind and not block:
            block, number = kind, number + 1
            yield {"type": f"{block}-start", "id": str(number)}
        if isinstance(event, ArgumentsDelta | ToolStarted) and event.call_id not in written:
            written.add(event.call_id)
            yield {"type": "tool-input-start", **_vercel_call(event)}
        match event:
            case TextDelta(text) | ReasoningDelta(text):
                yield {"type": f"{block}-delta", "id": str(number), "delta": text}
            case ArgumentsDelta(text=text):
                yield {"type": "tool-input-delta", "toolCallId": event.call_id, "inputTextDelta": text}
            case ToolStarted(arguments=arguments):
                open_calls.add(event.call_id)
                yield {"type": "tool-input-available", **_vercel_call(event), "input": _parsed(arguments)}
            case ToolEnded(success=success, message=text):
                open_calls.discard(event.call_id)
                kind, field = ("available", "output") if success else ("error", "errorText")
                yield {"type": f"tool-output-{kind}", "toolCallId": event.call_id, field: text, "dynamic": True}
            case SectionOpened(key, tools):
                yield {"type": "data-section", "id": key, "data": {"key": key, "tools": tools}}
            case PartialOutput(value):
                yield {"type": "data-output", "id": "output", "data": value}
            case Exception():
                yield {"type": "error", "errorText": _failure(event)}
        # A step is one reply of the model with the results of its calls.
        if step and not open_calls and isinstance(event, ToolEnded | Restarted | Completed):
            step = False
            yield {"type": "finish-step"}
        if isinstance(event, Completed):
            yield {"type": "finish", "finishReason": "stop"}


def _vercel_call(event: ArgumentsDelta | ToolStarted) -> dict[str, Any]:
    return {"toolCallId": event.call_id, "toolName": event.name, "dynamic": True}


def ag_ui(threads: Threads) -> Endpoint:
    """An endpoint for AG-UI's `HttpAgent` and clients built on it.

    The page's state is kept, and extended with `openSections` and the typed answer as `output`.
    """

    def read(body: bytes) -> _Asked:
        asked = msgspec.json.decode(body, type=_AgUiRequest)
        return _Asked(asked.thread_id, _newest(asked.messages), lambda events: _ag_ui_events(asked, events))

    return endpoint(threads, read, headers={})


async def _ag_ui_events(asked: _AgUiRequest, events: Events) -> AsyncIterator[dict[str, Any]]:
    run = {"threadId": asked.thread_id, "runId": asked.run_id}
    state = dict(asked.state) if isinstance(asked.state, dict) else {}
    number, message = 0, f"{asked.run_id}-0"
    writing: set[str] = set()
    yield {"type": "RUN_STARTED", **run}
    async for event in events:
        if isinstance(event, ToolEnded | Restarted):
            # What the model says from here on is a new message.
            number, message = number + 1, f"{asked.run_id}-{number + 1}"
        match event:
            case TextDelta(text):
                yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": message, "role": "assistant", "delta": text}
            case ReasoningDelta(text):
                yield {"type": "REASONING_MESSAGE_CHUNK", "messageId": f"{message}-reasoning", "delta": text}
            case ArgumentsDelta(call_id, name, text):
                writing.add(call_id)
                yield _ag_ui_call(message, call_id, name, text)
            case ToolStarted(call_id, name, arguments) if call_id not in writing:
                writing.add(call_id)
                yield _ag_ui_call(message, call_id, name, arguments)
            case ToolEnded(call_id, _, _, text):
                yield {"type": "TOOL_CALL_RESULT", "messageId": call_id, "toolCallId": call_id, "content": text}
            case SectionOpened(key):
                state["openSections"] = [*(other for other in state.get("openSections", ()) if other != key), key]
                yield {"type": "STATE_SNAPSHOT", "snapshot": state}
            case PartialOutput(value):
                state["output"] = value
                yield {"type": "STATE_SNAPSHOT", "snapshot": state}
            case Completed():
                yield {"type": "RUN_FINISHED", **run}
            case Exception():
                yield {"type": "RUN_ERROR", "message": _failure(event), "code": type(event).__name__}


def _ag_ui_call(message: str, call_id: str, name: str, delta: str) -> dict[str, Any]:
    call = {"toolCallId": call_id, "toolCallName": name, "parentMessageId": message}
    return {"type": "TOOL_CALL_CHUNK", **call, "delta": delta}


def _take_back_answer(chat: Conversation[Any]) -> None:
    """Remove the last answer, but no tool call: what tools did stays done, and the model reads their results again."""
    messages = list(chat.messages)
    while messages and not messages[-1].tool_calls:
        if messages[-1].role != "assistant" and messages[-1].kind != CORRECTION:
            break
        messages.pop()
    chat.session[Message].seed(messages)


def _newest(messages: Sequence[_Message]) -> tuple[Part, ...]:
    if not messages or messages[-1].role != "user":
        raise ValueError(f"The newest message must be the user's, got {messages[-1].role if messages else 'none'}")
    content = messages[-1].parts or messages[-1].content
    parts = parts_of(content if isinstance(content, str) else [_part(part) for part in content])
    if not parts:
        raise ValueError("The newest message must have some content")
    return parts


def _part(part: _Part) -> Part:
    if part.type == "text":
        return Text(part.text)
    source = part.source
    if source is None:  # Vercel: a URL, which is a `data:` URL if it carries the bytes.
        head, _, data = part.url.partition(";base64,")
        source = _Source("data", data) if head.startswith("data:") else _Source("url", part.url)
        source.mime_type = part.media_type
    family = source.mime_type.partition("/")[0] if part.type == "file" else part.type
    kinds: dict[str, type[Image | Audio]] = {"image": Image, "audio": Audio}
    media = kinds.get(family, Document)
    if source.type == "url":
        return media.from_url(source.value, media_type=source.mime_type)
    try:
        return media.from_bytes(base64.b64decode(source.value, validate=True), source.mime_type, name=part.filename)
    except binascii.Error as error:
        raise ValueError(f"A part of type {part.type!r} must have its data in base64: {error}") from None


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _failure(error: Exception) -> str:
    """The part of an error that is safe to show to anyone; the log has the rest."""
    return f"The turn failed ({type(error).__name__})."
