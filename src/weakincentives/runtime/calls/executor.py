"""The tool calls of an attempt: checked, guarded, asked about, and run in order or side by side."""

from __future__ import annotations

import functools
import logging
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from weakincentives.errors import AbandonedCallError, SerdeError
from weakincentives.prompt import Tool, ToolResult
from weakincentives.prompt.guards import TOOL_HOOKS, GuardedCall
from weakincentives.runtime.calls.approval import (
    Answer,
    Approve,
    Deny,
    Edit,
    PendingCall,
    Settled,
    Undecided,
    edited_arguments,
    rule_steps,
    waiting_calls,
)
from weakincentives.runtime.calls.effects import StaleEffectsError
from weakincentives.runtime.calls.results import NO_RESULT, Results, ToolAttempt, ToolExecutionOutcome
from weakincentives.runtime.calls.transactions import Branch, Transactions
from weakincentives.runtime.context import RunContext
from weakincentives.runtime.events import CallDecided
from weakincentives.runtime.loop.bridge import Step, call_async, call_sync, exited, in_parallel, in_parallel_async
from weakincentives.runtime.loop.inquiry import HeldGuard, Inquiry, Verdict, held_guards
from weakincentives.runtime.messages import ToolCall
from weakincentives.runtime.runs import Toolbox
from weakincentives.serde import encode

logger = logging.getLogger("weakincentives.runtime")

_EDITED = "A person changed the arguments of this call to {}. What follows is the result with these arguments."
_UNDECIDED = "Not decided: the user went on before a person decided about this call. It had no effect."


class ToolExecutor:
    """Runs the calls of one attempt, with the tools of its toolbox.

    `results` takes and records what calls return, and `calls` runs their handlers. `unattended` says why nobody can be
    asked: calls that need approval then fail without being run.
    """

    def __init__(self, context: RunContext, toolbox: Toolbox) -> None:
        self.context = context
        self.toolbox = toolbox
        self.results = Results(context, toolbox)
        self.calls = Transactions(context, self.results)
        self.unattended = ""

    def execute_all(self, calls: Sequence[ToolCall]) -> list[ToolExecutionOutcome]:
        """Run the calls in order, or in parallel if they may overlap.

        No call runs after one that ends the turn.
        """
        self.results.ended.clear()
        if len(calls) > 1 and self._overlap(calls):
            thread = self.context.loop_thread
            try:
                beside = [functools.partial(call_sync, steps, thread) for steps in self._beside(calls)]
                found = in_parallel(beside, self.context.scope.abandon_children)
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
        self.results.ended.clear()
        if len(calls) > 1 and self._overlap(calls):
            try:
                found = await in_parallel_async([call_async(steps) for steps in self._beside(calls)])
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
        beside = all(tool.concurrent and tool.approval is None for tool in writing)
        # Guards may replace params, ask or refuse, which is settled one call after another.
        beside = beside and not any(self._is_guarded(tool) for tool in writing)
        changing = any(tool.transactional for tool in writing)
        return len(tools) == len(calls) and beside and (not changing or self.context.resources.can_overlap)

    def _is_guarded(self, tool: Tool[Any, Any]) -> bool:
        """True if guards decide about calls of the tool, or about those of runs inside them."""
        names = self.toolbox.names_of(tool.name) if tool.transactional else ()
        return any(held_guards(self.context, hook, names) for hook in TOOL_HOOKS)

    def _beside(self, calls: Sequence[ToolCall]) -> list[Generator[Step, Any, ToolExecutionOutcome | None]]:
        """The calls at the same time, those that write each on a branch of what is there before any of them begins."""
        tools = [self.toolbox.tool(call.name) for call in calls]
        branches = [tool is not None and tool.transactional and not tool.read_only for tool in tools]
        context = self.context
        return [
            self._first_part(
                call, Branch(context.session.branch(), context.resources.tool_scope(branch=True)) if branched else None
            )
            for call, branched in zip(calls, branches, strict=True)
        ]

    def _first_part(self, call: ToolCall, branch: Branch | None) -> Generator[Step, Any, ToolExecutionOutcome | None]:
        """The first part of a call at the same time as others: what it would change is held back.

        None if it cannot be kept apart from what others change.
        """
        try:
            return (yield from self._steps(call, branch))
        except StaleEffectsError:
            return None

    def _after_others(
        self, call: ToolCall, first: ToolExecutionOutcome | None
    ) -> Generator[Step, Any, ToolExecutionOutcome]:
        """The second part: its changes are made, unless a call before it has changed the same; then it runs again."""
        held = None if first is None else first.pending
        if first is not None and (held is None or held.call_id in waiting_calls(self.context.session)):
            return first
        ran = self.calls.held.pop(call.id, None)
        if ran is None:
            raise AbandonedCallError(f"Tool '{call.name}' was undone: its run was stopped.")
        tool, attempt = ran.tool, ToolAttempt(call, ran.since, NO_RESULT, ran.params)
        try:
            if held is not None and held.effects is not None and not held.effects.reruns:
                return (yield from self.calls.begin(tool, attempt, shown=held, applies=True))
        except StaleEffectsError as error:
            logger.info("Tool '%s' runs again, alone: %s.", tool.name, error)
        yield from self.calls.discard(tool, attempt)
        if attempt.compensation not in ("", "done"):
            return self.results.recorded(attempt.failed(f"Not run again after a conflict.\n{attempt.compensation}"))
        attempt.compensation = ""
        return (yield from self.calls.begin(tool, attempt))

    def _give_up(self) -> Generator[Step, Any, None]:
        """Undo the calls whose changes are still held back when the run is stopped."""
        left = self.context.scope.fence.leave()
        try:
            for call_id in list(self.calls.held):
                if (ran := self.calls.held.pop(call_id, None)) is None:
                    continue
                attempt = ToolAttempt(ran.call, ran.since, ran.stopped("the run was stopped"), ran.params)
                attempt.rolled_back = True
                yield from self.calls.discard(ran.tool, attempt)
                if attempt.compensation not in ("", "done"):
                    attempt.failed(f"{attempt.result.message}\n{attempt.compensation}")
                self.results.record(attempt)
        finally:
            self.context.scope.fence.enter_again(left)

    def _execute(self, call: ToolCall) -> ToolExecutionOutcome:
        return call_sync(self._steps(call), self.context.loop_thread)

    def _steps(self, call: ToolCall, branch: Branch | None = None) -> Generator[Step, Any, ToolExecutionOutcome]:
        try:
            return (yield from self._execution(call, branch))
        except SystemExit as error:
            # Of code around the handler, such as a reducer: a handler's own has become its failure.
            raise exited(error, self.context.prompt.name, "tool") from error

    def _execution(self, call: ToolCall, branch: Branch | None) -> Generator[Step, Any, ToolExecutionOutcome]:
        """One call, from checking it to recording it, or to asking a person about it."""
        session, scope = self.context.session, self.context.scope
        waits = waiting_calls(session)
        waiting, inside = waits.get(call.id), [each for each in waits if each.startswith(f"{call.id}/")]
        decision = None if waiting is None else (scope.decisions or {}).pop(call.id, None)
        if inside and not any(each in (scope.decisions or {}) for each in inside):
            return ToolExecutionOutcome(call.id, "", success=False, name=call.name, pending=waits[inside[0]])
        if waiting is None and not inside:
            scope.meter.begin_tool_call(self.context.prompt.name)
            if (recorded := self.results.recorded_before.pop(call.id, None)) is not None:
                self.results.ended[call.id] = recorded
                return recorded
        elif waiting is not None and decision is None:
            return ToolExecutionOutcome(call.id, "", success=False, name=call.name, pending=waiting)
        tool = self.toolbox.tool(call.name)
        attempt = ToolAttempt(call, session.clock.monotonic(), NO_RESULT, None)
        refusal = self.results.refusal(call.name)
        if waiting is not None and decision is not None:
            if tool is not None and self.toolbox.asked_about(waiting) is None:
                # Its name belongs to another tool by now, which nobody was asked about.
                tool, refusal = None, self.results.replaced_tool(waiting)
            return (yield from self._settle(waiting, decision, attempt, tool, refusal))
        if tool is None or refusal:
            return self.results.record(attempt.failed(refusal))
        try:
            attempt.params = tool.parse(call.arguments)
        except SerdeError as error:
            listed = "; ".join(f"{problem.path.removeprefix('$.')}: {problem.message}" for problem in error.problems)
            return self.results.record(attempt.failed(f"Invalid arguments for '{tool.name}': {listed}"))
        names = self.toolbox.names_of(tool.name)
        if not inside and (guards := held_guards(self.context, "before_tool", names)):
            verdict = yield from self._permission(guards, tool, attempt)
            if verdict.refuses:
                return self.results.recorded(attempt)
            attempt.note = verdict.message if verdict.outcomes else ""
        if inside or (tool.approval is None and not attempt.note):
            return (yield from self.calls.begin(tool, attempt, captures=branch is not None, branch=branch))
        try:
            needs = None
            if tool.approval is not None:
                needs = yield from rule_steps(tool, attempt.params, session, deadline=scope.meter.deadline)
        except (Exception, SystemExit) as error:
            logger.warning("The approval rule of tool '%s' failed.", tool.name, exc_info=error)
            problem = f"Tool '{tool.name}' was not run, because its approval rule failed: {error}"
            return self.results.record(attempt.failed(problem))
        if needs is None and attempt.note:
            needs = "call"
        if needs is not None and self.unattended:
            return self.results.record(attempt.failed(f"Tool '{tool.name}' was not run: {self.unattended}"))
        if needs in ("call", "answer"):
            return self.calls.ask(self.calls.question(tool, attempt, needs))
        return (yield from self.calls.begin(tool, attempt, captures=needs == "effects"))

    def _permission(
        self, guards: Sequence[HeldGuard], tool: Tool[Any, Any], attempt: ToolAttempt, *, approved: bool = False
    ) -> Generator[Step, Any, Verdict]:
        """Ask the guards before a call, which has failed if they refuse it; once it is approved, no person is asked."""
        arguments = attempt.arguments or attempt.call.arguments
        call = self.toolbox.guarded(attempt.call, arguments, attempt.params)

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
            self.calls.refuse(attempt, verdict, inquiry)
        return verdict

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
        same = not refused and not refusal and attempt.params == waiting.params
        if isinstance(decision, Approve) and waiting.effects is not None and same and tool is not None:
            reruns = waiting.effects.reruns
            try:
                return (yield from self.calls.begin(tool, attempt, captures=reruns, shown=waiting, applies=not reruns))
            except StaleEffectsError as error:
                logger.info("Tool '%s' runs again, and is asked about again: %s.", tool.name, error)
        if isinstance(decision, Approve) and not (ran or same or refused or refusal) and tool is not None:
            # Guards have replaced what was approved.
            return self.calls.ask(self.calls.question(tool, attempt, "call"))
        if ran and tool is not None:
            given, attempt.params = attempt.params, waiting.params
            yield from self.calls.discard(tool, attempt)
            attempt.params = given
        elif waiting.effects is not None and waiting.effects.outside:
            attempt.compensation = f"Its effects outside are not undone, because tool '{waiting.tool}' is gone."
        not_undone = "" if attempt.compensation in ("", "done") else f"\n{attempt.compensation}"
        match decision:
            case Deny():
                attempt.failed(f"A person denied this call{reason and f': {reason}'}{not_undone}")
            case Undecided():
                attempt.failed(f"{_UNDECIDED}{not_undone}")
            case Answer(text):
                attempt.result = ToolResult(f"{text}{not_undone}")
                yield from self.calls.inspection(attempt)
            case _ if refusal or tool is None:
                attempt.failed(f"{refusal}{not_undone}")
            case _ if refused:
                attempt.failed(f"{attempt.result.message}{not_undone}")
            case _ if not_undone:
                attempt.failed(f"Not run again, because its first run could not be undone.{not_undone}")
            case _:
                attempt.rolled_back, attempt.compensation = False, ""
                return (yield from self.calls.begin(tool, attempt, captures=ran))
        return self.results.recorded(attempt)

    def _refused_now(
        self, waiting: PendingCall, decision: Approve | Edit, attempt: ToolAttempt, tool: Tool[Any, Any]
    ) -> Generator[Step, Any, bool]:
        """Take over edited arguments, and ask the guards again; True if they refuse the call."""
        if isinstance(decision, Edit):
            attempt.arguments = edited_arguments(tool, waiting, decision, self.context.prompt.name)
            attempt.params, attempt.notice = tool.parse(attempt.arguments), _EDITED.format(attempt.arguments)
        guards = held_guards(self.context, "before_tool", self.toolbox.names_of(tool.name))
        if not guards:
            return False
        if isinstance(decision, Approve) and not waiting.edited:
            # They see what they saw before, so that the same replacement is what was approved.
            attempt.params, attempt.arguments = tool.parse(attempt.call.arguments), ""
        verdict = yield from self._permission(guards, tool, attempt, approved=True)
        attempt.notice = attempt.notice and _EDITED.format(attempt.arguments)
        return verdict.refuses

    def abandon(self) -> None:
        """End the running calls from another thread, as stopped; one that is already ending is waited for."""
        self.calls.abandon()
        call_sync(self._give_up(), self.context.loop_thread)
