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
    ExitStack,
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
from weakincentives.runtime.events import ResourcesNotClosed
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
from weakincentives.runtime.loop.inner_loop import InnerLoop
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
from weakincentives.runtime.runs import RunScope
from weakincentives.session import Session

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


@dataclass(slots=True)
class RunDriver(Generic[OutputT]):
    """A run that is ready to begin, and the four ways to take it to its end.

    `prompt` is where open resources are found. `observe` receives the run's events, as observers of the session do.
    `own_options` are those with which a model that evaluates prompts by itself is called.
    """

    loop: InnerLoop
    prompt: Prompt[OutputT]
    observe: Callable[[Any], None] | None = None
    recorder: AbstractContextManager[Any] | None = None
    own_options: Mapping[str, Any] = field(default_factory=dict)
    _channel: Entered | None = None
    _resources: Entered | None = None
    _claim: ExitStack = field(default_factory=ExitStack)

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

        return EventStream(events(), self.loop.scope)

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

        return AsyncEventStream(events(), self.loop.scope)

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
        loop = self.loop
        with self.recorder or nullcontext(), loop.scope.meter.on_errors(), self._claim, self._observed():
            if not loop.evaluates_itself:
                self._claim.enter_context(loop.session.claim(loop.owner))
                yield from self._open_resources()
            try:
                response = yield from self._effects(shows=shows, awaits=awaits)
            except BaseException as error:
                yield from self._close(error)
                raise
            yield from self._close(None)
            return response

    @contextmanager
    def _observed(self) -> Iterator[None]:
        unsubscribe = None if self.observe is None else self.loop.session.observe(self.observe)
        try:
            yield
        finally:
            if unsubscribe is not None:
                unsubscribe()

    def _effects(self, *, shows: bool, awaits: bool) -> Generator[Step, Any, PromptResponse[OutputT]]:
        """The effects of the loop, with what there is to show of each before and after it."""
        loop = self.loop
        emissions: Emissions | None = None
        if shows:
            emissions = AsyncEmissions(loop) if awaits else Emissions(loop)
        cursor = Cursor(loop.run())
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
            yield from map(Show, completed_events(response, loop))
        return response

    def _streamed_reply(self, request: ModelRequest) -> Generator[Step, Any, ModelReply]:
        loop = self.loop
        yield from map(Show, request_events(loop))
        parser = PartialParser(request)
        reply: ModelReply | None = None
        parts = yield ReadModel(request)
        try:
            while (part := (yield ReadModel(None, parts))) is not _END:
                if isinstance(part, ModelReply):
                    reply = part
                else:
                    yield from map(Show, delta_events(part, loop, parser))
        finally:
            yield EndStream(parts)
        if reply is None:
            raise PromptEvaluationError(NO_REPLY, prompt_name=request.prompt_name, phase="response")
        return reply

    def _use(self, effect: UseModel) -> Generator[Step, Any, None]:
        """Leave the channel of the model before, and open one to this model."""
        channel, self._channel = self._channel, None
        if channel is not None:
            yield Leave(channel, effect.error)
        if effect.itself:
            # It may run on the session by the library's loop, as part of this run.
            self._claim.close()
            return
        model, loop = effect.model, self.loop
        if self._resources is None:
            self._claim.enter_context(loop.session.claim(loop.owner))
            yield from self._open_resources()
        self._channel = yield Enter(partial(model.open_channel, loop), partial(model.open_channel_async, loop))

    def _open_resources(self) -> Generator[Step, Any, None]:
        opening = self.prompt, self.loop.session, self.loop.scope
        self._resources = yield Enter(
            partial(closing_resources, *opening),
            partial(closing_resources_async, *opening),
        )

    def _close(self, error: BaseException | None) -> Generator[Step, Any, None]:
        """Leave what was opened, the last first, also if that fails for one."""
        channel, self._channel = self._channel, None
        try:
            if channel is not None:
                yield Leave(channel, error)
        except BaseException as raised:
            error = raised
            raise
        finally:
            resources, self._resources = self._resources, None
            if resources is not None:
                yield Leave(resources, error)

    @property
    def _open_channel(self) -> Channel:
        assert self._channel is not None
        channel: Channel = self._channel.value
        return channel

    def _perform(self, effect: Effect) -> Any:
        loop = self.loop
        if isinstance(effect, CallModel):
            return self._open_channel.call(effect.request)
        if isinstance(effect, RunTools):
            return loop.executor.execute_all(effect.calls)
        if isinstance(effect, Summarize):
            return summarize(loop, self._open_channel, effect)
        if isinstance(effect, Compute):
            return effect.function()
        if isinstance(effect, AskGuards):
            return call_sync(effect.steps(), loop.context.loop_thread)
        if isinstance(effect, Evaluate):
            return effect.model.evaluate_itself(self.prompt, loop.session, self.own_options)
        assert isinstance(effect, LoadSections)
        return load_sections(loop, effect)

    async def _perform_async(self, effect: Effect) -> Any:
        loop = self.loop
        if isinstance(effect, CallModel):
            return await self._open_channel.call_async(effect.request)
        if isinstance(effect, RunTools):
            return await loop.executor.execute_all_async(effect.calls)
        if isinstance(effect, Summarize) and effect.function is None:
            if effect.adapter is None:
                return await self._open_channel.call_async(effect.request)
            async with effect.adapter.open_spare_channel_async() as spare:
                return await spare.call_async(effect.request)
        if isinstance(effect, AskGuards | Summarize):
            return await call_async(effect.steps())
        if isinstance(effect, Compute):
            return await workers.call(effect.function)
        if isinstance(effect, Evaluate):
            return await effect.model.evaluate_itself_async(self.prompt, loop.session, self.own_options)
        assert isinstance(effect, LoadSections)
        return await workers.call(partial(load_sections, loop, effect))

    def _read(self, step: ReadModel) -> Any:
        if step.request is not None:
            return self._open_channel.stream(step.request)
        return next(step.parts, _END)

    async def _read_async(self, step: ReadModel) -> Any:
        if step.request is not None:
            return self._open_channel.stream_async(step.request)
        return await anext(step.parts, _END)


def _error_facts(error: BaseException | None) -> tuple[Any, Any, Any]:
    """The arguments with which a context is left."""
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def summarize(loop: InnerLoop, channel: Channel, effect: Summarize) -> ModelReply:
    """The summary, by the run's own model over its channel, by another adapter's, or by a function."""
    if effect.function is not None:
        return call_sync(effect.steps(), loop.context.loop_thread)
    if effect.adapter is None:
        return channel.call(effect.request)
    with effect.adapter.open_spare_channel() as spare:
        return spare.call(effect.request)


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


@contextmanager
def closing_resources(prompt: Prompt[Any], session: Session, scope: RunScope) -> Iterator[None]:
    """The resources of a run, as bound when it began; a failure to close them after a success is only recorded."""
    finished = False
    try:
        scope.prompt = prompt.bound() if scope.prompt is None else scope.prompt
        with prompt.resources.for_run(session, scope.prompt) as scope.resources:
            yield
            finished = True
    except ResourceCloseError as error:
        if not finished:
            raise
        _record_not_closed(error, session, scope.run_id)


@asynccontextmanager
async def closing_resources_async(prompt: Prompt[Any], session: Session, scope: RunScope) -> AsyncIterator[None]:
    """`closing_resources` on an event loop."""
    finished = False
    try:
        scope.prompt = prompt.bound() if scope.prompt is None else scope.prompt
        async with prompt.resources.for_run_async(session, scope.prompt) as scope.resources:
            yield
            finished = True
    except ResourceCloseError as error:
        if not finished:
            raise
        _record_not_closed(error, session, scope.run_id)


def _record_not_closed(error: ResourceCloseError, session: Session, run_id: str) -> None:
    logger.error("%s", error, exc_info=error)
    session.dispatch(ResourcesNotClosed(error.message, run_id=run_id, timestamp=session.timestamp()))
