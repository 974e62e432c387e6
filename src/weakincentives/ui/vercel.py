"""Vercel's AI message stream, version 1: what `useChat` and the other clients of the AI SDK send and read."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec

from weakincentives.content import Part, Text
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
)
from weakincentives.ui.questions import Waiting, arguments
from weakincentives.ui.requests import MAX_ID, Asked, PageMessage, PageVerdict, read_request


class _Approval(msgspec.Struct):
    id: str
    approved: bool
    reason: str | None = None


class _ToolPart(msgspec.Struct, rename="camel"):
    """A part of an assistant message: if it is a tool call, what the page says about it."""

    type: str
    tool_call_id: str = ""
    state: str = ""
    approval: msgspec.Raw = msgspec.Raw(b"null")
    output: msgspec.Raw = msgspec.Raw(b"null")
    error_text: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def is_call(self) -> bool:
        return self.type == "dynamic-tool" or self.type.startswith("tool-")


class _Request(msgspec.Struct, rename="camel"):
    id: str
    messages: list[PageMessage]
    trigger: str = "submit-message"
    message_id: str | None = None


class Vercel:
    """The protocol of one exchange."""

    thread_parameter = "id"
    headers: ClassVar[Mapping[str, str]] = {"x-vercel-ai-ui-message-stream": "v1"}
    end = "data: [DONE]\n\n"

    def __init__(self, body: bytes) -> None:
        request = msgspec.json.decode(body, type=_Request)
        again = request.trigger == "regenerate-message"
        edits = not again and request.message_id is not None
        verdicts, results = ({}, {}) if again else _said_of_calls(request.messages)
        self.asked: Asked = read_request(
            request.id, request.messages, again=again, edits=edits, verdicts=verdicts, results=results
        )
        self._chunks = Chunks(goes_on=not self.asked.content)

    @classmethod
    def resumed(cls, thread: str) -> Self:
        """For a page that reads the stream of a run again."""
        page = cls.__new__(cls)
        page.asked, page._chunks = Asked(thread, (Text("..."),)), Chunks()
        return page

    def begin(self, chat: Conversation[Any]) -> Iterator[dict[str, Any]]:
        # A message that goes on keeps its id.
        yield {"type": "start", "messageId": os.urandom(8).hex()} if self.asked.content else {"type": "start"}

    def encode(self, event: PageEvent) -> Iterator[dict[str, Any]]:
        return self._chunks.of(event)

    @staticmethod
    def history(chat: Conversation[Any] | None, past: Sequence[PastExchange]) -> list[dict[str, Any]]:
        """The messages, as `useChat({messages})` takes them."""
        return [message for exchange in past for message in _messages(exchange)]


def _said_of_calls(messages: Sequence[PageMessage]) -> tuple[dict[str, PageVerdict], dict[str, PageVerdict]]:
    """The approvals in the last assistant message by their ids, and the results in it by the ids of the calls."""
    verdicts: dict[str, PageVerdict] = {}
    results: dict[str, PageVerdict] = {}
    last = next((message for message in messages[:-3:-1] if message.role == "assistant"), None)
    parts = None if last is None else msgspec.json.decode(last.parts, type=list[_ToolPart] | None)
    for part in parts or ():
        if part.is_call and part.state == "approval-responded":
            given = msgspec.json.decode(part.approval, type=_Approval)
            if given.id in verdicts:
                raise ValueError(f"The approval {given.id[:MAX_ID]!r} is answered twice")
            verdicts[given.id] = PageVerdict(given.approved, given.reason or "")
        elif part.is_call and part.state == "output-available":
            output: Any = msgspec.json.decode(part.output)
            text = output if isinstance(output, str) else bytes(part.output).decode()
            results[part.tool_call_id] = PageVerdict(answer=text)
        elif part.is_call and part.state == "output-error":
            problem: Any = msgspec.json.decode(part.error_text)
            results[part.tool_call_id] = PageVerdict(reason=problem if isinstance(problem, str) else "")
    return verdicts, results


class Chunks:
    """The chunks of one assistant message; if it `goes_on`, the page has the first of them."""

    def __init__(self, *, goes_on: bool = False) -> None:
        self._goes_on = goes_on
        # The kind of the text that is being written, its number, and whether a step has begun.
        self._block = ""
        self._number = 0
        self._step = False
        self._waits = False
        self._asked: set[str] = set()
        self._calls: set[str] = set()
        self._open_calls: set[str] = set()

    def of(self, event: PageEvent) -> Iterator[dict[str, Any]]:
        kind = {TextDelta: "text", ReasoningDelta: "reasoning"}.get(type(event), "")
        if self._block and kind != self._block and not isinstance(event, PartialOutput):
            yield {"type": f"{self._block}-end", "id": str(self._number)}
            self._block = ""
        if not self._step and isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta | ToolStarted):
            self._step = True
            yield {"type": "start-step"}
        if kind and not self._block:
            self._block, self._number = kind, self._number + 1
            yield {"type": f"{self._block}-start", "id": str(self._number)}
        if isinstance(event, ArgumentsDelta | ToolStarted) and event.call_id not in self._calls:
            self._calls.add(event.call_id)
            self._open_calls.add(event.call_id)
            yield {"type": "tool-input-start", **_call(event)}
        yield from self._content(event)
        # A step is one reply of the model with the results of its calls.
        ends = isinstance(event, WrittenAgain | Finished) or (isinstance(event, CallEnded) and not self._open_calls)
        if self._step and ends:
            self._step = False
            self._open_calls.clear()
            yield {"type": "finish-step"}
        if isinstance(event, Finished):
            yield {"type": "finish", "finishReason": "tool-calls" if self._waits else "stop"}

    def _content(self, event: PageEvent) -> Iterator[dict[str, Any]]:
        match event:
            case TextDelta(text) | ReasoningDelta(text):
                yield {"type": f"{self._block}-delta", "id": str(self._number), "delta": text}
            case ArgumentsDelta(text=text):
                yield {"type": "tool-input-delta", "toolCallId": event.call_id, "inputTextDelta": text}
            case ToolStarted(arguments=text):
                yield {"type": "tool-input-available", **_call(event), "input": arguments(text)}
            case ToolEmitted(call_id, name, data):
                value = {"toolCallId": call_id, "toolName": name, "data": data}
                yield {"type": "data-progress", "id": call_id, "data": value}
            case CallEnded(call_id) if call_id in self._calls or self._goes_on:
                self._open_calls.discard(call_id)
                yield _ended(event)
            case Waiting(call_id, question=question):
                self._waits = True
                # A part has one approval: of several calls inside this one, the next is asked about after the first.
                if not event.answer and call_id not in self._asked:
                    self._asked.add(call_id)
                    descriptor = {"text": event.text, **event.details}
                    asked = {"approvalId": question, "toolCallId": call_id, "approvalDescriptor": descriptor}
                    yield {"type": "tool-approval-request", **asked}
            case SectionOpened(key, tools):
                yield {"type": "data-section", "id": key, "data": {"key": key, "tools": tools}}
            case PartialOutput(value):
                yield {"type": "data-output", "id": "output", "data": value}
            case Failed(sentence):
                yield {"type": "error", "errorText": sentence}


def _call(event: ArgumentsDelta | ToolStarted) -> dict[str, Any]:
    return {"toolCallId": event.call_id, "toolName": event.name, "dynamic": True}


def _ended(event: CallEnded) -> dict[str, Any]:
    if event.denied:
        return {"type": "tool-output-denied", "toolCallId": event.call_id}
    ended = {"toolCallId": event.call_id, "dynamic": True}
    if event.success:
        return {"type": "tool-output-available", **ended, "output": event.output}
    return {"type": "tool-output-error", **ended, "errorText": CALL_FAILED}


def _messages(exchange: PastExchange) -> Iterator[dict[str, Any]]:
    parts = [found for part in exchange.content if (found := _content_part(part)) is not None]
    yield {"id": exchange.key, "role": "user", "parts": parts}
    chunks = Chunks()
    parts = _folded(chunk for event in exchange.events for chunk in chunks.of(event))
    if parts:
        yield {"id": f"{exchange.key}-answer", "role": "assistant", "parts": parts}


def _content_part(part: Part) -> dict[str, Any] | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if part.file_id:  # Of no use to a page.
        return None
    data = f"data:{part.media_type};base64,{base64.b64encode(part.data).decode()}"
    file = {"type": "file", "mediaType": part.media_type, "url": part.url or data}
    return {**file, "filename": part.name} if part.name else file


def _folded(chunks: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts that a client makes of chunks."""
    parts: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    for chunk in chunks:
        match chunk:
            case {"type": "start-step"}:
                parts.append({"type": "step-start"})
            case {"type": "text-delta" | "reasoning-delta" as kind, "delta": text}:
                parts.append({"type": kind.removesuffix("-delta"), "text": text, "state": "done"})
            case {"type": "tool-input-available", "toolCallId": call_id, "toolName": name, "input": given}:
                calls[call_id] = {"type": "dynamic-tool", "toolName": name, "toolCallId": call_id, "input": given}
                calls[call_id]["state"] = "input-available"
                parts.append(calls[call_id])
            case {"type": "tool-output-available", "toolCallId": call_id, "output": output} if call_id in calls:
                calls[call_id].update(state="output-available", output=output)
            case {"type": "tool-output-error", "toolCallId": call_id, "errorText": text} if call_id in calls:
                calls[call_id].update(state="output-error", errorText=text)
            case {"type": "tool-approval-request", "toolCallId": call_id, "approvalId": question} if call_id in calls:
                approval = {"id": question, "descriptor": chunk["approvalDescriptor"]}
                calls[call_id].update(state="approval-requested", approval=approval)
            case {"type": "tool-output-denied", "toolCallId": call_id} if call_id in calls:
                calls[call_id].update(state="output-denied", approval={"id": call_id, "approved": False})
            case {"type": str(kind), "id": name, "data": data} if kind.startswith("data-"):
                parts[:] = [part for part in parts if (part["type"], part.get("id")) != (kind, name)]
                parts.append({"type": kind, "id": name, "data": data})
    return parts
