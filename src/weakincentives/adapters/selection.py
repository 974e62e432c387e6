"""Selects an adapter: the one a string names, or the first of several that works."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar, Unpack

from weakincentives._base.display import shortened
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import Meter
from weakincentives.prompt import LoadedSections, Overrides, Prompt
from weakincentives.runtime import (
    ArgumentsDelta,
    AsyncEventStream,
    EventStream,
    Explanation,
    ModelCalled,
    ModelRequest,
    PromptRendered,
    PromptResponse,
    ProviderAdapter,
    ReasoningDelta,
    Restarted,
    Settings,
    StreamEvent,
    TextDelta,
    ToolStarted,
)
from weakincentives.runtime.spi import RunOptions, RunScope, adapter_spec, adapter_specs, evaluate, evaluate_async
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.adapters")
OutputT = TypeVar("OutputT")
T = TypeVar("T")
EventT = TypeVar("EventT", ModelCalled, PromptRendered)


def adapter_for(name: str, **options: Any) -> ProviderAdapter:
    """The adapter that a string names, as `--adapter` does on the command line.

    adapter_for("openai:gpt-5.6", settings=Settings(effort="low"))
    """
    provider, _, model = name.partition(":")
    spec = adapter_spec(provider)
    if spec is None:
        known = ", ".join(spec.usage for spec in adapter_specs()) or "no adapter: none is installed as an entry point"
        raise ValueError(f"adapter_for takes one of {known}; got {name!r}")
    if spec.requires_model and not model:
        raise ValueError(f"adapter_for needs a model, as in {spec.usage!r}; got {name!r}")
    adapter: ProviderAdapter = spec.create(model, **options)
    return adapter


class FallbackAdapter(ProviderAdapter):
    """Evaluates prompts on the first of several adapters that works.

        FallbackAdapter(OpenAIAdapter("gpt-5.6"), AnthropicAdapter("claude-opus-5"))

    When an adapter fails after its retries, the run continues with the next, in the same session, and stays with the
    one that answers; the next run starts with the first again. A refusal or a truncated answer counts as an answer. A
    stream that breaks after part of a reply was shown fails, since that part cannot be taken back. If the last adapter
    fails too, its error is raised, with the failures of the others in its message.
    """

    name = "fallback"

    def __init__(self, *adapters: ProviderAdapter, settings: Settings | None = None) -> None:
        if len(adapters) < 2 or not all(isinstance(adapter, ProviderAdapter) for adapter in adapters):
            raise TypeError(f"FallbackAdapter takes two or more adapters, got {adapters!r}")
        super().__init__(", ".join(f"{adapter.name}:{adapter.model}" for adapter in adapters), settings=settings)
        self.adapters = adapters

    def in_use(self, scope: RunScope) -> ProviderAdapter:
        return self.adapters[scope.adapter]

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.name, self.settings, *(adapter.identity for adapter in self.adapters))

    def attempt(self, run: Callable[[ProviderAdapter, RunOptions], T], session: Session, options: RunOptions) -> T:
        attempts = self._attempts(session, options)
        while True:
            with attempts:
                return run(attempts.adapter, attempts.options)

    def evaluate(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        return self.attempt(lambda on, chosen: evaluate(on, prompt, session, chosen), session, options)

    async def evaluate_async(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        attempts = self._attempts(session, options)
        while True:
            with attempts:
                return await evaluate_async(attempts.adapter, prompt, session, attempts.options)

    def stream(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> EventStream[OutputT]:
        attempts = self._attempts(session, options)

        def events() -> Generator[StreamEvent[OutputT], None, None]:
            while True:
                with attempts, attempts.adapter.stream(prompt, session=session, **attempts.options) as stream:
                    for event in stream:
                        attempts.see(event)
                        yield event
                    return

        return EventStream(events(), attempts.scope)

    def stream_async(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> AsyncEventStream[OutputT]:
        attempts = self._attempts(session, options)

        async def events() -> AsyncGenerator[StreamEvent[OutputT], None]:
            while True:
                with attempts:
                    async with attempts.adapter.stream_async(prompt, session=session, **attempts.options) as stream:
                        async for event in stream:
                            attempts.see(event)
                            yield event
                    return

        return AsyncEventStream(events(), attempts.scope)

    def resume(
        self, prompt: Prompt[OutputT], *, session: Session, **options: Unpack[RunOptions]
    ) -> PromptResponse[OutputT]:
        options["beginning"] = "resume"
        return self.evaluate(prompt, session=session, **options)

    def explain(
        self, prompt: Prompt[Any], session: Session | None = None, *, visibility_overrides: Overrides | None = None
    ) -> Explanation:
        """The explanation of the first adapter."""
        return self.adapters[0].explain(prompt, session, visibility_overrides=visibility_overrides)

    def next_request(
        self, prompt: Prompt[Any], session: Session | None = None, *, loaded: LoadedSections | None = None
    ) -> ModelRequest:
        """The next request, to the first adapter."""
        return self.adapters[0].next_request(prompt, session, loaded=loaded)

    def count_request(self, request: ModelRequest) -> int:
        """The tokens of a request to the first adapter."""
        return self.adapters[0].count_request(request)

    def close(self) -> None:
        """Close every adapter."""
        for adapter in self.adapters:
            adapter.close()

    def _attempts(self, session: Session, options: RunOptions) -> _Attempts:
        return _Attempts(self.adapters, session, {**options, "settings": self.settings.merged(options.get("settings"))})


class _Attempts:
    """One evaluation, on one adapter after another; the run's scope records which one is in use.

    As a context, it swallows the error of an adapter that the next one may make good for, and switches to that.
    """

    def __init__(self, adapters: tuple[ProviderAdapter, ...], session: Session, options: RunOptions) -> None:
        self.scope = options.get("scope") or RunScope(Meter(options.get("budget"), options.get("deadline")))
        self.scope.recovers = self.recovers
        self.options: RunOptions = {**options, "scope": self.scope}
        self._adapters = adapters
        self._session = session
        self._shown: tuple[ModelCalled | None] | None = None
        self._failures: list[str] = []

    @property
    def adapter(self) -> ProviderAdapter:
        return self._adapters[self.scope.adapter]

    def see(self, event: StreamEvent[Any]) -> None:
        """Record that part of an unfinished reply has been shown, or that the reply is finished."""
        if isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta):
            self._shown = (self._latest(ModelCalled),)
        elif isinstance(event, ToolStarted | Restarted):
            self._shown = None

    def recovers(self, error: Exception) -> bool:
        """True if there is another adapter, and it might succeed where this one failed."""
        called = self._latest(ModelCalled)
        answered = called is not None and called.stop_reason in _ANSWERS
        limited = isinstance(error, DeadlineExceededError | BudgetExceededError)
        last = self.scope.adapter + 1 == len(self._adapters)
        paused = called is not None and called.stop_reason == "pause"
        shown = self._shown is not None and (paused or self._shown[0] is called)
        stays = last or limited or answered or shown
        # An adapter that cannot offer a hosted tool fails in the phase "render".
        return not stays and getattr(error, "phase", "") in ("request", "response", "render")

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, PromptEvaluationError):
            return False
        if not self.recovers(error):
            others = [each for each in self._failures if not each.endswith(shortened(str(error), 200))]
            if others:
                error.args = (f"{error} (before that, {'; '.join(others)})",)
            return False
        failed = f"{self.adapter.name}:{self.adapter.model} failed"
        self._failures.append(f"{failed}: {shortened(str(error), 200)}")
        self.scope.adapter += 1
        self.scope.recovers = self.recovers
        logger.warning("%s, going on with %s: %s", failed, self.adapter.name, error)
        if self._latest(PromptRendered) is not None:
            self.options = {**self.options, "beginning": "resume"}
        return True

    def _latest(self, kind: type[EventT]) -> EventT | None:
        """The newest event of this run; those of runs inside it may be newer."""
        logged = reversed(self._session[kind].view())
        return next((event for event in logged if event.run_id == self.scope.run_id), None)


_ANSWERS = frozenset({"refusal", "content_filter", "length", "overflow"})
