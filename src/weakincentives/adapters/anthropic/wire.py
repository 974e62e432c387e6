"""Anthropic's Messages API: requests with a stable prefix, so that the prompt cache holds."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from weakincentives.adapters.anthropic.models import ModelFacts, facts
from weakincentives.adapters.anthropic.reply import (
    BOUND,
    CONTAINER,
    MessageEventParser,
    decode_container,
    found_tools,
    is_advice,
    is_search,
    is_thinking,
    known_findings,
    parse_compaction,
    parse_reply,
)
from weakincentives.adapters.network import (
    FIRST_USER_TURN,
    EncodedRequest,
    ToolCache,
    Wire,
    as_object,
    base64_text,
    encode,
    refused,
)
from weakincentives.content import Image, Media, Part
from weakincentives.prompt import AnyTool, HostedTool, Tool, portable_name
from weakincentives.runtime import Message, ModelReply, ModelRequest
from weakincentives.runtime.spi import SUMMARY, TEXT_TYPES
from weakincentives.serde import describe_bounds

logger = logging.getLogger("weakincentives.adapters.anthropic")

PROVIDER = "anthropic"

TOOL_CHANGES = "mid-conversation-tool-changes-2026-07-01"
INLINE_TOOLS = "inline-tools-2026-09-15"
COMPACTION = "compact-2026-09-04"
MIN_SUMMARY = 4_096
CACHED = {"type": "ephemeral"}
ADAPTIVE = {"type": "adaptive"}
SEARCH_TOOL = "tool_search_tool_bm25"

_REFUSED = {
    "tool_addition": ("tool_addition", "tool_removal", "role 'system' is not supported"),
    "tool_reference": ("tool_reference", "defer_loading"),
}
"""How the vendor names what it does not accept of a route."""
_TEXT = b'{"type":"text","text":'
_CLOSING = (
    b'{"type":"text","text":"The tool results end here. The system message that follows comes from the application, '
    b'not from a tool."}'
)
_BUDGETS = {"low": 1024, "medium": 2048, "high": 4096}


def has_thinking(message: Message) -> bool:
    return message.provider == PROVIDER and any(map(is_thinking, message.items))


def declare_tool(tool: Tool[Any, Any]) -> dict[str, Any]:
    declared = {"name": _name(tool.name), "description": tool.description, "input_schema": tool.schema}
    # Examples must fit the schema, and leave out what has a default.
    return (
        {**declared, "input_schema": tool.plain_schema, "input_examples": tool.examples} if tool.examples else declared
    )


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


class Turn:
    """Everything since the model's last message: one user message, results first, then the operator's message.

    Only the model may follow an operator message, so it is written only when the turn is over. If results can reveal
    tools, their content is a list, so that references can be added at its end.
    """

    def __init__(self, known: ModelFacts, *, reveals: bool) -> None:
        self.words: list[bytes] = []
        self.operator: list[bytes] = []
        self._results: list[bytes] = []
        self._closes = known.closes_results
        self._reveals = reveals
        # The last result of a call that did not fail.
        self._last: int | None = None

    @property
    def is_empty(self) -> bool:
        return not self.words and not self._results

    def add_result(self, message: Message, content: str | list[dict[str, Any]]) -> None:
        failed = {} if message.success else {"is_error": True}
        self._last = len(self._results) if message.success else self._last
        shown = _as_blocks(content) if self._reveals else content
        self._results.append(
            encode({"type": "tool_result", "tool_use_id": message.call_id, **failed, "content": shown})
        )

    def reveal(self, names: Iterable[str]) -> bool:
        """Let the last result reveal these tools; False if there is none that could."""
        if self._last is None:
            return False
        blocks = b",".join(encode({"type": "tool_reference", "tool_name": name}) for name in names)
        result = self._results[self._last]
        self._results[self._last] = result[:-2] + (b"" if result.endswith(b"[]}") else b",") + blocks + b"]}"
        return True

    def encoded(self, *, is_first: bool) -> bytes:
        closing = [_CLOSING] if self._closes and self._results and self.operator else []
        blocks = [*self._results, *closing, *self.words]
        messages = []
        if not blocks and is_first:
            messages.append(encode({"role": "user", "content": FIRST_USER_TURN}))
        elif len(blocks) == 1 and blocks[0].startswith(_TEXT):
            messages.append(b'{"role":"user","content":' + blocks[0][len(_TEXT) :])
        elif blocks:
            messages.append(b'{"role":"user","content":[' + b",".join(blocks) + b"]}")
        if self.operator:
            messages.append(b'{"role":"system","content":[' + b",".join(self.operator) + b"]}")
        return b",".join(messages)


class MessagesWire(Wire):
    """One run in the format of the Messages API.

    There are two cache breakpoints: one after the system text (which covers the tools before it), and the automatic
    one at the end of the conversation, a separate field that leaves earlier messages untouched. The parameter
    `cache_control` sets a different marker (`{"type": "ephemeral", "ttl": "1h"}`); None sends no marker.
    """

    provider = PROVIDER
    tools = ToolCache(declare_tool)
    search_tool = f'{{"type":"tool_search_tool_bm25_20251119","name":"{SEARCH_TOOL}"}}'.encode()

    def __init__(
        self,
        model: str,
        *,
        max_tokens: int,
        parameters: Mapping[str, Any],
        known: ModelFacts | None = None,
        **options: Any,
    ) -> None:
        self._listed, self._advised = b"", False
        plain = {name: value for name, value in parameters.items() if name != "cache_control"}
        self._facts = known or facts(model)
        super().__init__(model, parameters=plain, **options)
        self._cached: Mapping[str, Any] | None = parameters.get("cache_control", CACHED)
        self._max_tokens = max_tokens
        self._compacting: MessagesWire | None = None
        self._carried: set[str] = set()

    def learn(self, known: ModelFacts) -> None:
        """Write the next requests for what has become known of the model, except of its tools."""
        self._facts = replace(known, system_messages=self._facts.system_messages)
        self._start_of = ()

    def _restart(self) -> None:
        super()._restart()
        self._system = []
        self._turn = Turn(self._facts, reveals=self._route == "tool_reference")
        self._betas: dict[str, None] = {}
        # The tools that messages have added, and those of them that a result has revealed.
        self._declared: set[str] = set()
        self._referenced: frozenset[str] = frozenset()
        # The names of tools that the provider's searches have found.
        self._found: set[str] = set()
        self._container = b""
        # A digest of all that tools have added to the conversation, which binds the thinking after it.
        self._tools = _digest(self._listed)
        self._compacted, self._start_of = False, ()
        # How many messages end with the last reply that names its tools, and with the last that names others.
        self._bound = self._stale = 0

    def _end(self, request: ModelRequest) -> tuple[bytes, ...]:
        turn = self._turn.encoded(is_first=not self._buffer)
        if turn and self._buffer:
            turn = b"," + turn
        marked = b'],"cache_control":' + encode(self._cached) if self._cached else b"]"
        return turn, marked + self._container

    def _extend(self, request: ModelRequest) -> None:
        """Extend the conversation, without thinking that is bound to tools other than those of the request.

        All thinking up to there is dropped: the vendor accepts a conversation that has lost its first thinking.
        """
        self.reasoning_dropped = False
        super()._extend(request)
        if self._stale > self._unreasoned:
            # A later reply that names the tools of the request was made without that thinking.
            self.reasoning_dropped = self._stale == self._bound
            self._unreasoned, self._known = self._stale, ()
            self._restart()
            super()._extend(request)

    def _prepare(self, request: ModelRequest) -> None:
        """Note the tools before the conversation, which bind all thinking in it, the advisor's, and a compaction's."""
        self._carried = {
            name for each in request.messages[:3] if is_compaction(each) for name in _state(each)["declared"]
        }
        if (advised := any(tool.kind == "advisor" for tool in request.hosted_tools)) != self._advised:
            self._advised = advised
            self._restart()
        if self.binds_reasoning:
            listed = b",".join(self._encode_tools(*self._listed_tools(request), request))
            if listed != self._listed:
                self._listed = listed
                self._restart()

    def _headers(self, request: ModelRequest) -> Mapping[str, str]:
        betas = list(self._betas)
        if request.hosted_tools:
            betas += self._codec_values("betas", request)
        if request.compaction and TOOL_CHANGES in betas:
            betas.append(INLINE_TOOLS)
        if request.compaction or self._compacted:
            betas.append(COMPACTION)
        return {"anthropic-beta": ",".join(dict.fromkeys(betas))} if betas else {}

    def _fields(self, request: ModelRequest) -> dict[str, Any]:
        limit = request.settings.max_output_tokens or min(self._max_tokens, self._facts.max_tokens or self._max_tokens)
        fields = {"model": self._model, "max_tokens": limit, **self._parameters, **self._settings(request, limit)}
        if self._compacted and "context_management" in fields:
            # A request with a compaction must not ask for another one.
            edits = [each for each in fields["context_management"].get("edits", ()) if "compact" not in str(each)]
            fields["context_management"] = {**fields["context_management"], "edits": edits}
        return _for_compaction(fields) if request.compaction else fields

    def _encode_compaction(self, request: ModelRequest) -> EncodedRequest:
        """The conversation as it was sent, so that it is read from the cache, with the request to summarize it."""
        self._compacting = None
        scratch = self._compacting = self._scratch()
        scratch._extend(request)
        asked = b',"compaction":' + encode({"type": "summarize", "instructions": request.compaction}) + b"}"
        return EncodedRequest(
            (scratch._begin(request), scratch._buffer, *scratch._end(request), asked), scratch._headers(request)
        )

    def parse_compaction(self, body: bytes | bytearray) -> ModelReply:
        scratch = self._compacting
        assert scratch is not None
        reply = parse_compaction(body, changed_tools=TOOL_CHANGES in scratch._betas)
        # The block includes the tools that were added: what follows it is bound to them.
        state = {"tools": scratch._tools, "listed": _digest(scratch._listed), "declared": sorted(scratch._declared)}
        bound = BOUND + encode(state).decode()[1:]
        return replace(reply, items=(*reply.items, bound)) if reply.items else reply

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
            self._turn.add_result(message, self._content(message))
        elif role == "user":
            content = self._content(message)
            self._turn.words += map(encode, _as_blocks(content))
        elif is_compaction(message):
            blocks = self._blocks(message, request)
            self._append(b'{"role":"assistant","content":[' + b",".join(blocks) + b"]}")
            self._continue_from(message)
        elif role == "assistant":
            blocks = self._blocks(message, request)
            if blocks:
                if turn := self._turn.encoded(is_first=not self._buffer):
                    self._append(turn)
                self._turn = Turn(self._facts, reveals=self._route == "tool_reference")
                self._append(b'{"role":"assistant","content":[' + b",".join(blocks) + b"]}")
            self._note(message)
        elif role == "system":
            self._add_operator(message.text)
        elif self._route == "tool_addition":
            self._add_changes(message, request)
        elif self._route == "tool_reference" and role == "tools_added":
            self._add_references(message, request)

    def _add_references(self, message: Message, request: ModelRequest) -> None:
        """Let the last result of the turn reveal the added tools; without one, they are listed for all to see."""
        every: tuple[AnyTool, ...] = (*request.tools, *request.hosted_tools)
        offered = {tool.name: tool for tool in every}
        new = [name for name in message.tools if name in offered and name not in self._declared]
        new = [name for name in new if name in request.deferred or self._adds(offered[name])]
        self._declared.update(new)
        if new and _has_plain_tool(request) and self._turn.reveal([self._name(name, request) for name in new]):
            self._referenced |= set(new)

    def _blocks(self, message: Message, request: ModelRequest) -> list[bytes]:
        """The blocks of a reply; those of an advisor are sent only together with its tool, as the vendor requires."""
        if not message.items or message.provider != PROVIDER:
            return _plain_blocks(message)
        items = [item for item in message.items if not item.startswith((BOUND, CONTAINER))]
        if any(map(is_search, items)):
            items = known_findings(items, self._revealable(request))
            self._found.update(found_tools(items))
        return [item.encode() for item in items if self._advised or not is_advice(item)]

    def _revealable(self, request: ModelRequest) -> set[str]:
        """The tools that a search may have found: the vendor rejects a reference to any other."""
        every: tuple[AnyTool, ...] = (*request.tools, *request.hosted_tools)
        return {self._name(tool.name, request) for tool in every if tool.name in request.deferred}

    def _deferred(self, request: ModelRequest) -> Collection[str]:
        return request.deferred.keys() | self._referenced if self._referenced else request.deferred

    def _listed_tools(self, request: ModelRequest) -> tuple[Sequence[Tool[Any, Any]], Sequence[HostedTool[Any]]]:
        if self._route == "tool_reference":
            return request.tools, request.hosted_tools
        return super()._listed_tools(request)

    def _redefines_tools(self, request: ModelRequest) -> bool:
        redefined = super()._redefines_tools(request) or not self._found <= self._revealable(request)
        if not self._referenced:
            return redefined
        # The vendor rejects a reference to a tool that is not listed, and a list without a tool for all to see.
        every: tuple[AnyTool, ...] = (*request.tools, *request.hosted_tools)
        offered = {tool.name for tool in every}
        return redefined or not self._referenced <= offered or not _has_plain_tool(request)

    def adapt(self, payload: object) -> bool:
        """Use the next best route if the vendor rejects this one for the model."""
        shown = str(payload)
        if self._route == "append" or not any(word in shown for word in _REFUSED[self._route]):
            return False
        later = "tool_reference" if self._route == "tool_addition" and self._facts.tool_search else "append"
        logger.warning("%s rejects the route %s: %s is used from now on.", self._model, self._route, later)
        if self._route == "tool_addition":
            self._facts = replace(self._facts, system_messages=False)
        self._route, self._known, self._start_of = later, (), ()
        self._restart()
        return True

    def _add_operator(self, text: str) -> None:
        if not self._buffer and self._turn.is_empty:
            # Only the prompt's own text: a request has few such marks.
            marked = {"cache_control": self._cached} if self._cached and not self._system else {}
            self._system.append(encode({"type": "text", "text": text, **marked}))
        elif self._facts.system_messages:
            self._turn.operator.append(encode({"type": "text", "text": text}))
        else:
            reminder = f"<system-reminder>\n{text}\n</system-reminder>"
            self._turn.words.append(encode({"type": "text", "text": reminder}))

    def _part(self, part: Part) -> dict[str, Any]:
        return content_block(part)

    @property
    def binds_reasoning(self) -> bool:
        return self._facts.binds_thinking

    def rejects_reasoning(self, payload: object) -> bool:
        return "in thinking block" in str(payload)

    def _without_reasoning(self, message: Message) -> Message:
        if is_compaction(message):  # It stands for the thinking that it summarizes.
            return message
        kept = (item for item in message.items if not item.startswith(BOUND) and not is_thinking(item))
        return replace(message, items=tuple(kept))

    @property
    def _binding(self) -> tuple[str, ...]:
        """The item that records the tools which the thinking of a reply is bound to."""
        return (f'{BOUND}"tools":"{self._tools}"}}',) if self.binds_reasoning else ()

    def _note(self, message: Message) -> None:
        """Note the tools that a reply's thinking is bound to, and the container in which its code can continue."""
        for item in message.items if message.provider == PROVIDER else ():
            if item.startswith(BOUND):
                self._bound = self._count + 1
                self._stale = self._stale if item in self._binding else self._bound
            elif item.startswith(CONTAINER) and "container" not in self._parameters:
                self._container = b',"container":' + encode(decode_container(item).id)

    def _continue_from(self, message: Message) -> None:
        """Take over the tools that a compaction includes."""
        self._compacted, state = True, _state(message)
        self._declared = set(state["declared"])
        known = state["listed"] == _digest(self._listed)
        self._tools = state["tools"] if known else _digest(self._listed + state["tools"].encode())
        if self._declared:
            self._betas |= {TOOL_CHANGES: None, INLINE_TOOLS: None}

    def _adds(self, tool: AnyTool) -> bool:
        return tool.name in self._carried or super()._adds(tool)

    def _add_changes(self, message: Message, request: ModelRequest) -> None:
        listed = {tool.name for tools in self._listed_tools(request) for tool in tools}
        removed = message.role == "tools_removed"
        known = [name for name in message.tools if removed or name in self._declared or name in listed]
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
        self._turn.operator += changes
        self._tools = _digest(self._tools.encode() + b",".join(changes))

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


def is_compaction(message: Message) -> bool:
    return message.kind == SUMMARY and message.provider == PROVIDER


def _state(message: Message) -> dict[str, Any]:
    """The tools at the end of what a compaction stands for."""
    return next(msgspec.json.decode(item, type=dict[str, Any]) for item in message.items if item.startswith(BOUND))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _for_compaction(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request to summarize the conversation, without those that the service then refuses."""
    fields = {name: value for name, value in fields.items() if name not in ("stop_sequences", "context_management")}
    config = dict(fields.pop("output_config", {}))
    for name in ("format", "task_budget"):
        config.pop(name, None)
    if isinstance(others := fields.get("fallbacks"), list):
        fields["fallbacks"] = [_for_compaction(each) for each in others]
    if "max_tokens" in fields:
        fields["max_tokens"] = max(fields["max_tokens"], MIN_SUMMARY)
    return fields | ({"output_config": config} if config else {})


def _as_blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content


def _has_plain_tool(request: ModelRequest) -> bool:
    """True if a tool that the request began with is not deferred, as the vendor requires."""
    first = request.tools[: request.initial_tools]
    return request.initial_hosted_tools > 0 or any(tool.name not in request.deferred for tool in first)


def _change(kind: str, name: str) -> bytes:
    return encode({"type": kind, "tool": {"type": "tool_reference", "name": name}})


def _plain_blocks(message: Message) -> list[bytes]:
    """The blocks of a reply whose own are not known here."""
    blocks = [encode({"type": "text", "text": message.text})] if message.text else []
    for call in message.tool_calls:
        head = encode({"type": "tool_use", "id": call.id, "name": _name(call.name)})
        blocks.append(head[:-1] + b',"input":' + encode(as_object(call.arguments)) + b"}")
    return blocks
