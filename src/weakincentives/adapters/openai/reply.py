"""Replies of the Responses API, whole or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from weakincentives.adapters.network import TransportError, encode
from weakincentives.limits import TokenUsage
from weakincentives.prompt import SEARCH_TOOL
from weakincentives.runtime import (
    ArgumentsDelta,
    ModelReply,
    ReasoningDelta,
    StopReason,
    TextDelta,
    ToolCall,
)
from weakincentives.runtime.spi import ModelDelta

_RETRYABLE = frozenset(
    {"server_error", "rate_limit_exceeded", "rate_limit_error", "server_is_overloaded", "overloaded_error"}
)


OUTPUT = '{"type":"output",'
"""The beginning of an item of ours: the types of the answer before and after this reply was asked for."""


def parse_reply(body: bytes | bytearray, *own: str) -> ModelReply:
    """The reply in a whole response; its first items are our `own`."""
    return _reply(_decode_response(body), own)


def parse_compaction(body: bytes | bytearray) -> ModelReply:
    """A compacted conversation: all of its items are the next window, and the user's messages among them its text."""
    response = _decode_response(body)
    items = [bytes(raw).decode() for raw in response.output]
    kinds = [_decode_kind(raw).type for raw in response.output]
    if "compaction" not in kinds:
        return ModelReply(usage=_usage(response.usage, 0))
    said = [_decode_item(raw) for raw, kind in zip(response.output, kinds, strict=True) if kind == "message"]
    texts = [part.text for item in said if item.role == "user" for part in item.content or () if part.text]
    return ModelReply("\n\n".join(texts), items=tuple(items), usage=_usage(response.usage, 0), response_id=response.id)


class ResponseEventParser:
    """Passes on deltas, and reads the reply from the event that closes the response; its first items are our `own`."""

    def __init__(self, *own: str) -> None:
        self._own = own
        self._calls: dict[str, _Call] = {}
        self._summary: tuple[str | None, int] | None = None

    def feed(self, event: bytes) -> Sequence[ModelDelta | ModelReply]:
        if event == b"[DONE]":
            return ()
        seen = _decode_event(event)
        kind, delta = seen.type, seen.delta if isinstance(seen.delta, str) else ""
        if kind == "response.output_text.delta":
            return (TextDelta(delta),) if delta else ()
        if kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            return (ReasoningDelta(self._gap(seen) + delta),) if delta else ()
        if kind == "response.function_call_arguments.delta":
            call = self._calls.get(seen.item_id)
            return (ArgumentsDelta(call.call_id, call.sent_name, delta),) if call and delta else ()
        if kind == "response.output_item.added" and _decode_kind(seen.item).type == "function_call":
            # Only this event has the name and the id of the call.
            self._calls[_decode_item(seen.item).id] = _decode_call(seen.item)
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            return (_reply(_decode_response(seen.response), self._own),)
        if kind == "error":
            # The error is flat in the SDK's types but nested in practice.
            error = seen.error or seen
            message = f"openai reported an error in the stream: {error.message or error.code or 'no explanation'}"
            raise TransportError.unusable(
                message, msgspec.json.decode(event), retryable=bool({error.code, error.type} & _RETRYABLE)
            )
        return ()

    def _gap(self, seen: _Event) -> str:
        """A blank line between two parts of a summary, which arrive without a separator."""
        before, self._summary = self._summary, (seen.item_id, seen.summary_index)
        return "" if before in (None, self._summary) else "\n\n"


class _Details(msgspec.Struct):
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Why(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    output: list[msgspec.Raw]
    id: str = ""
    model: str = ""
    status: str | None = "completed"
    usage: _Usage | None = None
    incomplete_details: _Why | None = None
    error: dict[str, Any] | None = None


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Kind(msgspec.Struct):
    type: str


class _Item(msgspec.Struct):
    id: str = ""
    role: str = ""
    summary: list[_Part] = []
    content: list[_Part] | None = None


class _Call(msgspec.Struct):
    call_id: str
    name: str
    arguments: str = ""
    namespace: str | None = None

    @property
    def sent_name(self) -> str:
        """The name of the tool, after its namespace if it has one."""
        return f"{self.namespace}:{self.name}" if self.namespace else self.name


class _Search(msgspec.Struct):
    type: str
    call_id: str | None = None
    arguments: Any = None
    execution: str = "server"


class _Error(msgspec.Struct):
    type: str | None = None
    code: str | None = None
    message: str | None = None


class _Event(msgspec.Struct):
    type: str
    delta: Any = None
    item_id: str = ""
    summary_index: int = 0
    item: msgspec.Raw = msgspec.Raw(b'{"type":""}')
    response: msgspec.Raw = msgspec.Raw(b"null")
    code: str | None = None
    message: str | None = None
    error: _Error | None = None


_decode_response = msgspec.json.Decoder(_Response).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode_call = msgspec.json.Decoder(_Call).decode
_decode_event = msgspec.json.Decoder(_Event).decode


def _reply(response: _Response, own: Sequence[str] = ()) -> ModelReply:
    if response.error or response.status not in ("completed", "incomplete", None):
        error = response.error or {}
        message = f"openai could not answer: {error.get('message') or response.status}"
        raise TransportError.unusable(
            message, error or {"status": response.status}, retryable=error.get("code") in _RETRYABLE
        )
    texts: list[str] = []
    refusals: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    items = [*own]
    hosted = 0
    for raw in response.output:
        items.append(bytes(raw).decode())
        kind = _decode_kind(raw).type
        if kind == "function_call":
            call = _decode_call(raw)
            calls.append(ToolCall(call.call_id, call.sent_name, call.arguments))
        elif kind == "message":
            for part in _decode_item(raw).content or ():
                if part.text:
                    texts.append(part.text)
                elif part.refusal:
                    refusals.append(part.refusal)
        elif kind == "reasoning":
            thought = _decode_item(raw)
            thoughts += [part.text for part in (*thought.summary, *(thought.content or ())) if part.text]
        elif kind == "tool_search_call" and (searches := search_calls([items[-1]])):
            calls += searches
        elif kind.endswith("_call"):
            hosted += 1
    stop: StopReason = "tool_calls" if calls else "end"
    if response.status == "incomplete":
        reason = response.incomplete_details.reason if response.incomplete_details else None
        stop = "content_filter" if reason == "content_filter" else "length"
    elif refusals:
        stop, texts = "refusal", refusals
    if not response.output and stop == "end":
        found: object = {"id": response.id, "status": response.status, "output": []}
        raise TransportError.unusable("openai answered without any output", found)
    return ModelReply(
        text="".join(texts),
        tool_calls=tuple(calls),
        usage=_usage(response.usage, hosted),
        stop_reason=stop,
        items=tuple(items),
        response_id=response.id,
        model=response.model,
        reasoning="\n\n".join(thoughts),
    )


def _usage(usage: _Usage | None, hosted: int) -> TokenUsage:
    if usage is None:
        return TokenUsage(hosted_requests=hosted)
    read, written = usage.input_tokens_details, usage.output_tokens_details
    return TokenUsage(
        usage.input_tokens,
        usage.output_tokens,
        (read.cached_tokens or 0) if read else 0,
        (written.reasoning_tokens or 0) if written else 0,
        hosted,
    )


def found_tools(items: Sequence[str]) -> tuple[str, ...]:
    """The tools that `tool_search` has loaded."""
    outputs = [msgspec.json.decode(item) for item in items if '"tool_search_output"' in item]
    loaded = [tool for output in outputs for tool in output.get("tools", ())]
    grouped = [(f"{tool['name']}:", each) for tool in loaded for each in tool.get("tools", ())]
    alone = [("", tool) for tool in loaded if "tools" not in tool]
    return tuple(f"{space}{tool['name']}" for space, tool in (*alone, *grouped) if "name" in tool)


def with_call_ids(items: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
    """The items with these ids of their calls, in order.

    A call with a new id loses the id of its item: the provider has not seen that one.
    """
    remaining = iter(ids)
    renamed: list[str] = []
    for item in items:
        if _decode_kind(item).type == "function_call" or search_calls([item]):
            fields = msgspec.json.decode(item)
            call_id = next(remaining)
            if fields["call_id"] != call_id:
                fields.pop("id", None)
                item = encode({**fields, "call_id": call_id}).decode()
        renamed.append(item)
    return tuple(renamed)


def search_calls(items: Sequence[str]) -> list[ToolCall]:
    """The searches that are left to us, as calls of our own tool."""
    found = [msgspec.json.decode(item, type=_Search) for item in items if '"tool_search_call"' in item]
    return [
        ToolCall(call.call_id, SEARCH_TOOL, msgspec.json.encode(call.arguments or {}).decode())
        for call in found
        if call.execution == "client" and call.call_id
    ]
