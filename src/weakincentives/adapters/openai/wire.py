"""OpenAI's Responses API: stateless requests, each extending the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weakincentives.adapters.network import ToolCache, Wire, data_url, encode, refused
from weakincentives.adapters.openai.models import facts
from weakincentives.adapters.openai.reply import ResponseEventParser, parse_reply
from weakincentives.content import Document, Image, Media, Part
from weakincentives.prompt import Tool, portable_name
from weakincentives.runtime import Message, ModelReply, ModelRequest
from weakincentives.serde import is_strict

PROVIDER = "openai"
MAX_DESCRIPTION = 1024


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
    search_tool = b'{"type":"tool_search"}'
    conversation = b',"input":['

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self._facts = facts(model)
        reasoning = ("reasoning.encrypted_content",) if self._facts.efforts else ()
        self._include = (*self._parameters.get("include", ()), *reasoning)

    def _fields(self, request: ModelRequest) -> dict[str, Any]:
        further = {name: value for name, value in self._parameters.items() if name != "include"}
        fields = {"model": self._model, "store": False, **further, **self._settings(request)}
        if (output := request.output) is not None:
            form = {"type": "json_schema", "name": "output", "strict": output.is_strict, "schema": output.wire_schema}
            fields["text"] = {**self._parameters.get("text", {}), "format": form}
        return fields

    def _settings(self, request: ModelRequest) -> dict[str, Any]:
        """The neutral settings as request fields; raises for one the model does not accept, before any request."""
        settings, efforts = request.settings, self._facts.efforts
        effort: str | None = settings.effort
        if efforts is not None and effort is not None:
            effort = self._effort(effort, request, efforts)
        if efforts and settings.temperature is not None and effort != "none":
            raise refused(request, "temperature", self._model, "it reasons; set effort='none' if it can")
        fields: dict[str, Any] = {}
        if efforts != () and (effort or settings.show_reasoning):
            chosen = {"effort": effort} if effort else {}
            shown = {"summary": "auto"} if settings.show_reasoning else {}
            fields["reasoning"] = {**self._parameters.get("reasoning", {}), **chosen, **shown}
        named = ("temperature", "max_output_tokens", "parallel_tool_calls")
        return fields | {name: value for name in named if (value := getattr(settings, name)) is not None}

    def _effort(self, effort: str, request: ModelRequest, efforts: Sequence[str]) -> str | None:
        if effort in efforts:
            return effort
        if effort == "none":
            if efforts and efforts[0] != "minimal":
                raise refused(request, "effort='none'", self._model, f"its lowest effort is '{efforts[0]}'")
            return efforts[0] if efforts else None
        why = f"its highest effort is '{efforts[-1]}'" if efforts else "it does not reason"
        raise refused(request, f"effort='{effort}'", self._model, why)

    def _end(self, request: ModelRequest) -> tuple[bytes, ...]:
        end = b"]"
        if include := (*self._include, *self._codec_values("include", request)):
            end += b',"include":' + encode(list(dict.fromkeys(include)))
        if request.revoked and (choice := self._allowed(request)) is not None:
            end += b',"tool_choice":' + encode(choice)
        return (end,)

    def _allowed(self, request: ModelRequest) -> dict[str, Any] | str | None:
        """The tools that may still be called, as a `tool_choice`; None if it cannot name all of them."""
        if request.deferred - request.revoked:  # The provider's search may have to find these.
            return None
        tools = [tool for tool in request.tools if tool.name not in request.revoked]
        hosted = [tool for tool in request.hosted_tools if tool.name not in request.revoked]
        if self._route == "additional_tools" and not self._facts.chooses_added:
            added = {tool.name for tool in request.tools[request.initial_tools :]}
            added |= {tool.name for tool in request.hosted_tools[request.initial_hosted_tools :]}
            if added - request.revoked:
                return None
        if not tools and not hosted:
            return "none"
        listed: list[dict[str, Any]] = [{"type": "function", "name": portable_name(tool.name)} for tool in tools]
        listed += [{"type": self._declared_as(tool)["type"]} for tool in hosted]
        return {"type": "allowed_tools", "mode": "auto", "tools": listed}

    def _restart(self) -> None:
        super()._restart()
        self._declared: set[str] = set()

    def _add(self, message: Message, request: ModelRequest) -> None:
        role = message.role
        if role == "tool":
            output = self._result(message, request)
            self._append(encode({"type": "function_call_output", "call_id": message.call_id, "output": output}))
        elif role == "assistant":
            self._add_assistant(message)
        elif role == "system":
            self._append(encode({"role": "developer", "content": message.text}))
        elif role == "user":
            self._append(encode({"role": "user", "content": self._content(message)}))
        elif role == "tools_added":
            if self._route == "additional_tools":
                self._add_tools(message, request)
            if text := self._description(message):
                self._append(encode({"role": "user", "content": text}))

    def _part(self, part: Part) -> dict[str, Any]:
        if not isinstance(part, Media):
            return {"type": "input_text", "text": part.text}
        if isinstance(part, Image):
            source = {"file_id": part.file_id} if part.file_id else {"image_url": part.url or data_url(part)}
            return {"type": "input_image", "detail": "auto", **source}
        if part.file_id or part.url:
            return {"type": "input_file", **({"file_id": part.file_id} if part.file_id else {"file_url": part.url})}
        ending = next((name for name, kind in Document.types.items() if kind == part.media_type), "bin")
        return {"type": "input_file", "filename": part.name or f"document.{ending}", "file_data": data_url(part)}

    def rejects_reasoning(self, payload: object) -> bool:
        return "invalid_encrypted_content" in str(payload)

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
        # A tool that was declared and later revoked is restored through `tool_choice` alone.
        names = [name for name in message.tools if portable_name(name) not in self._declared]
        if encoded := self._encode_added(names, request):
            self._declared.update(map(portable_name, names))
            listed = b",".join(encoded)
            self._append(b'{"type":"additional_tools","role":"developer","tools":[' + listed + b"]}")

    def parse_reply(self, body: bytes | bytearray) -> ModelReply:
        return parse_reply(body)

    def event_parser(self) -> ResponseEventParser:
        return ResponseEventParser()
