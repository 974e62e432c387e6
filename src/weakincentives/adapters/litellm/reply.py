"""Replies in chat completions, whole or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from weakincentives.adapters.network import TransportError, encode
from weakincentives.limits import TokenUsage
from weakincentives.runtime import (
    ArgumentsDelta,
    ModelReply,
    ReasoningDelta,
    StopReason,
    TextDelta,
    ToolCall,
)
from weakincentives.runtime.spi import ModelDelta

SERVER_CALL = "srvtoolu_"
"""Id prefix of calls that Anthropic runs itself, which LiteLLM lists among the model's calls."""

_STOPS: dict[str, StopReason] = {
    "stop": "end",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
    "refusal": "refusal",
}

ORIGIN = '{"type":"origin",'
"""Marks the item that records a reply's vendor, since its reasoning must not be sent to another vendor."""


def parse_reply(body: bytes | bytearray, origin: str) -> ModelReply:
    """The reply in a whole completion."""
    return _reply(_decode_completion(body), origin)


class _Details(msgspec.Struct):
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0
    web_search_requests: int | None = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    server_tool_use: _Details | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = ""


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = ""
    index: int | None = 0


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    annotations: Any = None
    provider_specific_fields: dict[str, Any] | None = None
    reasoning_content: str | None = None
    thinking_blocks: Any = None
    reasoning_items: Any = None


class _Choice(msgspec.Struct):
    message: msgspec.Raw
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    id: str | None = ""
    model: str | None = ""
    usage: _Usage | None = None


_decode_completion = msgspec.json.Decoder(_Completion).decode
_decode_message = msgspec.json.Decoder(_Message).decode


def _reply(completion: _Completion, origin: str) -> ModelReply:
    if not completion.choices:
        raise TransportError.unusable("litellm answered without any choices", {"id": completion.id, "choices": []})
    choice = completion.choices[0]
    message = _decode_message(choice.message)
    own = [call for call in message.tool_calls or () if not (call.id or "").startswith(SERVER_CALL)]
    calls = tuple(ToolCall(call.id or "", call.function.name or "", call.function.arguments or "") for call in own)
    hosted = len(message.tool_calls or ()) - len(own)
    stop = _STOPS.get(choice.finish_reason or "stop", "end")
    text = message.content or ""
    if message.refusal:
        stop, text = "refusal", message.refusal
    elif calls and stop == "end":
        stop = "tool_calls"
    if not text and not calls and stop == "end":
        found = {"id": completion.id, "message": msgspec.json.decode(choice.message)}
        raise TransportError.unusable("litellm answered without any content", found)
    return ModelReply(
        text=text,
        tool_calls=calls,
        usage=_usage(completion.usage, hosted),
        stop_reason=stop,
        items=(_echo(choice.message), *_grounding(message, hosted), *((origin,) if _bound(message) else ())),
        response_id=completion.id or "",
        model=completion.model or "",
        reasoning=message.reasoning_content or "",
    )


def _echo(raw: msgspec.Raw) -> str:
    """The message in the form it can be sent back; some providers reject fields without a value."""
    message = msgspec.json.decode(raw, type=dict[str, Any])
    kept = {key: value for key, value in message.items() if value is not None and key != "annotations"}
    return encode({"role": "assistant", "content": None, **kept}).decode()


def _bound(message: _Message) -> bool:
    """True if only the vendor that wrote the message understands all of it."""
    reasoning = message.thinking_blocks or message.reasoning_items or message.reasoning_content
    return bool(reasoning or message.provider_specific_fields)


def _grounding(message: _Message, hosted: int) -> tuple[str, ...]:
    """The sources of the answer, as a separate item; only the first item is sent back."""
    fields = message.provider_specific_fields or {}
    found = {
        "annotations": message.annotations,
        "citations": fields.get("citations"),
        "results": fields.get("web_search_results"),
    }
    if not hosted and not any(found.values()):
        return ()
    kept = {name: value for name, value in found.items() if value}
    return (encode({"type": "grounding", **kept}).decode(),)


def _usage(usage: _Usage | None, hosted: int) -> TokenUsage:
    if usage is None:
        return TokenUsage(hosted_requests=hosted)
    read, written = usage.prompt_tokens_details, usage.completion_tokens_details
    # LiteLLM counts searches in either place, depending on the provider.
    searched = max((part.web_search_requests or 0 for part in (usage.server_tool_use, read) if part), default=0)
    return TokenUsage(
        usage.prompt_tokens or 0,
        usage.completion_tokens or 0,
        (read.cached_tokens or 0) if read else 0,
        (written.reasoning_tokens or 0) if written else 0,
        max(searched, hosted),
    )


class _Delta(_Message):
    annotations: list[Any] | None = None
    thinking_blocks: list[dict[str, Any]] | None = None
    reasoning_items: list[Any] | None = None


class _Streamed(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Streamed] = []
    id: str | None = ""
    model: str | None = ""
    usage: _Usage | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class ChunkParser:
    """Assembles a streamed completion."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._blocks: list[dict[str, Any]] = []
        self._reasoning_items: list[Any] = []
        self._refusal: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._annotations: list[Any] = []
        self._citations: list[Any] = []
        self._results: list[Any] = []
        self._finish: str | None = None
        self._last = _Chunk()
        self._usage: _Usage | None = None

    def feed(self, event: bytes) -> Sequence[ModelDelta | ModelReply]:
        if event == b"[DONE]":
            return (self._reply(),)
        chunk = _decode_chunk(event)
        self._last = chunk
        self._usage = chunk.usage or self._usage
        deltas: list[ModelDelta | ModelReply] = []
        for choice in chunk.choices[:1]:
            self._finish = choice.finish_reason or self._finish
            delta = choice.delta or _Delta()
            if delta.reasoning_content:
                self._thoughts.append(delta.reasoning_content)
                deltas.append(ReasoningDelta(delta.reasoning_content))
            for block in delta.thinking_blocks or ():
                self._add_thinking(block)
            self._reasoning_items += delta.reasoning_items or ()
            if delta.content:
                self._text.append(delta.content)
                deltas.append(TextDelta(delta.content))
            if delta.refusal:
                self._refusal.append(delta.refusal)
            self._add_grounding(delta)
            for call in delta.tool_calls or ():
                kept = self._add_call(call)
                if call.function.arguments:
                    deltas.append(ArgumentsDelta(kept["id"], kept["function"]["name"], call.function.arguments))
        return deltas

    def _add_thinking(self, block: dict[str, Any]) -> None:
        """Add a piece of a thinking block: its text arrives in many pieces, and its signature ends it."""
        piece = {name: value for name, value in block.items() if value is not None and name != "index"}
        last = self._blocks[-1] if self._blocks else {}
        if piece.get("type") != "thinking" or last.get("type") != "thinking" or last.get("signature"):
            self._blocks.append(piece)
            return
        last["thinking"] = last.get("thinking", "") + piece.get("thinking", "")
        if piece.get("signature"):
            last["signature"] = piece["signature"]

    def _add_grounding(self, delta: _Delta) -> None:
        self._annotations += delta.annotations or ()
        fields = delta.provider_specific_fields or {}
        if "citation" in fields:
            self._citations.append([fields["citation"]])
        self._results = fields.get("web_search_results") or self._results

    def _add_call(self, call: _Call) -> dict[str, Any]:
        kept = self._calls.setdefault(
            call.index or 0, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        kept["id"] = call.id or kept["id"]
        kept["function"]["name"] = call.function.name or kept["function"]["name"]
        kept["function"]["arguments"] += call.function.arguments or ""
        return kept

    def _reply(self) -> ModelReply:
        if self._finish is None:
            raise TransportError("litellm's stream ended before the answer was complete", phase="response")
        sources = {"citations": self._citations, "web_search_results": self._results}
        parts = {
            "refusal": "".join(self._refusal),
            "reasoning_content": "".join(self._thoughts),
            "thinking_blocks": self._blocks,
            "reasoning_items": self._reasoning_items,
            "tool_calls": [self._calls[index] for index in sorted(self._calls)],
            "annotations": self._annotations,
            "provider_specific_fields": {name: value for name, value in sources.items() if value},
        }
        given = {name: value for name, value in parts.items() if value}
        message = {"role": "assistant", "content": "".join(self._text) or None, **given}
        choice = _Choice(msgspec.Raw(encode(message)), self._finish)
        return _reply(_Completion([choice], self._last.id, self._last.model, self._usage), self._origin)
