"""OpenAI's Responses API: stateless requests, each of which extends the one before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from weakincentives.adapters.network import EncodedRequest, ToolCache, Wire, encode, select_tools
from weakincentives.adapters.openai.reply import ResponseEventParser, parse_reply
from weakincentives.prompt import Tool, portable_name
from weakincentives.runtime import HostedToolCodec, Message, ModelReply, ModelRequest
from weakincentives.serde import is_strict

PROVIDER = "openai"
MAX_DESCRIPTION = 1024
Route = Literal["additional_tools", "append"]

_ACCEPTS_ADDITIONAL_TOOLS = re.compile(r"(ft:)?(gpt-(4o|4\.1|4\.5|[5-9]|[1-9]\d)|o[3-9])")
_REASONS = re.compile(r"(ft:)?(gpt-([5-9]|[1-9]\d)(?!.*chat)|o\d)")
_VERSION = re.compile(r"(?:ft:)?gpt-(\d+)(?:\.(\d+))?")


def best_route(model: str) -> Route:
    """`additional_tools` if the model is documented to accept that item, else `append`."""
    return "additional_tools" if _ACCEPTS_ADDITIONAL_TOOLS.match(model) else "append"


def declare_tool(tool: Tool[Any, Any]) -> dict[str, Any]:
    """A function tool, strict if its schema allows it."""
    return {
        "type": "function",
        "name": portable_name(tool.name),
        "description": tool.brief(MAX_DESCRIPTION),
        "parameters": tool.schema,
        "strict": is_strict(tool.schema),
    }


class ResponsesWire(Wire):
    """One run in the format of the Responses API."""

    provider = PROVIDER
    tools = ToolCache(declare_tool)

    def __init__(
        self,
        model: str,
        *,
        route: Route,
        codecs: Mapping[str, HostedToolCodec[Any, Any]],
        parameters: Mapping[str, Any],
    ) -> None:
        super().__init__(codecs)
        self._model = model
        self._route = route
        self._parameters = parameters
        self._declared: set[str] = set()
        self._start: bytes = b""
        self._start_of: tuple[int, int, object] | None = None

    def encode_request(self, request: ModelRequest, *, stream: bool = False) -> EncodedRequest:
        self._extend(request)
        end = self._end(request)
        if stream:
            end += b',"stream":true'
        return EncodedRequest((self._begin(request), self._buffer, b"]", end, b"}"), {})

    def _begin(self, request: ModelRequest) -> bytes:
        append = self._route == "append"
        offered = len(request.tools) if append else request.initial_tools
        hosted = len(request.hosted_tools) if append else request.initial_hosted_tools
        known = (offered, hosted, request.output)
        if self._start_of != known:
            tools = self._encode_tools(request.tools[:offered], request.hosted_tools[:hosted], request)
            further = {name: value for name, value in self._parameters.items() if name != "include"}
            head = encode({"model": self._model, "store": False, **further, **self._text(request)})
            listed = b',"tools":[' + b",".join(tools) + b"]" if tools else b""
            self._start = head[:-1] + listed + b',"input":['
            self._start_of = known
        return self._start

    def _text(self, request: ModelRequest) -> dict[str, Any]:
        if request.output is None:
            return {}
        schema = request.output.wire_schema
        form = {"type": "json_schema", "name": "output", "strict": is_strict(schema), "schema": schema}
        return {"text": {**self._parameters.get("text", {}), "format": form}}

    def _end(self, request: ModelRequest) -> bytes:
        end = b""
        include = list(self._parameters.get("include", ()))
        if _REASONS.match(self._model):
            include.append("reasoning.encrypted_content")
        if request.hosted_tools:
            include += self._codec_values("include", request)
        if include:
            end += b',"include":' + encode(list(dict.fromkeys(include)))
        if request.revoked and (choice := self._allowed(request)) is not None:
            end += b',"tool_choice":' + encode(choice)
        return end

    def _allowed(self, request: ModelRequest) -> dict[str, Any] | str | None:
        """The tools that may still be called, as a `tool_choice`; None if the model does not accept it."""
        tools = [tool for tool in request.tools if tool.name not in request.revoked]
        hosted = [tool for tool in request.hosted_tools if tool.name not in request.revoked]
        if self._route == "additional_tools" and not _names_added_tools(self._model):
            added = {tool.name for tool in request.tools[request.initial_tools :]}
            added |= {tool.name for tool in request.hosted_tools[request.initial_hosted_tools :]}
            if added & {tool.name for tool in tools} or added & {tool.name for tool in hosted}:
                return None
        if not tools and not hosted:
            return "none"
        listed: list[dict[str, Any]] = [{"type": "function", "name": portable_name(tool.name)} for tool in tools]
        listed += [{"type": self._codec(tool, request).serialize(tool)["type"]} for tool in hosted]
        return {"type": "allowed_tools", "mode": "auto", "tools": listed}

    def _restart(self) -> None:
        super()._restart()
        self._declared = set()

    def _add(self, message: Message, request: ModelRequest) -> None:
        role = message.role
        if role == "tool":
            self._append(encode({"type": "function_call_output", "call_id": message.call_id, "output": message.text}))
        elif role == "assistant":
            self._add_assistant(message)
        elif role == "system":
            self._append(encode({"role": "developer", "content": message.text}))
        elif role == "user":
            self._append(encode({"role": "user", "content": message.text}))
        elif role == "tools_added":
            if self._route == "additional_tools":
                self._add_tools(message, request)
            if message.text:
                self._append(encode({"role": "developer", "content": message.text}))

    def _add_assistant(self, message: Message) -> None:
        if message.items and message.provider == PROVIDER:
            for item in message.items:
                self._append(item.encode())
            return
        if message.text:
            self._append(encode({"role": "assistant", "content": message.text}))
        for call in message.tool_calls:
            name = portable_name(call.name)
            self._append(
                encode({"type": "function_call", "call_id": call.id, "name": name, "arguments": call.arguments})
            )

    def _add_tools(self, message: Message, request: ModelRequest) -> None:
        # A tool that was declared and later revoked comes back through `tool_choice` alone.
        names = [name for name in message.tools if name not in self._declared]
        tools, hosted = select_tools(
            names, request.tools[request.initial_tools :], request.hosted_tools[request.initial_hosted_tools :]
        )
        encoded = self._encode_tools(tools, hosted, request)
        if encoded:
            self._declared.update(names)
            listed = b",".join(encoded)
            self._append(b'{"type":"additional_tools","role":"developer","tools":[' + listed + b"]}")

    def parse_reply(self, body: bytes | bytearray) -> ModelReply:
        return parse_reply(body)

    def event_parser(self) -> ResponseEventParser:
        return ResponseEventParser()


def _names_added_tools(model: str) -> bool:
    """From gpt-5.6 on, `tool_choice` may name a tool that an `additional_tools` item declared."""
    found = _VERSION.match(model)
    return found is not None and (int(found[1]), int(found[2] or 0)) >= (5, 6)
