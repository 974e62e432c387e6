"""Anthropic's Messages API: requests with a stable prefix, so that the prompt cache holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from weakincentives.adapters.anthropic.models import facts
from weakincentives.adapters.anthropic.reply import (
    BOUND,
    CONTAINER,
    MessageEventParser,
    decode_container,
    is_thinking,
    parse_reply,
)
from weakincentives.adapters.network import (
    FIRST_USER_TURN,
    ToolCache,
    Wire,
    base64_text,
    encode,
    refused,
)
from weakincentives.content import Image, Media, Part
from weakincentives.prompt import Tool, portable_name
from weakincentives.runtime import Message, ModelReply, ModelRequest
from weakincentives.runtime.spi import TEXT_TYPES
from weakincentives.serde import describe_bounds

PROVIDER = "anthropic"

TOOL_CHANGES = "mid-conversation-tool-changes-2026-07-01"
INLINE_TOOLS = "inline-tools-2026-09-15"
CACHED = {"type": "ephemeral"}
ADAPTIVE = {"type": "adaptive"}
SEARCH_TOOL = "tool_search_tool_bm25"

_TEXT = b'{"type":"text","text":'
_BUDGETS = {"low": 1024, "medium": 2048, "high": 4096}


def has_thinking(message: Message) -> bool:
    return message.provider == PROVIDER and any(map(is_thinking, message.items))


def declare_tool(tool: Tool[Any, Any]) -> dict[str, Any]:
    return {"name": _name(tool.name), "description": tool.description, "input_schema": tool.schema}


def _name(name: str) -> str:
    return portable_name(name, limit=128)


def content_block(part: Part) -> dict[str, Any]:
    """A content part as a Messages API block."""
    if not isinstance(part, Media):
        return {"type": "text", "text": part.text}
    kind = "image" if isinstance(part, Image) else "document"
    source: dict[str, Any] = {"type": "base64", "media_type": part.media_type}
    if part.url or part.file_id:
        source = {"type": "url", "url": part.url} if part.url else {"type": "file", "file_id": part.file_id}
    elif part.media_type in TEXT_TYPES:
        source = {"type": "text", "media_type": "text/plain", "data": part.data.decode("utf-8", "replace")}
    else:
        source["data"] = base64_text(part)
    title = {"title": part.name} if part.name and kind == "document" else {}
    return {"type": kind, "source": source, **title}


class MessagesWire(Wire):
    """One run in the format of the Messages API.

    There are two cache breakpoints: one after the system text (which covers the tools before it), and the automatic
    one at the end of the conversation, a separate field that leaves earlier messages untouched. The parameter
    `cache_control` sets a different marker (`{"type": "ephemeral", "ttl": "1h"}`); None sends no marker.
    """

    provider = PROVIDER
    tools = ToolCache(declare_tool)
    search_tool = f'{{"type":"tool_search_tool_bm25_20251119","name":"{SEARCH_TOOL}"}}'.encode()

    def __init__(self, model: str, *, max_tokens: int, parameters: Mapping[str, Any], **options: Any) -> None:
        self._listed = b""
        plain = {name: value for name, value in parameters.items() if name != "cache_control"}
        super().__init__(model, parameters=plain, **options)
        self._facts = facts(model)
        self._cached: Mapping[str, Any] | None = parameters.get("cache_control", CACHED)
        self._max_tokens = max_tokens

    def _restart(self) -> None:
        super()._restart()
        self._system = []
        self._begin_turn()
        self._betas: dict[str, None] = {}
        self._declared: set[str] = set()
        self._container = b""
        # All that tools have added to the conversation, which binds the thinking after it.
        self._tools = hashlib.blake2b(self._listed, digest_size=8)
        # How many messages end with the last reply that names its tools, and with the last that names others.
        self._bound = self._stale = 0

    def _begin_turn(self) -> None:
        self._results: list[bytes] = []
        self._words: list[bytes] = []
        self._operator: list[bytes] = []

    def _end(self, request: ModelRequest) -> tuple[bytes, ...]:
        turn = self._turn()
        if turn and self._buffer:
            turn = b"," + turn
        marked = b'],"cache_control":' + encode(self._cached) if self._cached else b"]"
        return turn, marked + self._container

    def _extend(self, request: ModelRequest) -> None:
        """Extend the conversation, without thinking that is bound to tools other than those of the request.

        All thinking up to there is dropped: the vendor accepts a conversation that has lost its first thinking.
        """
        self.reasoning_dropped = False
        if self.binds_reasoning:
            listed = b",".join(self._encode_tools(*self._listed_tools(request), request))
            if listed != self._listed:
                self._listed, self._known = listed, ()
                self._restart()
        super()._extend(request)
        if self._stale > self._unreasoned:
            # A later reply that names the tools of the request was made without that thinking.
            self.reasoning_dropped = self._stale == self._bound
            self._unreasoned, self._known = self._stale, ()
            self._restart()
            super()._extend(request)

    def _headers(self, request: ModelRequest) -> Mapping[str, str]:
        betas = list(self._betas)
        if request.hosted_tools:
            betas += self._codec_values("betas", request)
        return {"anthropic-beta": ",".join(dict.fromkeys(betas))} if betas else {}

    def _fields(self, request: ModelRequest) -> dict[str, Any]:
        limit = request.settings.max_output_tokens or self._max_tokens
        fields = {"model": self._model, "max_tokens": limit, **self._parameters}
        return fields | self._settings(request, limit)

    def _settings(self, request: ModelRequest, limit: int) -> dict[str, Any]:
        """Settings and output as request fields; raises for a setting the model does not accept, before any request."""
        settings = request.settings
        if settings.temperature is not None:
            raise refused(request, "temperature", self._model, "Anthropic's API no longer accepts it")
        fields: dict[str, Any] = {}
        thinking = self._thinking(request, limit)
        if thinking or "thinking" in self._parameters:
            shows = settings.show_reasoning and settings.effort != "none" and self._facts.thinking == "adaptive"
            display = {"display": "summarized"} if shows else {}
            fields["thinking"] = {**self._parameters.get("thinking", {}), **thinking, **display}
        config = dict(self._parameters.get("output_config", {}))
        if settings.effort not in (None, "none") and thinking.get("type") != "enabled":
            config["effort"] = settings.effort
        if request.output is not None:
            config["format"] = {"type": "json_schema", "schema": describe_bounds(request.output.wire_schema)}
        if config:
            fields["output_config"] = config
        if settings.parallel_tool_calls is False and (request.tools or request.hosted_tools):
            fields["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
        return fields

    def _thinking(self, request: ModelRequest, limit: int) -> dict[str, Any]:
        """How much the model thinks, in the form its generation accepts; left to the model if no effort is set."""
        effort, known = request.settings.effort, self._facts
        if effort is None:
            return ADAPTIVE if request.settings.show_reasoning and known.thinks_by_default else {}
        if effort == "none":
            if known.none is None:
                raise refused(request, "effort='none'", self._model, "it always thinks; its lowest effort is 'low'")
            return {"type": known.none} if known.none else {}
        if effort not in known.efforts:
            since = "4.7" if effort == "xhigh" else "4.6"
            raise refused(request, f"effort='{effort}'", self._model, f"it needs Claude {since} or later")
        if known.thinking != "budget":
            return ADAPTIVE if known.thinking == "adaptive" else {}
        if limit <= _BUDGETS[effort]:
            least = _BUDGETS[effort] + 1
            raise refused(request, f"effort='{effort}'", self._model, f"it needs max_output_tokens of at least {least}")
        return {"type": "enabled", "budget_tokens": _BUDGETS[effort]}

    def _add(self, message: Message, request: ModelRequest) -> None:
        role = message.role
        if role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.call_id, "content": self._content(message)}
            self._results.append(encode(result if message.success else {**result, "is_error": True}))
        elif role == "user":
            content = self._content(message)
            parts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
            self._words += map(encode, parts)
        elif role == "assistant":
            blocks = _blocks(message)
            if blocks:
                if turn := self._turn():
                    self._append(turn)
                self._begin_turn()
                self._append(b'{"role":"assistant","content":[' + b",".join(blocks) + b"]}")
            self._note(message)
        elif role == "system":
            self._add_operator(message.text)
        elif self._route == "tool_addition":
            self._add_changes(message, request)

    def _add_operator(self, text: str) -> None:
        if not self._buffer and not self._words and not self._results:
            # Only the prompt's own text: a request has few such marks.
            marked = {"cache_control": self._cached} if self._cached and not self._system else {}
            self._system.append(encode({"type": "text", "text": text, **marked}))
        elif self._facts.system_messages:
            self._operator.append(encode({"type": "text", "text": text}))
        else:
            reminder = f"<system-reminder>\n{text}\n</system-reminder>"
            self._words.append(encode({"type": "text", "text": reminder}))

    def _turn(self) -> bytes:
        """Everything since the model's last message: one user message, results first, then the operator's message.

        Only the model may follow an operator message, so it is written only when the turn is over.
        """
        blocks = [*self._results, *self._words]
        messages = []
        if not blocks and not self._buffer:
            messages.append(encode({"role": "user", "content": FIRST_USER_TURN}))
        elif len(blocks) == 1 and blocks[0].startswith(_TEXT):
            messages.append(b'{"role":"user","content":' + blocks[0][len(_TEXT) :])
        elif blocks:
            messages.append(b'{"role":"user","content":[' + b",".join(blocks) + b"]}")
        if self._operator:
            messages.append(b'{"role":"system","content":[' + b",".join(self._operator) + b"]}")
        return b",".join(messages)

    def _part(self, part: Part) -> dict[str, Any]:
        return content_block(part)

    @property
    def binds_reasoning(self) -> bool:
        return self._facts.binds_thinking

    def rejects_reasoning(self, payload: object) -> bool:
        return "in thinking block" in str(payload)

    def _without_reasoning(self, message: Message) -> Message:
        kept = (item for item in message.items if not item.startswith(BOUND) and not is_thinking(item))
        return replace(message, items=tuple(kept))

    @property
    def _binding(self) -> tuple[str, ...]:
        """The item that records the tools which the thinking of a reply is bound to."""
        return (f'{BOUND}"tools":"{self._tools.hexdigest()}"}}',) if self.binds_reasoning else ()

    def _note(self, message: Message) -> None:
        """Note the tools that a reply's thinking is bound to, and the container in which its code can continue."""
        for item in message.items if message.provider == PROVIDER else ():
            if item.startswith(BOUND):
                self._bound = self._count + 1
                self._stale = self._stale if item in self._binding else self._bound
            elif item.startswith(CONTAINER) and "container" not in self._parameters:
                self._container = b',"container":' + encode(decode_container(item).id)

    def _add_changes(self, message: Message, request: ModelRequest) -> None:
        initial = {tool.name for tool in request.tools[: request.initial_tools]}
        initial |= {tool.name for tool in request.hosted_tools[: request.initial_hosted_tools]}
        removed = message.role == "tools_removed"
        known = [name for name in message.tools if removed or name in self._declared or name in initial]
        new = [name for name in message.tools if name not in known]
        kind = "tool_removal" if removed else "tool_addition"
        changes = [_change(kind, self._name(name, request)) for name in known]
        for encoded in self._encode_added(new, request):
            definition = b'{"type":"tool_definition","definition":' + encoded + b"}"
            changes.append(b'{"type":"tool_addition","tool":' + definition + b"}")
        self._betas[TOOL_CHANGES] = None
        if not removed and (len(changes) > len(known) or (not new and any(name in self._declared for name in known))):
            self._betas[INLINE_TOOLS] = None
        self._declared.update(new)
        self._operator += changes
        self._tools.update(b",".join(changes))

    def _name(self, name: str, request: ModelRequest) -> str:
        """The tool's name as the model sees it; server tools use the vendor's names."""
        for tool in request.hosted_tools:
            if tool.name == name:
                return str(self._declared_as(tool).get("name", name))
        return _name(name)

    def parse_reply(self, body: bytes | bytearray) -> ModelReply:
        return parse_reply(body, *self._binding)

    def event_parser(self) -> MessageEventParser:
        return MessageEventParser(*self._binding)


def _change(kind: str, name: str) -> bytes:
    return encode({"type": kind, "tool": {"type": "tool_reference", "name": name}})


def _blocks(message: Message) -> list[bytes]:
    if message.items and message.provider == PROVIDER:
        return [item.encode() for item in message.items if not item.startswith((BOUND, CONTAINER))]
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
