"""The chat format that LiteLLM takes for every provider behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weakincentives.adapters.litellm.reply import ChunkEvents, read
from weakincentives.adapters.network.wire import OPENING, Outgoing, Wire, encode, encoded_tools
from weakincentives.prompt.tool import Tool
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.messages import Message, ModelReply, ModelRequest
from weakincentives.serde import is_strict

PROVIDER = "litellm"
SLOT = "_encoded_for_chat"


def describe(tool: Tool[Any, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.schema,
            "strict": is_strict(tool.schema),
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
        opening: bool,
    ) -> None:
        super().__init__(codecs)
        self._model = model
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
            head: dict[str, Any] = {"model": self._model}
            tools = encoded_tools(request.tools, SLOT, describe)
            for hosted in request.hosted_tools:
                declared = self._codec(hosted, request).serialize(hosted)
                # A codec for this format says either a tool or, without a type, fields of the request itself.
                if "type" in declared:
                    tools.append(encode(declared))
                else:
                    head.update(declared)
            if request.output is not None:
                schema = request.output.wire_schema
                form = {"name": "output", "strict": is_strict(schema), "schema": schema}
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
        return read(body)

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
