"""What every vendor's wire format has in common: a run's conversation, encoded once and only ever extended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt.hosted import HostedTool
from weakincentives.prompt.tool import Tool
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.messages import Message, ModelReply, ModelRequest

encode = msgspec.json.Encoder().encode

OPENING = "Begin."
"""The user turn that is sent where a provider insists on one after the system text."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request body in pieces, and the headers that belong to it."""

    pieces: tuple[bytes | bytearray, ...]
    headers: Mapping[str, str]

    def joined(self) -> bytes:
        return b"".join(self.pieces)


class Events(Protocol):
    """Reads one streamed answer event by event."""

    def feed(self, event: bytes) -> Iterable[str | ModelReply]:
        """Text deltas, and at the end the whole reply."""
        ...


class Wire(ABC):
    """One run's requests in a vendor's format.

    Messages are encoded when they first appear and kept as bytes: turn 200 costs what turn 10 costs. The parts of a
    body that may change from turn to turn come after the conversation, so that one body extends the last.
    """

    provider: str

    def __init__(self, codecs: Mapping[str, HostedToolCodec[Any, Any]]) -> None:
        self._codecs = codecs
        self._buffer = bytearray()
        self._count = 0
        self._last: Message | None = None

    @abstractmethod
    def outgoing(self, request: ModelRequest, *, stream: bool = False) -> Outgoing:
        """The request as bytes."""

    @abstractmethod
    def reply(self, body: bytes | bytearray) -> ModelReply:
        """The vendor's answer; `msgspec.DecodeError` when it cannot be read, `Failure` when it says that it failed."""

    @abstractmethod
    def events(self) -> Events:
        """A reader for one streamed answer."""

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

    def _append(self, chunk: bytes) -> None:
        if self._buffer:
            self._buffer += b","
        self._buffer += chunk

    def _hosted(self, tool: HostedTool[Any], request: ModelRequest) -> bytes:
        return encode(self._codec(tool, request).serialize(tool))

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
        """What the codecs of this request's hosted tools ask for in an optional attribute, without repeats."""
        values: dict[str, None] = {}
        for tool in request.hosted_tools:
            values.update(dict.fromkeys(getattr(self._codec(tool, request), attribute, ())))
        return list(values)


def encoded_tools(
    tools: Sequence[Tool[Any, Any]], slot: str, describe: Callable[[Tool[Any, Any]], dict[str, Any]]
) -> list[bytes]:
    """Each tool in a vendor's form; kept on the tool itself, so that a tool is encoded once in its life."""
    chunks = []
    for tool in tools:
        kept = tool.__dict__.get(slot)
        if kept is None:
            kept = tool.__dict__[slot] = encode(describe(tool))
        chunks.append(kept)
    return chunks


def by_name(
    names: Sequence[str], tools: Sequence[Tool[Any, Any]], hosted: Sequence[HostedTool[Any]]
) -> tuple[list[Tool[Any, Any]], list[HostedTool[Any]]]:
    """The tools and hosted tools with these names, each in its own order."""
    wanted = frozenset(names)
    return [tool for tool in tools if tool.name in wanted], [tool for tool in hosted if tool.name in wanted]
