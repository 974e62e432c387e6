"""The request of a page, read and checked, and the reasons to refuse it.

A page sends its whole history. Only its newest message is used, since the session holds the rest, including which
sections were opened; the ids of the earlier ones say whether the page knows the newest exchange, unless it sends none.
A file id is refused: it would let a page read what others uploaded to the provider. Of a decision about a call that
waits, only the id, the verdict, the reason and edited arguments are used: the call is in the session.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
from starlette.requests import Request

from weakincentives._base.display import shortened
from weakincentives.content import Audio, Content, Document, Image, Part, Text, parts_of, text_of
from weakincentives.errors import PromptValidationError, SerdeError
from weakincentives.prompt import Tool
from weakincentives.runtime import Answer, Approve, Conversation, Deny, Edit, Message, PendingCall, Point
from weakincentives.runtime.spi import RunState
from weakincentives.ui.page import message_id
from weakincentives.ui.questions import PAGE, page_name

Decision: TypeAlias = Approve | Deny | Edit | Answer
MAX_ID = 128
MAX_PARTS = 100
RECEIVED = "This message has already been received."
EDITED = "The message that was edited is not known here; reload the page to see the conversation."
BEHIND = "The conversation has gone on elsewhere; reload the page to see it."
NO_WAY_BACK = "The conversation cannot go back to that message; send a new one."
EFFECTS = "Later steps had effects that are not taken back, so the conversation cannot go back; send a new message."
NOT_WAITING = "No call waits for this decision: it was made, or the question has changed; reload the page to see it."
UNDER_WAY = "The conversation is being answered; decide when that has ended."
DISMISSED = "The question was dismissed."


class Refused(Exception):
    """A request is refused with this status; the sentence is for anyone to read."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = headers


@dataclass(frozen=True, slots=True)
class PageVerdict:
    """A page's word about a call: approved or not, with the reason or with other arguments; or an answer to it."""

    approved: bool = False
    reason: str = ""
    arguments: Mapping[str, Any] | None = None
    answer: str | None = None

    @property
    def length(self) -> int:
        edited = "" if self.arguments is None else json.dumps(self.arguments)
        return len(self.reason) + len(self.answer or "") + len(edited)


class PageTool(msgspec.Struct):
    """A tool that a page declares, and answers itself."""

    name: str
    description: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True)
class Asked:
    """A message of a page. `key` is the page's id of it, and `earlier` has those of the user messages before it.

    `again` asks for another answer to it, and `edits` replaces an earlier message by it. `verdicts` are about waiting
    calls, by the id of the question, and `results` are those in the page's messages, by the id of the call; without
    content, the last exchange goes on with them. `tools` are those of the page.
    """

    thread: str
    content: tuple[Part, ...] = ()
    key: str = ""
    earlier: tuple[str, ...] = ()
    again: bool = False
    edits: bool = False
    verdicts: Mapping[str, PageVerdict] = field(default_factory=dict)
    results: Mapping[str, PageVerdict] = field(default_factory=dict)
    tools: Sequence[PageTool] = ()

    def check_length(self, limit: int) -> None:
        length = len(text_of(self.content)) + sum(verdict.length for verdict in self.verdicts.values())
        if length > limit:
            raise Refused(413, f"A message may have at most {limit:,} characters, got {length:,}.")

    def page_tools(self, most: int, length: int) -> list[Tool[Any, Any]]:
        """The tools of the page, at most so many, and so long altogether; their names hide none of the server's."""
        if len(self.tools) > most:
            names = ", ".join(repr(tool.name[:64]) for tool in self.tools[:10])
            raise Refused(400, f"A page may declare at most {most} tools, got {len(self.tools)}: {names}.")
        size = sum(len(tool.name) + len(tool.description) + len(bytes(tool.parameters)) for tool in self.tools)
        if size > length:
            raise Refused(413, f"The tools of a page may have at most {length:,} characters, got {size:,}.")
        if len({tool.name for tool in self.tools}) < len(self.tools):
            raise Refused(400, "The tools of a page must have different names.")
        return [_made(tool) for tool in self.tools]


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


class Received(NamedTuple):
    """The action for the message of a page: go back to a point, if there is one, and send a message, if there is one.

    Without a message, the conversation answers again what it has; without a point, after its last answer was removed.
    """

    message: Message | None = None
    point: Point | None = None


def received(chat: Conversation[Any], asked: Asked) -> Received:
    """The message to send, and where to go back to before, for an edited message or another answer."""
    sent = [message for message in chat.messages if message.by_user]
    keys = {message_id(chat, number, message): number for number, message in enumerate(sent)}
    newest = max((number for number, message in enumerate(sent) if message.key), default=len(sent) - 1)
    at = keys.get(asked.key) if asked.key else _last_with(text_of(asked.content), sent) if asked.again else None
    media = len(asked.content) > 1 or not isinstance(asked.content[0], Text)
    message = Message("user", text_of(asked.content), parts=asked.content if media else (), key=asked.key)
    if at is None:
        if asked.edits:
            raise Refused(409, EDITED)
        known = {keys[key] for key in asked.earlier if key in keys}
        if newest not in known and (known or (asked.key and sent and sent[newest].key)):
            raise Refused(409, BEHIND)
        return Received(message)
    if sent[at].text != message.text:
        begun, _ = _points_of(chat, at, sent[at])
        if begun is None:
            raise Refused(409, NO_WAY_BACK)
        return Received(message, begun)
    if not asked.again and (at < newest or chat.pending or is_answered(chat)):
        raise Refused(409, RECEIVED)
    if at == newest and chat.pending:
        return Received()  # They count as not decided.
    _, requested = _points_of(chat, at, sent[at]) if asked.again else (None, None)
    if requested is None and at < newest:
        raise Refused(409, NO_WAY_BACK)
    return Received(None, requested)


def _points_of(chat: Conversation[Any], number: int, message: Message) -> tuple[Point | None, Point | None]:
    """The points before a user message, and of the last request for its answer."""
    begun = requested = None
    for point in chat.checkpoints():
        if point.kind == "turn":
            requested = requested if begun is None else point
        elif begun is not None:
            break
        elif message.text.startswith(point.text) and point.key == message.key:
            earlier = sum(each.by_user for each in point.state[Message])
            begun = point if message.key or earlier == number else None
    return begun, requested


def decisions_of(chat: Conversation[Any], asked: Asked, by: str, limit: int) -> dict[str, Decision]:
    """The decisions about calls that wait, by the ids of their questions; without a message, there must be some.

    A message may come with what was decided long ago. Results of calls that do not wait are the page's history;
    those that are used have at most `limit` characters.
    """
    decisions: dict[str, Decision] = {}
    calls = {call.question.id: call for call in chat.pending}
    for question, verdict in asked.verdicts.items():
        if question in calls:
            decisions[question] = _decision(chat, calls[question], verdict, by)
        elif not asked.content:
            raise Refused(409, NOT_WAITING)
    for question, call in calls.items():
        if (result := asked.results.get(call.call_id)) is not None:
            if call.needs != "answer":
                raise Refused(400, f"A call of '{call.tool}' must be approved or denied; its result is the server's.")
            if result.length > limit:
                raise Refused(413, f"An answer may have at most {limit:,} characters, got {result.length:,}.")
            decisions[question] = _decision(chat, call, result, by)
    if not asked.content and not decisions:
        raise Refused(409, NOT_WAITING)
    return decisions


def answered_calls(chat: Conversation[Any], asked: Asked, decisions: Mapping[str, Decision]) -> frozenset[str]:
    """The ids of the calls that the page itself has answered."""
    answered: list[str] = []
    for call in chat.pending:
        if call.question.id in decisions and call.call_id in asked.results:
            answered.append(call.call_id)
    return frozenset(answered)


def _decision(chat: Conversation[Any], call: PendingCall, verdict: PageVerdict, by: str) -> Decision:
    name, answers = page_name(call.tool), call.needs == "answer"
    if verdict.answer is not None:
        if not answers:
            raise Refused(400, f"A call of '{name}' must be approved or denied, not answered.")
        return Answer(verdict.answer, by)
    if not verdict.approved:
        return Deny(verdict.reason, by)
    if answers:
        raise Refused(400, f"A call of '{name}' must be answered, not approved.")
    given = verdict.arguments
    if given is None or json.dumps(given, sort_keys=True) == _sorted(call.arguments):
        return Approve(by)
    presentation, run = chat.presentation(), chat.session[RunState].latest()
    if run is not None:
        presentation.keep_names(run.used_names)
    tool = presentation.find_tool(call.section_key, call.tool)
    try:
        if isinstance(tool, Tool):
            tool.parse(json.dumps(given))
    except SerdeError as error:
        listed = "; ".join(f"{problem.path.removeprefix('$.')}: {problem.message}" for problem in error.problems)
        raise Refused(400, f"The edited arguments do not fit '{name}': {shortened(listed, 300)}.") from None
    return Edit(given, by)


def _sorted(arguments: str) -> str:
    return json.dumps(json.loads(arguments.strip() or "{}"), sort_keys=True)


def _made(tool: PageTool) -> Tool[Any, Any]:
    try:
        schema = msgspec.json.decode(tool.parameters, type=dict[str, Any] | None)
        name, description = f"{PAGE}{tool.name}", tool.description or tool.name
        return Tool.from_schema(name=name, description=description, schema=schema or {}, handler=None)
    except (PromptValidationError, ValueError, RecursionError) as error:
        problem = shortened(str(error), 300)
        raise Refused(400, f"The tool {tool.name[:64]!r} of the page cannot be offered: {problem}") from None


def _last_with(text: str, sent: Sequence[Message]) -> int | None:
    return max((number for number, message in enumerate(sent) if message.text == text), default=None)


def is_answered(chat: Conversation[Any]) -> bool:
    """True if the conversation ends with a whole answer, not with one that was stopped or that failed."""
    run, last = chat.session[RunState].latest(), chat.session[Message].latest()
    unfinished = run is not None and run.unfinished
    return last is not None and last.role == "assistant" and not last.tool_calls and not unfinished


class PageMessage(msgspec.Struct):
    """A message in either protocol, of which only the newest is read further."""

    role: str
    id: str = ""
    parts: msgspec.Raw = msgspec.Raw(b"[]")
    content: msgspec.Raw = msgspec.Raw(b'""')
    tool_call_id: str | None = msgspec.field(name="toolCallId", default=None)
    error: str | None = None


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


def read_request(
    thread: str,
    messages: Sequence[PageMessage],
    *,
    again: bool = False,
    edits: bool = False,
    verdicts: Mapping[str, PageVerdict] = MappingProxyType({}),
    results: Mapping[str, PageVerdict] = MappingProxyType({}),
    tools: Sequence[PageTool] = (),
) -> Asked:
    """The question in the newest of these messages, and what is decided about calls that wait."""
    if len(verdicts) > MAX_PARTS:
        raise ValueError(f"A request may decide at most {MAX_PARTS} calls, got {len(verdicts):,}")
    if messages and messages[-1].role != "user" and (verdicts or results):
        return Asked(thread, verdicts=verdicts, results=results, tools=tools)
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
    return Asked(thread, parts, newest.id, earlier, again, edits, verdicts, results, tools)


def read_text(content: msgspec.Raw) -> str:
    """The text of a message's content, which may be in parts."""
    found: Any = msgspec.json.decode(content, type=str | list[_Part])
    return found if isinstance(found, str) else "".join(part.text for part in found)


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
