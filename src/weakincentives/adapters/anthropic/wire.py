"""Anthropic's Messages API: requests with a stable prefix, so that the prompt cache holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from weakincentives.adapters.anthropic.reply import CONTAINER, MessageEventParser, decode_container, parse_reply
from weakincentives.adapters.network import (
    FIRST_USER_TURN,
    EncodedRequest,
    ToolCache,
    Wire,
    encode,
    select_tools,
)
from weakincentives.prompt import Tool, portable_name
from weakincentives.runtime import HostedToolCodec, Message, ModelReply, ModelRequest
from weakincentives.serde import describe_bounds

PROVIDER = "anthropic"
Route = Literal["tool_addition", "append"]

TOOL_CHANGES = "mid-conversation-tool-changes-2026-07-01"
INLINE_TOOLS = "inline-tools-2026-09-15"
CACHED = {"type": "ephemeral"}

_ACCEPTS_TOOL_ADDITION = re.compile(r"claude-(fable-5|mythos-5|opus-4-8|opus-5|sonnet-5-5|haiku-5-5)")


def best_route(model: str) -> Route:
    """`tool_addition` if the model is documented to accept it, else `append`."""
    return "tool_addition" if _ACCEPTS_TOOL_ADDITION.match(model) else "append"


def declare_tool(tool: Tool[Any, Any]) -> dict[str, Any]:
    return {"name": _name(tool.name), "description": tool.description, "input_schema": tool.schema}


def _name(name: str) -> str:
    return portable_name(name, limit=128)


class MessagesWire(Wire):
    """One run in the format of the Messages API.

    There are two cache breakpoints: one after the system text (which covers the tools before it), and the automatic
    one at the end of the conversation, a field of its own that leaves earlier messages untouched. The parameter
    `cache_control` sets another marker (`{"type": "ephemeral", "ttl": "1h"}`), or none if it is None.
    """

    provider = PROVIDER
    tools = ToolCache(declare_tool)

    def __init__(
        self,
        model: str,
        *,
        route: Route,
        codecs: Mapping[str, HostedToolCodec[Any, Any]],
        parameters: Mapping[str, Any],
        max_tokens: int,
    ) -> None:
        super().__init__(codecs)
        self._model = model
        self._route = route
        self._parameters = {name: value for name, value in parameters.items() if name != "cache_control"}
        self._cached: Mapping[str, Any] | None = parameters.get("cache_control", CACHED)
        self._max_tokens = max_tokens
        self._start = b""
        self._start_of: tuple[int, int, object, bytes] | None = None
        self._forget()

    def _forget(self) -> None:
        self._system: list[bytes] = []
        self._results: list[bytes] = []
        self._changes: list[bytes] = []
        self._betas: dict[str, None] = {}
        self._declared: set[str] = set()
        self._container = b""

    def encode_request(self, request: ModelRequest, *, stream: bool = False) -> EncodedRequest:
        self._extend(request)
        self._close_turn()
        if not self._buffer:
            self._append(encode({"role": "user", "content": FIRST_USER_TURN}))
        end = (b'],"cache_control":' + encode(self._cached) if self._cached else b"]") + self._container
        if stream:
            end += b',"stream":true'
        return EncodedRequest((self._begin(request), self._buffer, end, b"}"), self._headers(request))

    def _headers(self, request: ModelRequest) -> Mapping[str, str]:
        betas = list(self._betas)
        if request.hosted_tools:
            betas += self._codec_values("betas", request)
        return {"anthropic-beta": ",".join(dict.fromkeys(betas))} if betas else {}

    def _begin(self, request: ModelRequest) -> bytes:
        append = self._route == "append"
        offered = len(request.tools) if append else request.initial_tools
        hosted = len(request.hosted_tools) if append else request.initial_hosted_tools
        system = b",".join(self._system)
        known = (offered, hosted, request.output, system)
        if self._start_of != known:
            tools = self._encode_tools(request.tools[:offered], request.hosted_tools[:hosted], request)
            head = encode(
                {"model": self._model, "max_tokens": self._max_tokens, **self._parameters, **self._output(request)}
            )
            listed = b',"tools":[' + b",".join(tools) + b"]" if tools else b""
            told = b',"system":[' + system + b"]" if system else b""
            self._start = head[:-1] + listed + told + b',"messages":['
            self._start_of = known
        return self._start

    def _output(self, request: ModelRequest) -> dict[str, Any]:
        if request.output is None:
            return {}
        form = {"type": "json_schema", "schema": describe_bounds(request.output.wire_schema)}
        return {"output_config": {**self._parameters.get("output_config", {}), "format": form}}

    def _restart(self) -> None:
        super()._restart()
        self._forget()

    def _add(self, message: Message, request: ModelRequest) -> None:
        role = message.role
        if role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.call_id, "content": message.text}
            self._results.append(encode(result if message.success else {**result, "is_error": True}))
            return
        if role in ("tools_added", "tools_removed"):
            if self._route == "tool_addition":
                self._add_changes(message, request)
            return
        if role == "system" and not self._buffer:
            marked = {"cache_control": self._cached} if self._cached else {}
            self._system.append(encode({"type": "text", "text": message.text, **marked}))
            return
        self._close_turn()
        if role == "assistant":
            if not self._buffer:
                self._append(encode({"role": "user", "content": FIRST_USER_TURN}))
            self._append(b'{"role":"assistant","content":[' + b",".join(_blocks(message)) + b"]}")
            self._keep_container(message)
        else:
            self._append(encode({"role": "user", "content": message.text}))

    def _keep_container(self, message: Message) -> None:
        """Let code continue in the container it ran in, unless the user chose one."""
        if "container" in self._parameters or message.provider != PROVIDER:
            return
        for item in message.items:
            if item.startswith(CONTAINER):
                self._container = b',"container":' + encode(decode_container(item).id)

    def _close_turn(self) -> None:
        """Write the results of a turn as one user message, followed by the tools that appeared with them."""
        if self._results:
            self._append(b'{"role":"user","content":[' + b",".join(self._results) + b"]}")
            self._results = []
        if self._changes:
            self._append(b'{"role":"system","content":[' + b",".join(self._changes) + b"]}")
            self._changes = []

    def _add_changes(self, message: Message, request: ModelRequest) -> None:
        self._betas[TOOL_CHANGES] = None
        if message.role == "tools_removed":
            self._changes += [_change("tool_removal", self._name(name, request)) for name in message.tools]
            return
        initial = {tool.name for tool in request.tools[: request.initial_tools]}
        initial |= {tool.name for tool in request.hosted_tools[: request.initial_hosted_tools]}
        known = [name for name in message.tools if name in self._declared or name in initial]
        self._changes += [_change("tool_addition", self._name(name, request)) for name in known]
        new = [name for name in message.tools if name not in known]
        if not new and any(name in self._declared for name in known):
            self._betas[INLINE_TOOLS] = None
        tools, hosted = select_tools(new, request.tools, request.hosted_tools)
        for encoded in self._encode_tools(tools, hosted, request):
            self._betas[INLINE_TOOLS] = None
            definition = b'{"type":"tool_definition","definition":' + encoded + b"}"
            self._changes.append(b'{"type":"tool_addition","tool":' + definition + b"}")
        self._declared.update(new)

    def _name(self, name: str, request: ModelRequest) -> str:
        """The tool's name as the model knows it; server tools have the vendor's names."""
        for tool in request.hosted_tools:
            if tool.name == name:
                return str(self._codec(tool, request).serialize(tool).get("name", name))
        return _name(name)

    def parse_reply(self, body: bytes | bytearray) -> ModelReply:
        return parse_reply(body)

    def event_parser(self) -> MessageEventParser:
        return MessageEventParser()


def _change(kind: str, name: str) -> bytes:
    return encode({"type": kind, "tool": {"type": "tool_reference", "name": name}})


def _blocks(message: Message) -> list[bytes]:
    if message.items and message.provider == PROVIDER:
        return [item.encode() for item in message.items if not item.startswith(CONTAINER)]
    blocks = [encode({"type": "text", "text": message.text})] if message.text else []
    for call in message.tool_calls:
        head = encode({"type": "tool_use", "id": call.id, "name": _name(call.name)})
        blocks.append(head[:-1] + b',"input":' + _object(call.arguments) + b"}")
    return blocks


def _object(arguments: str) -> bytes:
    """Arguments as the object the format requires; malformed text is wrapped in one."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        value = {"malformed": arguments}
    return encode(value if isinstance(value, dict) else {"malformed": arguments})
