"""The request of a page, read and checked, and the reasons to refuse it.

A page sends its whole history. Only its newest message is used, since the session holds the rest, including which
sections were opened; the ids of the earlier ones say whether the page knows the newest exchange, unless it sends none.
A file id is refused: it would let a page read what others uploaded to the provider.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec
from starlette.requests import Request

from weakincentives.content import Audio, Content, Document, Image, Part, Text, parts_of, text_of
from weakincentives.runtime import Conversation, Message
from weakincentives.runtime.spi import CORRECTION, Run
from weakincentives.ui.page import message_id

MAX_ID = 128
MAX_PARTS = 100
RECEIVED = "This message has already been received."
EDITED = "An earlier message cannot be edited; send a new one."
BEHIND = "The conversation has gone on elsewhere; reload the page to see it."
NOT_LAST = "Only the last answer of a conversation can be regenerated."


class Refused(Exception):
    """A request is refused with this status; the sentence is for anyone to read."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Asked:
    """A message of a page. `key` is the page's id of it, and `earlier` has those of the user messages before it.

    `again` asks for another answer to it, and `edits` replaces an earlier message by it.
    """

    thread: str
    content: tuple[Part, ...]
    key: str = ""
    earlier: tuple[str, ...] = ()
    again: bool = False
    edits: bool = False

    def check_length(self, limit: int) -> None:
        length = len(text_of(self.content))
        if length > limit:
            raise Refused(413, f"A message may have at most {limit:,} characters, got {length:,}.")


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request, read as it comes, so that one without end is not kept."""
    # Browsers let a page from another site send anything but JSON without a preflight request.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "The request must be application/json.")
    too_large = Refused(413, f"The request may have at most {limit:,} bytes.")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and len(announced) < 20 and int(announced) > limit:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_large
    return bytes(body)


def received(chat: Conversation[Any], asked: Asked) -> Message | None:
    """The message to send; None if the conversation has it already and is to answer it again."""
    sent = [message for message in chat.messages if message.by_user]
    keys = {message_id(chat, number, message): number for number, message in enumerate(sent)}
    newest = max((number for number, message in enumerate(sent) if message.key), default=len(sent) - 1)
    at = keys.get(asked.key) if asked.key else _last_with(text_of(asked.content), sent) if asked.again else None
    if at is None:
        if asked.edits:
            raise Refused(409, EDITED)
        known = {keys[key] for key in asked.earlier if key in keys}
        if newest not in known and (known or (asked.key and sent and sent[newest].key)):
            raise Refused(409, BEHIND)
        media = len(asked.content) > 1 or not isinstance(asked.content[0], Text)
        return Message("user", text_of(asked.content), parts=asked.content if media else (), key=asked.key)
    if sent[at].text != text_of(asked.content):
        raise Refused(409, EDITED)
    if at < newest:
        raise Refused(409, NOT_LAST if asked.again else RECEIVED)
    if not asked.again and is_answered(chat):
        raise Refused(409, RECEIVED)
    return None


def _last_with(text: str, sent: Sequence[Message]) -> int | None:
    return max((number for number, message in enumerate(sent) if message.text == text), default=None)


def is_answered(chat: Conversation[Any]) -> bool:
    """True if the conversation ends with a whole answer, not with one that was stopped or that failed."""
    run, last = chat.session[Run].latest(), chat.session[Message].latest()
    unfinished = run is not None and run.unfinished
    return last is not None and last.role == "assistant" and not last.tool_calls and not unfinished


def take_back_answer(chat: Conversation[Any]) -> None:
    """Remove the last answer, but no tool call: what tools did stays done, and the model reads their results again."""
    messages = list(chat.messages)
    while messages and not messages[-1].tool_calls:
        if messages[-1].role != "assistant" and messages[-1].kind != CORRECTION:
            break
        messages.pop()
    chat.session[Message].seed(messages)


class PageMessage(msgspec.Struct):
    """A message in either protocol, of which only the newest is read further."""

    role: str
    id: str = ""
    parts: msgspec.Raw = msgspec.Raw(b"[]")
    content: msgspec.Raw = msgspec.Raw(b'""')


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


def read_message(thread: str, messages: Sequence[PageMessage], *, again: bool = False, edits: bool = False) -> Asked:
    """The question in the newest of these messages."""
    if not messages or messages[-1].role != "user":
        raise ValueError(f"The newest message must be the user's, got {messages[-1].role[:40] if messages else 'none'}")
    newest = messages[-1]
    content: Any = msgspec.json.decode(newest.parts, type=list[_Part]) or msgspec.json.decode(
        newest.content, type=str | list[_Part]
    )
    if not isinstance(content, str) and len(content) > MAX_PARTS:
        raise ValueError(f"A message may have at most {MAX_PARTS} parts, got {len(content):,}")
    parts = parts_of(cast("Content", content) if isinstance(content, str) else [_part(part) for part in content])
    if not parts:
        raise ValueError("The newest message must have some content")
    if len(newest.id) > MAX_ID:
        raise ValueError(f"The id of a message may have at most {MAX_ID} characters")
    earlier = tuple(message.id for message in messages[:-1] if message.role == "user" and message.id)
    return Asked(thread, parts, newest.id, earlier, again, edits)


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
