"""Drives a run: its effects are performed at once or awaited, and its events are streamed or dropped.

The steps of a run are written once, as a generator; one function takes them in a thread, and one on an event loop. A
run whose events nobody reads takes the same steps without them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol

from weakincentives._base.generics import OutputT
from weakincentives._base.steps import Cursor
from weakincentives.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.prompt import Prompt, SectionPath
from weakincentives.resources import ResourceCloseError
from weakincentives.runtime.calls.executor import ToolExecutor
from weakincentives.runtime.events import ResourcesNotClosed
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop import inner_loop
from weakincentives.runtime.loop.bridge import call_async, call_sync
from weakincentives.runtime.loop.channel import Channel, workers
from weakincentives.runtime.loop.effects import (
    AskGuards,
    CallModel,
    Compute,
    Effect,
    Evaluate,
    LoadSections,
    RunTools,
    Summarize,
    UseModel,
)
from weakincentives.runtime.loop.streams import (
    AsyncEmissions,
    AsyncEventStream,
    Emissions,
    EventStream,
    PartialParser,
    StreamEvent,
    completed_events,
    delta_events,
    ended_events,
    request_events,
    started_events,
)
from weakincentives.runtime.messages import ModelReply, ModelRequest, PromptResponse

logger = logging.getLogger("weakincentives.runtime")
_END = object()


class StreamLeft(BaseException):
    """Unwinds a run whose stream was closed or dropped.

    In place of `GeneratorExit`, with which generators that delegate to others are closed, and may take no further step.
    """


NO_REPLY = "The model's stream ended without a reply."


class EventSink(Protocol):
    """A bus: anything that accepts events."""

    def dispatch(self, event: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Enter:
    """A step: enter a context, the blocking one or on an event loop the async one; answered by an `Entered`."""

    blocking: Callable[[], AbstractContextManager[Any]]
    awaited: Callable[[], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Entered:
    """A context that was entered, and what it gave."""

    context: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Leave:
    """A step: leave a context, with the error that ends it if there is one."""

    entered: Entered
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Perform:
    """A step: perform an effect, and show what tools emit meanwhile if somebody reads it; answered by the outcome."""

    effect: Effect
    emissions: Emissions | None = None


@dataclass(frozen=True, slots=True)
class ReadModel:
    """A step: begin a stream of the model, or read the next of its `parts`; answered by the stream, or by the part."""

    request: ModelRequest | None
    parts: Any = None


@dataclass(frozen=True, slots=True)
class EndStream:
    """A step: close a stream of the model, read to its end or not."""

    parts: Any


@dataclass(frozen=True, slots=True)
class Show:
    """A step: show an event to whoever reads the stream."""

    event: StreamEvent[Any]


Step = Enter | Leave | Perform | ReadModel | EndStream | Show


@dataclass(frozen=True, slots=True)
class RunDriver(Generic[OutputT]):
    """A run that is ready to begin, and the four ways to take it to its end.

    `prompt` is where open resources are found. `observe` receives the run's events, as observers of the session do.
    `own_options` are those with which a model that evaluates prompts by itself is called.
    """

    live: LiveRun
    prompt: Prompt[OutputT]
    observe: Callable[[Any], None] | None = None
    recorder: AbstractContextManager[Any] | None = None
    own_options: Mapping[str, Any] = field(default_factory=dict)

    def returned(self) -> PromptResponse[OutputT]:
        """Run to the end in this thread."""
        cursor = Cursor(self._steps(shows=False))
        for _ in self._taken(cursor):
            pass
        return cursor.result()

    async def awaited(self) -> PromptResponse[OutputT]:
        """Run to the end on the running event loop."""
        cursor = Cursor(self._steps(shows=False))
        async for _ in self._taken_async(cursor):
            pass
        return cursor.result()

    def streamed(self) -> EventStream[OutputT]:
        """Run as the events are read."""

        def events() -> Generator[StreamEvent[OutputT], None, None]:
            cursor = Cursor(self._steps(shows=True))
            try:
                yield from self._taken(cursor)
            finally:
                with suppress(StreamLeft):
                    cursor.result()

        return EventStream(events(), self.live)

    def streamed_async(self) -> AsyncEventStream[OutputT]:
        """Run on the running event loop as the events are read."""

        async def events() -> AsyncGenerator[StreamEvent[OutputT], None]:
            cursor = Cursor(self._steps(shows=True, awaits=True))
            try:
                async with aclosing(self._taken_async(cursor)) as taken:
                    async for event in taken:
                        yield event
            finally:
                with suppress(StreamLeft):
                    cursor.result()

        return AsyncEventStream(events(), self.live)

    def _taken(self, cursor: Cursor[Step, Any]) -> Generator[StreamEvent[Any], None, None]:
        """Take the steps in this thread."""
        while (step := cursor.step) is not None:
            outcome: Any = None
            try:
                if isinstance(step, Show):
                    yield step.event
                elif isinstance(step, Perform):
                    outcome = self._perform(step.effect)
                elif isinstance(step, ReadModel):
                    outcome = self._read(step)
                elif isinstance(step, EndStream):
                    if hasattr(step.parts, "close"):
                        step.parts.close()
                elif isinstance(step, Enter):
                    context = step.blocking()
                    outcome = Entered(context, context.__enter__())
                else:
                    outcome = step.entered.context.__exit__(*_error_facts(step.error))
            except GeneratorExit:
                cursor.fail(StreamLeft())
            except BaseException as error:
                cursor.fail(error)
            else:
                cursor.answer(outcome)

    async def _taken_async(self, cursor: Cursor[Step, Any]) -> AsyncGenerator[StreamEvent[Any], None]:
        """Take the steps on the running event loop."""
        while (step := cursor.step) is not None:
            outcome: Any = None
            try:
                if isinstance(step, Show):
                    yield step.event
                elif isinstance(step, Perform) and isinstance(step.emissions, AsyncEmissions):
                    work = asyncio.ensure_future(self._perform_async(step.effect))
                    async with aclosing(step.emissions.until_done(work)) as emitted:
                        async for event in emitted:
                            yield event
                    outcome = work.result()
                elif isinstance(step, Perform):
                    outcome = await self._perform_async(step.effect)
                elif isinstance(step, ReadModel):
                    outcome = await self._read_async(step)
                elif isinstance(step, EndStream):
                    if hasattr(step.parts, "aclose"):
                        await step.parts.aclose()
                elif isinstance(step, Enter):
                    context = step.awaited()
                    outcome = Entered(context, await context.__aenter__())
                else:
                    outcome = await step.entered.context.__aexit__(*_error_facts(step.error))
            except GeneratorExit:
                cursor.fail(StreamLeft())
            except BaseException as error:
                cursor.fail(error)
            else:
                cursor.answer(outcome)

    def _steps(self, *, shows: bool, awaits: bool = False) -> Generator[Step, Any, PromptResponse[OutputT]]:
        """Open what the run needs, perform its effects, and close all of it again."""
        live = self.live
        with self.recorder or nullcontext(), live.meter.on_errors(), live.claim, self._observed():
            try:
                if not live.evaluates_itself:
                    yield from self._open_resources()
                response = yield from self._effects(shows=shows, awaits=awaits)
            except BaseException as error:
                yield from self._close(error)
                raise
            yield from self._close(None)
            return response

    @contextmanager
    def _observed(self) -> Iterator[None]:
        unsubscribe = None if self.observe is None else self.live.session.observe(self.observe)
        try:
            yield
        finally:
            if unsubscribe is not None:
                unsubscribe()

    def _effects(self, *, shows: bool, awaits: bool) -> Generator[Step, Any, PromptResponse[OutputT]]:
        """The effects of the loop, with what there is to show of each before and after it."""
        live = self.live
        emissions: Emissions | None = None
        if shows:
            emissions = AsyncEmissions(live) if awaits else Emissions(live)
        cursor = Cursor(inner_loop.run_loop(live))
        while (effect := cursor.step) is not None:
            outcome: Any = None
            try:
                if isinstance(effect, UseModel):
                    yield from self._use(effect)
                elif isinstance(effect, CallModel) and shows:
                    outcome = yield from self._streamed_reply(effect.request)
                else:
                    if shows:
                        yield from map(Show, started_events(effect))
                    outcome = yield Perform(effect, emissions)
                # Results enter the conversation before they are shown, so a consumer that stops at one keeps it.
                cursor.answer(outcome)
                if emissions is not None:
                    yield from map(Show, emissions.taken())
                    yield from map(Show, ended_events(effect, outcome))
            except BaseException as error:
                cursor.fail(error)
        response = cursor.result()
        if shows:
            yield from map(Show, completed_events(response, live))
        return response

    def _streamed_reply(self, request: ModelRequest) -> Generator[Step, Any, ModelReply]:
        live = self.live
        yield from map(Show, request_events(live))
        parser = PartialParser(request)
        reply: ModelReply | None = None
        parts = yield ReadModel(request)
        try:
            while (part := (yield ReadModel(None, parts))) is not _END:
                if isinstance(part, ModelReply):
                    reply = part
                else:
                    yield from map(Show, delta_events(part, live, parser))
        finally:
            yield EndStream(parts)
        if reply is None:
            raise PromptEvaluationError(NO_REPLY, prompt_name=request.prompt_name, phase="response")
        return reply

    def _use(self, effect: UseModel) -> Generator[Step, Any, None]:
        """Leave the channel of the model before, and open one to this model."""
        live, model = self.live, effect.model
        if live.channel is not None:
            live.channel = None
            yield Leave(live.entered.pop(), effect.error)
        if effect.itself:
            # It may run on the session by the library's loop, as part of this run.
            live.claim.close()
            return
        if not live.entered:
            yield from self._open_resources()
        entered = yield Enter(partial(model.open_channel, live), partial(model.open_channel_async, live))
        live.entered.append(entered)
        live.channel = entered.value

    def _open_resources(self) -> Generator[Step, Any, None]:
        """Claim the session, and open the resources of the run."""
        live = self.live
        live.claim.enter_context(live.session.claim(live.owner))
        live.entered.append((yield Enter(partial(closing_resources, live), partial(closing_resources_async, live))))

    def _close(self, error: BaseException | None) -> Generator[Step, Any, None]:
        """Leave what was entered, the last first, also if that fails for one."""
        live = self.live
        live.channel = None
        failure: BaseException | None = None
        while live.entered:
            try:
                yield Leave(live.entered.pop(), error)
            except BaseException as raised:
                error = failure = raised
        if failure is not None:
            raise failure

    def _perform(self, effect: Effect) -> Any:
        live = self.live
        if isinstance(effect, CallModel):
            return _channel(live).call(effect.request)
        if isinstance(effect, RunTools):
            return ToolExecutor(live).execute_all(effect.calls)
        if isinstance(effect, Summarize):
            return summarize(live, _channel(live), effect)
        if isinstance(effect, Compute):
            return effect.function()
        if isinstance(effect, AskGuards):
            return call_sync(effect.steps(), live.loop_thread)
        if isinstance(effect, Evaluate):
            return effect.model.evaluate_itself(self.prompt, live.session, self.own_options)
        assert isinstance(effect, LoadSections)
        return load_sections(live, effect)

    async def _perform_async(self, effect: Effect) -> Any:
        live = self.live
        if isinstance(effect, CallModel):
            return await _channel(live).call_async(effect.request)
        if isinstance(effect, RunTools):
            return await ToolExecutor(live).execute_all_async(effect.calls)
        if isinstance(effect, Summarize) and effect.function is None:
            if effect.adapter is None:
                return await _channel(live).call_async(effect.request)
            async with effect.adapter.open_spare_channel_async() as spare:
                return await spare.call_async(effect.request)
        if isinstance(effect, AskGuards | Summarize):
            return await call_async(effect.steps())
        if isinstance(effect, Compute):
            return await workers.call(effect.function)
        if isinstance(effect, Evaluate):
            return await effect.model.evaluate_itself_async(self.prompt, live.session, self.own_options)
        assert isinstance(effect, LoadSections)
        return await workers.call(partial(load_sections, live, effect))

    def _read(self, step: ReadModel) -> Any:
        if step.request is not None:
            return _channel(self.live).stream(step.request)
        return next(step.parts, _END)

    async def _read_async(self, step: ReadModel) -> Any:
        if step.request is not None:
            return _channel(self.live).stream_async(step.request)
        return await anext(step.parts, _END)


def _channel(live: LiveRun) -> Channel:
    """The channel to the model in use."""
    assert live.channel is not None
    channel: Channel = live.channel
    return channel


def _error_facts(error: BaseException | None) -> tuple[Any, Any, Any]:
    """The arguments with which a context is left."""
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def summarize(live: LiveRun, channel: Channel, effect: Summarize) -> ModelReply:
    """The summary, by the run's own model over its channel, by another adapter's, or by a function."""
    if effect.function is not None:
        return call_sync(effect.steps(), live.loop_thread)
    if effect.adapter is None:
        return channel.call(effect.request)
    with effect.adapter.open_spare_channel() as spare:
        return spare.call(effect.request)


def load_sections(live: LiveRun, effect: LoadSections) -> dict[SectionPath, Exception]:
    """Load each section; returns the errors of those that failed, and raises if the deadline has passed."""
    failed: dict[SectionPath, Exception] = {}
    for path in effect.paths:
        try:
            live.presentation.load(path, live.resources, live.meter.deadline)
        except DeadlineExceededError as error:
            error.prompt_name = live.name
            raise
        except SystemExit as error:
            failed[path] = RuntimeError(f"raised {error!r}")
        except Exception as error:
            failed[path] = error
    return failed


@contextmanager
def closing_resources(live: LiveRun) -> Iterator[None]:
    """The resources of a run, as bound when it began; a failure to close them after a success is only recorded."""
    finished = False
    try:
        with live.spec.resources.for_run(live.session, live.prompt) as live.resources_opened:
            yield
            finished = True
    except ResourceCloseError as error:
        if not finished:
            raise
        _record_not_closed(live, error)


@asynccontextmanager
async def closing_resources_async(live: LiveRun) -> AsyncIterator[None]:
    """`closing_resources` on an event loop."""
    finished = False
    try:
        async with live.spec.resources.for_run_async(live.session, live.prompt) as live.resources_opened:
            yield
            finished = True
    except ResourceCloseError as error:
        if not finished:
            raise
        _record_not_closed(live, error)


def _record_not_closed(live: LiveRun, error: ResourceCloseError) -> None:
    logger.error("%s", error, exc_info=error)
    session = live.session
    session.dispatch(ResourcesNotClosed(error.message, run_id=live.run_id, timestamp=session.timestamp()))
