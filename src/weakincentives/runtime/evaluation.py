"""Evaluate on any adapter, through restarts: also on one that has only an `evaluate`, or `evaluate_async`, of its own.

The inner loop restarts by itself. An adapter that does not use it asks for a restart by an exception, and may accept
fewer options.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from weakincentives._base.annotations import signature_of
from weakincentives.prompt import Prompt, VisibilityExpansionRequired
from weakincentives.runtime.adapter import ProviderAdapter, RunOptions
from weakincentives.runtime.events import RunEnded
from weakincentives.runtime.messages import PromptResponse
from weakincentives.runtime.runs import RunScope
from weakincentives.session import Session

T = TypeVar("T")


def evaluate(adapter: ProviderAdapter, prompt: Prompt[T], session: Session, options: RunOptions) -> PromptResponse[T]:
    """Evaluate once, with the options that the adapter accepts."""
    accepted = _accepted(adapter, "evaluate", session, options)
    return adapter.evaluate(prompt, session=session, **accepted)


async def evaluate_async(
    adapter: ProviderAdapter, prompt: Prompt[T], session: Session, options: RunOptions
) -> PromptResponse[T]:
    """`evaluate` on an event loop."""
    accepted = _accepted(adapter, "evaluate_async", session, options)
    return await adapter.evaluate_async(prompt, session=session, **accepted)


def evaluate_through_restarts(
    adapter: ProviderAdapter, prompt: Prompt[T], session: Session, options: RunOptions
) -> PromptResponse[T]:
    """Evaluate, and again with more sections open when the adapter asks for that."""
    restarts = Restarts(adapter, prompt, session, options)
    while True:
        with restarts:
            return evaluate(adapter, prompt, session, options)


async def evaluate_through_restarts_async(
    adapter: ProviderAdapter, prompt: Prompt[T], session: Session, options: RunOptions
) -> PromptResponse[T]:
    """`evaluate_through_restarts` on an event loop."""
    restarts = Restarts(adapter, prompt, session, options)
    while True:
        with restarts:
            return await evaluate_async(adapter, prompt, session, options)


class Restarts:
    """As a context around one attempt, it swallows a request to open sections, and opens them for the next."""

    def __init__(self, adapter: ProviderAdapter, prompt: Prompt[Any], session: Session, options: RunOptions) -> None:
        scope = options.get("scope")
        assert scope is not None
        self._adapter = adapter
        self._prompt = prompt
        self._session = session
        self._scope: RunScope = scope
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = self._session.clock.monotonic()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, VisibilityExpansionRequired):
            return False
        self._scope.check_expansions(error, self._prompt.name)
        self._record(error)
        self._scope.open(error, self._session)
        return True

    def _record(self, signal: VisibilityExpansionRequired) -> None:
        scope, session, adapter = self._scope, self._session, self._adapter.in_use(self._scope)
        scope.conversation_id = scope.conversation_id or session.session_id
        session.dispatch(
            RunEnded(
                prompt_name=self._prompt.name,
                status="restarted",
                prompt_ns=self._prompt.ns,
                prompt_key=self._prompt.key,
                adapter=adapter.name,
                model=adapter.model,
                reason=signal.reason,
                section_keys=tuple(signal.section_keys),
                usage=scope.meter.usage,
                turns=scope.meter.turns,
                duration=session.clock.monotonic() - self._started,
                run_id=scope.run_id,
                conversation_id=scope.conversation_id,
                parent_run_id=scope.parent_run_id,
                timestamp=session.timestamp(),
            )
        )


def _accepted(adapter: ProviderAdapter, name: str, session: Session, options: RunOptions) -> RunOptions:
    """The options that an adapter with a method of its own declares; all, if it takes any.

    A message that it would not receive stands in the session instead.
    """
    method = adapter.own_method(name)
    if method is None:
        return options
    parameters = signature_of(method).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return options
    scope, message = options.get("scope"), options.get("message")
    if message is not None and "message" not in parameters:
        given = {} if scope is None else scope.given
        if message.kind not in given:
            given[message.kind] = message
            session.dispatch(message)
    accepted: Any = {option: value for option, value in options.items() if option in parameters}
    return cast(RunOptions, accepted)
