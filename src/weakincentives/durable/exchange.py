"""A run of a durable conversation as a workflow: its events are written to a stream, and its end is the next state."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from weakincentives.durable.archive import (
    Action,
    BegunRun,
    ConversationRun,
    DeclaredTool,
    State,
    joining,
    work_id,
)
from weakincentives.durable.driver import (
    Execution,
    ModelReplied,
    OpenChannel,
    StopRun,
    ToolsRan,
    Workflow,
    logged,
    run_contained,
)
from weakincentives.durable.engine import Engine
from weakincentives.durable.journal import StepChange, apply_change, resource_states
from weakincentives.durable.store import WorkStore
from weakincentives.durable.streams import EventWriter
from weakincentives.durable.work import Cancelled, DatabaseUnavailableError, Released, WorkCancelledError
from weakincentives.errors import PromptEvaluationError, SessionError
from weakincentives.limits import Budget, Deadline, Spent
from weakincentives.prompt import Prompt, Tool
from weakincentives.runtime import (
    Completed,
    Conversation,
    LiveRun,
    Message,
    ModelReply,
    ModelRequest,
    PromptResponse,
    Restarted,
    RewindReport,
    SectionOpened,
    ToolEmitted,
)
from weakincentives.runtime.spi import (
    NO_REPLY,
    CallModel,
    CallOutcome,
    Effect,
    ModelDelta,
    PartialParser,
    RunOptions,
    RunState,
    RunTools,
    Summarize,
    closing_resources,
    completed_events,
    delta_events,
    driver,
    ended_events,
    reply_deltas,
    request_events,
    started_events,
    without_answer,
)
from weakincentives.session import Session

_log = logging.getLogger(__name__)

# After this time without a signal, a step looks whether messages have joined its run.
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ConversationWorkflow(Workflow):
    """The function that the engine runs, and reruns, for each run of a conversation; `total` limits them together."""

    name: str = ""
    total: Budget | None = None

    def __call__(self, run: ConversationRun) -> Any:
        engine = Engine.current()
        assert engine is not None
        archive = engine.store.archive
        with logged(work_id(run)):
            begun = engine.when_available(lambda: archive.begin(run))
            if isinstance(begun, BegunRun):
                response = run_contained(lambda: _Exchange(self, engine, run, begun).execute())
                _log.info("%s is done", work_id(run))
                return response
        # It was deleted, or ended in a worker that could not record that any more.
        outcome = None if begun is None else engine.store.serializer.deserialize(begun)
        if isinstance(outcome, Exception) and not isinstance(outcome, WorkCancelledError):
            raise outcome
        return None if isinstance(outcome, Exception) else outcome

    def keep(self, store: WorkStore) -> None:
        """End runs that were cancelled or given up, so that their conversations go on."""
        store.archive.settle()


class _Exchange(Execution):
    """One execution of a run, from its first step until it ends or leaves."""

    def __init__(self, workflow: ConversationWorkflow, engine: Engine, run: ConversationRun, begun: BegunRun) -> None:
        super().__init__(workflow, engine)
        self._of = workflow
        self._run = run
        self._begun = begun
        self._events = EventWriter(run, begun.attempt, engine.store.serializer)
        self._events.stopped = begun.stopped
        self._numbers: set[int] = set()
        self._joining = engine.store.signals.waiter(joining(run))
        self._looked_at = float("-inf")
        self._guarded = False
        self._resources = () if begun.state is None else begun.state.resources
        # Opened by a tool call; their tools are known when the model is called again.
        self._opened: list[str] = []

    def execute(self) -> Any:
        publisher = self._engine.store.publisher
        publisher.add(self._events)
        try:
            response = self._answer()
            self._save(response)
            return response
        except StopRun:
            self._save(WorkCancelledError(f"{work_id(self._run)!r} was stopped."))
            return None
        except Cancelled:
            self._save(WorkCancelledError(f"{work_id(self._run)!r} was cancelled."))
            raise
        except Exception as error:
            self._save(error)
            raise
        finally:
            publisher.remove(self._events)

    def _answer(self) -> Any:
        """Like `Conversation.send`, with recorded effects."""
        workflow, sent, state = self._of, self._begun.sent, self._begun.state
        upgrades = self._engine.store.serializer.upgrades
        deadline = self._begin(workflow.deadline_seconds)
        key = self._run.conversation.removeprefix(f"{workflow.name}/")
        prompt = self._prompt(workflow.prepare, key)
        if sent.params:
            prompt.bind(*sent.params)
        session = workflow.new_session(key)
        if state is not None:
            session.restore(state.snapshot(self._run.conversation, upgrades), preserve_logs=False)
        if sent.again:
            session[Message].update(without_answer)
        self._begin_session(session, self._run.conversation)
        options: RunOptions = {
            "budget": workflow.budget,
            "deadline": deadline,
            "decisions": sent.decisions,
            "tools": [_declared(tool) for tool in sent.tools],
            "compaction": workflow.compaction,
        }
        spec = workflow.adapter.run_spec(prompt, options)
        spec = replace(
            spec,
            run_id=work_id(self._run),
            max_expansions=workflow.max_expansions,
            beginning="resume" if spec.beginning == "resume" and sent.message is None else "exchange",
            in_conversation=True,
            message=sent.message,
            total=workflow.total,
            spent_before=self._spent(prompt, session),
        )
        live = driver(prompt, session, spec, {}).live
        with live.meter.on_errors(), closing_resources(live):
            assert live.resources_opened is not None
            resources = live.resources
            apply_change(StepChange(resources=self._resources), session, resources, upgrades)
            if sent.point:
                # Begun again after a crash, it finds files that have gone back, and leaves them.
                chat = Conversation(prompt, adapter=workflow.adapter, session=session)
                with chat.prompt.resources.borrowing(live.resources_opened):
                    chat.rewind(sent.point, over_effects=sent.over_effects)
                prompt.rebind(chat.prompt.params)
                prompt.bind(*sent.params)
            try:
                if sent.action is not None:
                    return self._act(sent.action, prompt, live)
                return self._drive(live)
            finally:
                self._resources = resource_states(resources)

    def _begin(self, seconds: float | None) -> Deadline | None:
        """The deadline of a run with so much time since its first execution began, which is recorded with the run."""
        began = datetime.fromtimestamp(self._begun.began_ms / 1000, UTC)
        self._clock.stop_at(began)
        self._live = self._begun.attempt == 1
        # A step of a later attempt is progress.
        self._replayed = not self._live
        return None if seconds is None else Deadline(began + timedelta(seconds=seconds)).on(self._clock)

    def _act(self, action: Action, prompt: Prompt[Any], live: LiveRun) -> RewindReport | str:
        """Go back, look at what that would change, undo it, or fork; nothing of it calls a model."""
        chat = Conversation(prompt, adapter=self._of.adapter, session=live.session)
        assert live.resources_opened is not None
        with chat.prompt.resources.borrowing(live.resources_opened):
            if action.name == "undo_rewind":
                return chat.undo_rewind()
            if action.name == "preview":
                return chat.preview(action.point or "")
            if action.name == "rewind":
                return chat.rewind(
                    action.point or "",
                    compensate=action.compensate,
                    over_effects=action.over_effects,
                )
            fork = chat.fork(action.point)
        session, name = fork.session, f"{self._of.name}/{action.new}"
        session.session_id = name
        if (last := session[RunState].latest()) is not None:
            session[RunState].seed(last.updated({"conversation_id": name}))
        with fork:
            resources = resource_states(fork.prompt.resources.context)
        self._engine.store.archive.create(name, State.of(session, resources))
        return action.new

    def _spent(self, prompt: Prompt[Any], session: Session) -> Spent | None:
        """What the conversation has spent so far, if there is a limit for all of it."""
        total = self._of.total
        if total is None:
            return None
        return Conversation(prompt, adapter=self._of.adapter, session=session).spent(total)

    def _save(self, outcome: Any) -> None:
        """End the run: its last events, its outcome and the state after it are stored, and the next run may begin."""
        store, state = self._engine.store, self._begun.state or State.of(Session())
        if self._session is not None:
            try:
                state = State.of(self._session, self._resources)
            except SessionError as error:
                _log.warning("%s: its state cannot be stored: %s", work_id(self._run), error)
                outcome = error
        text = store.serializer.serialize(outcome)

        def save() -> bool:
            with self._events.writing() as batches:
                return store.archive.finish(
                    self._run, self._begun.attempt, state, text, joined=self._numbers, batches=batches
                )

        if not self._engine.when_available(save):
            raise Released("taken over")

    def _drive(self, live: LiveRun) -> PromptResponse[Any]:
        # Looked up when the run is stopped: the channel sets it when it opens.
        self._events.on_stop = lambda: _interrupt(live)
        response = super()._drive(live)
        self._put_opened(live)
        for event in completed_events(response, live):
            if not isinstance(event, Completed):
                self._events.put(event)
        return response

    def _allow_questions(self, session: Session) -> None:
        """Handlers cannot ask by themselves: a run of a conversation ends with the calls that wait."""

    def _perform(self, effect: Effect, live: LiveRun, channel: OpenChannel) -> Any:
        # Asked each time: sections that are loaded may have guards, too.
        self._guarded = live.has_guards
        self._put_opened(live)
        for event in request_events(live) if isinstance(effect, CallModel) else started_events(effect):
            self._events.put(event)
        return super()._perform(effect, live, channel)

    def _call(self, request: ModelRequest, live: LiveRun, channel: OpenChannel) -> ModelReply:
        parser = PartialParser(request)

        def show(part: str | ModelDelta) -> None:
            for event in delta_events(part, live, parser):
                self._events.put(event)

        def stream() -> ModelReply:
            live.stream.text, parts = [], channel.current.stream(request)
            try:
                for part in parts:
                    if isinstance(part, ModelReply):
                        return part
                    show(part)
                    self._stop_if_asked(live)
            except Exception as error:
                self._stop_if_asked(live)
                if live.stream.text:
                    self._events.put(Restarted(str(error)))
                raise
            finally:
                if isinstance(parts, Generator):
                    parts.close()
            raise PromptEvaluationError(NO_REPLY, prompt_name=request.prompt_name, phase="response")

        replied, made_here = self._record_call(request, live.session, stream)
        if not made_here:
            for delta in reply_deltas(replied.reply):
                show(delta)
        self._join(replied.joined, live.session)
        return replied.reply

    def _summarize(self, effect: Summarize, live: LiveRun, channel: OpenChannel) -> ModelReplied:
        replied = super()._summarize(effect, live, channel)
        self._join(replied.joined, live.session)
        return replied

    def _run_tools(self, effect: RunTools, live: LiveRun) -> list[CallOutcome]:
        live.calls.emitted = lambda call, data: self._events.put(ToolEmitted(call.id, call.name, data))
        ran = self._run_tools_once(effect, live)
        assert isinstance(ran, ToolsRan)
        self._forget_decisions(effect, live)
        for event in ended_events(effect, ran.outcomes):
            if isinstance(event, SectionOpened):
                self._opened.append(event.section_key)
            else:
                self._events.put(event)
        self._join(ran.joined, live.session)
        return list(ran.outcomes)

    def _put_opened(self, live: LiveRun) -> None:
        for key in self._opened:
            self._events.put(SectionOpened(key, live.toolbox.names_below(key)))
        self._opened.clear()

    def _joined(self) -> tuple[tuple[int, Message], ...]:
        # Guards pass a message before a run; what they have not passed is the next run.
        now = time.monotonic()
        signalled = self._joining.is_signalled() or now - self._looked_at > _LOOK_SECONDS
        if self._guarded or not signalled:
            return ()
        with suppress(DatabaseUnavailableError):
            found = self._engine.store.archive.late(self._run, self._numbers)
            self._looked_at = now
            return found
        return ()

    def _join(self, joined: tuple[tuple[int, Message], ...], session: Session) -> None:
        for number, message in joined:
            self._numbers.add(number)
            session.dispatch(message)

    def _is_stopped(self) -> bool:
        # Not before the message is part of the conversation.
        return self._events.stopped and self._session is not None

    def _stop_if_asked(self, live: LiveRun) -> None:
        if self._events.stopped:
            raise StopRun("".join(live.stream.text))


def _interrupt(live: LiveRun) -> None:
    live.interrupt()


def _declared(given: DeclaredTool) -> Tool[Any, Any]:
    return Tool.from_schema(
        name=given.name, description=given.description, schema=json.loads(given.schema), handler=None
    )
