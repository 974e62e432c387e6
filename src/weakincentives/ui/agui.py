"""AG-UI events: what `HttpAgent` and the clients built on it send and read."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

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
    CALL_FAILED,
    CallEnded,
    Failed,
    Finished,
    PageEvent,
    PastExchange,
    WrittenAgain,
    open_sections,
)
from weakincentives.ui.requests import MAX_ID, Asked, PageMessage, Refused, read_message

CALL_DONE = "Done."


class _Tool(msgspec.Struct):
    name: str = ""


class _Request(msgspec.Struct, rename="camel"):
    thread_id: str
    run_id: str
    messages: list[PageMessage]
    state: msgspec.Raw = msgspec.Raw(b"{}")
    tools: list[_Tool] | None = None
    resume: list[msgspec.Raw] | None = None


class AgUi:
    """The protocol of one exchange."""

    thread_parameter = "threadId"
    headers: ClassVar[Mapping[str, str]] = {}
    end = ""

    def __init__(self, body: bytes) -> None:
        request = msgspec.json.decode(body, type=_Request)
        if len(request.run_id) > MAX_ID:  # It is repeated in the events.
            raise Refused(400, f"The id of a run may have at most {MAX_ID} characters.")
        if request.tools:
            names = ", ".join(repr(tool.name[:64]) for tool in request.tools[:10])
            raise Refused(400, f"Tools of the page are not supported: {names}. Declare them on the server.")
        if request.resume:
            raise Refused(400, "There is nothing to resume in this conversation.")
        self.asked: Asked = read_message(request.thread_id, request.messages)
        self._run = {"threadId": request.thread_id, "runId": request.run_id}
        self._events = Events(request.run_id, has_state=bytes(request.state).lstrip().startswith(b"{"))

    def begin(self, chat: Conversation[Any]) -> Iterator[dict[str, Any]]:
        self._events.open_sections = open_sections(chat)
        yield {"type": "RUN_STARTED", **self._run}

    def encode(self, event: PageEvent) -> Iterator[dict[str, Any]]:
        match event:
            case Finished():
                yield {"type": "RUN_FINISHED", **self._run}
            case Failed(sentence):
                yield {"type": "RUN_ERROR", "message": sentence}
            case _:
                yield from self._events.of(event)

    @staticmethod
    def history(chat: Conversation[Any] | None, past: Sequence[PastExchange]) -> dict[str, Any]:
        """Messages and state, as `new HttpAgent({initialMessages, initialState})` takes them."""
        state: dict[str, Any] = {}
        if chat is not None and (found := open_sections(chat)):
            state["openSections"] = found
        for event in past[-1].events if past else ():
            if isinstance(event, PartialOutput):
                state["output"] = event.value
        return {"messages": [message for exchange in past for message in _messages(exchange)], "state": state}


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
            case CallEnded(call_id, _, success, output):
                # The event has no field for a failure, as the message has; clients copy its metadata to the message.
                result = {"messageId": f"{call_id}-result", "toolCallId": call_id, "content": _text(success, output)}
                yield {"type": "TOOL_CALL_RESULT", **result, "metadata": {"success": success}}
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


def _text(success: bool, output: Any) -> str:
    if not success:
        return CALL_FAILED
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
