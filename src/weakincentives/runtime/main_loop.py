"""The outer loop: evaluate, open what the model asked for, evaluate again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, Unpack

from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Budget, Deadline, Meter
from weakincentives.prompt import Overrides, Prompt, SetVisibilityOverride, VisibilityExpansionRequired
from weakincentives.runtime.adapter import ProviderAdapter, RunOptions, closing_resources, closing_resources_async
from weakincentives.runtime.drivers import AsyncEventStream, Completed, EventStream, Restarted, StreamEvent
from weakincentives.runtime.events import EvaluationFailed, RunRestarted
from weakincentives.runtime.inner_loop import check_prompt
from weakincentives.runtime.messages import PromptResponse
from weakincentives.runtime.run import RunScope
from weakincentives.session import Session

OutputT = TypeVar("OutputT")


class Expansions:
    """Opens, between the evaluations of one run, what the last one asked for; refuses when that was too often."""

    def __init__(self, prompt: Prompt[Any], session: Session, scope: RunScope, limit: int) -> None:
        self._prompt = prompt
        self._session = session
        self._scope = scope
        self._limit = limit

    def settled(self, response: PromptResponse[Any]) -> bool:
        """Whether this is the answer; if the run halted instead, the sections are opened."""
        if response.halt is None:
            return True
        keys = tuple(".".join(path) for path in response.halt.requested_overrides)
        self._open(response.halt.requested_overrides, keys, response.halt.reason)
        return False

    def open(self, signal: VisibilityExpansionRequired) -> Restarted:
        self._open(signal.requested_overrides, tuple(signal.section_keys), signal.reason)
        return Restarted(signal.reason)

    def streamed(self, event: StreamEvent[OutputT]) -> StreamEvent[OutputT]:
        """The event as a stream through restarts shows it: an evaluation that halted is a restart."""
        if isinstance(event, Completed) and event.response.halt is not None and not self.settled(event.response):
            return Restarted(event.response.halt.reason)
        return event

    def _open(self, overrides: Overrides, keys: tuple[str, ...], reason: str) -> None:
        scope, session = self._scope, self._session
        now = session.timestamp()
        if scope.attempt > self._limit:
            error = PromptEvaluationError(
                f"'{self._prompt.name}' asked to open sections more than {self._limit} times "
                f"(now: {', '.join(keys)}); raise max_expansions or show these sections in full.",
                prompt_name=self._prompt.name,
                phase="tool",
            )
            session.dispatch(
                EvaluationFailed(
                    run_id=scope.run_id,
                    prompt_name=self._prompt.name,
                    error=type(error).__name__,
                    message=str(error),
                    phase=error.phase,
                    timestamp=now,
                    conversation_id=scope.conversation_id,
                )
            )
            raise error
        for path, visibility in overrides.items():
            session.dispatch(SetVisibilityOverride(path, visibility))
        session.dispatch(RunRestarted(scope.run_id, keys, reason, overrides, now, scope.conversation_id))
        scope.attempt += 1


class MainLoop:
    """Runs a prompt to its answer, restarting with more sections open where the adapter or strategy needs it.

    Deadline and budget cover all evaluations together; at most `max_expansions` restarts are made. A deadline is a
    point in time, so a loop that serves many requests gives each its own: `execute(..., deadline=Deadline.after(30))`.
    `execute` and `stream` take the options of an adapter's `evaluate`.
    """

    def __init__(
        self,
        *,
        max_expansions: int = 10,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
        recorder: AbstractContextManager[Any] | None = None,
    ) -> None:
        if recorder is not None and not isinstance(recorder, AbstractContextManager):
            raise TypeError(f"recorder must be a context manager, got {recorder!r}; write record(path)")
        self.max_expansions = max_expansions
        self.deadline = deadline
        self.budget = budget
        self.recorder = recorder

    def execute(
        self, prompt: Prompt[OutputT], *, session: Session, adapter: ProviderAdapter, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """Evaluate until there is an answer; `deadline` and `budget` replace the loop's own."""
        scope = options["scope"] = self._scope(prompt, adapter, options)
        expansions = Expansions(prompt, session, scope, self.max_expansions)
        with self.recorder or nullcontext(), closing_resources(prompt, session, scope.run_id):
            while True:
                try:
                    response = adapter.evaluate(prompt, session=session, **options)
                    if expansions.settled(response):
                        return response
                except VisibilityExpansionRequired as signal:
                    expansions.open(signal)

    async def execute_async(
        self, prompt: Prompt[OutputT], *, session: Session, adapter: ProviderAdapter, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        """`execute` on an event loop."""
        scope = options["scope"] = self._scope(prompt, adapter, options)
        expansions = Expansions(prompt, session, scope, self.max_expansions)
        with self.recorder or nullcontext():
            async with closing_resources_async(prompt, session, scope.run_id):
                while True:
                    try:
                        response = await adapter.evaluate_async(prompt, session=session, **options)
                        if expansions.settled(response):
                            return response
                    except VisibilityExpansionRequired as signal:
                        expansions.open(signal)

    def stream(
        self, prompt: Prompt[OutputT], *, session: Session, adapter: ProviderAdapter, **options: Unpack[RunOptions]
    ) -> EventStream[OutputT]:
        """`execute` as a stream of events, through restarts."""
        scope = options["scope"] = self._scope(prompt, adapter, options)
        expansions = Expansions(prompt, session, scope, self.max_expansions)

        def events() -> Generator[StreamEvent[OutputT], None, None]:
            with self.recorder or nullcontext(), closing_resources(prompt, session, scope.run_id):
                while True:
                    try:
                        with adapter.stream(prompt, session=session, **options) as evaluation:
                            for event in map(expansions.streamed, evaluation):
                                yield event
                            if not isinstance(event, Restarted):
                                return
                    except VisibilityExpansionRequired as signal:
                        yield expansions.open(signal)

        return EventStream(events(), scope)

    def stream_async(
        self, prompt: Prompt[OutputT], *, session: Session, adapter: ProviderAdapter, **options: Unpack[RunOptions]
    ) -> AsyncEventStream[OutputT]:
        """`stream` on an event loop."""
        scope = options["scope"] = self._scope(prompt, adapter, options)
        expansions = Expansions(prompt, session, scope, self.max_expansions)

        async def events() -> AsyncGenerator[StreamEvent[OutputT], None]:
            with self.recorder or nullcontext():
                async with closing_resources_async(prompt, session, scope.run_id):
                    while True:
                        try:
                            async with adapter.stream_async(prompt, session=session, **options) as evaluation:
                                async for event in evaluation:
                                    shown = expansions.streamed(event)
                                    yield shown
                                if not isinstance(shown, Restarted):
                                    return
                        except VisibilityExpansionRequired as signal:
                            yield expansions.open(signal)

        return AsyncEventStream(events(), scope)

    def _scope(self, prompt: object, adapter: object, options: RunOptions) -> RunScope:
        """What the evaluations of one run share."""
        check_prompt(prompt)
        if not isinstance(adapter, ProviderAdapter):
            raise TypeError(
                f"adapter must be a ProviderAdapter, got {adapter!r}; pass one, such as OpenAIAdapter(model)"
            )
        return RunScope(Meter(options.get("budget") or self.budget, options.get("deadline") or self.deadline))
