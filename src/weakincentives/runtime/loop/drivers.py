"""Drivers of the inner loop (sync, async, streaming) and the channel through which they call the model."""

from __future__ import annotations

import asyncio
import re
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Generic, Protocol

from weakincentives._base.generics import OutputT
from weakincentives._base.steps import Cursor, run_steps, run_steps_async
from weakincentives.errors import AbandonedCallError, DeadlineExceededError
from weakincentives.prompt import SectionPath
from weakincentives.runtime.calls.approval import PendingCall
from weakincentives.runtime.calls.call import CallOutcome, Waits
from weakincentives.runtime.loop.bridge import Workers, call_async, call_sync, finish
from weakincentives.runtime.loop.inner_loop import InnerLoop
from weakincentives.runtime.messages import (
    AskGuards,
    CallModel,
    Compute,
    Effect,
    LoadSections,
    ModelReply,
    ModelRequest,
    PromptResponse,
    RunTools,
    Summarize,
    ToolCall,
    text_before_pauses,
)
from weakincentives.runtime.runs import RunScope
from weakincentives.serde import dump


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


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool call has started."""

    call_id: str  #: the id of the call
    name: str  #: the tool's name
    arguments: str  #: the JSON text of the arguments


@dataclass(frozen=True, slots=True)
class ToolEmitted:
    """Data that a running tool call sent by `context.emit`, as plain data.

    An async stream yields it at once. In a sync stream the tool runs in your thread, so it comes when the tool ends.
    """

    call_id: str  #: the id of the call
    name: str  #: the tool's name
    data: Any  #: the data


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool call has ended; `message` is the text that the model reads, besides any attachments."""

    call_id: str  #: the id of the call
    name: str  #: the tool's name
    success: bool  #: False if it failed or was refused
    message: str


@dataclass(frozen=True, slots=True)
class SectionOpened:
    """A section was opened or read, and these tools appeared with it."""

    section_key: str  #: the section
    tool_names: tuple[str, ...] = ()  #: tools that may now be called


@dataclass(frozen=True, slots=True)
class PartialOutput:
    """The typed answer so far, as plain data; the last one equals the whole answer."""

    value: Any  #: the answer so far


@dataclass(frozen=True, slots=True)
class Restarted:
    """The answer so far is not the final one, and the model starts again; the conversation continues.

    Either more sections must be open, the typed answer did not fit, or a guard did not accept or replaced it; `reason`
    says why.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalNeeded:
    """A call waits for a person's decision; the run ends with it pending."""

    call: PendingCall  #: the call to decide about

    @property
    def name(self) -> str:
        """The name of the tool, as in other events of tools."""
        return self.call.tool


# No slots: `Completed[T](...)` on a frozen class with slots is a TypeError before CPython 3.12.2.
@dataclass(frozen=True)
class Completed(Generic[OutputT]):
    """The last event of a stream: the whole response."""

    response: PromptResponse[OutputT]  #: the response that `run` would return


ModelDelta = TextDelta | ReasoningDelta | ArgumentsDelta
ToolEvent = ToolStarted | ToolEmitted | ToolEnded
StreamEvent = ModelDelta | ToolEvent | SectionOpened | PartialOutput | Restarted | ApprovalNeeded | Completed[OutputT]


# Not the threads of tools: a slow model or server must not keep the tools of other runs waiting.
_workers = Workers("wink-runs")


class Channel(Protocol):
    """The connection of one run to its model, which an adapter provides.

    A channel may keep what it has encoded, since a conversation only grows at its end. Failures are raised as
    `PromptEvaluationError` with a phase. Streams yield deltas (a plain string is a text delta) and finally the reply. A
    subclass needs only `call`: the async form then runs it in a thread, and a stream yields the lines of its reply.
    """

    @abstractmethod
    def call(self, request: ModelRequest) -> ModelReply: ...

    async def call_async(self, request: ModelRequest) -> ModelReply:
        return await _workers.call(partial(self.call, request))

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
    yield from map(ReasoningDelta, reply.reasoning.splitlines(keepends=True))
    yield from map(TextDelta, reply.text.splitlines(keepends=True))
    for call in reply.tool_calls:
        yield ArgumentsDelta(call.id, call.name, call.arguments)


class EventStream(Iterator[StreamEvent[OutputT]]):
    """The events of a run: an iterator, and a context manager that stops the run if you leave it early.

    `close` may be called from other threads. The session is free once it returns.
    """

    def __init__(self, events: Generator[StreamEvent[OutputT], None, None], scope: RunScope) -> None:
        self._events = events
        self._scope = scope
        self._closing = threading.RLock()

    @property
    def run_id(self) -> str:
        return self._scope.run_id

    def __next__(self) -> StreamEvent[OutputT]:
        with self._scope.fence:
            try:
                event = next(self._events)
                if not self._scope.fence.closed:
                    return event
                # It is not in the conversation, so it must not be shown.
                self._events.close()
            except AbandonedCallError:
                if not self._scope.fence.closed:
                    raise
        raise StopIteration

    def close(self) -> None:
        """Stop the run where it stands; what was shown and done so far stays in the conversation."""
        with self._closing:
            try:
                self._events.close()
            except ValueError:  # The generator is running in another thread.
                if self._scope.abandon is not None:
                    self._scope.abandon()
                else:  # It has not begun, or is between two adapters.
                    self._scope.fence.close()

    def __enter__(self) -> EventStream[OutputT]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncEventStream(AsyncIterator[StreamEvent[OutputT]]):
    """`EventStream` on an event loop, with `aclose`."""

    def __init__(self, events: AsyncGenerator[StreamEvent[OutputT], None], scope: RunScope) -> None:
        self._events = events
        self._scope = scope
        self._reader: asyncio.Task[Any] | None = None
        self._closed = False
        self._idle = asyncio.Event()
        self._closing = asyncio.Lock()

    async def __anext__(self) -> StreamEvent[OutputT]:
        self._reader = asyncio.current_task()
        self._idle.clear()
        try:
            return await anext(self._events)
        except asyncio.CancelledError:
            if self._reader is not None or (task := asyncio.current_task()) is None:
                raise
            # Cancelled by `aclose` in another task, not by the owner of this task.
            task.uncancel()
        finally:
            self._reader = None
            self._idle.set()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop the run where it stands; what was shown and done so far stays in the conversation."""
        self._closed = True
        async with self._closing:
            reader, self._reader = self._reader, None
            if reader is None or reader is asyncio.current_task():
                await self._events.aclose()
                return
            reader.cancel()
            await self._idle.wait()

    async def __aenter__(self) -> AsyncEventStream[OutputT]:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # The event loop closes a dropped async generator only later, but the session must be free at once.
        # The streams of one run, on one adapter after another, share its scope: a closed one must not end the next.
        if not self._closed and self._scope.abandon is not None:
            self._scope.abandon()


def drive(loop: InnerLoop, channel: Channel) -> PromptResponse[Any]:
    """Run the loop to its end in this thread."""
    return run_steps(loop.run(), partial(_perform, loop, channel))


async def drive_async(loop: InnerLoop, channel: Channel) -> PromptResponse[Any]:
    """Run the loop to its end on the running event loop."""
    return await run_steps_async(loop.run(), partial(_perform_async, loop, channel))


def _perform(loop: InnerLoop, channel: Channel, effect: Effect) -> Any:
    if isinstance(effect, CallModel):
        return channel.call(effect.request)
    if isinstance(effect, RunTools):
        return loop.executor.execute_all(effect.calls)
    if isinstance(effect, Summarize):
        return summarize(loop, channel, effect)
    if isinstance(effect, Compute):
        return effect.function()
    if isinstance(effect, AskGuards):
        return call_sync(effect.steps(), loop.context.loop_thread)
    return load_sections(loop, effect)


def summarize(loop: InnerLoop, channel: Channel, effect: Summarize) -> ModelReply:
    """The summary, by the run's own model over its channel, by another adapter's, or by a function."""
    if effect.function is not None:
        return call_sync(effect.steps(), loop.context.loop_thread)
    if effect.adapter is None:
        return channel.call(effect.request)
    with effect.adapter.open_spare_channel() as spare:
        reply: ModelReply = spare.call(effect.request)
    return reply


async def _perform_async(loop: InnerLoop, channel: Channel, effect: Effect) -> Any:
    if isinstance(effect, CallModel):
        return await channel.call_async(effect.request)
    if isinstance(effect, RunTools):
        return await loop.executor.execute_all_async(effect.calls)
    if isinstance(effect, Summarize) and effect.function is None:
        if effect.adapter is None:
            return await channel.call_async(effect.request)
        async with effect.adapter.open_spare_channel_async() as spare:
            return await spare.call_async(effect.request)
    if isinstance(effect, AskGuards | Summarize):
        return await call_async(effect.steps())
    if isinstance(effect, Compute):
        return await _workers.call(effect.function)
    return await _workers.call(partial(load_sections, loop, effect))


def drive_stream(loop: InnerLoop, channel: Channel) -> Generator[StreamEvent[Any], None, None]:
    """Run the loop and yield what happens."""
    cursor = Cursor(loop.run())
    emissions = Emissions(loop)
    while (effect := cursor.step) is not None:
        outcome: Any = None
        try:
            if isinstance(effect, CallModel):
                yield from request_events(loop)
                parser = PartialParser(effect.request)
                for part in channel.stream(effect.request):
                    if isinstance(part, ModelReply):
                        outcome = part
                    else:
                        yield from delta_events(part, loop, parser)
            else:
                yield from started_events(effect)
                outcome = _perform(loop, channel, effect)
            # Results enter the conversation before they are shown, so a consumer that stops at one keeps it.
            cursor.answer(outcome)
            yield from emissions.taken()
            yield from ended_events(effect, outcome)
        except BaseException as error:
            cursor.fail(error)
    yield from completed_events(cursor.result(), loop)


async def drive_stream_async(loop: InnerLoop, channel: Channel) -> AsyncGenerator[StreamEvent[Any], None]:
    """`drive_stream` on the running event loop."""
    cursor = Cursor(loop.run())
    emissions = AsyncEmissions(loop)
    while (effect := cursor.step) is not None:
        outcome: Any = None
        try:
            if isinstance(effect, CallModel):
                for event in request_events(loop):
                    yield event
                parser = PartialParser(effect.request)
                async for part in channel.stream_async(effect.request):
                    if isinstance(part, ModelReply):
                        outcome = part
                    else:
                        for event in delta_events(part, loop, parser):
                            yield event
            else:
                for event in started_events(effect):
                    yield event
                work = asyncio.ensure_future(_perform_async(loop, channel, effect))
                async with aclosing(emissions.until_done(work)) as emitted:
                    async for event in emitted:
                        yield event
                outcome = work.result()
            cursor.answer(outcome)
            for event in ended_events(effect, outcome):
                yield event
        except BaseException as error:
            cursor.fail(error)
    for event in completed_events(cursor.result(), loop):
        yield event


class Emissions:
    """Collects what the tool calls of a loop emit, from any thread."""

    def __init__(self, loop: InnerLoop) -> None:
        self._events: deque[ToolEmitted] = deque()
        loop.executor.calls.emitted = self.add

    def add(self, call: ToolCall, data: Any) -> None:
        self._events.append(ToolEmitted(call.id, call.name, data))

    def taken(self) -> Iterator[ToolEmitted]:
        while self._events:
            yield self._events.popleft()


class AsyncEmissions(Emissions):
    """`Emissions` that wake the event loop, so that they are shown while the calls are running."""

    def __init__(self, loop: InnerLoop) -> None:
        super().__init__(loop)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def add(self, call: ToolCall, data: Any) -> None:
        super().add(call, data)
        with suppress(RuntimeError):  # The event loop is closed, so nobody is waiting.
            self._loop.call_soon_threadsafe(self._changed.set)

    async def until_done(self, work: asyncio.Future[Any]) -> AsyncGenerator[ToolEmitted, None]:
        """The events emitted until the work ends; closing or cancelling this cancels the work and waits for it."""
        work.add_done_callback(lambda _: self._changed.set())
        try:
            while not work.done():
                await self._changed.wait()
                self._changed.clear()
                for event in self.taken():
                    yield event
        finally:
            if not work.done():
                work.cancel()
                await finish(work)
                if not work.cancelled():
                    work.exception()  # Retrieved, so that asyncio does not log it.


def load_sections(loop: InnerLoop, effect: LoadSections) -> dict[SectionPath, Exception]:
    """Load each section; returns the errors of those that failed, and raises if the deadline has passed."""
    failed: dict[SectionPath, Exception] = {}
    for path in effect.paths:
        try:
            loop.context.presentation.load(path, loop.context.resources, loop.scope.meter.deadline)
        except DeadlineExceededError as error:
            error.prompt_name = loop.prompt.name
            raise
        except SystemExit as error:
            failed[path] = RuntimeError(f"raised {error!r}")
        except Exception as error:
            failed[path] = error
    return failed


_NUMBER_AT_END = re.compile(r"-?[\d.]+(?:[eE][-+]?\d*)?$")


class PartialParser:
    """Parses the typed answer while it is still being written."""

    def __init__(self, request: ModelRequest) -> None:
        self._config = request.output
        self._text = "" if request.output is None else text_before_pauses(request.messages)
        self._parsed = 0
        self._last: Any = None

    def feed(self, text: str) -> Iterator[PartialOutput]:
        parse = None if self._config is None else _partial_json()
        if self._config is None or parse is None:
            return
        self._text += text
        # Parsing again for each delta would be quadratic; waiting for a twentieth more text keeps it linear.
        if len(self._text) < self._parsed + 8 + self._parsed // 20:
            return
        self._parsed = len(self._text)
        start = self._text.find("{")
        # A number at the end may have more digits to come.
        known = _NUMBER_AT_END.sub("", self._text[max(start, 0) :])
        try:
            value = parse(known.encode("utf-8", "replace"), partial_mode="trailing-strings")
        except ValueError:
            return
        value = self._config.unwrapped(value)
        if value is not None and value != self._last:
            self._last = value
            yield PartialOutput(value)


@cache
def _partial_json() -> Callable[..., Any] | None:
    """jiter's parser, which the SDKs install; without it, a stream shows the typed answer once, complete."""
    try:
        from jiter import from_json
    except ImportError:
        return None
    return from_json


def delta_events(delta: ModelDelta | str, loop: InnerLoop, parser: PartialParser) -> Iterator[StreamEvent[Any]]:
    if isinstance(delta, str):
        delta = TextDelta(delta)
    if loop.stream.held and not isinstance(delta, ArgumentsDelta):
        return
    if isinstance(delta, ArgumentsDelta):
        call_id = loop.call_ids.shown(delta.call_id)
        delta = replace(delta, call_id=call_id, name=loop.toolbox.name_of(delta.name))
    if isinstance(delta, TextDelta):
        loop.stream.text.append(delta.text)
    yield delta
    if isinstance(delta, TextDelta):
        yield from parser.feed(delta.text)


def started_events(effect: Effect) -> Iterator[StreamEvent[Any]]:
    for call in effect.calls if isinstance(effect, RunTools) else ():
        yield ToolStarted(call.id, call.name, call.arguments)


def ended_events(effect: Effect, outcomes: Sequence[CallOutcome]) -> Iterator[StreamEvent[Any]]:
    for outcome in outcomes if isinstance(effect, RunTools) else ():
        if isinstance(outcome, Waits):
            continue
        yield ToolEnded(outcome.tool_call_id, outcome.name, outcome.success, outcome.message)
        names = tuple(tool.name for tool in outcome.expanded_tools)
        for key in outcome.opened:
            yield SectionOpened(key, names)
            names = ()


def request_events(loop: InnerLoop) -> Iterator[StreamEvent[Any]]:
    """The events since the last request: the model begins again, or sections were opened without its asking."""
    if loop.stream.restarted is not None:
        yield Restarted(loop.stream.restarted)
    for key in loop.notices.opened:
        yield SectionOpened(key, loop.toolbox.names_below(key))
    loop.stream.restarted, loop.notices.opened = None, []


def completed_events(response: PromptResponse[Any], loop: InnerLoop) -> Iterator[StreamEvent[Any]]:
    if loop.stream.replaced and not loop.stream.held:
        yield Restarted("A guard replaced the answer.")
    if response.text and (loop.stream.replaced or loop.stream.held):
        yield TextDelta(response.text)
    if response.output is not None:
        yield PartialOutput(dump(response.output))
    yield from map(ApprovalNeeded, response.pending)
    yield Completed(response)
