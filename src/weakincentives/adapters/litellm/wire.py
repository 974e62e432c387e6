"""The chat format that LiteLLM takes for every provider behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from weakincentives.adapters.network.response import Failure
from weakincentives.adapters.network.wire import OPENING, Outgoing, Wire, encode, encoded_tools
from weakincentives.limits import TokenUsage
from weakincentives.prompt.tool import Tool
from weakincentives.runtime.codec import HostedToolCodec
from weakincentives.runtime.messages import Message, ModelReply, ModelRequest, StopReason, ToolCall

PROVIDER = "litellm"
SLOT = "_encoded_for_chat"
SERVER_CALL = "srvtoolu_"
"""How the ids begin of calls that Anthropic has answered itself, which LiteLLM lists among the model's own."""

_STOPS: dict[str, StopReason] = {
    "stop": "end",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
    "refusal": "refusal",
}


def describe(tool: Tool[Any, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.schema,
            "strict": True,
        },
    }


class ChatWire(Wire):
    """One run as a chat completion; tools that appear later are appended, the only way this format knows."""

    provider = PROVIDER

    def __init__(
        self,
        model: str,
        *,
        codecs: Mapping[str, HostedToolCodec[Any, Any]],
        parameters: Mapping[str, Any],
        opening: bool,
    ) -> None:
        super().__init__(codecs)
        self._model = model
        self._parameters = parameters
        self._opening = opening
        self._opened = not opening
        self._start = b""
        self._start_of: tuple[int, int, object] | None = None

    def outgoing(self, request: ModelRequest, *, stream: bool = False) -> Outgoing:
        self._extend(request)
        self._open()
        end = b'],"stream":true,"stream_options":{"include_usage":true}}' if stream else b"]}"
        return Outgoing((self._begin(request), self._buffer, end), {})

    def _open(self) -> None:
        """A user turn after the system text, unless the conversation has its own."""
        if not self._opened:
            self._append(encode({"role": "user", "content": OPENING}))
            self._opened = True

    def _restart(self) -> None:
        super()._restart()
        self._opened = not self._opening

    def _begin(self, request: ModelRequest) -> bytes:
        known = (len(request.tools), len(request.hosted_tools), request.output)
        if self._start_of != known:
            head: dict[str, Any] = {"model": self._model, **self._parameters}
            tools = encoded_tools(request.tools, SLOT, describe)
            for hosted in request.hosted_tools:
                declared = self._codec(hosted, request).serialize(hosted)
                # A codec for this format says either a tool or, without a type, fields of the request itself.
                if "type" in declared:
                    tools.append(encode(declared))
                else:
                    head.update(declared)
            if request.output is not None:
                form = {"name": "output", "strict": True, "schema": request.output.wire_schema}
                head["response_format"] = {"type": "json_schema", "json_schema": form}
            listed = b',"tools":[' + b",".join(tools) + b"]" if tools else b""
            self._start = encode(head)[:-1] + listed + b',"messages":['
            self._start_of = known
        return self._start

    def _add(self, message: Message, request: ModelRequest) -> None:
        role = message.role
        if role == "tool":
            self._append(encode({"role": "tool", "tool_call_id": message.call_id, "content": message.text}))
        elif role == "assistant":
            self._open()
            self._append(_assistant(message))
        elif role in ("system", "user"):
            self._opened = self._opened or role == "user"
            self._append(encode({"role": role, "content": message.text}))

    def reply(self, body: bytes | bytearray) -> ModelReply:
        return _reply(_decode_completion(body))

    def events(self) -> ChunkEvents:
        return ChunkEvents()


def _assistant(message: Message) -> bytes:
    if message.items and message.provider == PROVIDER:
        return message.items[0].encode()
    spoken: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if message.tool_calls:
        spoken["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return encode(spoken)


class _Details(msgspec.Struct):
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0
    web_search_requests: int | None = 0


class _ServerTools(msgspec.Struct):
    web_search_requests: int | None = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    server_tool_use: _ServerTools | None = None


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


def _reply(completion: _Completion) -> ModelReply:
    if not completion.choices:
        raise Failure(
            "litellm answered without any choices",
            phase="response",
            payload={"id": completion.id, "choices": []},
            retryable=False,
        )
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
        raise Failure(
            "litellm answered without any content",
            phase="response",
            payload={"id": completion.id, "message": msgspec.json.decode(choice.message)},
            retryable=False,
        )
    return ModelReply(
        text=text,
        tool_calls=calls,
        usage=_usage(completion.usage, hosted),
        stop_reason=stop,
        items=(_echo(choice.message), *_grounding(message, hosted)),
        response_id=completion.id or "",
        model=completion.model or "",
    )


def _echo(raw: msgspec.Raw) -> str:
    """The message as it can be sent back: fields without a value are not accepted by every provider."""
    message = msgspec.json.decode(raw, type=dict[str, Any])
    kept = {key: value for key, value in message.items() if value is not None and key != "annotations"}
    return encode({"role": "assistant", "content": None, **kept}).decode()


def _grounding(message: _Message, hosted: int) -> tuple[str, ...]:
    """What the answer rests on, as an item of its own: only the first item is sent back."""
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
    # LiteLLM counts searches in one place or the other, depending on the provider.
    searched = max((part.web_search_requests or 0 for part in (usage.server_tool_use, read) if part), default=0)
    return TokenUsage(
        usage.prompt_tokens or 0,
        usage.completion_tokens or 0,
        (read.cached_tokens or 0) if read else 0,
        (written.reasoning_tokens or 0) if written else 0,
        max(searched, hosted),
    )


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    annotations: list[Any] | None = None
    provider_specific_fields: dict[str, Any] | None = None


class _Streamed(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Streamed] = []
    id: str | None = ""
    model: str | None = ""
    usage: _Usage | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class ChunkEvents:
    """Puts a streamed completion together; an empty event marks its end."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._annotations: list[Any] = []
        self._citations: list[Any] = []
        self._results: list[Any] = []
        self._finish: str | None = None
        self._last = _Chunk()
        self._usage: _Usage | None = None

    def feed(self, event: bytes) -> Iterable[str | ModelReply]:
        if event in (b"", b"[DONE]"):
            return (self._reply(),)
        chunk = _decode_chunk(event)
        self._last = chunk
        self._usage = chunk.usage or self._usage
        deltas: list[str | ModelReply] = []
        for choice in chunk.choices[:1]:
            self._finish = choice.finish_reason or self._finish
            delta = choice.delta or _Delta()
            if delta.content:
                self._text.append(delta.content)
                deltas.append(delta.content)
            if delta.refusal:
                self._refusal.append(delta.refusal)
            self._add_grounding(delta)
            for call in delta.tool_calls or ():
                self._add_call(call)
        return deltas

    def _add_grounding(self, delta: _Delta) -> None:
        self._annotations += delta.annotations or ()
        fields = delta.provider_specific_fields or {}
        if "citation" in fields:
            self._citations.append([fields["citation"]])
        self._results = fields.get("web_search_results") or self._results

    def _add_call(self, call: _Call) -> None:
        kept = self._calls.setdefault(
            call.index or 0, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        kept["id"] = call.id or kept["id"]
        kept["function"]["name"] = call.function.name or kept["function"]["name"]
        kept["function"]["arguments"] += call.function.arguments or ""

    def _reply(self) -> ModelReply:
        if self._finish is None:
            raise Failure("litellm's stream ended before the answer was complete", phase="response")
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text) or None}
        if self._refusal:
            message["refusal"] = "".join(self._refusal)
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        if self._annotations:
            message["annotations"] = self._annotations
        fields = {"citations": self._citations, "web_search_results": self._results}
        if any(fields.values()):
            message["provider_specific_fields"] = {name: value for name, value in fields.items() if value}
        choice = _Choice(msgspec.Raw(encode(message)), self._finish)
        return _reply(_Completion([choice], self._last.id, self._last.model, self._usage))
