"""The chat format that LiteLLM accepts for every provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weakincentives.adapters.litellm.reply import ChunkParser, parse_reply
from weakincentives.adapters.network import FIRST_USER_TURN, EncodedRequest, ToolCache, Wire, encode
from weakincentives.prompt import Tool, portable_name
from weakincentives.runtime import HostedToolCodec, Message, ModelReply, ModelRequest
from weakincentives.serde import is_strict

PROVIDER = "litellm"
MAX_DESCRIPTION = 1024


def declare_tool(tool: Tool[Any, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": portable_name(tool.name),
            "description": tool.brief(MAX_DESCRIPTION),
            "parameters": tool.schema,
            "strict": is_strict(tool.schema),
        },
    }


class ChatWire(Wire):
    """One run as chat completions; tools that appear later are appended, since the format has no other way."""

    provider = PROVIDER
    tools = ToolCache(declare_tool)

    def __init__(
        self,
        model: str,
        *,
        codecs: Mapping[str, HostedToolCodec[Any, Any]],
        first_user_turn: bool,
    ) -> None:
        super().__init__(codecs)
        self._model = model
        self._first_user_turn = first_user_turn
        self._opened = not first_user_turn
        self._start = b""
        self._start_of: tuple[int, int, object] | None = None

    def encode_request(self, request: ModelRequest, *, stream: bool = False) -> EncodedRequest:
        self._extend(request)
        self._open()
        end = b'],"stream":true,"stream_options":{"include_usage":true}}' if stream else b"]}"
        return EncodedRequest((self._begin(request), self._buffer, end), {})

    def _open(self) -> None:
        """Add a user turn after the system text, unless the conversation has one."""
        if not self._opened:
            self._append(encode({"role": "user", "content": FIRST_USER_TURN}))
            self._opened = True

    def _restart(self) -> None:
        super()._restart()
        self._opened = not self._first_user_turn

    def _begin(self, request: ModelRequest) -> bytes:
        known = (len(request.tools), len(request.hosted_tools), request.output)
        if self._start_of != known:
            head: dict[str, Any] = {"model": self._model}
            tools = [self.tools.encoded(tool) for tool in request.tools]
            for hosted in request.hosted_tools:
                declared = self._codec(hosted, request).serialize(hosted)
                # A codec for this format returns a tool or, without a type, fields of the request itself.
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
        elif role == "tools_added" and message.text:
            # Not every provider takes a system message here.
            self._append(encode({"role": "user", "content": message.text}))

    def parse_reply(self, body: bytes | bytearray) -> ModelReply:
        return parse_reply(body)

    def event_parser(self) -> ChunkParser:
        return ChunkParser()


def _assistant(message: Message) -> bytes:
    if message.items and message.provider == PROVIDER:
        return message.items[0].encode()
    spoken: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if message.tool_calls:
        spoken["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": portable_name(call.name), "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return encode(spoken)
