"""What the Messages API answers, whole or streamed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from weakincentives.adapters.network import TransportError, encode
from weakincentives.limits import TokenUsage
from weakincentives.runtime import ModelReply, StopReason, ToolCall

CONTAINER = '{"type":"container",'
"""How an answer's container is kept among its items: not sent back as a block, but named by the next request."""

_RETRYABLE = frozenset({"overloaded_error", "api_error", "rate_limit_error", "timeout_error"})
_STOPS: dict[str, StopReason] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
}


def parse_reply(body: bytes | bytearray) -> ModelReply:
    """The reply in a whole answer."""
    return _reply(_decode_answer(body))


class _ServerTools(msgspec.Struct):
    web_search_requests: int | None = 0
    web_fetch_requests: int | None = 0


class _Usage(msgspec.Struct):
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cache_read_input_tokens: int | None = 0
    cache_creation_input_tokens: int | None = 0
    server_tool_use: _ServerTools | None = None


class Container(msgspec.Struct):
    """Where code ran, and can go on."""

    id: str


class _Answer(msgspec.Struct):
    content: list[msgspec.Raw]
    id: str = ""
    model: str = ""
    stop_reason: str | None = None
    usage: _Usage | None = None
    stop_details: dict[str, Any] | None = None
    container: Container | None = None


class _Kind(msgspec.Struct):
    type: str


class _Text(msgspec.Struct):
    text: str = ""


class _ToolUse(msgspec.Struct):
    id: str
    name: str
    input: msgspec.Raw = msgspec.Raw(b"{}")


_decode_answer = msgspec.json.Decoder(_Answer).decode
decode_container = msgspec.json.Decoder(Container).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_text = msgspec.json.Decoder(_Text).decode
_decode_use = msgspec.json.Decoder(_ToolUse).decode


def _reply(answer: _Answer) -> ModelReply:
    texts: list[str] = []
    calls: list[ToolCall] = []
    items: list[str] = []
    hosted = 0
    for raw in answer.content:
        items.append(bytes(raw).decode())
        kind = _decode_kind(raw).type
        if kind == "text":
            texts.append(_decode_text(raw).text)
        elif kind == "tool_use":
            use = _decode_use(raw)
            calls.append(ToolCall(use.id, use.name, bytes(use.input).decode()))
        elif kind == "server_tool_use":
            hosted += 1
    stop = _STOPS.get(answer.stop_reason or "end_turn", "end")
    if stop == "refusal" and not texts:
        texts = [str((answer.stop_details or {}).get("explanation") or "")]
    if not items and stop == "end":
        raise TransportError(
            "anthropic answered without any content",
            phase="response",
            payload={"id": answer.id, "stop_reason": answer.stop_reason, "content": []},
            retryable=False,
        )
    if answer.container is not None:
        items.append(encode({"type": "container", "id": answer.container.id}).decode())
    return ModelReply(
        text="".join(texts),
        tool_calls=tuple(calls),
        usage=_usage(answer.usage, hosted),
        stop_reason=stop,
        items=tuple(items),
        response_id=answer.id,
        model=answer.model,
    )


def _usage(usage: _Usage | None, hosted: int) -> TokenUsage:
    if usage is None:
        return TokenUsage(hosted_requests=hosted)
    cached = usage.cache_read_input_tokens or 0
    fresh = (usage.input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    counted = usage.server_tool_use or _ServerTools()
    # Blocks may be left out of an answer, and not every kind is counted by the vendor.
    requests = max(hosted, (counted.web_search_requests or 0) + (counted.web_fetch_requests or 0))
    return TokenUsage(fresh + cached, usage.output_tokens or 0, cached, 0, requests)


class MessageEventParser:
    """Puts the blocks of a streamed message together again, and passes its text on."""

    def __init__(self) -> None:
        self._answer: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}

    def feed(self, event: bytes) -> Iterable[str | ModelReply]:
        data = msgspec.json.decode(event, type=dict[str, Any])
        match data.get("type"):
            case "message_start":
                self._answer = data["message"]
            case "content_block_start":
                self._blocks[data["index"]] = data["content_block"]
            case "content_block_delta":
                return self._delta(data["index"], data["delta"])
            case "content_block_stop":
                pieces = self._inputs.pop(data["index"], None)
                if pieces:
                    self._blocks[data["index"]]["input"] = msgspec.json.decode("".join(pieces) or "{}")
            case "message_delta":
                self._answer.update(data["delta"])
                usage = {key: value for key, value in (data.get("usage") or {}).items() if value is not None}
                self._answer["usage"] = {**(self._answer.get("usage") or {}), **usage}
            case "message_stop":
                blocks = [self._blocks[index] for index in sorted(self._blocks)]
                return (_reply(_decode_answer(encode({**self._answer, "content": blocks}))),)
            case "error":
                error = data.get("error") or {}
                raise TransportError(
                    f"anthropic reported an error in the stream: {error.get('message') or 'no explanation'}",
                    phase="response",
                    payload=data,
                    retryable=error.get("type") in _RETRYABLE,
                )
        return ()

    def _delta(self, index: int, delta: dict[str, Any]) -> Iterable[str | ModelReply]:
        block = self._blocks[index]
        match delta.get("type"):
            case "text_delta":
                block["text"] = block.get("text", "") + delta["text"]
                return (delta["text"],) if delta["text"] else ()
            case "input_json_delta":
                self._inputs.setdefault(index, []).append(delta["partial_json"])
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        return ()
