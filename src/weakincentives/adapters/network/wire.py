"""The base of wire formats: a run's conversation is encoded once and only ever extended."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self

import msgspec

from weakincentives._base.frozen import quick_init
from weakincentives.content import Media, Part, Text
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import AnyTool, HostedTool, Tool
from weakincentives.runtime import HostedToolCodec, MediaSupport, Message, ModelReply, ModelRequest
from weakincentives.runtime.spi import ModelDelta
from weakincentives.session import extends

_encode = msgspec.json.Encoder().encode

FIRST_USER_TURN = "Begin."
"""Sent if a provider requires a user turn after the system text and the conversation has none."""


def encode(value: object) -> bytes:
    """A value as JSON. Lone surrogates, which UTF-8 cannot represent, become U+FFFD."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_without_surrogates(value))


@quick_init
@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """One request body in pieces, and the headers that belong to it."""

    pieces: tuple[bytes | bytearray, ...]
    headers: Mapping[str, str]

    def body(self) -> bytes:
        return b"".join(self.pieces)


class EventParser(Protocol):
    """Parses one streamed response, event by event."""

    def feed(self, event: bytes) -> Sequence[ModelDelta | ModelReply]:
        """The deltas in this event and, at the end of the response, the whole reply."""
        ...


class ToolCache:
    """Tools as a wire format declares them; each is encoded once and forgotten together with the tool."""

    def __init__(self, declare: Callable[[Tool[Any, Any]], dict[str, Any]]) -> None:
        self._declare = declare
        self._entries: dict[int, tuple[weakref.ref[Tool[Any, Any]], bytes, str]] = {}

    def encoded(self, tool: Tool[Any, Any]) -> bytes:
        entry = self._entries.get(id(tool))
        return (entry if entry is not None and entry[0]() is tool else self._add(tool))[1]

    def text(self, tool: Tool[Any, Any]) -> str:
        entry = self._entries.get(id(tool))
        return (entry if entry is not None and entry[0]() is tool else self._add(tool))[2]

    def _add(self, tool: Tool[Any, Any]) -> tuple[weakref.ref[Tool[Any, Any]], bytes, str]:
        # Keyed by id, since a WeakKeyDictionary lookup takes three times as long and a run has many tools.
        key, encoded = id(tool), encode(self._declare(tool))
        entry = self._entries[key] = weakref.ref(tool, partial(self._forget, key)), encoded, encoded.decode()
        return entry

    def _forget(self, key: int, tool: weakref.ref[Tool[Any, Any]]) -> None:
        # The id may belong to a new tool by now.
        if (entry := self._entries.get(key)) is not None and entry[0] is tool:
            del self._entries[key]


class Wire(ABC):
    """A session's requests in a vendor's format.

    Each message is encoded when it first appears and kept as bytes, so turn 200 costs what turn 10 costs. The parts of
    a body that may change between turns come after the conversation, so that each body extends the one before.
    """

    provider: ClassVar[str]
    tools: ClassVar[ToolCache]
    search_tool: ClassVar[bytes] = b""
    conversation: ClassVar[bytes] = b',"messages":['
    stream_fields: ClassVar[bytes] = b',"stream":true}'
    reasoning_dropped = False
    """True if the last request was the first without reasoning that its vendor would have rejected."""

    def __init__(
        self,
        model: str,
        *,
        codecs: Mapping[str, HostedToolCodec[Any, Any]],
        parameters: Mapping[str, Any] = MappingProxyType({}),
        media: MediaSupport = MediaSupport(),
        route: str = "append",
    ) -> None:
        self._model = model
        self._route = route
        self._codecs = codecs
        self._parameters = parameters
        self._media = media
        self._known: Sequence[Message] = ()
        # How many messages are sent without their reasoning, because the vendor no longer accepts it.
        self._unreasoned = 0
        self._system: list[bytes] = []
        self._start = b""
        self._start_of: tuple[object, ...] = ()
        # How the conversation first mentions a tool, by name: adds or removes it.
        self._mentions: dict[str, str] = {}
        # The tools that were added to the conversation, and their definitions in it by name.
        self._late: Sequence[Tool[Any, Any]] = ()
        self._defined: dict[str, bytes] = {}
        self._restart()

    def encode_request(self, request: ModelRequest, *, stream: bool = False) -> EncodedRequest:
        """The request as bytes."""
        if request.compaction:
            return self._encode_compaction(request)
        self._extend(request)
        end = self.stream_fields if stream else b"}"
        return EncodedRequest((self._begin(request), self._buffer, *self._end(request), end), self._headers(request))

    @abstractmethod
    def parse_reply(self, body: bytes | bytearray) -> ModelReply:
        """The reply in a whole response.

        Raises `msgspec.DecodeError` if the body cannot be read, and `TransportError` if it reports a failure.
        """

    @abstractmethod
    def event_parser(self) -> EventParser:
        """A parser for one streamed response."""

    def _encode_compaction(self, request: ModelRequest) -> EncodedRequest:
        """The request to compact the conversation."""
        raise NotImplementedError(f"{self.provider} does not compact conversations")

    def parse_compaction(self, body: bytes | bytearray) -> ModelReply:
        """The compaction in a whole response, as items; none if there is none."""
        raise NotImplementedError(f"{self.provider} does not compact conversations")

    def _scratch(self) -> Self:
        """A wire like this one that has encoded nothing."""
        scratch = copy(self)
        scratch._known, scratch._late, scratch._defined, scratch._mentions = (), (), {}, {}
        scratch._restart()
        return scratch

    def rejects_reasoning(self, payload: object) -> bool:
        """True if a failure means that the vendor no longer accepts the reasoning in the request."""
        return False

    def adapt(self, payload: object) -> bool:
        """Leave out of later requests what a server rejects by this failure; False if it rejects nothing known."""
        return False

    def _redefines_tools(self, request: ModelRequest) -> bool:
        """True if a tool that was added to the conversation has another definition now."""
        late = () if self._route == "append" else request.tools[request.initial_tools :]
        if late == self._late:
            return False
        defined = {tool.name: self.tools.encoded(tool) for tool in late}
        redefined = any(self._defined.get(name, text) != text for name, text in defined.items())
        self._late, self._defined = late, self._defined | defined
        return redefined

    @abstractmethod
    def _add(self, message: Message, request: ModelRequest) -> None:
        """Append one message to the encoded conversation."""

    @abstractmethod
    def _part(self, part: Part) -> dict[str, Any]:
        """A part of a message's content in the vendor's form."""

    def _restart(self) -> None:
        """Forget what was encoded."""
        self._buffer = bytearray()
        # How many messages are encoded, and up to which the descriptions of added tools stand in a tool's result.
        self._count = self._described = 0

    def _extend(self, request: ModelRequest) -> None:
        messages = request.messages
        if self._redefines_tools(request) or not extends(messages, self._known):
            self._restart()
            self._unreasoned = 0
            self._mentions = {}
        for message in messages[self._count :]:
            for name in message.tools if message.role != "tool" else ():
                self._mentions.setdefault(name, message.role)
        self._prepare(request)
        for index in range(self._count, len(messages)):
            message = messages[index]
            stale = index < self._unreasoned or (message.rebased and self.binds_reasoning)
            if stale and message.role == "assistant":
                message = self._without_reasoning(message)
            self._add(message, request)
            self._count = index + 1
        self._known = messages

    def _prepare(self, request: ModelRequest) -> None:
        """Note what the encoding of the messages depends on."""
        return

    def _begin(self, request: ModelRequest) -> bytes:
        """The body up to the conversation; re-encoded only if tools, output, settings or system text have changed."""
        tools, hosted = self._listed_tools(request)
        known = (tools, hosted, self._deferred(request), request.output, request.settings, *self._system)
        if self._start_of != known:
            fields, start = self._fields(request), b""
            if listed := self._encode_tools(tools, hosted, request):
                start += b',"tools":[' + b",".join(listed) + b"]"
            if self._system:
                start += b',"system":[' + b",".join(self._system) + b"]"
            start += self.conversation
            self._start = encode(fields)[:-1] + (start if fields else start.removeprefix(b","))
            self._start_of = known
        return self._start

    def _end(self, request: ModelRequest) -> tuple[bytes, ...]:
        """The body after the encoded conversation, up to its last brace."""
        return (b"]",)

    def _headers(self, request: ModelRequest) -> Mapping[str, str]:
        return {}

    def _listed_tools(self, request: ModelRequest) -> tuple[Sequence[Tool[Any, Any]], Sequence[HostedTool[Any]]]:
        """The tools that stand before the conversation: all, unless the route puts those into it that it adds.

        A message that adds a tool may be gone, as after a compaction; the tool then stands here.
        """
        if self._route == "append":
            return request.tools, request.hosted_tools
        tools = request.tools[: request.initial_tools]
        hosted = request.hosted_tools[: request.initial_hosted_tools]
        late = [tool for tool in request.tools[request.initial_tools :] if not self._adds(tool)]
        late_hosted = [tool for tool in request.hosted_tools[request.initial_hosted_tools :] if not self._adds(tool)]
        return (*tools, *late) if late else tools, (*hosted, *late_hosted) if late_hosted else hosted

    def _adds(self, tool: AnyTool) -> bool:
        """True if the conversation adds a tool, rather than mentioning one that was there before."""
        return self._mentions.get(tool.name) == "tools_added"

    def _deferred(self, request: ModelRequest) -> Collection[str]:
        """The names of listed tools that are withheld from the model until something reveals them."""
        return request.deferred

    @abstractmethod
    def _fields(self, request: ModelRequest) -> dict[str, Any]:
        """The fields of the body before its tools."""

    @property
    def binds_reasoning(self) -> bool:
        """True if the vendor accepts reasoning only after the exact text it followed."""
        return False

    def drop_reasoning(self) -> None:
        """Omit the reasoning of the conversation so far from later requests."""
        self._unreasoned = self._count
        self._known = ()
        self._restart()

    def _without_reasoning(self, message: Message) -> Message:
        return replace(message, items=())

    def _content(self, message: Message) -> str | list[dict[str, Any]]:
        """The text of a message, or its parts; a part the model does not accept is described in text."""
        if not message.parts:
            return message.text
        return [self._part(Text(str(part)) if self._media.problem(part) else part) for part in message.parts]

    def _result(self, message: Message, request: ModelRequest) -> str | list[dict[str, Any]]:
        """The content of a tool's result, the last of a turn with the long descriptions of the tools that it added.

        Long descriptions come from outside, and must not speak with more authority than the result that brought them.
        """
        messages, end = request.messages, self._count + 1
        while end < len(messages) and messages[end].role in ("tools_added", "tools_removed"):
            end += 1
        self._described = end
        added = [messages[index].text for index in range(self._count + 1, end) if messages[index].text]
        if added:
            text = "\n\n".join((message.text, *added))
            parts = (*message.parts, *map(Text, added)) if message.parts else ()
            message = replace(message, text=text, parts=parts)
        return self._content(message)

    def _description(self, message: Message) -> str:
        """The long descriptions of added tools, unless a result has them."""
        return message.text if self._count >= self._described else ""

    def _append(self, item: bytes) -> None:
        if self._buffer:
            self._buffer += b","
        self._buffer += item

    def _encode_tools(
        self, tools: Sequence[Tool[Any, Any]], hosted: Iterable[HostedTool[Any]], request: ModelRequest
    ) -> list[bytes]:
        encoded = [self.tools.encoded(tool) for tool in tools]
        encoded += [encode(self._declared_as(tool)) for tool in hosted]
        deferred = self._deferred(request)
        if not deferred:
            return encoded
        offered: tuple[AnyTool, ...] = (*tools, *hosted)
        for index in (index for index, tool in enumerate(offered) if tool.name in deferred):
            encoded[index] = encoded[index][:-1] + b',"defer_loading":true}'
        return [*encoded, self.search_tool] if any(tool.name in request.deferred for tool in offered) else encoded

    def _encode_added(self, names: Iterable[str], request: ModelRequest) -> list[bytes]:
        """The definitions of the tools with these names that were added to the conversation."""
        wanted = frozenset(names)
        late, late_hosted = request.tools[request.initial_tools :], request.hosted_tools[request.initial_hosted_tools :]
        tools = [tool for tool in late if tool.name in wanted and self._adds(tool)]
        hosted = [tool for tool in late_hosted if tool.name in wanted and self._adds(tool)]
        return self._encode_tools(tools, hosted, request)

    def _declared_as(self, tool: HostedTool[Any]) -> dict[str, Any]:
        return self._codecs[tool.kind].serialize(tool)

    def _codec_values(self, attribute: str, request: ModelRequest) -> list[str]:
        """The distinct values of an optional attribute of the codecs for this request's hosted tools."""
        codecs = [self._codecs[tool.kind] for tool in request.hosted_tools]
        return list(dict.fromkeys(value for codec in codecs for value in getattr(codec, attribute, ())))


def refused(request: ModelRequest, setting: str, model: str, why: str) -> PromptEvaluationError:
    """The error for a setting that a model does not accept."""
    return PromptEvaluationError(
        f"Prompt '{request.prompt_name}': model '{model}' does not accept {setting}: {why}.",
        prompt_name=request.prompt_name,
        phase="request",
    )


def as_object(arguments: str) -> dict[str, Any]:
    """The arguments of a call, for formats that require an object; malformed text is wrapped in one."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"malformed": arguments}


def data_url(part: Media) -> str:
    """The bytes of a part as a `data:` URL."""
    return f"data:{part.media_type};base64,{base64_text(part)}"


def base64_text(part: Media) -> str:
    return b64encode(part.data).decode()


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, (list, tuple)) else value
