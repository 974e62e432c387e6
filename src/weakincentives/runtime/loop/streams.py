"""Streams: the events of a run as it goes on, and how to stop it early."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Generic

from weakincentives._base.generics import OutputT
from weakincentives.errors import AbandonedCallError
from weakincentives.runtime.calls.approval import PendingCall
from weakincentives.runtime.calls.call import Waits
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop.bridge import finish
from weakincentives.runtime.loop.channel import ArgumentsDelta, ModelDelta, TextDelta
from weakincentives.runtime.loop.effects import Effect, Evaluate, RunTools
from weakincentives.runtime.loop.inner_loop import call_ids
from weakincentives.runtime.messages import ModelRequest, PromptResponse, ToolCall, text_before_pauses
from weakincentives.serde import dump


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


ToolEvent = ToolStarted | ToolEmitted | ToolEnded
StreamEvent = ModelDelta | ToolEvent | SectionOpened | PartialOutput | Restarted | ApprovalNeeded | Completed[OutputT]


class EventStream(Iterator[StreamEvent[OutputT]]):
    """The events of a run: an iterator, and a context manager that stops the run if you leave it early.

    `close` may be called from other threads. The session is free once it returns.
    """

    def __init__(self, events: Generator[StreamEvent[OutputT], None, None], live: LiveRun) -> None:
        self._events = events
        self._live = live
        self._closing = threading.RLock()

    @property
    def run_id(self) -> str:
        return self._live.run_id

    def __next__(self) -> StreamEvent[OutputT]:
        with self._live.fence:
            try:
                event = next(self._events)
                if not self._live.fence.closed:
                    return event
                # It is not in the conversation, so it must not be shown.
                self._events.close()
            except AbandonedCallError:
                if not self._live.fence.closed:
                    raise
        raise StopIteration

    def close(self) -> None:
        """Stop the run where it stands; what was shown and done so far stays in the conversation."""
        with self._closing:
            try:
                self._events.close()
            except ValueError:  # The generator is running in another thread.
                if self._live.abandon is not None:
                    self._live.abandon()
                else:  # It has not begun, or is between two adapters.
                    self._live.fence.close()

    def __enter__(self) -> EventStream[OutputT]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncEventStream(AsyncIterator[StreamEvent[OutputT]]):
    """`EventStream` on an event loop, with `aclose`."""

    def __init__(self, events: AsyncGenerator[StreamEvent[OutputT], None], live: LiveRun) -> None:
        self._events = events
        self._live = live
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
        if not self._closed and self._live.abandon is not None:
            self._live.abandon()


class Emissions:
    """Collects what the tool calls of a loop emit, from any thread."""

    def __init__(self, live: LiveRun) -> None:
        self._events: deque[ToolEmitted] = deque()
        live.calls.emitted = self.add

    def add(self, call: ToolCall, data: Any) -> None:
        self._events.append(ToolEmitted(call.id, call.name, data))

    def taken(self) -> Iterator[ToolEmitted]:
        while self._events:
            yield self._events.popleft()


class AsyncEmissions(Emissions):
    """`Emissions` that wake the event loop, so that they are shown while the calls are running."""

    def __init__(self, live: LiveRun) -> None:
        super().__init__(live)
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


def delta_events(delta: ModelDelta | str, live: LiveRun, parser: PartialParser) -> Iterator[StreamEvent[Any]]:
    if isinstance(delta, str):
        delta = TextDelta(delta)
    if live.stream.held and not isinstance(delta, ArgumentsDelta):
        return
    if isinstance(delta, ArgumentsDelta):
        call_id = call_ids(live).shown(delta.call_id)
        delta = replace(delta, call_id=call_id, name=live.toolbox.name_of(delta.name))
    if isinstance(delta, TextDelta):
        live.stream.text.append(delta.text)
    live.stream.shown = True
    yield delta
    if isinstance(delta, TextDelta):
        yield from parser.feed(delta.text)


def started_events(effect: Effect) -> Iterator[StreamEvent[Any]]:
    for call in effect.calls if isinstance(effect, RunTools) else ():
        yield ToolStarted(call.id, call.name, call.arguments)


def ended_events(effect: Effect, outcomes: Any) -> Iterator[StreamEvent[Any]]:
    """What there is to show of the outcome of an effect."""
    if isinstance(effect, Evaluate):
        yield from map(TextDelta, outcomes.text.splitlines(keepends=True))
    for outcome in outcomes if isinstance(effect, RunTools) else ():
        if isinstance(outcome, Waits):
            continue
        yield ToolEnded(outcome.tool_call_id, outcome.name, outcome.success, outcome.message)
        names = tuple(tool.name for tool in outcome.expanded_tools)
        for key in outcome.opened:
            yield SectionOpened(key, names)
            names = ()


def request_events(live: LiveRun) -> Iterator[StreamEvent[Any]]:
    """The events since the last request: the model begins again, or sections were opened without its asking."""
    if live.stream.restarted is not None:
        live.stream.shown = False
        yield Restarted(live.stream.restarted)
    for key in live.stream.opened:
        yield SectionOpened(key, live.toolbox.names_below(key))
    live.stream.restarted, live.stream.opened = None, []


def completed_events(response: PromptResponse[Any], live: LiveRun) -> Iterator[StreamEvent[Any]]:
    if live.stream.replaced and not live.stream.held:
        yield Restarted("A guard replaced the answer.")
    if response.text and (live.stream.replaced or live.stream.held):
        yield TextDelta(response.text)
    if response.output is not None:
        yield PartialOutput(dump(response.output))
    yield from map(ApprovalNeeded, response.pending)
    yield Completed(response)
