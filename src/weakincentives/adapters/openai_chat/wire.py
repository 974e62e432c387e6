"""The chat format: requests that each extend the one before, written in the way that a server accepts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from weakincentives.adapters.network import (
    FIRST_USER_TURN,
    EncodedRequest,
    ToolCache,
    Wire,
    base64_text,
    data_url,
    encode,
)
from weakincentives.adapters.openai import wire as openai
from weakincentives.adapters.openai_chat.reply import ORIGIN, ChunkParser, ReplyParser, json_text
from weakincentives.content import Audio, Image, Media, Part
from weakincentives.prompt import HostedTool, StructuredOutputConfig, Tool, portable_name
from weakincentives.runtime import Message, ModelReply, ModelRequest

PROVIDER = "openai_chat"
_OUTPUT = "\n\nWrite your final answer as JSON that fits this JSON Schema, without any other text:\n\n"
_STRICT = (b',"strict":true}}', b',"strict":false}}')

_REJECTIONS = {
    "stream_options": re.compile("stream_options"),
    "strict": re.compile(r"\bstrict\b"),
    "json_schema": re.compile(r"response_format|json_schema|json_object|\bjson mode\b", re.IGNORECASE),
    "json_object": re.compile(r"response_format|json_object|\bjson mode\b", re.IGNORECASE),
    "max_tokens": re.compile("max_completion_tokens"),
    "bare calls": re.compile(r"reasoning_content.{0,80}passed back|[Mm]issing .{0,3}reasoning_content"),
    "reasoning": re.compile(r"\breasoning(_content|_details)?\b"),
}
"""How servers name what they do not accept: fields that can be left out, and calls without any reasoning."""


def _without_echoes(shown: str, messages: Iterable[Message]) -> str:
    """An error without what it quotes of the request: no user may decide what all requests leave out."""
    for message in messages:
        if message.role in ("user", "tool"):
            media = (part for part in message.parts if isinstance(part, Media))
            for quoted in (*(text for part in media for text in (part.url, part.name)), message.text):
                for form in (quoted, repr(quoted)[1:-1]):
                    shown = shown.replace(form, "") if form else shown
    return shown


def declare_tool(tool: Tool[Any, Any]) -> dict[str, Any]:
    """A function tool, as OpenAI's own API declares it, nested one level deeper."""
    declared = openai.declare_tool(tool)
    return {"type": declared.pop("type"), "function": declared}


class ChatWire(Wire):
    """One run as chat completions; tools that appear later are appended, since the format has no other way.

    `origin` names who wrote a reply, because nobody else understands its reasoning. If a server `combines` tools with a
    schema for the answer, it gets both; for others the schema stands in the system text, and is enforced only in
    requests without tools. `lacks` are the features that the server has rejected, shared by the wires of an adapter.
    """

    provider = PROVIDER
    tools = ToolCache(declare_tool)
    _opened: bool

    def __init__(
        self,
        model: str,
        *,
        origin: str,
        combines: bool = True,
        first_user_turn: bool = True,
        lacks: set[str] | None = None,
        **options: Any,
    ) -> None:
        self._first_user_turn = first_user_turn
        self._combines = combines
        self._lacks = set() if lacks is None else lacks
        self._without: frozenset[str] = frozenset()
        self._described_output: StructuredOutputConfig | None = None
        self._schema: str | None = None
        self._last: tuple[ModelRequest, bool] | None = None
        super().__init__(model, **options)
        self._origin = encode({"type": "origin", "vendor": origin}).decode()

    def encode_request(self, request: ModelRequest, *, stream: bool = False) -> EncodedRequest:
        if len(self._without) != len(self._lacks):
            self._without, self._start_of = frozenset(self._lacks), ()
            self._forget()
        described = None if self._combines and "json_schema" not in self._without else request.output
        if described is not self._described_output:
            self._described_output = described
            schema = None if described is None else _OUTPUT + encode(described.wire_schema).decode()
            if schema != self._schema:
                self._schema = schema
                self._forget()
        self._last = request, stream
        return super().encode_request(request, stream=stream)

    @property
    def stream_fields(self) -> bytes:  # type: ignore[override]
        options = b"" if "stream_options" in self._without else b',"stream_options":{"include_usage":true}'
        return b',"stream":true' + options + b"}"

    def adapt(self, payload: object) -> bool:
        """Leave out of later requests what the server rejects; False if the last request had nothing of the kind."""
        if self._last is None:
            return False
        request, stream = self._last
        form = self._response_format(request)
        had = {
            "stream_options": stream,
            "strict": bool(request.tools) or "json_schema" in form,
            "json_schema": "json_schema" in form,
            "json_object": form.get("type") == "json_object",
            "max_tokens": request.settings.max_output_tokens is not None,
            "bare calls": any(message.tool_calls for message in request.messages),
            "reasoning": any(item.startswith(ORIGIN) for message in request.messages for item in message.items),
        }
        shown = _without_echoes(str(payload), request.messages)
        for feature, pattern in _REJECTIONS.items():
            if had[feature] and feature not in self._without and pattern.search(shown):
                self._lacks.add(feature)
                return True
        return False

    def _forget(self) -> None:
        self._known = ()
        self._restart()

    def _extend(self, request: ModelRequest) -> None:
        super()._extend(request)
        self._open()

    def _open(self) -> None:
        """Add a user turn after the system text, unless the conversation has one."""
        if not self._opened:
            self._append(encode({"role": "user", "content": FIRST_USER_TURN}))
            self._opened = True

    def _restart(self) -> None:
        super()._restart()
        self._opened = not self._first_user_turn
        self._call_ids: set[str] = set()

    def _fields(self, request: ModelRequest) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": self._model, **self._parameters, **self._settings(request)}
        for tool in self._listed_tools(request)[1]:
            declared = self._declared_as(tool)
            # A codec for this format returns a tool or, without a type, fields of the request itself.
            fields |= {} if "type" in declared else declared
        if form := self._response_format(request):
            fields["response_format"] = form
        return fields

    def _response_format(self, request: ModelRequest) -> dict[str, Any]:
        output = request.output
        if output is None or not (self._combines or not request.tools) or "json_object" in self._without:
            return {}
        if "json_schema" in self._without:
            return {"type": "json_object"}
        form: dict[str, Any] = {"name": "output", "strict": output.is_strict, "schema": output.wire_schema}
        if "strict" in self._without:
            del form["strict"]
        return {"type": "json_schema", "json_schema": form}

    def _encode_tools(
        self, tools: Sequence[Tool[Any, Any]], hosted: Iterable[HostedTool[Any]], request: ModelRequest
    ) -> list[bytes]:
        typed = [tool for tool in hosted if "type" in self._declared_as(tool)]
        encoded = super()._encode_tools(tools, typed, request)
        if "strict" not in self._without:
            return encoded
        bare = [tool.removesuffix(_STRICT[0]).removesuffix(_STRICT[1]) for tool in encoded]
        return [tool if tool == whole else tool + b"}}" for tool, whole in zip(bare, encoded, strict=True)]

    def _settings(self, request: ModelRequest) -> dict[str, Any]:
        """The neutral settings as fields; the server rejects those that its model does not accept."""
        settings = request.settings
        fields: dict[str, Any] = {
            "reasoning_effort": settings.effort,
            "temperature": settings.temperature,
            "max_completion_tokens" if "max_tokens" in self._without else "max_tokens": settings.max_output_tokens,
            "parallel_tool_calls": settings.parallel_tool_calls if request.tools else None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _add(self, message: Message, request: ModelRequest) -> None:
        role = message.role
        if role == "tool":
            content = self._result(message, request)
            self._append(encode({"role": "tool", "tool_call_id": message.call_id, "content": content}))
        elif role == "assistant":
            self._open()
            self._call_ids.update(call.id for call in message.tool_calls)
            spoken = self._assistant(message)
            if message.tool_calls and "bare calls" in self._without and b'"reasoning_content":' not in spoken:
                spoken = spoken[:-1] + b',"reasoning_content":""}'
            self._append(spoken)
        elif role in ("system", "user"):
            self._opened = self._opened or role == "user"
            content = self._content(message)
            if role == "system" and self._count and not self._combines:
                # The templates of many models have room for system text only at the beginning.
                role, content = "user", f"<system-reminder>\n{message.text}\n</system-reminder>"
            if self._count == 0 and self._schema is not None:
                part = {"type": "text", "text": self._schema}
                content = content + self._schema if isinstance(content, str) else [*content, part]
            self._append(encode({"role": role, "content": content}))
        elif role == "tools_added" and (text := self._description(message)):
            self._append(encode({"role": "user", "content": text}))

    def _assistant(self, message: Message) -> bytes:
        """The message, unchanged if it came from the same model: only that understands its own reasoning."""
        if message.items and message.provider == self.provider:
            origin = next((item for item in message.items[1:] if item.startswith(ORIGIN)), None)
            if origin is None or (origin == self._origin and "reasoning" not in self._without):
                return message.items[0].encode()
        spoken: dict[str, Any] = {"role": "assistant", "content": message.text or None}
        for call in message.tool_calls:
            asked = {"name": portable_name(call.name), "arguments": json_text(call.arguments)}
            spoken.setdefault("tool_calls", []).append({"id": call.id, "type": "function", "function": asked})
        return encode(spoken)

    def _part(self, part: Part) -> dict[str, Any]:
        if not isinstance(part, Media):
            return {"type": "text", "text": part.text}
        if isinstance(part, Image):
            return {"type": "image_url", "image_url": {"url": part.url or part.file_id or data_url(part)}}
        if isinstance(part, Audio):
            form = "mp3" if part.media_type == "audio/mpeg" else "wav"
            return {"type": "input_audio", "input_audio": {"data": base64_text(part), "format": form}}
        if part.file_id:
            return {"type": "file", "file": {"file_id": part.file_id}}
        return {"type": "file", "file": {"filename": part.name or "document.pdf", "file_data": data_url(part)}}

    def parse_reply(self, body: bytes | bytearray) -> ModelReply:
        return self._reply_parser().parse(body)

    def event_parser(self) -> ChunkParser:
        return ChunkParser(self._reply_parser())

    def _reply_parser(self) -> ReplyParser:
        return ReplyParser(self.provider, self._origin, self._call_ids)
