"""Tool calls as transactions: check, snapshot, run, and roll back what a failed call did."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from weakincentives._fence import current_calls, working_for
from weakincentives._frozen import quick_init
from weakincentives.content import Part, parts_of, text_of
from weakincentives.errors import (
    AbandonedCallError,
    DeadlineExceededError,
    PromptEvaluationError,
    SerdeError,
    ToolValidationError,
    WinkError,
    callers_traceback,
)
from weakincentives.filesystem import StaleFilesError
from weakincentives.limits import Deadline
from weakincentives.prompt import (
    AnyTool,
    DisclosureRequest,
    Guard,
    OpenSectionsResult,
    ReadSectionResult,
    SearchSectionsResult,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.prompt.guards import GuardedCall
from weakincentives.resources import ResourceError, ScopedResourceContext
from weakincentives.runtime.approval import (
    Answer,
    Approve,
    Deny,
    Edit,
    Needs,
    PendingCall,
    Settled,
    Undecided,
    edited_arguments,
    rule_of,
    waiting_calls,
)
from weakincentives.runtime.bridge import (
    HandlerCall,
    HandlerTimeout,
    Latch,
    Step,
    UserCodeExit,
    call_async,
    call_sync,
    exited,
    in_parallel,
    in_parallel_async,
)
from weakincentives.runtime.context import RunContext
from weakincentives.runtime.effects import Effects, StaleEffectsError, apply, capture
from weakincentives.runtime.events import CallDecided, ToolInvoked
from weakincentives.runtime.guards import Inquiry, Verdict, held_guards
from weakincentives.runtime.messages import Message, ToolCall
from weakincentives.runtime.runs import Toolbox
from weakincentives.serde import encode
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.runtime")


_NO_RESULT: ToolResult[Any] = ToolResult()
_EDITED = "A person changed the arguments of this call to {}. What follows is the result with these arguments."
_UNDECIDED = "Not decided: the user went on before a person decided about this call. It had no effect."


class CallWaits(BaseException):
    """Ends a call inside of which others wait for a person: `pending`, with their ids below that of the call."""

    def __init__(self, pending: tuple[PendingCall, ...]) -> None:
        super().__init__(", ".join(call.call_id for call in pending))
        self.pending = pending


class CallSuspended(BaseException):
    """Abandons a tool call as if it had not been made: it is rolled back, but neither compensated nor recorded.

    A BaseException, so that a handler's own `except Exception` does not treat it as a failure.
    """


@quick_init
@dataclass(frozen=True, slots=True)
class ToolExecutionOutcome:
    """The outcome of one call. `message` is what the model reads.

    `disclosure` is what a successful call opened or closed, and `expanded_tools` are the tools that appeared with it.
    A call ends the turn if it `restarts` the run, which alone can open the sections, or halts for the caller.
    `operator_text` is to be sent as a system message; `found` are the sections that a search has listed. A call that
    waits for a person is `pending`: it has no result yet.
    """

    tool_call_id: str
    message: str
    success: bool
    expanded_tools: tuple[Any, ...] = ()
    name: str = ""
    disclosure: DisclosureRequest | None = None
    restarts: bool = False
    attachments: tuple[Part, ...] = ()
    operator_text: str = ""
    found: tuple[str, ...] = ()
    pending: PendingCall | None = None

    def as_message(self) -> Message:
        parts = parts_of([self.message, *self.attachments]) if self.attachments else ()
        text = text_of(parts) if parts else self.message
        return Message("tool", text, call_id=self.tool_call_id, name=self.name, success=self.success, parts=parts)

    @property
    def halts(self) -> bool:
        return self.disclosure is not None and self.disclosure.halt

    @property
    def ends_turn(self) -> bool:
        return self.restarts or self.halts

    @property
    def opened(self) -> tuple[str, ...]:
        """The sections that were opened or read, as the model named them."""
        asked = self.disclosure
        return () if asked is None or asked.action != "open" else asked.keys


@dataclass(slots=True)
class ToolExecutor:
    """Runs the calls of one attempt, with the tools of its toolbox.

    `ended` has the outcomes of the last calls by id, also if running them raised an error. `emitted`, set by a driver
    that streams, receives the data that a call emits. `unattended` says why nobody can be asked: calls that need
    approval then fail without being run.
    """

    context: RunContext
    toolbox: Toolbox = field(default_factory=Toolbox)
    idempotency_key: Callable[[ToolCall], str] | None = None
    emitted: Callable[[ToolCall, Any], None] | None = None
    unattended: str = ""
    ended: dict[str, ToolExecutionOutcome] = field(default_factory=dict)
    _started: list[StartedCall] = field(default_factory=list)
    # Calls beside others that have run, and whose changes are held back.
    _held: dict[str, StartedCall] = field(default_factory=dict)

    def execute_all(self, calls: Sequence[ToolCall]) -> list[ToolExecutionOutcome]:
        """Run the calls in order, or in parallel if they may overlap.

        No call runs after one that ends the turn.
        """
        self.ended.clear()
        if len(calls) > 1 and self._overlap(calls):
            thread = self.context.loop_thread
            try:
                found = in_parallel([functools.partial(call_sync, self._beside(call), thread) for call in calls])
                return [call_sync(self._after_others(*each), thread) for each in zip(calls, found, strict=True)]
            finally:
                call_sync(self._give_up(), thread)
        outcomes: list[ToolExecutionOutcome] = []
        for call in calls:
            outcomes.append(self._execute(call))
            if outcomes[-1].ends_turn:
                break
        return outcomes

    async def execute_all_async(self, calls: Sequence[ToolCall]) -> list[ToolExecutionOutcome]:
        """`execute_all` on an event loop; sync handlers run in threads."""
        self.ended.clear()
        if len(calls) > 1 and self._overlap(calls):
            try:
                found = await in_parallel_async([call_async(self._beside(call)) for call in calls])
                return [await call_async(self._after_others(*each)) for each in zip(calls, found, strict=True)]
            finally:
                await call_async(self._give_up())
        outcomes: list[ToolExecutionOutcome] = []
        for call in calls:
            outcomes.append(await call_async(self._steps(call)))
            if outcomes[-1].ends_turn:
                break
        return outcomes

    def next_group(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The next call, or the next few if they may overlap."""
        size = 0
        while size < len(calls) and self._overlap(calls[size : size + 1]):
            size += 1
        return calls[: max(size, 1)]

    def _overlap(self, calls: Sequence[ToolCall]) -> bool:
        """True if each of these calls is read-only, or may run at the same time as others that write."""
        tools = [tool for call in calls if (tool := self.toolbox.tool(call.name)) is not None]
        writing = [tool for tool in tools if not tool.read_only]
        beside = all(tool.concurrent and tool.approval is None and tool.transactional for tool in writing)
        # Guards may replace params, ask or refuse, which is settled one call after another.
        beside = beside and not any(self._is_guarded(tool.name) for tool in writing)
        return len(tools) == len(calls) and beside and (not writing or self.context.resources.can_overlap)

    def _is_guarded(self, name: str) -> bool:
        return bool(held_guards(self.context, "before_tool", name) or held_guards(self.context, "after_tool", name))

    def _beside(self, call: ToolCall) -> Generator[Step, Any, ToolExecutionOutcome | None]:
        """The first part of a call that runs at the same time as others: what it would change is held back.

        None if another call has changed the same meanwhile.
        """
        tool = self.toolbox.tool(call.name)
        try:
            return (yield from self._steps(call, beside=tool is not None and not tool.read_only))
        except StaleEffectsError:
            return None

    def _after_others(
        self, call: ToolCall, first: ToolExecutionOutcome | None
    ) -> Generator[Step, Any, ToolExecutionOutcome]:
        """The second part: its changes are made, unless a call before it has changed the same; then it runs again."""
        held = None if first is None else first.pending
        if first is not None and (held is None or held.call_id in waiting_calls(self.context.session)):
            return first
        ran = self._held.pop(call.id, None)
        if ran is None:
            raise AbandonedCallError(f"Tool '{call.name}' was undone: its run was stopped.")
        tool, attempt = ran.tool, ToolAttempt(call, ran.since, _NO_RESULT, ran.params)
        try:
            if held is not None and held.effects is not None and not held.effects.reruns:
                return (yield from self._begin(tool, attempt, shown=held, applies=True))
        except StaleEffectsError as error:
            logger.info("Tool '%s' runs again, alone: %s.", tool.name, error)
        yield from self._discard(tool, attempt)
        if attempt.compensation not in ("", "done"):
            return self._recorded(attempt.failed(f"Not run again after a conflict.\n{attempt.compensation}"))
        attempt.compensation = ""
        return (yield from self._begin(tool, attempt))

    def _give_up(self) -> Generator[Step, Any, None]:
        """Undo the calls whose changes are still held back when the run is stopped."""
        left = self.context.scope.fence.leave()
        try:
            for call_id in list(self._held):
                if (ran := self._held.pop(call_id, None)) is None:
                    continue
                attempt = ToolAttempt(ran.call, ran.since, ran.stopped("the run was stopped"), ran.params)
                attempt.rolled_back = True
                yield from self._discard(ran.tool, attempt)
                if attempt.compensation not in ("", "done"):
                    attempt.failed(f"{attempt.result.message}\n{attempt.compensation}")
                self._record(attempt)
        finally:
            self.context.scope.fence.enter_again(left)

    def _execute(self, call: ToolCall) -> ToolExecutionOutcome:
        return call_sync(self._steps(call), self.context.loop_thread)

    def _steps(self, call: ToolCall, *, beside: bool = False) -> Generator[Step, Any, ToolExecutionOutcome]:
        try:
            return (yield from self._execution(call, beside))
        except SystemExit as error:
            # Of code around the handler, such as a reducer: a handler's own has become its failure.
            raise exited(error, self.context.prompt.name, "tool") from error

    def _execution(self, call: ToolCall, beside: bool) -> Generator[Step, Any, ToolExecutionOutcome]:
        """One call, from checking it to recording it, or to asking a person about it."""
        session, scope = self.context.session, self.context.scope
        waits = waiting_calls(session)
        waiting, inside = waits.get(call.id), [each for each in waits if each.startswith(f"{call.id}/")]
        decision = None if waiting is None else (scope.decisions or {}).pop(call.id, None)
        if inside and not any(each in (scope.decisions or {}) for each in inside):
            return ToolExecutionOutcome(call.id, "", success=False, name=call.name, pending=waits[inside[0]])
        if waiting is None and not inside:
            scope.meter.begin_tool_call(self.context.prompt.name)
        elif waiting is not None and decision is None:
            return ToolExecutionOutcome(call.id, "", success=False, name=call.name, pending=waiting)
        tool = self.toolbox.tool(call.name)
        attempt = ToolAttempt(call, session.clock.monotonic(), _NO_RESULT, None)
        refusal = self._refusal(call.name)
        if waiting is not None and decision is not None:
            return (yield from self._settle(waiting, decision, attempt, tool, refusal))
        if tool is None or refusal:
            return self._record(attempt.failed(refusal))
        try:
            attempt.params = tool.parse(call.arguments)
        except SerdeError as error:
            listed = "; ".join(f"{problem.path.removeprefix('$.')}: {problem.message}" for problem in error.problems)
            return self._record(attempt.failed(f"Invalid arguments for '{tool.name}': {listed}"))
        if not inside and (guards := held_guards(self.context, "before_tool", tool.name)):
            verdict = yield from self._permission(guards, tool, attempt)
            if verdict.refuses:
                return self._recorded(attempt)
            attempt.note = verdict.message if verdict.outcomes else ""
        if inside or (tool.approval is None and not attempt.note):
            branch = self.context.session.branch() if beside else None
            return (yield from self._begin(tool, attempt, captures=beside, branch=branch))
        try:
            needs = None if tool.approval is None else rule_of(tool, attempt.params, session)
        except (Exception, SystemExit) as error:
            logger.warning("The approval rule of tool '%s' failed.", tool.name, exc_info=error)
            problem = f"Tool '{tool.name}' was not run, because its approval rule failed: {error}"
            return self._record(attempt.failed(problem))
        if needs is None and attempt.note:
            needs = "call"
        if needs is not None and self.unattended:
            return self._record(attempt.failed(f"Tool '{tool.name}' was not run: {self.unattended}"))
        if needs in ("call", "answer"):
            return self._ask(self._question(tool, attempt, needs))
        return (yield from self._begin(tool, attempt, captures=needs == "effects"))

    def _permission(
        self, guards: Sequence[Guard], tool: Tool[Any, Any], attempt: ToolAttempt, *, approved: bool = False
    ) -> Generator[Step, Any, Verdict]:
        """Ask the guards before a call, which has failed if they refuse it; once it is approved, no person is asked."""
        call = GuardedCall(attempt.call.id, tool.name, attempt.arguments or attempt.call.arguments, attempt.params)

        def accept(params: Any) -> GuardedCall:
            arguments = encode(params, as_input=True).decode()
            parsed = tool.parse(arguments)
            if type(parsed) is not type(params):
                raise TypeError(f"Replace takes the params of tool '{tool.name}', got {type(params).__name__}")
            return replace(call, arguments=arguments, params=params)

        inquiry = Inquiry(self.context, "before_tool", call, accept=accept, call_id=call.id)
        verdict = yield from inquiry.steps(guards)
        if self.context.scope.fence.closed:
            raise AbandonedCallError(f"Tool '{tool.name}' was not run: its run was stopped.")
        if not verdict.outcomes:
            return verdict
        if approved:
            verdict = replace(verdict, outcomes=tuple(each for each in verdict.outcomes if each.outcome != "ask"))
        inquiry.record(verdict)
        if verdict.replaced:
            attempt.params, attempt.arguments = verdict.value.params, verdict.value.arguments
        if verdict.refuses:
            self._refuse(attempt, verdict, inquiry)
        return verdict

    def _inspection(self, attempt: ToolAttempt) -> Generator[Step, Any, None]:
        """Ask the guards after a call, whose result they may refuse or replace."""
        guards = held_guards(self.context, "after_tool", attempt.call.name)
        if not guards:
            return
        arguments = attempt.arguments or attempt.call.arguments
        call = GuardedCall(attempt.call.id, attempt.call.name, arguments, attempt.params)

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
            self._refuse(attempt, verdict, inquiry)
        elif verdict.replaced:
            self._accept_result(attempt, verdict.value)

    def _refuse(self, attempt: ToolAttempt, verdict: Verdict, inquiry: Inquiry) -> None:
        stops = verdict.strongest == "stop"
        attempt.failed(f"Not run: {verdict.message}" if stops and inquiry.hook == "before_tool" else verdict.message)
        attempt.message = ""
        if stops:
            attempt.error = verdict.error(inquiry.hook, self.context.prompt.name)

    def _recorded(self, attempt: ToolAttempt) -> ToolExecutionOutcome:
        """The recorded outcome of a call that ended; raises the error that it ended with."""
        outcome = self._record(attempt)
        if attempt.error is not None:
            raise attempt.error
        return outcome

    def _begin(
        self,
        tool: Tool[Any, Any],
        attempt: ToolAttempt,
        *,
        captures: bool = False,
        shown: PendingCall | None = None,
        applies: bool = False,
        branch: Session | None = None,
    ) -> Generator[Step, Any, ToolExecutionOutcome]:
        """Run the handler in a transaction, or apply the effects that a person was `shown` and has approved.

        On a `branch` of the session, its effects are held back.
        """
        owner = object()
        with working_for(owner):
            running = self._prepare(tool, attempt, owner, branch)
            running.captures, running.shown = captures, shown
            if shown is not None and applies:
                running.handler.function = functools.partial(self._apply, shown, running.resources)
            return (yield from self._run(running))

    def _prepare(
        self, tool: Tool[Any, Any], attempt: ToolAttempt, owner: object, branch: Session | None = None
    ) -> StartedCall:
        """Take a snapshot of what the call may change, and prepare its handler."""
        call, resources = attempt.call, self.context.resources.tool_scope()
        session = branch or self.context.session
        undoes = tool.transactional and not tool.read_only
        before = (session.snapshot(), resources.begin_call()) if undoes else None
        timeout = self.context.prompt.template.tool_timeout if tool.timeout is None else tool.timeout
        timeout = timeout if tool.transactional else None
        deadline = self.context.scope.meter.deadline
        if timeout is not None:
            own = Deadline.after(timeout, self.context.session.clock)
            deadline = own if deadline is None else min(own, deadline, key=Deadline.remaining)
        context = self._tool_context(call, resources, deadline, branch)
        handler = functools.partial(tool.handler, attempt.params, context=context)
        run = HandlerCall(handler, deadline, effect=tool.compensate is not None, timeout=timeout)
        if tool.blocking is not None:
            run.blocking = functools.partial(tool.blocking, attempt.params, context=context)
        started = StartedCall(call, attempt.since, attempt.result, attempt.params, tool, owner, before, resources, run)
        started.arguments, started.notice, started.note = attempt.arguments, attempt.notice, attempt.note
        started.branch = branch
        return started

    def _settle(
        self, waiting: PendingCall, decision: Settled, attempt: ToolAttempt, tool: Tool[Any, Any] | None, refusal: str
    ) -> Generator[Step, Any, ToolExecutionOutcome]:
        """Act on the decision about a call that waits."""
        attempt.params, attempt.arguments, ran = waiting.params, waiting.arguments, waiting.effects is not None
        shows_edit = waiting.edited and isinstance(decision, Approve)
        attempt.notice, refused = _EDITED.format(waiting.arguments) if shows_edit else "", False
        attempt.note = waiting.note
        if tool is not None and not refusal and isinstance(decision, Approve | Edit):
            # While it still waits: if the run is stopped meanwhile, nothing is lost.
            refused = yield from self._refused_now(waiting, decision, attempt, tool)
        self.context.session[PendingCall].clear(lambda each: each.call_id == waiting.call_id)
        reason = decision.reason if isinstance(decision, Deny) else ""
        name = type(decision).__name__.lower()
        self.context.emit(CallDecided, call_id=waiting.call_id, decision=name, by=decision.by, reason=reason)
        attempt.rolled_back = ran
        if tool is None:
            attempt.failed(refusal)
            if isinstance(decision, Answer):  # It needs no tool.
                attempt.result = ToolResult(decision.text)
            return self._record(attempt)
        same = not refused and not refusal and attempt.params == waiting.params
        if isinstance(decision, Approve) and waiting.effects is not None and same:
            reruns = waiting.effects.reruns
            try:
                return (yield from self._begin(tool, attempt, captures=reruns, shown=waiting, applies=not reruns))
            except StaleEffectsError as error:
                logger.info("Tool '%s' runs again, and is asked about again: %s.", tool.name, error)
        if isinstance(decision, Approve) and not (ran or same or refused or refusal):
            # Guards have replaced what was approved.
            return self._ask(self._question(tool, attempt, "call"))
        if ran:
            given, attempt.params = attempt.params, waiting.params
            yield from self._discard(tool, attempt)
            attempt.params = given
        not_undone = "" if attempt.compensation in ("", "done") else f"\n{attempt.compensation}"
        match decision:
            case Deny():
                attempt.failed(f"A person denied this call{reason and f': {reason}'}{not_undone}")
            case Undecided():
                attempt.failed(f"{_UNDECIDED}{not_undone}")
            case Answer(text):
                attempt.result = ToolResult(f"{text}{not_undone}")
                yield from self._inspection(attempt)
            case _ if refusal:
                attempt.failed(f"{refusal}{not_undone}")
            case _ if refused:
                attempt.failed(f"{attempt.result.message}{not_undone}")
            case _ if not_undone:
                attempt.failed(f"Not run again, because its first run could not be undone.{not_undone}")
            case _:
                attempt.rolled_back, attempt.compensation = False, ""
                return (yield from self._begin(tool, attempt, captures=ran))
        return self._recorded(attempt)

    def _refused_now(
        self, waiting: PendingCall, decision: Approve | Edit, attempt: ToolAttempt, tool: Tool[Any, Any]
    ) -> Generator[Step, Any, bool]:
        """Take over edited arguments, and ask the guards again; True if they refuse the call."""
        if isinstance(decision, Edit):
            attempt.arguments = edited_arguments(tool, waiting, decision, self.context.prompt.name)
            attempt.params, attempt.notice = tool.parse(attempt.arguments), _EDITED.format(attempt.arguments)
        guards = held_guards(self.context, "before_tool", tool.name)
        if not guards:
            return False
        if isinstance(decision, Approve) and not waiting.edited:
            # They see what they saw before, so that the same replacement is what was approved.
            attempt.params, attempt.arguments = tool.parse(attempt.call.arguments), ""
        verdict = yield from self._permission(guards, tool, attempt, approved=True)
        attempt.notice = attempt.notice and _EDITED.format(attempt.arguments)
        return verdict.refuses

    def _discard(self, tool: Tool[Any, Any], attempt: ToolAttempt) -> Generator[Step, Any, None]:
        """Compensate the effects outside of a call that ran for its question."""
        if tool.compensate is None:
            return
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

    def _question(
        self, tool: Tool[Any, Any], attempt: ToolAttempt, needs: Needs, effects: Effects | None = None
    ) -> PendingCall:
        call, arguments = attempt.call, attempt.arguments or attempt.call.arguments
        return PendingCall(
            call.id,
            call.name,
            self.toolbox.section_of(call.name),
            arguments,
            attempt.params,
            effects,
            needs,
            None if effects is None else attempt.result,
            edited=bool(attempt.notice),
            note=attempt.note,
        )

    def _ask(self, pending: PendingCall) -> ToolExecutionOutcome:
        """Leave the call waiting in the session."""
        self.context.session.dispatch(pending)
        return ToolExecutionOutcome(pending.call_id, "", success=False, name=pending.tool, pending=pending)

    def _apply(self, shown: PendingCall, resources: ScopedResourceContext) -> ToolResult[Any]:
        """The handler of an approved call: what was shown happens, and its result counts."""
        assert shown.effects is not None
        apply(shown.effects, self.context.session, resources)
        return shown.result or _NO_RESULT

    def abandon(self) -> None:
        """End the running calls from another thread, as stopped; one that is already ending is waited for."""
        for running in list(self._started):
            if running.claim_end():
                with working_for(running.owner):
                    call_sync(self._stop(running), self.context.loop_thread)
            elif running.owner not in current_calls():
                running.ended.wait()
        call_sync(self._give_up(), self.context.loop_thread)

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
            if error is not None:
                result = self._failed(running, error)
            self._accept_result(running, result)
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
            yield from self._inspection(running)
        except GeneratorExit:
            raise
        except BaseException as error:
            running.result, running.message, running.error = running.stopped("the run was stopped"), "", error

    def _captured(self, running: StartedCall) -> Effects | None:
        """The effects to ask about; None if there are none, or if they are those that were approved."""
        if not running.captures or not running.result.success or running.before is None:
            return None
        opens = running.branch is None and self._with_disclosure(running.result).disclosure is not None
        if running.expansion is not None or opens:
            return None
        session, states = running.before
        try:
            changes = running.resources.changes(states)
            outside, reruns = running.tool.compensate is not None, running.resources.holds_managers
            changed = running.branch or self.context.session
            effects = capture(changed, session, changes, outside=outside, reruns=reruns)
            approved = None if running.shown is None else running.shown.effects
            if not effects or (approved is not None and approved.digest == effects.digest):
                return None
        except StaleFilesError as error:
            # Another call wrote to the same files at the same time.
            if running.branch is not None:
                self._undo(running)
                self._held[running.call.id] = running
                running.resources.close()
                raise StaleEffectsError(str(error)) from error
            problem = f"Tool '{running.tool.name}' was undone, because files changed while it ran: {error}"
            running.result, running.message = ToolResult(problem, success=False), ""
            return None
        except (ResourceError, SerdeError) as error:
            problem = f"The effects of tool '{running.tool.name}' cannot be shown for approval: {error}"
            self._programming_error(problem, error, running)
            return None
        return effects

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
            yield from self._discard(running.tool, running)
            return self._record(running)
        question = self._question(running.tool, running, "effects", effects)
        if running.branch is not None:
            self._held[running.call.id] = running
            return ToolExecutionOutcome(running.call.id, "", success=False, name=running.call.name, pending=question)
        return self._ask(question)

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
        running.ended.set()
        self.context.scope.fence.enter_again(left)

    def _end(self, running: StartedCall) -> Generator[Step, Any, ToolExecutionOutcome]:
        """Compensate and roll back a call that failed or asked for a new attempt, close its resources, record it."""
        undone = not running.result.success or running.expansion is not None
        if undone and not running.handler.dropped:
            yield from self._compensate(running)
        if undone:
            self._roll_back(running)
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
        return self._record(running)

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
        meter = self.context.scope.meter
        own = f"{self.context.scope.run_id}:{meter.turns}:{call.id}"  # Some providers give an id again in a later turn.
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

    def _refusal(self, name: str) -> str:
        offer = self.toolbox.get(name)
        if offer is not None and offer.ref.revoked:
            key = offer.ref.section_key
            if self.context.view.find(key) is None:
                return f"Tool '{name}' is not available: section '{key}' no longer applies."
            return f"Tool '{name}' is not available: section '{key}' is closed. Open the section again to use it."
        if self.toolbox.tool(name) is None:
            offered = ", ".join(
                ref.name for ref in self.toolbox.refs if not ref.revoked and self.toolbox.tool(ref.name)
            )
            return f"Unknown tool '{name}'. Available tools: {offered or 'none'}."
        return ""

    def _accept_result(self, running: ToolAttempt, result: Any) -> None:
        """Keep the result and its text for the model; one that cannot be rendered is the programmer's mistake."""
        name = running.call.name
        if not isinstance(result, ToolResult):
            problem = f"The handler of tool '{name}' returned a {type(result).__name__}; return a ToolResult."
            self._programming_error(problem, None, running)
            return
        value = result.value
        if isinstance(value, ReadSectionResult):
            result = replace(result, value=replace(value, expanded_tools=self.toolbox.available(value.expanded_tools)))
        try:
            running.result, running.message = result, result.render()
        except (Exception, SystemExit) as error:
            problem = (
                f"The result of tool '{name}' cannot be shown to the model: {type(error).__name__}: {error}; give its "
                "value a render() method or JSON-able fields; images and other media go into attachments=."
            )
            self._programming_error(problem, error, running)
            return
        try:
            if result.attachments:
                ended = (outcome.as_message() for outcome in list(self.ended.values()))
                self.context.adapter.check_parts(result.attachments, (*self.context.session[Message].view(), *ended))
        except PromptEvaluationError as error:
            text = f"{running.message}\n\nThe attachments cannot be shown: {error}".lstrip()
            running.result, running.message = ToolResult(text, success=False), ""

    def _programming_error(self, problem: str, cause: BaseException | None, running: ToolAttempt) -> None:
        mistake = PromptEvaluationError(problem, prompt_name=self.context.prompt.name, phase="tool")
        mistake.__cause__ = cause
        running.result, running.message, running.error = ToolResult(problem, success=False), "", mistake

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
        (running.branch or self.context.session).restore(session, keep=(Message,))
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

    def _record(self, attempt: ToolAttempt) -> ToolExecutionOutcome:
        """Open what was read, record the call, and return its outcome."""
        call, result, value = attempt.call, self._with_disclosure(attempt.result), attempt.result.value
        asked = result.disclosure if result.success else None
        restarts, expanded = attempt.expansion is not None, tuple[AnyTool, ...]()
        if asked is not None and asked.overrides:
            expanded = self._added_tools(asked)
            if expanded and not (restarts or asked.halt or self.context.config.supports_dynamic_tools):
                # The next attempt opens it, if there is one; else the caller decides.
                restarts, asked = True, replace(asked, reason="The adapter cannot add tools to a conversation.")
            for path, visibility in asked.overrides.items() if not (restarts or asked.halt) else ():
                self.context.session.dispatch(SetVisibilityOverride(path, visibility))
        message, operator_text = attempt.message or result.message, ""
        if attempt.notice:
            message = f"{attempt.notice}\n\n{message}"
        if asked is not None and restarts and attempt.expansion is None:
            keys = ", ".join(asked.keys)
            message = f"Opening {keys}: once it is open, the prompt shows the full text, and its tools are available."
        elif asked is not None and isinstance(result.value, ReadSectionResult) and self._speaks_as_system(asked):
            message, operator_text = "The section's text follows as a system message.", result.value.render()
        if isinstance(result.value, ReadSectionResult):
            result = replace(result, value=replace(result.value, expanded_tools=()))
        self.context.session.dispatch(
            ToolInvoked(
                name=call.name,
                params=attempt.params,
                result=result,
                call_id=call.id,
                arguments=call.arguments,
                rolled_back=attempt.rolled_back,
                duration=self.context.session.clock.monotonic() - attempt.since,
                section_key=self.toolbox.section_of(call.name),
                compensation=attempt.compensation,
                text=message,
                **self.context.stamp,
            )
        )
        self.ended[call.id] = outcome = ToolExecutionOutcome(
            tool_call_id=call.id,
            message=message,
            success=result.success,
            expanded_tools=expanded,
            name=call.name,
            disclosure=asked,
            restarts=restarts,
            attachments=() if restarts else result.attachments,
            operator_text=operator_text,
            found=tuple(each.key for each in value.sections) if isinstance(value, SearchSectionsResult) else (),
        )
        return outcome

    def _with_disclosure(self, result: ToolResult[Any]) -> ToolResult[Any]:
        """A value that opens sections makes the result a disclosure, whatever the tool's name."""
        value = result.value
        if result.disclosure is not None or not isinstance(value, OpenSectionsResult):
            return result
        overrides = value.requested_overrides
        request = self.context.view.request(
            map(".".join, overrides), value.reason, overrides=overrides, files=value.written_files, halt=bool(overrides)
        )
        return replace(result, disclosure=request)

    def _added_tools(self, asked: DisclosureRequest) -> tuple[AnyTool, ...]:
        """The tools that opening the sections adds to those offered so far."""
        view = self.context.view
        after = view.opened({path: shown for path, shown in asked.overrides.items() if path in view.outline.by_path})
        return tuple(tool for node, tool in after.offered() if node is not None and self.toolbox.is_new(tool))

    def _speaks_as_system(self, asked: DisclosureRequest) -> bool:
        """True if the strategy sends the text of these sections as a system message, and the model accepts it."""
        view = self.context.view
        return (
            self.context.adapter.supports_operator_text
            and self.context.prompt.template.disclosure.voice == "system"
            and all(
                asked.current_visibility_state.get(path) is not SectionVisibility.FULL and view.is_literal(path)
                for path in asked.content
            )
        )


@dataclass(slots=True, eq=False)
class ToolAttempt:
    """A call and its outcome so far; `error` is raised once the call is recorded.

    `arguments` are those that a person or a guard has put in place of the model's, and `notice` tells the model of a
    person's. `note` is the text with which a guard has asked for a person.
    """

    call: ToolCall
    since: float
    result: ToolResult[Any]
    params: Any
    _: KW_ONLY
    message: str = ""
    error: BaseException | None = None
    expansion: DisclosureRequest | None = None
    rolled_back: bool = False
    compensation: str = ""
    arguments: str = ""
    notice: str = ""
    note: str = ""

    def failed(self, message: str) -> ToolAttempt:
        self.result = ToolResult(message, success=False)
        return self


@dataclass(slots=True, eq=False)
class StartedCall(ToolAttempt):
    """A call that has started: what it runs, what to restore if it fails, and whether it has ended.

    Whoever is the first to `claim_end` ends it; others wait until it has `ended`. If it `captures` its effects, a
    person is asked about them, unless they are what that person was `shown`. On a `branch` of the session, they are
    held back until the calls before it have ended.
    """

    tool: Tool[Any, Any]
    owner: object
    before: tuple[Any, Any] | None
    resources: ScopedResourceContext
    handler: HandlerCall
    captures: bool = False
    shown: PendingCall | None = None
    branch: Session | None = None
    ended: Latch = field(default_factory=Latch)
    _unclaimed: threading.Lock = field(default_factory=threading.Lock)

    def claim_end(self) -> bool:
        return self._unclaimed.acquire(blocking=False)

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
