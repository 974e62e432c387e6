"""The durable driver: the loop runs as the body of recorded work, and each of its effects is one step.

A body that is replayed gets the outcomes of its recorded steps without running them and so comes to the same point.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from weakincentives.durable.approval import ApprovalRequired, answers_of
from weakincentives.durable.clock import StepClock
from weakincentives.durable.engine import Engine
from weakincentives.durable.errors import DurableError
from weakincentives.durable.journal import Change, recording, replay
from weakincentives.durable.work import Question
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt import Prompt, VisibilityExpansionRequired
from weakincentives.runtime import (
    CallModel,
    Channel,
    InnerLoop,
    MainLoop,
    ModelReply,
    ModelRequest,
    PromptResponse,
    ProviderAdapter,
    RunScope,
    RunTools,
    ToolExecutionOutcome,
)
from weakincentives.runtime.drivers import LoopCursor
from weakincentives.serde import register_type
from weakincentives.session import Session

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Begun:
    """The work began."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Replied:
    """The model answered; `asked` is the mark of the request, by which a replay notices that it asks for else.

    An adapter whose vendor runs tools of its own writes them into the session meanwhile: that is the change.
    """

    reply: ModelReply
    asked: str
    change: Change
    at: datetime


@dataclass(frozen=True, slots=True)
class Ran:
    """Tools ran, and this is what they came to and changed."""

    outcomes: tuple[ToolExecutionOutcome, ...]
    change: Change
    at: datetime


@dataclass(frozen=True, slots=True)
class Asked:
    """A tool cannot go on before a person has answered."""

    question: Question
    at: datetime


OutcomeT = TypeVar("OutcomeT", Begun, Replied, Ran | Asked)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a request is worked on."""

    prepare: Callable[[Any], Prompt[Any]]
    adapter: ProviderAdapter
    new_session: Callable[[Any], Session]
    max_expansions: int
    budget: Budget | None
    deadline_seconds: float | None

    def __call__(self, request: Any) -> PromptResponse[Any]:
        """What the engine runs, and runs again, for one request."""
        engine = Engine.current()
        assert engine is not None
        work_id = engine.work_id
        try:
            response = _Execution(self, engine).run(request)
        except Exception as error:
            _log.warning("%s failed: %s: %s", work_id, type(error).__name__, error)
            raise
        except BaseException as left:
            _log.info("%s left: %s", work_id, left)
            raise
        _log.info("%s is done, in %d turns", work_id, response.turns)
        return response


class _Execution:
    """One run of a body, from its first step to its last or to where it is left."""

    def __init__(self, recipe: Recipe, engine: Engine) -> None:
        self._recipe = recipe
        self._engine = engine
        self._clock = StepClock()
        self._session: Session | None = None
        # Observers hear of an event once, where it happened: nothing is heard before the first step that runs here.
        self._live = False
        self._replayed = False

    def run(self, request: Any) -> PromptResponse[Any]:
        """Like `MainLoop.execute`, with recorded evaluations."""
        recipe, work_id = self._recipe, self._engine.work_id
        begun = self._step("begin", lambda: Begun(self._clock.now()))
        deadline = None
        if recipe.deadline_seconds is not None:
            deadline = Deadline(begun.at + timedelta(seconds=recipe.deadline_seconds)).on(self._clock)
        prompt = recipe.prepare(request)
        if not isinstance(prompt, Prompt):
            raise DurableError(f"prepare() returned a {type(prompt).__name__}; return Prompt(template).bind(...).")
        _register_types(prompt)
        session = self._session = recipe.new_session(request)
        session.session_id, session.clock, session.silent = work_id, self._clock, not self._live
        main = MainLoop(max_expansions=recipe.max_expansions, deadline=deadline, budget=recipe.budget)
        attempts = main.attempts(prompt, session, run_id=work_id)
        scope = next(attempts)
        with prompt.resources:
            while True:
                try:
                    response = self._evaluate(prompt, session, scope)
                    scope = attempts.send(response)
                except VisibilityExpansionRequired as signal:
                    scope = attempts.throw(signal)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]

    def _evaluate(self, prompt: Prompt[Any], session: Session, scope: RunScope) -> PromptResponse[Any]:
        inner = self._recipe.adapter.loop(prompt, session, scope=scope)
        answers_of(session)
        try:
            with session.claim(session.session_id), self._recipe.adapter.open_channel(inner) as channel:
                steps = LoopCursor(inner)
                while (effect := steps.effect) is not None:
                    try:
                        outcome = self._perform(effect, inner, channel)
                    except Exception as error:
                        steps.fail(error)
                    else:
                        steps.answer(outcome)
                return steps.result()
        finally:
            inner.executor.bridge.close()

    def _perform(self, effect: CallModel | RunTools, inner: InnerLoop, channel: Channel) -> Any:
        if isinstance(effect, CallModel):
            return self._call(effect.request, inner.session, channel)
        return self._run_tools(effect, inner)

    def _call(self, request: ModelRequest, session: Session, channel: Channel) -> ModelReply:
        asked, live = _mark(request), False

        def call() -> Replied:
            nonlocal live
            live = True
            reply, change = recording(session, None, lambda: channel.call(request))
            return Replied(reply, asked, change, self._clock.now())

        replied = self._step("model", call)
        if replied.asked != asked:
            raise DurableError(
                f"{self._engine.work_id!r} asks the model for something else than it did when it was recorded "
                f"({asked}, recorded: {replied.asked}): prepare(), a section or a tool has changed, or depends on more "
                "than the request. Give changed code another version=, and let workers of the old one finish old work."
            )
        if not live:
            replay(replied.change, session, None)
        return replied.reply

    def _run_tools(self, effect: RunTools, inner: InnerLoop) -> list[ToolExecutionOutcome]:
        work_id, first = self._engine.work_id, self._engine.next_step
        inner.executor.idempotency_key = lambda call: f"{work_id}:{first}:{call.id}"
        names = " ".join(dict.fromkeys(call.name for call in effect.calls))
        answers = answers_of(inner.session)
        while True:
            ran = self._run_tools_once(names, effect, inner)
            if isinstance(ran, Ran):
                # A later call may have the same id; it has to ask for itself.
                answers.clear()
                return list(ran.outcomes)
            answers[ran.question.call_id] = self._engine.ask(replace(ran.question, step=first))

    def _run_tools_once(self, names: str, effect: RunTools, inner: InnerLoop) -> Ran | Asked:
        live = False
        meter, session, resources = inner.scope.meter, inner.session, inner.prompt.resources.context

        def run() -> Ran | Asked:
            nonlocal live
            live = True
            before = session.snapshot()
            try:
                outcomes, change = recording(session, resources, lambda: inner.executor.execute_all(effect.calls))
            except ApprovalRequired as needed:
                session.restore(before, preserve_logs=False)
                return Asked(needed.question, self._clock.now())
            return Ran(tuple(replace(each, expanded_tools=()) for each in outcomes), change, self._clock.now())

        calls = meter.tool_calls
        ran = self._step(names, run)
        if isinstance(ran, Asked):
            meter.set_tool_calls(calls)
        elif not live:
            meter.set_tool_calls(calls + len(ran.outcomes))
            replay(ran.change, session, resources)
        return ran

    def _step(self, name: str, run: Callable[[], OutcomeT]) -> OutcomeT:
        ran = False

        def timed() -> OutcomeT:
            nonlocal ran
            ran = self._live = True
            if self._session is not None:
                self._session.silent = False
            with self._clock.running():
                return run()

        outcome = self._engine.step(name, timed)
        self._clock.stand_at(outcome.at)
        if ran and self._replayed:
            self._engine.progressed()
        self._replayed = not ran
        return outcome


def _mark(request: ModelRequest) -> str:
    """What tells one request of a run from another: how long it is, how it begins and ends, what is on offer."""
    messages = request.messages
    tools = " ".join([*(tool.name for tool in request.tools), *(tool.name for tool in request.hosted_tools)])
    parts = (messages[0].text, messages[-1].text, messages[-1].call_id, tools)
    return f"{len(messages)}-{zlib.crc32(chr(0).join(parts).encode('utf-8', 'surrogatepass')):08x}"


def _register_types(prompt: Prompt[Any]) -> None:
    """Make the params of tools known, which functions declare without a name in their module."""
    for node in prompt.outline().nodes:
        for tool in node.tools:
            if tool.params_type is not None:
                register_type(tool.params_type)
