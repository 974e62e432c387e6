"""OpenAI's Responses API: stateless requests, each extending the one before."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from weakincentives._base.display import shortened
from weakincentives.adapters.network import EncodedRequest, ToolCache, Wire, as_object, data_url, encode, refused
from weakincentives.adapters.openai.models import facts
from weakincentives.adapters.openai.reply import (
    OUTPUT,
    ResponseEventParser,
    parse_compaction,
    parse_reply,
    search_calls,
)
from weakincentives.content import Document, Image, Media, Part
from weakincentives.prompt import SEARCH_TOOL, HostedTool, StructuredOutputConfig, Tool, namespace_name, portable_name
from weakincentives.runtime import Message, ModelReply, ModelRequest, ToolCall
from weakincentives.runtime.spi import SUMMARY
from weakincentives.serde import is_strict

logger = logging.getLogger("weakincentives.adapters.openai")

PROVIDER = "openai"
MAX_DESCRIPTION = 1024
PLAIN: Mapping[str, Any] = {"type": "text"}


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

    def __init__(self, model: str, *, carries_search: bool = False, **options: Any) -> None:
        self._carries_search = carries_search
        # False if the server does not accept deferred tools in namespaces.
        self._groups = True
        super().__init__(model, **options)
        self._facts = facts(model)
        self._updates_output = self._facts.updates_output
        reasoning = ("reasoning.encrypted_content",) if self._facts.efforts else ()
        self._include = (*self._parameters.get("include", ()), *reasoning)

    def _fields(self, request: ModelRequest) -> dict[str, Any]:
        further = {name: value for name, value in self._parameters.items() if name != "include"}
        fields = {"model": self._model, "store": False, **further, **self._settings(request)}
        if self._instructions:
            fields["instructions"] = self._instructions
        form = self._first_form if self._updates_output else _form(request.output)
        if form != PLAIN:
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
        end, form = b"]", _form(request.output)
        self._changed = ""
        if self._updates_output and (form != self._last_form or not self._replied):
            # An item of the reply says what it follows, also the first one, so that another process sends the same.
            self._changed = OUTPUT + encode({"before": self._last_form, "after": form}).decode()[1:]
            end = self._output_update(form) + end
        if include := (*self._include, *self._codec_values("include", request)):
            end += b',"include":' + encode(list(dict.fromkeys(include)))
        if request.revoked and (choice := self._allowed(request)) is not None:
            end += b',"tool_choice":' + encode(choice)
        return (end,)

    def _allowed(self, request: ModelRequest) -> dict[str, Any] | str | None:
        """The tools that may still be called, as a `tool_choice`; None if it cannot name all of them."""
        if request.deferred.keys() - request.revoked:  # The provider's search may have to find these.
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
        # The ids of calls in the last reply of a search that the provider carries.
        self._searches: set[str] = set()
        # After a compaction, which would keep a system message for good, the prompt's text is sent beside the input.
        self._instructions, self._start_of = "", ()
        # The type of the answer before the conversation, at its end, and a change that the next reply follows.
        self._first_form = self._last_form = PLAIN
        self._changed, self._replied = "", False

    def _prepare(self, request: ModelRequest) -> None:
        """Note the type of the answer that the conversation begins with."""
        if not self._count:
            items = (item for each in request.messages if each.provider == PROVIDER for item in each.items)
            changed = next((item for item in items if item.startswith(OUTPUT)), None)
            first = _form(request.output) if changed is None else msgspec.json.decode(changed)["before"]
            self._first_form = self._last_form = first

    def _extend(self, request: ModelRequest) -> None:
        self._compacted = any(_is_compaction(message) for message in request.messages[:3])
        super()._extend(request)

    def _encode_compaction(self, request: ModelRequest) -> EncodedRequest:
        """The request for a compaction: it takes no tools, and instructions that stay have to be sent again anyway."""
        scratch, gone = self._scratch(), ("system", "tools_added", "tools_removed")
        scratch._updates_output = False
        scratch._extend(replace(request, messages=[each for each in request.messages if each.role not in gone]))
        system = next((each.text for each in request.messages if each.role == "system"), "")
        known = ("prompt_cache_key", "prompt_cache_options", "service_tier")
        fields = {"model": self._model, **{name: self._parameters[name] for name in known if name in self._parameters}}
        start = encode({**fields, **({"instructions": system} if system else {})})[:-1]
        return EncodedRequest((start, self.conversation, scratch._buffer, b"]}"), {})

    def parse_compaction(self, body: bytes | bytearray) -> ModelReply:
        return parse_compaction(body)

    def _encode_tools(
        self, tools: Sequence[Tool[Any, Any]], hosted: Iterable[HostedTool[Any]], request: ModelRequest
    ) -> list[bytes]:
        """The tools; those of sections that are closed in namespaces, for the provider's search."""
        withheld = _withheld(request)
        spaces: dict[str, list[bytes]] = {}
        encoded: list[bytes] = []
        for tool in tools:
            definition = self.tools.encoded(tool)
            if tool.name in withheld:
                definition = definition[:-1] + b',"defer_loading":true}'
            if tool.name in request.deferred and self._groups:
                spaces.setdefault(namespace_name(request.deferred[tool.name].key), []).append(definition)
            elif tool.name == SEARCH_TOOL and self._carries_search and not withheld:
                fields = {"description": tool.description, "parameters": tool.schema}
                encoded.append(encode({"type": "tool_search", "execution": "client", **fields}))
            else:
                encoded.append(definition)
        about = {namespace_name(space.key): space.description for space in request.deferred.values()}
        for name, members in spaces.items():
            head = {"type": "namespace", "name": name, "description": shortened(about[name], MAX_DESCRIPTION)}
            encoded.append(encode(head)[:-1] + b',"tools":[' + b",".join(members) + b"]}")
        encoded += [encode(self._declared_as(tool)) for tool in hosted]
        return [*encoded, self.search_tool] if any(tool.name in withheld for tool in tools) else encoded

    def adapt(self, payload: object) -> bool:
        """Send in another form what the server rejects: added tools, groups of deferred ones, a changed output."""
        shown = str(payload)
        if self._updates_output and "configuration_update" in shown:
            self._updates_output = False
        elif self._groups and "namespace" in shown:
            self._groups = False
        elif self._route == "additional_tools" and "additional_tools" in shown:
            self._route = "append"
        else:
            return False
        logger.warning("%s rejects a form of the request; it is sent in another from now on.", self._model)
        self._known, self._start_of = (), ()
        self._restart()
        return True

    def _add(self, message: Message, request: ModelRequest) -> None:
        role = message.role
        if role == "tool" and message.call_id in self._searches:
            self._add_found(message, request)
        elif role == "tool":
            output = self._result(message, request)
            self._append(encode({"type": "function_call_output", "call_id": message.call_id, "output": output}))
        elif role == "assistant":
            self._add_assistant(message, request)
        elif role == "system" and self._compacted and not self._buffer:
            self._instructions = "\n\n".join(filter(None, (self._instructions, message.text)))
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

    def _add_found(self, message: Message, request: ModelRequest) -> None:
        """The result of a search: the tools that it brings, then the sections that it has found, as text."""
        new = [name for name in message.tools if portable_name(name) not in self._declared]
        for name in new:
            self._mentions.setdefault(name, "tools_added")
        found = b",".join(self._encode_added(new, request))
        self._declared.update(map(portable_name, new))
        head = {"type": "tool_search_output", "call_id": message.call_id, "execution": "client", "status": "completed"}
        self._append(encode(head)[:-1] + b',"tools":[' + found + b"]}")
        # It quotes sections, some of which come from outside, and must not have the authority of a developer.
        self._append(encode({"role": "user", "content": f"The search has answered:\n{message.text}"}))

    def _add_assistant(self, message: Message, request: ModelRequest) -> None:
        self._searches, self._replied = set(), True
        if message.items and message.provider == PROVIDER:
            for item in message.items:
                if not item.startswith(OUTPUT):
                    self._append(self._own_item(item, request))
                elif self._updates_output:
                    form = msgspec.json.decode(item)["after"]
                    self._buffer += self._output_update(form)
                    self._last_form = form
            self._searches.update(call.id for call in search_calls(message.items))
            return
        if message.text:
            self._append(encode({"role": "assistant", "content": message.text}))
        for call in message.tool_calls:
            self._append(encode(self._call(call, request)))

    def _own_item(self, item: str, request: ModelRequest) -> bytes:
        """An item as the model wrote it; a call made on another route names the namespace that its tool is in now."""
        if request.deferred and self._groups and '"function_call"' in item:
            call = msgspec.json.decode(item)
            spaces = {portable_name(name): namespace_name(space.key) for name, space in request.deferred.items()}
            space = spaces.get(call.get("name"), call.get("namespace"))
            if call["type"] == "function_call" and space != call.get("namespace"):
                return encode({**call, "namespace": space})
        return item.encode()

    def _call(self, call: ToolCall, request: ModelRequest) -> dict[str, Any]:
        """A call of a model whose own items are not sent."""
        if call.name == SEARCH_TOOL and self._carries_search and not _withheld(request):
            self._searches.add(call.id)
            carried = {"type": "tool_search_call", "call_id": call.id, "execution": "client", "status": "completed"}
            return {**carried, "arguments": as_object(call.arguments)}
        grouped = call.name in request.deferred and self._groups
        space = {"namespace": namespace_name(request.deferred[call.name].key)} if grouped else {}
        name = portable_name(call.name)
        return {"type": "function_call", "call_id": call.id, "name": name, **space, "arguments": call.arguments}

    def _add_tools(self, message: Message, request: ModelRequest) -> None:
        # A tool that was declared and later revoked is restored through `tool_choice` alone.
        names = [name for name in message.tools if portable_name(name) not in self._declared]
        if encoded := self._encode_added(names, request):
            self._declared.update(map(portable_name, names))
            listed = b",".join(encoded)
            self._append(b'{"type":"additional_tools","role":"developer","tools":[' + listed + b"]}")

    def _output_update(self, form: Mapping[str, Any]) -> bytes:
        """The item at the end of the input by which answers have this form, if they have not."""
        update = {"type": "configuration_update", "text": {"format": form}}
        return b"" if form == self._last_form else b"," * bool(self._buffer) + encode(update)

    def parse_reply(self, body: bytes | bytearray) -> ModelReply:
        return parse_reply(body, *filter(None, [self._changed]))

    def event_parser(self) -> ResponseEventParser:
        return ResponseEventParser(*filter(None, [self._changed]))


def _form(output: StructuredOutputConfig | None) -> Mapping[str, Any]:
    if output is None:
        return PLAIN
    return {"type": "json_schema", "name": "output", "strict": output.is_strict, "schema": output.wire_schema}


def _is_compaction(message: Message) -> bool:
    return message.kind == SUMMARY and message.provider == PROVIDER


def _withheld(request: ModelRequest) -> set[str]:
    """The tools that the provider's own search may find."""
    return {tool.name for tool in request.tools[: request.initial_tools] if tool.name in request.deferred}
