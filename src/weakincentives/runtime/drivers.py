"""Drivers of the inner loop (sync, async, streaming) and the channel through which they call the model."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from weakincentives._generics import OutputT
from weakincentives.runtime.executor import ToolExecutionOutcome
from weakincentives.runtime.inner_loop import InnerLoop
from weakincentives.runtime.messages import CallModel, Effect, ModelReply, ModelRequest, PromptResponse, RunTools


class Channel(Protocol):
    """What an adapter provides: the connection of one run to its model.

    A channel may keep what it has encoded, since a conversation only grows at its end. Failures are
    `PromptEvaluationError` with a phase. Streams yield text deltas and, last, the reply. A subclass needs only `call`:
    the async form then runs it in a thread, and a stream is the whole reply in one piece.
    """

    @abstractmethod
    def call(self, request: ModelRequest) -> ModelReply: ...

    async def call_async(self, request: ModelRequest) -> ModelReply:
        return await asyncio.to_thread(self.call, request)

    def stream(self, request: ModelRequest) -> Iterator[str | ModelReply]:
        reply = self.call(request)
        if reply.text:
            yield reply.text
        yield reply

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[str | ModelReply]:
        reply = await self.call_async(request)
        if reply.text:
            yield reply.text
        yield reply


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the model's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool call begins."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool call has ended."""

    call_id: str
    name: str
    success: bool
    message: str


# No slots: `Completed[T](...)` on a frozen class with slots is a TypeError before CPython 3.12.2.
@dataclass(frozen=True)
class Completed(Generic[OutputT]):
    """The last event of a stream: the whole response."""

    response: PromptResponse[OutputT]


StreamEvent = TextDelta | ToolStarted | ToolEnded | Completed[OutputT]


class LoopCursor:
    """An inner loop advanced by one outcome at a time; `effect` is None once `response` is there."""

    def __init__(self, loop: InnerLoop) -> None:
        self._generator: Generator[Effect, Any, PromptResponse[Any]] = loop.run()
        self.response: PromptResponse[Any] | None = None
        self.effect: Effect | None = None
        self.answer(None)

    def answer(self, outcome: Any) -> None:
        try:
            self.effect = self._generator.send(outcome)
        except StopIteration as stop:
            self.effect, self.response = None, stop.value

    def fail(self, error: BaseException) -> None:
        """Throw the error into the loop, which raises it again unless it can handle it."""
        try:
            self.effect = self._generator.throw(error)
        except StopIteration as stop:
            self.effect, self.response = None, stop.value

    def result(self) -> PromptResponse[Any]:
        assert self.response is not None
        return self.response


def drive(loop: InnerLoop, channel: Channel) -> PromptResponse[Any]:
    """Run the loop to its end in this thread."""
    cursor = LoopCursor(loop)
    while (effect := cursor.effect) is not None:
        outcome: ModelReply | list[ToolExecutionOutcome]
        try:
            if isinstance(effect, CallModel):
                outcome = channel.call(effect.request)
            else:
                outcome = loop.executor.execute_all(effect.calls)
        except BaseException as error:
            cursor.fail(error)
        else:
            cursor.answer(outcome)
    return cursor.result()


async def drive_async(loop: InnerLoop, channel: Channel) -> PromptResponse[Any]:
    """Run the loop to its end on the running event loop."""
    cursor = LoopCursor(loop)
    while (effect := cursor.effect) is not None:
        outcome: ModelReply | list[ToolExecutionOutcome]
        try:
            if isinstance(effect, CallModel):
                outcome = await channel.call_async(effect.request)
            else:
                outcome = await loop.executor.execute_all_async(effect.calls)
        except BaseException as error:
            cursor.fail(error)
        else:
            cursor.answer(outcome)
    return cursor.result()


def drive_stream(loop: InnerLoop, channel: Channel) -> Iterator[StreamEvent[Any]]:
    """Run the loop and yield what happens."""
    cursor = LoopCursor(loop)
    while (effect := cursor.effect) is not None:
        outcome: Any = None
        try:
            if isinstance(effect, CallModel):
                for part in channel.stream(effect.request):
                    if isinstance(part, ModelReply):
                        outcome = part
                    else:
                        yield TextDelta(part)
            else:
                yield from _started(effect)
                outcome = loop.executor.execute_all(effect.calls)
                yield from _ended(outcome)
        except BaseException as error:
            cursor.fail(error)
        else:
            cursor.answer(outcome)
    yield Completed(cursor.result())


async def drive_stream_async(loop: InnerLoop, channel: Channel) -> AsyncIterator[StreamEvent[Any]]:
    """`drive_stream` on the running event loop."""
    cursor = LoopCursor(loop)
    while (effect := cursor.effect) is not None:
        outcome: Any = None
        try:
            if isinstance(effect, CallModel):
                async for part in channel.stream_async(effect.request):
                    if isinstance(part, ModelReply):
                        outcome = part
                    else:
                        yield TextDelta(part)
            else:
                for started in _started(effect):
                    yield started
                outcome = await loop.executor.execute_all_async(effect.calls)
                for ended in _ended(outcome):
                    yield ended
        except BaseException as error:
            cursor.fail(error)
        else:
            cursor.answer(outcome)
    yield Completed(cursor.result())


def _started(effect: RunTools) -> Iterator[StreamEvent[Any]]:
    return (ToolStarted(call.id, call.name, call.arguments) for call in effect.calls)


def _ended(outcomes: list[ToolExecutionOutcome]) -> Iterator[StreamEvent[Any]]:
    return (ToolEnded(o.tool_call_id, o.name, o.success, o.message) for o in outcomes)
