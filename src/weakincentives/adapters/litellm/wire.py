"""The chat format that LiteLLM accepts for every provider."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weakincentives.adapters.litellm.models import claude_facts, gpt_facts, vendor_of
from weakincentives.adapters.litellm.reply import ORIGIN, ChunkParser, parse_reply
from weakincentives.adapters.network import (
    FIRST_USER_TURN,
    ToolCache,
    Wire,
    base64_text,
    data_url,
    encode,
)
from weakincentives.adapters.openai import wire as openai
from weakincentives.content import Audio, Image, Media, Part
from weakincentives.prompt import HostedTool, Tool, portable_name
from weakincentives.runtime import Message, ModelReply, ModelRequest

PROVIDER = "litellm"


def declare_tool(tool: Tool[Any, Any]) -> dict[str, Any]:
    """A function tool, as OpenAI's own API declares it, nested one level deeper."""
    declared = openai.declare_tool(tool)
    return {"type": declared.pop("type"), "function": declared}


class ChatWire(Wire):
    """One run as chat completions; tools that appear later are appended, since the format has no other way."""

    provider = PROVIDER
    tools = ToolCache(declare_tool)
    stream_fields = b',"stream":true,"stream_options":{"include_usage":true}}'
    _opened: bool

    def __init__(self, model: str, *, first_user_turn: bool, **options: Any) -> None:
        self._first_user_turn = first_user_turn
        super().__init__(model, **options)
        self._origin = encode({"type": "origin", "vendor": vendor_of(model).name}).decode()

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

    def _fields(self, request: ModelRequest) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": self._model, **self._settings(request)}
        for tool in self._listed_tools(request)[1]:
            declared = self._declared_as(tool)
            # A codec for this format returns a tool or, without a type, fields of the request itself.
            fields |= {} if "type" in declared else declared
        if request.output is not None:
            form = {"name": "output", "strict": request.output.is_strict, "schema": request.output.wire_schema}
            fields["response_format"] = {"type": "json_schema", "json_schema": form}
        return fields

    def _encode_tools(
        self, tools: Sequence[Tool[Any, Any]], hosted: Iterable[HostedTool[Any]], request: ModelRequest
    ) -> list[bytes]:
        typed = [tool for tool in hosted if "type" in self._declared_as(tool)]
        return super()._encode_tools(tools, typed, request)

    def _settings(self, request: ModelRequest) -> dict[str, Any]:
        """The neutral settings as LiteLLM's arguments; LiteLLM itself rejects those a model does not accept."""
        settings = request.settings
        fields: dict[str, Any] = {
            "reasoning_effort": settings.effort,
            "temperature": settings.temperature,
            "max_tokens": settings.max_output_tokens,
            "parallel_tool_calls": settings.parallel_tool_calls if request.tools else None,
        }
        if settings.effort == "none" and vendor_of(self._model).name == "anthropic":
            # LiteLLM would send nothing, and the model would think by default.
            fields |= {"reasoning_effort": None, "thinking": {"type": "disabled"}}
        elif settings.effort and gpt_facts(self._model).efforts is not None:
            # For these models, LiteLLM sends requests with tools to another API, which would store the conversation.
            fields["store"] = False
        return {name: value for name, value in fields.items() if value is not None}

    def _add(self, message: Message, request: ModelRequest) -> None:
        role = message.role
        if role == "tool":
            content = self._result(message, request)
            self._append(encode({"role": "tool", "tool_call_id": message.call_id, "content": content}))
        elif role == "assistant":
            self._open()
            self._append(self._assistant(message))
        elif role in ("system", "user"):
            self._opened = self._opened or role == "user"
            self._append(encode({"role": role, "content": self._content(message)}))
        elif role == "tools_added" and (text := self._description(message)):
            self._append(encode({"role": "user", "content": text}))

    def _assistant(self, message: Message) -> bytes:
        """The message, unchanged if it came from the same vendor: only that vendor understands its own reasoning."""
        if message.items and message.provider == PROVIDER:
            origin = next((item for item in message.items[1:] if item.startswith(ORIGIN)), self._origin)
            if origin == self._origin:
                return message.items[0].encode()
        spoken: dict[str, Any] = {"role": "assistant", "content": message.text or None}
        for call in message.tool_calls:
            asked = {"name": portable_name(call.name), "arguments": call.arguments}
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

    @property
    def binds_reasoning(self) -> bool:
        return claude_facts(self._model).binds_thinking

    def rejects_reasoning(self, payload: object) -> bool:
        shown = str(payload)
        return "in thinking block" in shown or "invalid_encrypted_content" in shown

    def parse_reply(self, body: bytes | bytearray) -> ModelReply:
        return parse_reply(body, self._origin)

    def event_parser(self) -> ChunkParser:
        return ChunkParser(self._origin)
