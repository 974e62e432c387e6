"""What every vendor's wire format shares: a run's conversation, encoded once and only ever extended."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import msgspec

from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import HostedTool, Tool
from weakincentives.runtime import HostedToolCodec, Message, ModelReply, ModelRequest

_encode = msgspec.json.Encoder().encode

FIRST_USER_TURN = "Begin."
"""Sent where a provider requires a user turn after the system text and the conversation has none."""


def encode(value: object) -> bytes:
    """A value as JSON. Lone surrogates, which UTF-8 cannot represent, become U+FFFD."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_without_surrogates(value))


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """One request body in pieces, and the headers that belong to it."""

    pieces: tuple[bytes | bytearray, ...]
    headers: Mapping[str, str]

    def body(self) -> bytes:
        return b"".join(self.pieces)


class EventParser(Protocol):
    """Parses one streamed response, event by event."""

    def feed(self, event: bytes) -> Iterable[str | ModelReply]:
        """The text deltas in this event and, at the end of the response, the whole reply."""
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
        # Keyed by id, since looking up a WeakKeyDictionary takes three times as long and a run has many tools.
        key, encoded = id(tool), encode(self._declare(tool))
        entry = self._entries[key] = weakref.ref(tool, partial(self._forget, key)), encoded, encoded.decode()
        return entry

    def _forget(self, key: int, tool: weakref.ref[Tool[Any, Any]]) -> None:
        # The id may belong to a new tool by now.
        if (entry := self._entries.get(key)) is not None and entry[0] is tool:
            del self._entries[key]


class Wire(ABC):
    """One run's requests in a vendor's format.

    Each message is encoded when it first appears and kept as bytes, so turn 200 costs what turn 10 costs. The parts of
    a body that may change between turns come after the conversation, so that each body extends the one before.
    """

    provider: ClassVar[str]
    tools: ClassVar[ToolCache]
    search_tool: ClassVar[bytes] = b""

    def __init__(self, codecs: Mapping[str, HostedToolCodec[Any, Any]]) -> None:
        self._codecs = codecs
        self._buffer = bytearray()
        self._count = 0
        self._last: Message | None = None

    @abstractmethod
    def encode_request(self, request: ModelRequest, *, stream: bool = False) -> EncodedRequest:
        """The request as bytes."""

    @abstractmethod
    def parse_reply(self, body: bytes | bytearray) -> ModelReply:
        """The reply in a whole response.

        Raises `msgspec.DecodeError` if the body cannot be read, and `TransportError` if it reports a failure.
        """

    @abstractmethod
    def event_parser(self) -> EventParser:
        """A parser for one streamed response."""

    @abstractmethod
    def _add(self, message: Message, request: ModelRequest) -> None:
        """Append one message to the encoded conversation."""

    def _restart(self) -> None:
        """Forget what was encoded."""
        self._buffer = bytearray()

    def _extend(self, request: ModelRequest) -> None:
        messages, count = request.messages, self._count
        if count and (len(messages) < count or messages[count - 1] is not self._last):
            self._restart()
            count = 0
        total = len(messages)
        for index in range(count, total):
            self._add(messages[index], request)
        if total > count:
            self._last = messages[total - 1]
        self._count = total

    def _append(self, item: bytes) -> None:
        if self._buffer:
            self._buffer += b","
        self._buffer += item

    def _encode_tools(
        self, tools: Sequence[Tool[Any, Any]], hosted: Iterable[HostedTool[Any]], request: ModelRequest
    ) -> list[bytes]:
        encoded = [self.tools.encoded(tool) for tool in tools]
        encoded += [encode(self._codec(tool, request).serialize(tool)) for tool in hosted]
        if not request.deferred:
            return encoded
        deferred = [tool.name in request.deferred for tool in tools]
        for index in (index for index, defer in enumerate(deferred) if defer):
            encoded[index] = encoded[index][:-1] + b',"defer_loading":true}'
        return [*encoded, self.search_tool] if any(deferred) else encoded

    def _codec(self, tool: HostedTool[Any], request: ModelRequest) -> HostedToolCodec[Any, Any]:
        codec = self._codecs.get(tool.kind)
        if codec is None:
            known = ", ".join(sorted(self._codecs)) or "none"
            raise PromptEvaluationError(
                f"Hosted tool '{tool.name}': the {self.provider} adapter has no codec for kind '{tool.kind}' "
                f"(it has: {known}); pass hosted_tool_codecs={{'{tool.kind}': ...}} or remove the tool.",
                prompt_name=request.prompt_name,
                phase="request",
            )
        return codec

    def _codec_values(self, attribute: str, request: ModelRequest) -> list[str]:
        """The values that the codecs of this request's hosted tools have in an optional attribute, each once."""
        values: dict[str, None] = {}
        for tool in request.hosted_tools:
            values.update(dict.fromkeys(getattr(self._codec(tool, request), attribute, ())))
        return list(values)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, (list, tuple)) else value


def define_hosted_tool(tool: HostedTool[Any], codecs: Mapping[str, HostedToolCodec[Any, Any]]) -> str:
    """A hosted tool as an adapter sends it, or in neutral form if the adapter cannot offer it."""
    codec = codecs.get(tool.kind)
    if codec is None:
        return tool.definition
    try:
        return encode(codec.serialize(tool)).decode()
    except PromptEvaluationError:
        return tool.definition


def select_tools(
    names: Sequence[str], tools: Sequence[Tool[Any, Any]], hosted: Sequence[HostedTool[Any]]
) -> tuple[list[Tool[Any, Any]], list[HostedTool[Any]]]:
    """The tools and hosted tools with these names, each in its own order."""
    wanted = frozenset(names)
    return [tool for tool in tools if tool.name in wanted], [tool for tool in hosted if tool.name in wanted]
