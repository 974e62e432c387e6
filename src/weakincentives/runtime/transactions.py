"""The transaction of a tool call: snapshot, run, and capture or roll back what it did."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from weakincentives._fence import current_calls, working_for
from weakincentives._threads import Turns
from weakincentives.errors import (
    AbandonedCallError,
    DeadlineExceededError,
    PromptEvaluationError,
    SerdeError,
    ToolValidationError,
    WinkError,
    callers_traceback,
)
from weakincentives.filesystem import FileChange, Filesystem, FilesystemError, NeedsFolderError, StaleFilesError
from weakincentives.limits import Deadline
from weakincentives.prompt import Tool, ToolContext, ToolResult, VisibilityExpansionRequired
from weakincentives.resources import ResourceError, ScopedResourceContext, StaleResourceError
from weakincentives.runtime.approval import Needs, PendingCall, is_inside, waiting_calls
from weakincentives.runtime.bridge import HandlerCall, HandlerTimeout, Latch, Step, UserCodeExit, call_sync
from weakincentives.runtime.context import RunContext
from weakincentives.runtime.effects import Effects, StaleEffectsError, apply, capture
from weakincentives.runtime.events import CheckpointFailed, FilesChanged
from weakincentives.runtime.guards import Inquiry, Verdict, held_guards
from weakincentives.runtime.messages import Message, ToolCall
from weakincentives.runtime.points import OutsideCall, Point, Written, changes_of
from weakincentives.runtime.results import NO_RESULT, Results, ToolAttempt, ToolExecutionOutcome
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.runtime")
MAX_ANNOUNCED = 1_000_000
"""The bytes of a changed file, before and after together, up to which observers see it."""


class CallWaits(BaseException):
    """Ends a call inside of which others wait for a person: `pending`, with their ids below that of the call."""

    def __init__(self, pending: tuple[PendingCall, ...]) -> None:
        super().__init__(", ".join(call.call_id for call in pending))
        self.pending = pending


class CallSuspended(BaseException):
    """Abandons a tool call as if it had not been made: it is rolled back, but neither compensated nor recorded.

    A BaseException, so that a handler's own `except Exception` does not treat it as a failure.
    """


class Branch(NamedTuple):
    """The stand-ins that a call beside others changes in place of the session and the resources."""

    session: Session
    resources: ScopedResourceContext


@dataclass(slots=True, eq=False)
class StartedCall(ToolAttempt):
    """A call that has started: what it runs, what to restore if it fails, and whether it has ended.

    Whoever is the first to `claim_end` ends it; others wait until it has `ended`. If it `captures` its effects, a
    person is asked about them, unless they are what that person was `shown`. On a `branch` of the session, they are
    held back until the calls before it have ended; otherwise it has its `turn` among the transactions of the session.
    """

    tool: Tool[Any, Any]
    owner: object
    before: tuple[Any, Any] | None
    resources: ScopedResourceContext
    handler: HandlerCall
    captures: bool = False
    shown: PendingCall | None = None
    branch: Branch | None = None
    turn: Turns | None = None
    ended: Latch = field(default_factory=Latch)
    _unclaimed: threading.Lock = field(default_factory=threading.Lock)

    def claim_end(self) -> bool:
        return self._unclaimed.acquire(blocking=False)

    def end_turn(self) -> None:
        """Let the next transaction begin; not again if another thread has ended this one."""
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.end()

    def stopped(self, why: str) -> ToolResult[Any]:
        """The result that the model reads if the call did not end by itself."""
        text = f"Not run: {why}." if self.handler.dropped else f"Not finished: {why}.{self._unknown}"
        return ToolResult(text, success=False)

    def late(self) -> ToolResult[Any]:
        """The result that the model reads if the tool's timeout is over."""
        seconds = f"{self.handler.timeout:g} s"
        if self.handler.dropped:
            return self.stopped(f"no thread was free within {seconds}")
        return ToolResult(f"Tool '{self.tool.name}' did not end within {seconds}.{self._unknown}", success=False)

    @property
    def _unknown(self) -> str:
        undone = self.tool.read_only or (self.tool.compensate is not None and not self.handler.outlives)
        return "" if undone else " Whether this call had an effect is not known."


@dataclass(slots=True)
class Transactions:
    """Runs the handlers of one attempt's calls, each in a transaction.

    `emitted`, set by a driver that streams, receives the data that a call emits. `held` are calls beside others that
    have run, and whose changes are held back.
    """

    context: RunContext
    results: Results
    idempotency_key: Callable[[ToolCall], str] | None = None
    emitted: Callable[[ToolCall, Any], None] | None = None
    held: dict[str, StartedCall] = field(default_factory=dict)
    _started: list[StartedCall] = field(default_factory=list)

    def inspection(self, attempt: ToolAttempt) -> Generator[Step, Any, None]:
        """Ask the guards after a call, whose result they may refuse or replace."""
        toolbox, name = self.results.toolbox, attempt.call.name
        guards = held_guards(self.context, "after_tool", toolbox.names_of(name))
        if not guards:
            return
        arguments = attempt.arguments or attempt.call.arguments
        call = toolbox.guarded(attempt.call, arguments, attempt.params)

        def accept(result: Any) -> ToolResult[Any]:
            if not isinstance(result, ToolResult):
                raise TypeError(f"Replace takes a ToolResult, got {type(result).__name__}")
            result.render()
            return result

        inquiry = Inquiry(
            self.context,
            "after_tool",
            attempt.result,
            arguments=lambda result: ((call, result), None),
            accept=accept,
            call_id=call.id,
        )
        verdict = yield from inquiry.steps(guards)
        inquiry.record(verdict)
        if verdict.refuses:
            self.refuse(attempt, verdict, inquiry)
        elif verdict.replaced:
            self.results.accept(attempt, verdict.value)

    def refuse(self, attempt: ToolAttempt, verdict: Verdict, inquiry: Inquiry) -> None:
        stops = verdict.strongest == "stop"
        attempt.failed(f"Not run: {verdict.message}" if stops and inquiry.hook == "before_tool" else verdict.message)
        attempt.message = ""
        if stops:
            attempt.error = error = verdict.error(inquiry.hook, self.context.prompt.name)
            # It goes up until it has ended the run that the guard holds for.
            error.ends_run = error.run_id != self.context.scope.run_id

    def begin(
        self,
        tool: Tool[Any, Any],
        attempt: ToolAttempt,
        *,
        captures: bool = False,
        shown: PendingCall | None = None,
        applies: bool = False,
        branch: Branch | None = None,
    ) -> Generator[Step, Any, ToolExecutionOutcome]:
        """Run the handler in a transaction, or apply the effects that a person was `shown` and has approved.

        On a `branch` of the session, its effects are held back.
        """
        turn = self.context.session.transactions if tool.transactional and not tool.read_only and not branch else None
        if turn is not None:
            yield from turn.take()
        owner, running = object(), None
        try:
            with working_for(owner):
                running = self._prepare(tool, attempt, owner, branch)
                running.captures, running.shown, running.turn = captures, shown, turn
                if shown is not None and applies:
                    running.handler.function = functools.partial(self._apply, shown, running.resources)
                return (yield from self._run(running))
        finally:
            if running is not None:
                running.end_turn()
            elif turn is not None:
                turn.end()

    def _prepare(
        self, tool: Tool[Any, Any], attempt: ToolAttempt, owner: object, branch: Branch | None = None
    ) -> StartedCall:
        """Take a snapshot of what the call may change, and prepare its handler."""
        call = attempt.call
        session, resources = branch or (self.context.session, self.context.resources.tool_scope())
        undoes = tool.transactional and not tool.read_only
        before = (session.state(), resources.begin_call()) if undoes else None
        timeout = self.context.prompt.template.tool_timeout if tool.timeout is None else tool.timeout
        timeout = timeout if tool.transactional else None
        deadline = self.context.scope.meter.deadline
        if timeout is not None:
            own = Deadline.after(timeout, self.context.session.clock)
            deadline = own if deadline is None else min(own, deadline, key=Deadline.remaining)
        context = self._tool_context(call, resources, deadline, session)
        replaced = self.context.scope.handler_of
        handled = tool.handler if replaced is None else replaced(tool)
        handler = functools.partial(handled, attempt.params, context=context)
        # What keeps to the time by itself also ends in order when it is over.
        limit = deadline if tool.transactional else None
        run = HandlerCall(handler, limit, effect=tool.compensate is not None, timeout=timeout)
        if tool.blocking is not None and handled is tool.handler:
            run.blocking = functools.partial(tool.blocking, attempt.params, context=context)
        started = StartedCall(call, attempt.since, attempt.result, attempt.params, tool, owner, before, resources, run)
        started.arguments, started.notice, started.note = attempt.arguments, attempt.notice, attempt.note
        started.branch = branch
        return started

    def discard(self, tool: Tool[Any, Any], attempt: ToolAttempt) -> Generator[Step, Any, None]:
        """Compensate the effects outside of a call that ran for its question."""
        if tool.compensate is None:
            return
        yield from self.context.session.transactions.take()
        try:
            yield from self._discard(tool, attempt)
        finally:
            self.context.session.transactions.end()

    def _discard(self, tool: Tool[Any, Any], attempt: ToolAttempt) -> Generator[Step, Any, None]:
        owner = object()
        with working_for(owner):
            running = self._prepare(tool, attempt, owner)
            yield from self._compensate(running)
            self._roll_back(running)
            try:
                yield running.resources
            except Exception as error:
                logger.warning("Tool '%s' failed to close its resources.", tool.name, exc_info=error)
        attempt.compensation, attempt.error = running.compensation, attempt.error or running.error

    def question(
        self, tool: Tool[Any, Any], attempt: ToolAttempt, needs: Needs, effects: Effects | None = None
    ) -> PendingCall:
        call, arguments = attempt.call, attempt.arguments or attempt.call.arguments
        offer = self.results.toolbox.get(call.name)
        return PendingCall(
            call.id,
            call.name,
            self.results.toolbox.section_of(call.name),
            arguments,
            attempt.params,
            effects,
            needs,
            None if effects is None else attempt.result,
            edited=bool(attempt.notice),
            note=attempt.note,
            own_name="" if offer is None else offer.ref.own_name,
        )

    def ask(self, pending: PendingCall) -> ToolExecutionOutcome:
        """Leave the call waiting in the session."""
        self.context.session.dispatch(pending)
        return ToolExecutionOutcome(pending.call_id, "", success=False, name=pending.tool, pending=pending)

    def _apply(self, shown: PendingCall, resources: ScopedResourceContext) -> ToolResult[Any]:
        """The handler of an approved call: what was shown happens, and its result counts."""
        assert shown.effects is not None
        apply(shown.effects, self.context.session, resources)
        return shown.result or NO_RESULT

    def abandon(self) -> None:
        """End the running calls from another thread, as stopped; one that is already ending is waited for."""
        for running in list(self._started):
            if running.claim_end():
                with working_for(running.owner):
                    call_sync(self._stop(running), self.context.loop_thread)
            elif running.owner not in current_calls():
                running.ended.wait()

    def _run(self, running: StartedCall) -> Generator[Step, Any, ToolExecutionOutcome]:
        """Call the handler with resources scoped to this call, and end the call."""
        self._started.append(running)
        result = error = None
        try:
            result = yield running.handler
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised
        if not running.claim_end():
            running.ended.wait()
            raise AbandonedCallError(f"Tool '{running.tool.name}' was stopped.")
        # The end of a call is not stopped itself: others who would stop the call wait for it.
        left = self.context.scope.fence.leave()
        try:
            if isinstance(error, CallWaits):
                yield running.resources
                for each in error.pending:
                    self.context.session.dispatch(each)
                return ToolExecutionOutcome(
                    running.call.id, "", success=False, name=running.call.name, pending=error.pending[0]
                )
            if isinstance(error, CallSuspended | StaleEffectsError):
                self._undo(running)
                running.resources.close()
                raise error
            if isinstance(error, NeedsFolderError) and running.branch is not None:
                raise self._needs_to_run_alone(running, error)
            if error is not None:
                result = self._failed(running, error)
            self.results.accept(running, result)
            yield from self._inspected(running)
            effects = self._captured(running)
            outcome = yield from self._end(running) if effects is None else self._hold(running, effects)
        finally:
            self._remove(running, left)
        if self.context.scope.fence.closed:
            raise AbandonedCallError(f"Tool '{running.tool.name}' ended, but its run was stopped.")
        if running.error is not None:
            raise running.error
        return outcome

    def _inspected(self, running: StartedCall) -> Generator[Step, Any, None]:
        """Ask the guards about the result; if the run is stopped meanwhile, the call is undone."""
        if running.error is not None or running.expansion is not None:
            return
        try:
            yield from self.inspection(running)
        except GeneratorExit:
            raise
        except BaseException as error:
            running.result, running.message, running.error = running.stopped("the run was stopped"), "", error

    def _captured(self, running: StartedCall) -> Effects | None:
        """The effects to ask about; None if there are none, or if they are those that were approved."""
        if not running.captures or not running.result.success or running.before is None:
            return None
        opens = running.branch is None and self.results.with_disclosure(running.result).disclosure is not None
        if running.expansion is not None or opens:
            return None
        session, states = running.before
        try:
            changes = running.resources.changes(states)
            outside, reruns = running.tool.compensate is not None, running.resources.holds_managers
            changed = self.context.session if running.branch is None else running.branch.session
            effects = capture(changed, session, changes, outside=outside, reruns=reruns)
            approved = None if running.shown is None else running.shown.effects
            if not effects or (approved is not None and approved.digest == effects.digest):
                return None
        except (StaleFilesError, StaleResourceError) as error:
            if running.branch is not None:
                # It wrote to what other calls see, too.
                raise self._needs_to_run_alone(running, error) from error
            problem = f"Tool '{running.tool.name}' was undone, because files changed while it ran: {error}"
            running.result, running.message = ToolResult(problem, success=False), ""
            return None
        except (ResourceError, SerdeError) as error:
            problem = f"The effects of tool '{running.tool.name}' cannot be shown for approval: {error}"
            self.results.programming_error(problem, error, running)
            return None
        return effects

    def _needs_to_run_alone(self, running: StartedCall, error: Exception) -> StaleEffectsError:
        """Undo a call beside others that does more than its branch can hold; it runs again after them."""
        self._undo(running)
        self.held[running.call.id] = running
        running.resources.close()
        return StaleEffectsError(str(error))

    def _hold(self, running: StartedCall, effects: Effects) -> Generator[Step, Any, ToolExecutionOutcome]:
        """Take the effects back, and ask about them."""
        self._roll_back(running)
        running.rolled_back = False
        try:
            yield running.resources
        except GeneratorExit:
            raise
        except BaseException as error:
            self._keep_interrupt(error, running)
            problem = f"Tool '{running.tool.name}' failed to close its resources: {error}"
            running.result, running.message, running.rolled_back = ToolResult(problem, success=False), "", True
            if running.tool.compensate is not None:
                yield from self._discard(running.tool, running)
            return self.results.record(running)
        question = self.question(running.tool, running, "effects", effects)
        if running.branch is not None:
            self.held[running.call.id] = running
            return ToolExecutionOutcome(running.call.id, "", success=False, name=running.call.name, pending=question)
        return self.ask(question)

    def _stop(self, running: StartedCall) -> Generator[Step, Any, None]:
        """End a call whose handler is running in another thread."""
        left = self.context.scope.fence.leave()
        try:
            running.handler.abandon()
            running.result = running.stopped("the run was stopped")
            yield from self._end(running)
        finally:
            self._remove(running, left)

    def _remove(self, running: StartedCall, left: Any) -> None:
        self._started.remove(running)
        running.end_turn()
        running.ended.set()
        self.context.scope.fence.enter_again(left)

    def _end(self, running: StartedCall) -> Generator[Step, Any, ToolExecutionOutcome]:
        """Compensate and roll back a call that failed or asked for a new attempt, close its resources, record it."""
        undone = not running.result.success or running.expansion is not None
        if undone and not running.handler.dropped:
            yield from self._compensate(running)
        if undone:
            self._roll_back(running)
        else:
            self._keep_changes(running)
            if running.before is not None and self.context.session.observed:
                self._announce_files(running, running.before[1])
        try:
            yield running.resources
        except GeneratorExit:
            raise
        except BaseException as error:
            self._keep_interrupt(error, running)
            message = f"Tool '{running.tool.name}' failed to close its resources: {error}"
            logger.warning("%s", message, exc_info=error)
            running.resources = self.context.resources
            if running.result.success:
                running.result, running.message = ToolResult(message, success=False), ""
            if not undone:
                with self.context.resources.tool_scope() as running.resources:
                    yield from self._compensate(running)
                running.resources = self.context.resources
            self._roll_back(running)
        waits = (
            each for each in waiting_calls(self.context.session).values() if is_inside(each.call_id, running.call.id)
        )
        if undone and (pending := next(waits, None)) is not None:
            return ToolExecutionOutcome(running.call.id, "", success=False, name=running.call.name, pending=pending)
        return self.results.record(running)

    def _keep_changes(self, running: StartedCall) -> None:
        """Note what the call has changed, in a conversation that can go back."""
        session, call, tool = self.context.session, running.call, running.tool
        if Point not in session or running.branch is not None:
            return
        if tool.reaches_outside:
            key = self.results.toolbox.section_of(tool.name)
            session[OutsideCall].append(OutsideCall(tool.name, call.id, self.context.scope.run_id, key))
        if running.before is None:
            return
        made = [*changes_of(tool.name, call.id, running.resources, running.before[1])]
        for each in made:
            session[Written].append(each)
        if lost := {each.name: each.problem for each in made if each.problem}:
            reason = "; ".join(f"{name}: {why}" for name, why in lost.items())
            logger.warning("What tool '%s' changed cannot be taken back: %s.", tool.name, reason)
            self.context.emit(CheckpointFailed, call_id=call.id, reason=reason, paths=tuple(lost))

    def _announce_files(self, running: StartedCall, before: Any) -> None:
        """Show observers which files the call changed; one beside it that writes the same files hides them."""
        with contextlib.suppress(FilesystemError, ResourceError, OSError):
            found = [change for each in running.resources.changes(before, only=Filesystem) for change in each.changes]
            kept = tuple(each for each in found if isinstance(each, FileChange) and each.size <= MAX_ANNOUNCED)
            if kept:
                self.context.announce(FilesChanged, call_id=running.call.id, changes=kept)

    def _failed(self, running: StartedCall, error: BaseException) -> ToolResult[Any]:
        """The result for the model; an error that is not for the model to handle is kept, and raised once recorded."""
        tool = running.tool
        error = error.error if (exits := isinstance(error, UserCodeExit)) else error
        match error:
            case VisibilityExpansionRequired(prompt_name=""):
                running.expansion = self.context.view.request(
                    error.section_keys, error.reason, overrides=error.requested_overrides
                )
                return ToolResult(f"Opening: {', '.join(error.section_keys)}.", disclosure=running.expansion)
            case ToolValidationError():
                return ToolResult(str(error), success=False)
            case HandlerTimeout() | AbandonedCallError() | DeadlineExceededError() if self._is_late(running, error):
                logger.warning("Tool '%s' did not end within %g s.", tool.name, running.handler.timeout)
                return running.late()
            case AbandonedCallError() if (limit := self.context.scope.meter.deadline) is None or not limit.expired:
                # A run inside the call was stopped by another thread.
                running.error = error
                return running.stopped("the run was stopped")
            case HandlerTimeout() | AbandonedCallError():
                running.error = DeadlineExceededError(
                    f"The deadline of prompt '{self.context.prompt.name}' passed while tool '{tool.name}' was running.",
                    prompt_name=self.context.prompt.name,
                    phase="tool",
                )
                return running.stopped("the deadline passed")
            case WinkError(ends_run=True):
                if isinstance(error, PromptEvaluationError):
                    error.prompt_name = error.prompt_name or self.context.prompt.name
                running.error = error
                return ToolResult(f"Tool '{tool.name}' was stopped: {error}", success=False)
            case _ if isinstance(error, self.context.adapter.raised_errors):
                running.error = error
                return ToolResult(f"Tool '{tool.name}' failed: {type(error).__name__}: {error}", success=False)
            case _ if exits or isinstance(error, Exception):
                trace = (type(error), error, callers_traceback(error))
                logger.warning("Tool '%s' raised %s.", tool.name, type(error).__name__, exc_info=trace)
                return ToolResult(f"Tool '{tool.name}' failed: {type(error).__name__}: {error}", success=False)
            case _:
                running.error = error
                return running.stopped("the run was stopped")

    def _is_late(self, running: StartedCall, error: BaseException) -> bool:
        """True if the handler was stopped by the timeout of its tool, which the run survives."""
        limit = running.handler.deadline
        if limit is None or limit is self.context.scope.meter.deadline:
            return False
        return isinstance(error, HandlerTimeout) or limit.expired

    def _tool_context(
        self,
        call: ToolCall,
        resources: ScopedResourceContext,
        deadline: Deadline | None,
        session: Session | None = None,
    ) -> ToolContext:
        # By turn, because some providers give an id again in a later one.
        scope, meter = self.context.scope, self.context.scope.meter
        own = f"{scope.call_key or scope.run_id}:{meter.own_turns}:{call.id}"
        key = own if self.idempotency_key is None else self.idempotency_key(call)
        return ToolContext(
            session=session or self.context.session,
            resources=resources,
            prompt=self.context.prompt,
            call_id=call.id,
            deadline=deadline,
            budget=meter.budget,
            idempotency_key=key,
            presentation=self.context.presentation,
            sink=None if self.emitted is None else functools.partial(self.emitted, call),
            run=self.context,
        )

    def _compensate(self, running: StartedCall) -> Generator[Step, Any, None]:
        tool = running.tool
        if tool.compensate is None:
            return
        context = self._tool_context(running.call, running.resources, self.context.scope.meter.deadline)
        try:
            yield functools.partial(tool.compensate, running.params, context=context)
            running.compensation = "done"
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised.error if isinstance(raised, UserCodeExit) else raised
            self._keep_interrupt(error, running)
            running.compensation = f"Compensation of '{tool.name}' failed: {type(error).__name__}: {error}"
            logger.error("%s", running.compensation, exc_info=error)
            running.result = replace(running.result, message=f"{running.result.message}\n{running.compensation}")
            running.message = running.message and f"{running.message}\n{running.compensation}"

    def _keep_interrupt(self, error: BaseException, attempt: ToolAttempt) -> None:
        """Raise Ctrl-C once the call has ended."""
        if isinstance(error, KeyboardInterrupt) and attempt.error is None:
            attempt.error = error

    def _undo(self, running: StartedCall) -> bool:
        """Restore session and resources to their state before the call; a read-only call has nothing to undo.

        The conversation stays: the user may have spoken in the meantime.
        """
        if running.before is None:
            return False
        session, states = running.before
        (self.context.session if running.branch is None else running.branch.session).restore(session, keep=(Message,))
        running.resources.restore(states)
        return True

    def _roll_back(self, running: StartedCall) -> None:
        """Undo the call. A failed restore is raised at the end, unless the call was stopped, which takes precedence."""
        try:
            running.rolled_back = self._undo(running)
        except (Exception, KeyboardInterrupt) as error:
            if running.error is None:
                running.error = error
            else:
                running.error.add_note(f"Rolling back failed as well: {error}")
