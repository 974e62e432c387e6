"""AG-UI events: what `HttpAgent` and the clients built on it send and read."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import msgspec

from weakincentives.content import Audio, Image, Part, Text
from weakincentives.runtime import (
    ArgumentsDelta,
    Conversation,
    PartialOutput,
    ReasoningDelta,
    SectionOpened,
    TextDelta,
    ToolEmitted,
    ToolStarted,
)
from weakincentives.ui.page import (
    CALL_DENIED,
    CALL_FAILED,
    CallEnded,
    Failed,
    Finished,
    PageEvent,
    PastExchange,
    WrittenAgain,
    open_sections,
)
from weakincentives.ui.questions import Waiting
from weakincentives.ui.requests import (
    DISMISSED,
    MAX_ID,
    Asked,
    PageMessage,
    PageTool,
    PageVerdict,
    Refused,
    read_request,
    read_text,
)

CALL_DONE = "Done."
APPROVAL = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object", "description": "Arguments to use instead, if approved."},
        "reason": {"type": "string", "description": "Why it is denied, for the model to read."},
    },
    "required": ["approved"],
    "additionalProperties": False,
}
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


class _Approval(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    approved: bool
    edited_args: dict[str, Any] | None = None
    reason: str | None = None


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    answer: str


class _Resume(msgspec.Struct, rename="camel"):
    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: msgspec.Raw = msgspec.Raw(b"null")


class _Request(msgspec.Struct, rename="camel"):
    thread_id: str
    run_id: str
    messages: list[PageMessage]
    state: msgspec.Raw = msgspec.Raw(b"{}")
    tools: list[PageTool] | None = None
    resume: list[_Resume] | None = None
    forwarded_props: msgspec.Raw = msgspec.Raw(b"{}")


class _Props(msgspec.Struct):
    regenerate: bool = False


class AgUi:
    """The protocol of one exchange."""

    thread_parameter = "threadId"
    headers: ClassVar[Mapping[str, str]] = {}
    end = ""

    def __init__(self, body: bytes) -> None:
        request = msgspec.json.decode(body, type=_Request)
        if len(request.run_id) > MAX_ID:  # It is repeated in the events.
            raise Refused(400, f"The id of a run may have at most {MAX_ID} characters.")
        self.asked: Asked = read_request(
            request.thread_id,
            request.messages,
            again=_is_regenerated(request),
            verdicts=_verdicts(request),
            results=_results(request.messages),
            tools=request.tools or (),
        )
        self._run = {"threadId": request.thread_id, "runId": request.run_id}
        self._events = Events(request.run_id, has_state=bytes(request.state).lstrip().startswith(b"{"))
        self._waiting: list[Waiting] = []

    @classmethod
    def resumed(cls, thread: str) -> Self:
        """For a page that reads the stream of a run again."""
        newest = {"role": "user", "content": "..."}
        request = {"threadId": thread, "runId": os.urandom(8).hex(), "messages": [newest]}
        return cls(msgspec.json.encode(request))

    def begin(self, chat: Conversation[Any]) -> Iterator[dict[str, Any]]:
        self._events.open_sections = open_sections(chat)
        yield {"type": "RUN_STARTED", **self._run}

    def encode(self, event: PageEvent) -> Iterator[dict[str, Any]]:
        match event:
            case Waiting():
                self._waiting.append(event)
            case Finished():
                yield {"type": "RUN_FINISHED", **self._run, **_outcome(self._waiting)}
            case Failed(sentence):
                yield {"type": "RUN_ERROR", "message": sentence}
            case _:
                yield from self._events.of(event)

    @staticmethod
    def history(chat: Conversation[Any] | None, past: Sequence[PastExchange]) -> dict[str, Any]:
        """Messages and state, as `new HttpAgent({initialMessages, initialState})` takes them, and open interrupts."""
        state: dict[str, Any] = {}
        if chat is not None and (found := open_sections(chat)):
            state["openSections"] = found
        for event in past[-1].events if past else ():
            if isinstance(event, PartialOutput):
                state["output"] = event.value
        messages = [message for exchange in past for message in _messages(exchange)]
        waiting = [event for exchange in past for event in exchange.events if isinstance(event, Waiting)]
        return {"messages": messages, "state": state, "interrupts": _interrupts(waiting)}


def _is_regenerated(request: _Request) -> bool:
    """True if the page asks for another answer, which the protocol has no field for: `forwardedProps.regenerate`."""
    try:
        return msgspec.json.decode(request.forwarded_props, type=_Props).regenerate
    except msgspec.ValidationError:
        return False  # Something else that the application forwards.


def _verdicts(request: _Request) -> dict[str, PageVerdict]:
    """The answers to interrupts; what cannot be read is an error, not a denial."""
    found: dict[str, PageVerdict] = {}
    for entry in request.resume or ():
        if entry.interrupt_id in found:
            raise ValueError(f"The interrupt {entry.interrupt_id[:MAX_ID]!r} is answered twice")
        if entry.status == "resolved":
            found[entry.interrupt_id] = _verdict(entry.payload)
        elif request.messages and request.messages[-1].role != "user":
            found[entry.interrupt_id] = PageVerdict(reason=DISMISSED)
    return found


def _verdict(payload: msgspec.Raw) -> PageVerdict:
    given = msgspec.json.decode(payload, type=dict[str, Any])
    if "answer" in given:
        return PageVerdict(answer=msgspec.json.decode(payload, type=_Answer).answer)
    approval = msgspec.json.decode(payload, type=_Approval)
    if approval.edited_args is not None and not approval.approved:
        raise ValueError("Edited arguments need `approved` to be true")
    return PageVerdict(approval.approved, approval.reason or "", approval.edited_args)


def _results(messages: Sequence[PageMessage]) -> dict[str, PageVerdict]:
    """The tool messages after the last answer: results of the page's own tools, among those that the server sent."""
    found: dict[str, PageVerdict] = {}
    for message in reversed(messages):
        if message.role == "tool" and message.tool_call_id is not None:
            failed = message.error is not None
            verdict = (
                PageVerdict(reason=message.error or "") if failed else PageVerdict(answer=read_text(message.content))
            )
            found.setdefault(message.tool_call_id, verdict)
        elif message.role == "assistant":
            break
    return found


def _outcome(waiting: Sequence[Waiting]) -> dict[str, Any]:
    """How a run ends: calls of the page's own tools are the page's to answer, others interrupt it."""
    if interrupts := _interrupts(waiting):
        return {"outcome": {"type": "interrupt", "interrupts": interrupts}}
    calls = [event.call_id for event in waiting]
    return {"outcome": {"type": "success", "pendingToolCallIds": calls}} if calls else {}


def _interrupts(waiting: Sequence[Waiting]) -> list[dict[str, Any]]:
    return [
        {
            "id": event.question,
            "reason": "tool_call",
            "message": event.text,
            "toolCallId": event.call_id,
            "responseSchema": ANSWER if event.answer else APPROVAL,
            "metadata": event.details,
        }
        for event in waiting
        if not event.of_page
    ]


class Events:
    """The events of one run, and the parts of the page's state that are ours."""

    def __init__(self, run_id: str, *, has_state: bool = True) -> None:
        self.open_sections: list[str] = []
        self._run_id = run_id
        self._has_state = has_state
        self._number = 0
        self._written: set[str] = set()

    def of(self, event: PageEvent) -> Iterator[dict[str, Any]]:
        if isinstance(event, CallEnded | WrittenAgain):
            # What the model writes from here on is a new message.
            self._number += 1
        message = f"{self._run_id}-{self._number}"
        match event:
            case TextDelta(text):
                yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": message, "role": "assistant", "delta": text}
            case ReasoningDelta(text):
                yield {"type": "REASONING_MESSAGE_CHUNK", "messageId": f"{message}-reasoning", "delta": text}
            case ArgumentsDelta(call_id, name, text):
                self._written.add(call_id)
                yield _call(message, call_id, name, text)
            case ToolStarted(call_id, name, arguments) if call_id not in self._written:
                self._written.add(call_id)
                yield _call(message, call_id, name, arguments)
            case ToolEmitted(call_id, name, data):
                value = {"toolCallId": call_id, "toolName": name, "data": data}
                yield {"type": "CUSTOM", "name": "progress", "value": value}
            case CallEnded(call_id, success=success):
                # The event has no field for a failure, as the message has; clients copy its metadata to the message.
                result = {"messageId": f"{call_id}-result", "toolCallId": call_id, "content": _text(event)}
                metadata = {"success": success, "denied": True} if event.denied else {"success": success}
                yield {"type": "TOOL_CALL_RESULT", **result, "metadata": metadata}
            case SectionOpened(key):
                self.open_sections = [*(other for other in self.open_sections if other != key), key]
                yield self._state("openSections", self.open_sections)
            case PartialOutput(value):
                yield self._state("output", value)

    def _state(self, name: str, value: Any) -> dict[str, Any]:
        if self._has_state:
            return {"type": "STATE_DELTA", "delta": [{"op": "add", "path": f"/{name}", "value": value}]}
        self._has_state = True
        return {"type": "STATE_SNAPSHOT", "snapshot": {name: value}}


def _call(message: str, call_id: str, name: str, delta: str) -> dict[str, Any]:
    call = {"toolCallId": call_id, "toolCallName": name, "parentMessageId": message}
    return {"type": "TOOL_CALL_CHUNK", **call, "delta": delta}


def _text(ended: CallEnded) -> str:
    if not ended.success:
        return CALL_DENIED if ended.denied else CALL_FAILED
    output = ended.output
    return CALL_DONE if output is None else output if isinstance(output, str) else json.dumps(output)


def _messages(exchange: PastExchange) -> Iterator[dict[str, Any]]:
    yield {"id": exchange.key, "role": "user", "content": _content(exchange.content)}
    events = Events(f"{exchange.key}-answer")
    yield from _folded(found for event in exchange.events for found in events.of(event))


def _content(parts: tuple[Part, ...]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Text):
            found.append({"type": "text", "text": part.text})
        elif not part.file_id:  # Of no use to a page.
            kind = "image" if isinstance(part, Image) else "audio" if isinstance(part, Audio) else "document"
            source = {"type": "url", "value": part.url} if part.url else _data(part.data)
            found.append({"type": kind, "source": {**source, "mimeType": part.media_type}})
    return found


def _data(data: bytes) -> dict[str, Any]:
    return {"type": "data", "value": base64.b64encode(data).decode()}


def _folded(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages that a client makes of events."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        match event:
            case {"type": "TEXT_MESSAGE_CHUNK", "messageId": key, "delta": text}:
                found.setdefault(key, {"id": key, "role": "assistant"})["content"] = text
            case {"type": "REASONING_MESSAGE_CHUNK", "messageId": key, "delta": text}:
                found[key] = {"id": key, "role": "reasoning", "content": text}
            case {"type": "TOOL_CALL_CHUNK", "parentMessageId": key, "toolCallId": call_id}:
                message = found.setdefault(key, {"id": key, "role": "assistant"})
                function = {"name": event["toolCallName"], "arguments": event["delta"]}
                message.setdefault("toolCalls", []).append({"id": call_id, "type": "function", "function": function})
            case {"type": "TOOL_CALL_RESULT", "messageId": key, "toolCallId": call_id, "content": text}:
                found[key] = {"id": key, "role": "tool", "toolCallId": call_id, "content": text}
                found[key]["metadata"] = event["metadata"]
                if not event["metadata"]["success"]:
                    found[key]["error"] = text
    yield from found.values()
