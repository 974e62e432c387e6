"""The connection of one run to its model, and what it shows of a reply that is being written."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from weakincentives.runtime.loop.bridge import Workers
from weakincentives.runtime.messages import ModelReply, ModelRequest


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the model's text."""

    text: str  #: the next part


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning that the model shows."""

    text: str  #: the next part


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the arguments of a tool call that the model is writing."""

    call_id: str  #: the id of the call
    name: str  #: the tool's name
    text: str  #: the next part of the JSON text


ModelDelta = TextDelta | ReasoningDelta | ArgumentsDelta

# Not the threads of tools: a slow model or server must not keep the tools of other runs waiting.
workers = Workers("wink-runs")


class Channel(Protocol):
    """The connection of one run to its model, which an adapter provides.

    A channel may keep what it has encoded, since a conversation only grows at its end. Failures are raised as
    `PromptEvaluationError` with a phase. Streams yield deltas (a plain string is a text delta) and finally the reply. A
    subclass needs only `call`: the async form then runs it in a thread, and a stream yields the lines of its reply.
    """

    @abstractmethod
    def call(self, request: ModelRequest) -> ModelReply: ...

    async def call_async(self, request: ModelRequest) -> ModelReply:
        return await workers.call(partial(self.call, request))

    def stream(self, request: ModelRequest) -> Iterator[str | ModelDelta | ModelReply]:
        reply = self.call(request)
        yield from reply_deltas(reply)
        yield reply

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[str | ModelDelta | ModelReply]:
        reply = await self.call_async(request)
        for delta in reply_deltas(reply):
            yield delta
        yield reply


def reply_deltas(reply: ModelReply) -> Iterator[ModelDelta]:
    """A whole reply as a stream would have shown it, line by line."""
    yield from map(ReasoningDelta, reply.reasoning.splitlines(keepends=True))
    yield from map(TextDelta, reply.text.splitlines(keepends=True))
    for call in reply.tool_calls:
        yield ArgumentsDelta(call.id, call.name, call.arguments)
