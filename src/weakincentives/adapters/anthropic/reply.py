"""Replies of the Messages API, whole or streamed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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

CONTAINER = '{"type":"container",'
"""Marks the item that records a reply's container. It is not sent back, but the next request names it."""

BOUND = '{"type":"bound",'
"""Marks the item that records the tools a reply's thinking is bound to. It is not sent back."""

_RETRYABLE = frozenset({"overloaded_error", "api_error", "rate_limit_error", "timeout_error"})
STOPS: dict[str, StopReason] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "overflow",
    "refusal": "refusal",
    "pause_turn": "pause",
    # The conversation was summarized; sent back, the turn continues from the summary.
    "compaction": "pause",
}


def parse_reply(body: bytes | bytearray, *more: str) -> ModelReply:
    """The reply in a whole response, with more items."""
    return _reply(_decode_answer(body), more)


def parse_compaction(body: bytes | bytearray, *, changed_tools: bool) -> ModelReply:
    """The block that stands for a compacted conversation; no items if there is none, or if it lost changed tools."""
    answer = _decode_answer(body)
    usage = _usage(answer.usage, 0)
    for raw in answer.content:
        if _decode_kind(raw).type == "compaction":
            block = msgspec.json.decode(raw, type=dict[str, Any])
            if block.get("content") and (not changed_tools or isinstance(block.get("tool_changes"), list)):
                return ModelReply(block["content"], items=(bytes(raw).decode(),), usage=usage, response_id=answer.id)
    return ModelReply(usage=usage)


class _Details(msgspec.Struct):
    web_search_requests: int | None = 0
    web_fetch_requests: int | None = 0
    thinking_tokens: int | None = 0


class _Iteration(msgspec.Struct):
    type: str = ""
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cache_read_input_tokens: int | None = 0
    cache_creation_input_tokens: int | None = 0

    def usage(self) -> TokenUsage:
        cached = self.cache_read_input_tokens or 0
        fresh = (self.input_tokens or 0) + (self.cache_creation_input_tokens or 0)
        return TokenUsage(fresh + cached, self.output_tokens or 0, cached)


class _Usage(_Iteration):
    server_tool_use: _Details | None = None
    output_tokens_details: _Details | None = None
    iterations: list[_Iteration] | None = None


class Container(msgspec.Struct):
    """The container in which code ran and can continue."""

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


class _Named(msgspec.Struct):
    type: str
    name: str = ""


class _Text(msgspec.Struct):
    text: str = ""
    thinking: str = ""


class _ToolUse(msgspec.Struct):
    id: str
    name: str
    input: msgspec.Raw = msgspec.Raw(b"{}")


_decode_answer = msgspec.json.Decoder(_Answer).decode
decode_container = msgspec.json.Decoder(Container).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_text = msgspec.json.Decoder(_Text).decode
_decode_use = msgspec.json.Decoder(_ToolUse).decode


def _reply(answer: _Answer, more: tuple[str, ...]) -> ModelReply:
    texts: list[str] = []
    thoughts: list[str] = []
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
        elif kind == "thinking":
            thoughts += filter(None, [_decode_text(raw).thinking])
        elif kind == "server_tool_use":
            hosted += 1
    stop = STOPS.get(answer.stop_reason or "end_turn", "end")
    if stop == "refusal" and not texts:
        texts = [str((answer.stop_details or {}).get("explanation") or "")]
    if not items and stop == "end":
        found: object = {"id": answer.id, "stop_reason": answer.stop_reason, "content": []}
        raise TransportError.unusable("anthropic answered without any content", found)
    if answer.container is not None:
        items.append(encode({"type": "container", "id": answer.container.id}).decode())
    return ModelReply(
        text="".join(texts),
        tool_calls=tuple(calls),
        usage=_usage(answer.usage, hosted),
        stop_reason=stop,
        items=(*items, *more),
        response_id=answer.id,
        model=answer.model,
        reasoning="\n\n".join(thoughts),
    )


def parse_usage(raw: Mapping[str, Any]) -> TokenUsage:
    """The usage of one message; the service reports cached input separately, but we count it as input."""
    return _usage(msgspec.convert(raw, _Usage), 0)


def _usage(usage: _Usage | None, hosted: int) -> TokenUsage:
    if usage is None:
        return TokenUsage(hosted_requests=hosted)
    counted, details = usage.server_tool_use or _Details(), usage.output_tokens_details or _Details()
    # A reply may omit blocks, and the vendor does not count every kind.
    requests = max(hosted, (counted.web_search_requests or 0) + (counted.web_fetch_requests or 0))
    total = usage.usage() + TokenUsage(reasoning_tokens=details.thinking_tokens or 0, hosted_requests=requests)
    # The totals include every iteration except those that summarize the conversation, and those of an advisor, whose
    # model has prices of its own.
    apart = (one for one in usage.iterations or () if one.type in ("compaction", "advisor_message"))
    return sum((one.usage() for one in apart), total)


def is_thinking(item: str) -> bool:
    """True if a message item holds thinking, readable or redacted."""
    return _decode_kind(item).type in ("thinking", "redacted_thinking")


def is_advice(item: str) -> bool:
    """True if a message item is a call of the advisor or its answer."""
    if '"advisor' not in item:
        return False
    block = msgspec.json.decode(item, type=_Named)
    return block.type == "advisor_tool_result" or (block.type, block.name) == ("server_tool_use", "advisor")


class StreamedMessage:
    """A message assembled from the events of its stream."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.complete = False
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._thought: int | None = None

    def feed(self, event: Mapping[str, Any]) -> ModelDelta | None:
        """Process one event; returns what it adds to the reply, if anything."""
        match event.get("type"):
            case "message_start":
                self.fields = event["message"]
            case "content_block_start":
                self._blocks[event["index"]] = event["content_block"]
            case "content_block_delta":
                return self._delta(event["index"], event["delta"])
            case "message_delta":
                self.fields.update(event["delta"])
                usage = {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
                self.fields["usage"] = {**(self.fields.get("usage") or {}), **usage}
            case "message_stop":
                self.complete = True
        return None

    def blocks(self) -> Iterator[tuple[dict[str, Any], str]]:
        """The blocks in order, each with its streamed input."""
        return ((self._blocks[index], "".join(self._inputs.get(index, ()))) for index in sorted(self._blocks))

    def _delta(self, index: int, delta: Mapping[str, Any]) -> ModelDelta | None:
        block = self._blocks[index]
        match delta.get("type"):
            case "text_delta":
                block["text"] = block.get("text", "") + delta["text"]
                return TextDelta(delta["text"]) if delta["text"] else None
            case "input_json_delta":
                self._inputs.setdefault(index, []).append(delta["partial_json"])
                if block["type"] == "tool_use" and delta["partial_json"]:
                    return ArgumentsDelta(block["id"], block["name"], delta["partial_json"])
            case "thinking_delta":
                gap = "\n\n" if self._thought not in (None, index) else ""
                self._thought = index
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
                return ReasoningDelta(gap + delta["thinking"]) if delta["thinking"] else None
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
            case "compaction_delta":
                block.update((name, value) for name, value in delta.items() if name != "type")
        return None


class MessageEventParser:
    """Reads a streamed message and passes on its deltas."""

    def __init__(self, *more: str) -> None:
        self._message = StreamedMessage()
        self._more = more

    def feed(self, event: bytes) -> Sequence[ModelDelta | ModelReply]:
        data = msgspec.json.decode(event, type=dict[str, Any])
        kind = data.get("type")
        if kind == "error":
            error = data.get("error") or {}
            message = f"anthropic reported an error in the stream: {error.get('message') or 'no explanation'}"
            raise TransportError.unusable(message, data, retryable=error.get("type") in _RETRYABLE)
        delta = self._message.feed(data)
        if kind == "message_stop":
            blocks = [{**block, "input": _input(text)} if text else block for block, text in self._message.blocks()]
            return (_reply(_decode_answer(encode({**self._message.fields, "content": blocks})), self._more),)
        return (delta,) if delta else ()


def _input(text: str) -> Any:
    """A tool's streamed input, unchanged; wrapped in an object if the reply was cut off before it was valid JSON."""
    try:
        msgspec.json.decode(text)
        return msgspec.Raw(text.encode())
    except msgspec.DecodeError:
        return {"malformed": text}


def found_tools(items: Sequence[str]) -> tuple[str, ...]:
    """The tools that the tool search tool found; a failed search finds none."""
    results = [msgspec.json.decode(item)["content"] for item in items if is_search(item)]
    return tuple(found["tool_name"] for result in results for found in result.get("tool_references", ()))


def with_call_ids(items: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
    """The blocks with these ids of their calls, in order."""
    remaining = iter(ids)
    renamed: list[str] = []
    for item in items:
        if _decode_kind(item).type == "tool_use":
            item = encode({**msgspec.json.decode(item), "id": next(remaining)}).decode()
        renamed.append(item)
    return tuple(renamed)


def is_search(item: str) -> bool:
    """True if a message item is what the tool search tool found."""
    return '"tool_search_tool_result"' in item


def known_findings(items: Sequence[str], known: Collection[str]) -> list[str]:
    """The items, of whose searches only tools that are known are found; a search that is left with none is left out."""
    kept: list[str] = []
    gone: set[str] = set()
    for item in items:
        if unknown := is_search(item) and {*found_tools([item])} - {*known}:
            block = msgspec.json.decode(item)
            references = [each for each in block["content"]["tool_references"] if each["tool_name"] not in unknown]
            item = msgspec.json.encode(block | {"content": block["content"] | {"tool_references": references}}).decode()
            gone |= {block["tool_use_id"]} if not references else set()
        kept.append(item)
    return [item for item in kept if not any(identity in item for identity in gone)]
