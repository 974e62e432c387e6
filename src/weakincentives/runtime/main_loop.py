"""The outer loop: evaluate, open what the model asked for, evaluate again."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Budget, Deadline, Meter
from weakincentives.prompt import Overrides, Prompt, SetVisibilityOverride, VisibilityExpansionRequired
from weakincentives.runtime.adapter import ProviderAdapter, closing_resources, closing_resources_async
from weakincentives.runtime.events import EvaluationFailed, RunRestarted
from weakincentives.runtime.inner_loop import check_prompt
from weakincentives.runtime.messages import PromptResponse
from weakincentives.runtime.run import RunScope
from weakincentives.session import Session

OutputT = TypeVar("OutputT")


class MainLoop:
    """Runs a prompt to its answer, restarting with more sections open where the adapter or strategy needs it.

    Deadline and budget cover all evaluations together; at most `max_expansions` restarts are made. A deadline is a
    point in time, so a loop that serves many requests gives each its own: `execute(..., deadline=Deadline.after(30))`.
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
        self,
        prompt: Prompt[OutputT],
        *,
        session: Session,
        adapter: ProviderAdapter,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
        visibility_overrides: Overrides | None = None,
    ) -> PromptResponse[OutputT]:
        """Evaluate until there is an answer; `deadline` and `budget` replace the loop's own."""
        attempts = self.attempts(prompt, session, deadline=deadline, budget=budget)
        scope = next(attempts)
        _check(prompt, adapter)
        with self.recorder or nullcontext(), closing_resources(prompt, session, scope.run_id):
            while True:
                try:
                    response = adapter.evaluate(
                        prompt, session=session, scope=scope, visibility_overrides=visibility_overrides
                    )
                    scope = attempts.send(response)
                except VisibilityExpansionRequired as signal:
                    scope = attempts.throw(signal)
                except StopIteration as done:
                    answer: PromptResponse[OutputT] = done.value
                    return answer

    async def execute_async(
        self,
        prompt: Prompt[OutputT],
        *,
        session: Session,
        adapter: ProviderAdapter,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
        visibility_overrides: Overrides | None = None,
    ) -> PromptResponse[OutputT]:
        """`execute` on an event loop."""
        attempts = self.attempts(prompt, session, deadline=deadline, budget=budget)
        scope = next(attempts)
        _check(prompt, adapter)
        with self.recorder or nullcontext():
            async with closing_resources_async(prompt, session, scope.run_id):
                while True:
                    try:
                        response = await adapter.evaluate_async(
                            prompt, session=session, scope=scope, visibility_overrides=visibility_overrides
                        )
                        scope = attempts.send(response)
                    except VisibilityExpansionRequired as signal:
                        scope = attempts.throw(signal)
                    except StopIteration as done:
                        answer: PromptResponse[OutputT] = done.value
                        return answer

    def attempts(
        self,
        prompt: Prompt[Any],
        session: Session,
        *,
        run_id: str | None = None,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
    ) -> Generator[RunScope, PromptResponse[Any], PromptResponse[Any]]:
        """Yield the scope of each evaluation; expects its response to be sent, or its signal thrown, back in."""
        meter = Meter(budget or self.budget, deadline or self.deadline)
        scope = RunScope(meter) if run_id is None else RunScope(meter, run_id)
        while True:
            try:
                response = yield scope
                if response.halt is None:
                    return response
                overrides = response.halt.requested_overrides
                keys, reason = tuple(".".join(path) for path in overrides), response.halt.reason
            except VisibilityExpansionRequired as signal:
                overrides, keys, reason = signal.requested_overrides, signal.section_keys, signal.reason
            if scope.attempt > self.max_expansions:
                error = PromptEvaluationError(
                    f"'{prompt.name}' asked to open sections more than {self.max_expansions} times "
                    f"(now: {', '.join(keys)}); raise max_expansions or show these sections in full.",
                    prompt_name=prompt.name,
                    phase="tool",
                )
                now = session.clock.now().timestamp()
                failed = EvaluationFailed(scope.run_id, prompt.name, type(error).__name__, str(error), error.phase, now)
                session.dispatch(failed)
                raise error
            for path, visibility in overrides.items():
                session.dispatch(SetVisibilityOverride(path, visibility))
            session.dispatch(RunRestarted(scope.run_id, keys, reason, overrides, session.clock.now().timestamp()))
            scope.attempt += 1


def _check(prompt: object, adapter: object) -> None:
    check_prompt(prompt)
    if not isinstance(adapter, ProviderAdapter):
        raise TypeError(f"adapter must be a ProviderAdapter, got {adapter!r}; pass one, such as OpenAIAdapter(model)")
