"""The durable driver: the loop runs as a workflow, and each of its effects is a recorded step.

A replayed workflow receives the recorded outcomes of its steps instead of running them, and so reaches the point where
it stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from math import ceil
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from weakincentives._base.visible import visible
from weakincentives.durable.engine import Engine
from weakincentives.durable.journal import StepChange, apply_change, record_change
from weakincentives.durable.work import (
    Approval,
    ApprovalRequired,
    DurableError,
    DurableQuestion,
    Released,
    give_answers,
)
from weakincentives.errors import (
    DeadlineExceededError,
    GuardRefusedError,
    PromptEvaluationError,
    callers_traceback,
)
from weakincentives.limits import Budget, Deadline, Spent
from weakincentives.prompt import LoadedSections, Prompt
from weakincentives.runtime import (
    CallDecided,
    Channel,
    Compaction,
    Edit,
    LiveRun,
    Message,
    ModelReply,
    ModelRequest,
    PendingCall,
    PromptResponse,
    ProviderAdapter,
    ToolExecutor,
)
from weakincentives.runtime.spi import (
    AskGuards,
    CallModel,
    CallOutcome,
    Compute,
    Cursor,
    Decision,
    DecisionError,
    Effect,
    Evaluate,
    LoadSections,
    RunOptions,
    RunTools,
    Summarize,
    UseModel,
    Verdict,
    Waits,
    call_sync,
    closing_resources,
    driver,
    edited_arguments,
    end_event,
    load_sections,
    refuses_decision,
    run_loop,
    summarize,
)
from weakincentives.serde import register_type
from weakincentives.session import Session
from weakincentives.telemetry import Redactor

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkBegan:
    """The outcome of the first step."""

    at: datetime


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """The outcome of a model call; `fingerprint` lets a replay detect that the request changed.

    `change` is what the call wrote to the session: an adapter whose vendor runs tools itself dispatches their events.
    """

    reply: ModelReply
    fingerprint: str
    change: StepChange
    at: datetime
    joined: tuple[tuple[int, Message], ...] = ()


@dataclass(frozen=True, slots=True)
class ToolsRan:
    """The outcome of a turn's tool calls and what they changed; `spent` is what the run had spent after them, with what
    runs inside the calls did."""

    outcomes: tuple[CallOutcome, ...]
    change: StepChange
    at: datetime
    spent: Spent = field(default_factory=Spent)
    joined: tuple[tuple[int, Message], ...] = ()


@dataclass(frozen=True, slots=True)
class HandlerAsked:
    """A handler cannot continue until a person has answered."""

    question: DurableQuestion
    at: datetime


@dataclass(frozen=True, slots=True)
class DecisionRejected:
    """A run inside a call could not use a decision; nothing has acted, and the call still waits."""

    problem: str
    at: datetime


@dataclass(frozen=True, slots=True)
class GuardsDecided:
    """The outcome of the guards of a hook, and what they changed."""

    verdict: Verdict
    change: StepChange
    at: datetime


@dataclass(frozen=True, slots=True)
class RunStopped:
    """The run was stopped before a step, or in a model call, of which `text` had been shown."""

    at: datetime
    text: str = ""


class StopRun(BaseException):
    """Unwinds a run that was asked to stop; its text is what the model had written of a reply."""


T = TypeVar("T")
TurnOutcome: TypeAlias = ToolsRan | HandlerAsked | DecisionRejected
OutcomeT = TypeVar("OutcomeT", WorkBegan, ModelReplied, TurnOutcome, GuardsDecided)


@dataclass(frozen=True, slots=True)
class Workflow:
    """The function that the engine runs, and reruns, for each request."""

    prepare: Callable[[Any], Prompt[Any]]
    adapter: ProviderAdapter
    new_session: Callable[[Any], Session]
    max_expansions: int
    budget: Budget | None
    deadline_seconds: float | None
    compaction: Compaction | None = None

    def __call__(self, request: Any) -> Any:
        engine = Engine.current()
        assert engine is not None
        work_id = engine.work_id
        with logged(work_id):
            response = run_contained(lambda: Execution(self, engine).run(request))
        _log.info("%s is done, in %d turns", work_id, response.turns)
        return response


@contextmanager
def logged(work_id: str) -> Iterator[None]:
    """Log how an execution ends, unless it succeeds."""
    try:
        yield
    except Exception as error:
        trace = callers_traceback(error)
        # Nothing but our own frames and the engine's would say no more than the message.
        shown = trace is not error.__traceback__ and (type(error), error, trace)
        _log.warning("%s failed: %s: %s", work_id, type(error).__name__, error, exc_info=shown)
        raise
    except Released as left:
        _log.info("%s left: %s", work_id, left)
        raise


class StepClock:
    """A clock that runs during a step and stands still between steps, at the end of the last one.

    So whatever the loop writes between steps has the same times when it is replayed. Each reading there is a
    microsecond after the one before, which keeps events in order; not that of a deadline, which a handler may read
    although its call has timed out.
    """

    def __init__(self) -> None:
        self._at = datetime.fromtimestamp(0, UTC)
        self._running = False

    def now(self) -> datetime:
        if self._running:
            return datetime.now(UTC)
        self._at += timedelta(microseconds=1)
        return self._at

    def monotonic(self) -> float:
        return (self.now() if self._running else self._at).timestamp()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def stop_at(self, moment: datetime) -> None:
        self._at = moment

    @contextmanager
    def running(self) -> Iterator[None]:
        self._running = True
        try:
            yield
        finally:
            self._running = False


class OpenChannel:
    """The channel to the model that a run is using; as a context manager, it is closed when the run ends."""

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self._context: AbstractContextManager[Channel] | None = None
        self._channel: Channel | None = None

    @property
    def current(self) -> Channel:
        assert self._channel is not None
        return self._channel

    def use(self, effect: UseModel) -> None:
        """Close the channel of the model before, which failed, and open one to another."""
        error = effect.error
        if error is not None:
            self.__exit__(type(error), error, error.__traceback__)
        context = effect.model.open_channel(self._live)
        self._channel = context.__enter__()
        self._context = context

    def __enter__(self) -> OpenChannel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(kind, error, trace)


class Execution:
    """One execution of a workflow, from its first step until it finishes or leaves."""

    def __init__(self, workflow: Workflow, engine: Engine) -> None:
        self._workflow = workflow
        self._engine = engine
        self._clock = StepClock()
        self._session: Session | None = None
        # Observers see each event once, in the process where it happened, so not before the first step that runs here.
        self._live = False
        self._replayed = False
        # Of this turn only, since a later call may have the same id: the step in which each call was first made, and
        # what has been asked and answered, by question id.
        self._first_steps: dict[str, int] = {}
        self._answers: dict[str, tuple[str, Approval] | None] = {}
        # Why the last decision about a call could not be used, by its id.
        self._problems: dict[str, str] = {}

    def run(self, request: Any) -> PromptResponse[Any]:
        """Like `MainLoop.execute`, with recorded effects."""
        workflow, work_id = self._workflow, self._engine.work_id
        deadline = self._begin(workflow.deadline_seconds)
        prompt = self._prompt(workflow.prepare, request)
        session = self._begin_session(workflow.new_session(request), work_id)
        options: RunOptions = {
            "budget": workflow.budget,
            "deadline": deadline,
            "compaction": workflow.compaction,
        }
        spec = replace(
            workflow.adapter.run_spec(prompt, options),
            run_id=work_id,
            max_expansions=workflow.max_expansions,
            loaded=LoadedSections(),
        )
        live = driver(prompt, session, spec, {}).live
        with live.meter.on_errors(), closing_resources(live):
            response = self._drive(live)
            while response.pending:
                decisions = self._ask(response.pending, live)
                before, spec = live, replace(spec, beginning="resume", decisions=decisions)
                live = driver(prompt, session, spec, {}).live
                live.resources_opened, live.meter = before.resources_opened, before.meter
                try:
                    response = self._drive(live)
                except GuardRefusedError as error:
                    if not refuses_decision(error):
                        raise
                    # Nobody has acted on them, so people are asked again.
                    self._reject([key.rpartition(":")[0] for key in decisions], str(error))
            return response

    def _begin(self, seconds: float | None) -> Deadline | None:
        """The first step, and the deadline of a run with so much time from then on."""
        began, _ = self._step("begin", lambda: WorkBegan(self._clock.now()))
        return None if seconds is None else Deadline(began.at + timedelta(seconds=seconds)).on(self._clock)

    def _prompt(self, prepare: Callable[[Any], Prompt[Any]], request: Any) -> Prompt[Any]:
        prompt = prepare(request)
        if not isinstance(prompt, Prompt):
            raise DurableError(
                f"prepare() must return a Prompt, got {type(prompt).__name__}; return Prompt(template).bind(...)."
            )
        _register_types(prompt)
        # It may be one prompt for all work of the process.
        return copy(prompt)

    def _begin_session(self, session: Session, session_id: str) -> Session:
        session.session_id, session.clock, session.silent = session_id, self._clock, not self._live
        self._session = session
        return session

    def _drive(self, live: LiveRun) -> PromptResponse[Any]:
        session = live.session
        self._allow_questions(session)
        live.follows_sections = False
        with session.claim(session.session_id), OpenChannel(live) as channel:
            cursor = Cursor(run_loop(live))
            while (effect := cursor.step) is not None:
                try:
                    outcome = self._perform(effect, live, channel)
                except Exception as error:
                    cursor.fail(error)
                except Released as left:
                    ended = end_event(live, "suspended", reason=str(left))
                    session.dispatch(replace(ended, timestamp=time.time()))
                    # It may continue elsewhere, so observers are not told that it stopped.
                    session.silent = True
                    cursor.fail(left)
                    raise
                except StopRun as stop:
                    live.stream.text = [str(stop)] if str(stop) else []
                    cursor.fail(stop)
                    raise
                else:
                    cursor.answer(outcome)
            return cursor.result()

    def _allow_questions(self, session: Session) -> None:
        give_answers(session, {})

    def _perform(self, effect: Effect, live: LiveRun, channel: OpenChannel) -> Any:
        if isinstance(effect, UseModel):
            return channel.use(effect)
        if isinstance(effect, LoadSections):
            return load_sections(live, effect)
        if isinstance(effect, CallModel):
            return self._call(effect.request, live, channel)
        if isinstance(effect, Summarize):
            return self._summarize(effect, live, channel).reply
        if isinstance(effect, AskGuards):
            return self._ask_guards(effect, live)
        if isinstance(effect, Compute):
            return effect.function()
        if isinstance(effect, Evaluate):
            name = type(effect.model).__name__
            raise DurableError(f"{name} evaluates prompts by itself, and has no steps to record; give it a channel().")
        assert isinstance(effect, RunTools)
        return self._run_tools(effect, live)

    def _call(self, request: ModelRequest, live: LiveRun, channel: OpenChannel) -> ModelReply:
        self._first_steps, self._answers, self._problems = {}, {}, {}
        return self._record_call(request, live.session, lambda: channel.current.call(request))[0].reply

    def _summarize(self, effect: Summarize, live: LiveRun, channel: OpenChannel) -> ModelReplied:
        return self._record_call(effect.request, live.session, lambda: summarize(live, channel.current, effect))[0]

    def _record_call(
        self, request: ModelRequest, session: Session, make: Callable[[], ModelReply]
    ) -> tuple[ModelReplied, bool]:
        """The outcome of a model call, and whether it was made here instead of being replayed."""
        fingerprint = _fingerprint(request)

        def call() -> ModelReplied:
            reply, change = record_change(session, None, make)
            return ModelReplied(reply, fingerprint, change, self._clock.now(), self._joined())

        replied, made_here = self._step("model", call)
        if replied.fingerprint != fingerprint:
            raise DurableError(
                f"{self._engine.work_id!r} makes a model request that differs from the recorded one "
                f"({fingerprint}, recorded: {replied.fingerprint}): prepare(), a section or a tool has changed, or "
                "depends on more than the request. Raise version= when code changes, and let workers of the old "
                "version finish its work."
            )
        if not made_here:
            apply_change(replied.change, session, None)
        return replied, made_here

    def _joined(self) -> tuple[tuple[int, Message], ...]:
        """The messages that have joined the run since, with their numbers; recorded with the step that finds them."""
        return ()

    def _ask_guards(self, effect: AskGuards, live: LiveRun) -> Verdict:
        def ask() -> GuardsDecided:
            steps = partial(call_sync, effect.steps(), live.loop_thread)
            verdict, change = record_change(live.session, None, steps)
            return GuardsDecided(verdict, change, self._clock.now())

        decided, made_here = self._step(effect.hook, ask)
        if not made_here:
            apply_change(decided.change, live.session, None)
        return decided.verdict

    def _ask(self, calls: tuple[PendingCall, ...], live: LiveRun) -> dict[str, Decision]:
        """The decisions there are about calls that wait; each acts at once, whether others are still open or not."""
        while True:
            asked = {self._question_id(call.call_id): call for call in calls}
            questions = [self._question(name, call, live) for name, call in asked.items()]
            decisions: dict[str, Decision] = {}
            misfits: dict[str, str] = {}
            for name, reply in self._engine.ask(questions, _deadline_ms(live)).items():
                call = asked[name]
                if isinstance(reply, Approval):
                    raise self._expired(live)
                if problem := _misfit(call, reply, live):
                    misfits[call.call_id], self._answers[name] = problem, None
                else:
                    decisions[call.question.id] = reply
            # Their questions are asked again before anything acts.
            self._problems = misfits
            if not misfits:
                # The run inside a call checks edits there; alone, so that nothing else has acted if one does not fit.
                edits = {name: each for name, each in decisions.items() if isinstance(each, Edit) and "/" in name}
                return dict([next(iter(edits.items()))]) if edits else decisions

    def _question(self, name: str, call: PendingCall, live: LiveRun) -> DurableQuestion:
        # The ids of calls inside a call begin with its id.
        outer = next(call_id for call_id in self._first_steps if f"{call.call_id}/".startswith(f"{call_id}/"))
        tool = live.toolbox.asked_about(call) if outer == call.call_id else None
        problem = self._problems.get(call.call_id)
        text = call.text if not problem else f"{visible(Redactor().text(problem))}\n\n{call.text}"
        return DurableQuestion(
            call.question.id,
            name,
            text,
            step=self._first_steps[outer],
            tool=call.tool,
            arguments=call.arguments,
            schema=None if tool is None else tool.plain_schema,
            asked=call.question,
        )

    def _expired(self, live: LiveRun) -> DeadlineExceededError:
        """The error of a run whose deadline has passed while calls waited; with a later one, they can be decided."""
        name, session = live.prompt.name, live.session
        error = DeadlineExceededError(
            f"The deadline of prompt '{name}' passed before a person decided about its calls; give the loop more "
            "deadline_seconds and retry the work.",
            prompt_name=name,
            phase="tool",
        )
        session.silent = False
        failed = end_event(live, "failed", reason=str(error), error=type(error).__name__, phase=error.phase)
        session.dispatch(replace(failed, timestamp=time.time()))
        return error

    def _question_id(self, call_id: str) -> str:
        """The id of the next question about a call: that of the call, or `CALL#2`."""
        names = (call_id if number == 1 else f"{call_id}#{number}" for number in count(1))
        return next(name for name in names if name not in self._answers)

    def _run_tools(self, effect: RunTools, live: LiveRun) -> list[CallOutcome]:
        work_id, first, steps, session = self._engine.work_id, self._engine.next_step, self._first_steps, live.session
        for call in effect.calls:
            steps.setdefault(call.id, first)
        live.calls.idempotency_key = lambda call: f"{work_id}:{steps[call.id]}:{call.id}"
        decided, waiting = len(session[CallDecided]), live.decisions
        given = waiting.copy()
        while True:
            # The questions that these decisions answer are closed for handlers that ask by themselves.
            give_answers(session, self._answers | {self._question_id(call_id): None for call_id in given})
            waiting.update(given)
            ran = self._run_tools_once(effect, live)
            if isinstance(ran, ToolsRan):
                break
            if isinstance(ran, DecisionRejected):
                self._reject(given, ran.problem)
                given = {}
                waiting.clear()
                continue
            question = replace(ran.question, step=first)
            reply = self._engine.ask([_shown(question)], _deadline_ms(live))[question.call_id]
            assert isinstance(reply, Approval)
            self._answers[question.call_id] = question.text, reply
        self._forget_decisions(effect, live)
        for event in session[CallDecided].view()[decided:]:
            call_id = f"{event.run_id}/{event.call_id}".removeprefix(f"{work_id}/")
            self._answers[self._question_id(call_id)] = None
        return list(ran.outcomes)

    def _reject(self, call_ids: Iterable[str], problem: str) -> None:
        """Have the questions about these calls asked again, whose decisions cannot be used."""
        for call_id in call_ids:
            self._answers[self._question_id(call_id)] = None
            self._problems[call_id] = problem

    def _forget_decisions(self, effect: RunTools, live: LiveRun) -> None:
        """Forget the decisions about these calls, which have acted, here or in the process that is replayed."""
        made, waiting = tuple(f"{call.id}/" for call in effect.calls), live.decisions
        for call_id in [call_id for call_id in waiting if f"{call_id}/".startswith(made)]:
            del waiting[call_id]

    def _run_tools_once(self, effect: RunTools, live: LiveRun) -> TurnOutcome:
        meter, session, resources = live.meter, live.session, live.resources
        names = " ".join(dict.fromkeys(call.name for call in effect.calls))

        def run() -> TurnOutcome:
            before = session.state()
            try:
                outcomes, change = record_change(
                    session, resources, lambda: ToolExecutor(live).execute_all(effect.calls)
                )
            except ApprovalRequired as needed:
                session.restore(before, preserve_logs=False)
                return HandlerAsked(needed.question, self._clock.now())
            except (DecisionError, GuardRefusedError) as error:
                if not (isinstance(error, DecisionError) or refuses_decision(error)):
                    raise
                session.restore(before, preserve_logs=False)
                return DecisionRejected(str(error), self._clock.now())
            return ToolsRan(tuple(map(_recorded, outcomes)), change, self._clock.now(), meter.spent, self._joined())

        calls = meter.tool_calls
        ran, made_here = self._step(names, run)
        if not isinstance(ran, ToolsRan):
            meter.spent = replace(meter.spent, tool_calls=calls)
        elif not made_here:
            meter.spent = ran.spent
            apply_change(ran.change, session, resources, self._engine.store.serializer.upgrades)
        return ran

    def _step(self, name: str, run: Callable[[], OutcomeT]) -> tuple[OutcomeT, bool]:
        """The outcome of a step, and whether it ran here instead of being replayed."""
        ran = False

        def timed() -> OutcomeT | RunStopped:
            nonlocal ran
            ran = self._live = True
            if self._session is not None:
                self._session.silent = False
            with self._clock.running():
                if self._is_stopped():
                    return RunStopped(self._clock.now())
                try:
                    return run_contained(run)
                except StopRun as stop:
                    return RunStopped(self._clock.now(), str(stop))

        outcome = self._engine.step(name, timed)
        self._clock.stop_at(outcome.at)
        if ran and self._replayed:
            self._engine.reset_attempts()
        self._replayed = not ran
        if isinstance(outcome, RunStopped):
            raise StopRun(outcome.text)
        return outcome, ran

    def _is_stopped(self) -> bool:
        """True if the run was asked to stop, so that it makes no further step."""
        return False


def run_contained(run: Callable[[], T]) -> T:
    """Call it, and let an exception that would end a program, such as `sys.exit()` in `prepare`, fail the work."""
    try:
        return run()
    except (Exception, Released, StopRun):
        raise
    except BaseException as error:
        failure = DurableError(f"{error!r} was raised; in durable work, raise an Exception.")
        raise failure.with_traceback(error.__traceback__) from None


def _recorded(outcome: CallOutcome) -> CallOutcome:
    """The outcome as it is recorded; what a waiting call would change is in the session."""
    if isinstance(outcome, Waits):
        return replace(outcome, pending=replace(outcome.pending, effects=None, result=None))
    return replace(outcome, expanded_tools=())


def _shown(question: DurableQuestion) -> DurableQuestion:
    """The question of a handler as a person reads it."""
    return replace(question, text=visible(Redactor().text(question.text)))


def _deadline_ms(live: LiveRun) -> int | None:
    deadline = live.meter.deadline
    return None if deadline is None else ceil(deadline.expires_at.timestamp() * 1000)


def _misfit(call: PendingCall, decision: Decision, live: LiveRun) -> str:
    """Why a person's arguments cannot be used, or "" if they can; a run inside a call checks them itself."""
    tool = None if "/" in call.call_id else live.toolbox.asked_about(call)
    if tool is None or not isinstance(decision, Edit):
        return ""
    try:
        edited_arguments(tool, call, decision, live.prompt.name)
    except PromptEvaluationError as error:
        return str(error)
    return ""


def _fingerprint(request: ModelRequest) -> str:
    """Distinguishes the requests of a run by their length, first and last message, and tools."""
    messages = request.messages
    tools = " ".join([*(tool.name for tool in request.tools), *(tool.name for tool in request.hosted_tools)])
    parts = (messages[0].text, messages[-1].text, messages[-1].call_id, tools)
    return f"{len(messages)}-{zlib.crc32(chr(0).join(parts).encode('utf-8', 'surrogatepass')):08x}"


def _register_types(prompt: Prompt[Any]) -> None:
    """Register the params types of tools: a `@tool` function's type has no name in its module."""
    for node in prompt.bound().outline.nodes:
        for tool in node.tools:
            if tool.params_type is not None:
                register_type(tool.params_type)
