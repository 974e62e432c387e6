"""The tool calls of an attempt: checked, guarded, asked about, and run in order or side by side."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from weakincentives.errors import AbandonedCallError, SerdeError
from weakincentives.prompt import Tool, ToolResult
from weakincentives.prompt.guards import TOOL_HOOKS, GuardedCall
from weakincentives.resources import has_snapshots
from weakincentives.runtime.calls.approval import (
    Answer,
    Approve,
    Deny,
    Edit,
    PendingCall,
    Settled,
    Undecided,
    edited_arguments,
    is_inside,
    rule_steps,
    waiting_calls,
)
from weakincentives.runtime.calls.call import (
    NO_RESULT,
    CallOutcome,
    CallRefused,
    CheckedCall,
    PermittedCall,
    RanCall,
    ToolExecutionOutcome,
    Waits,
    refused_call,
)
from weakincentives.runtime.calls.effects import StaleEffectsError
from weakincentives.runtime.calls.live import Branch
from weakincentives.runtime.calls.question import Needs
from weakincentives.runtime.calls.results import Results
from weakincentives.runtime.calls.transactions import HeldCall, Transactions
from weakincentives.runtime.events import CallDecided
from weakincentives.runtime.known.toolbox import Toolbox
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop.bridge import Step, call_async, call_sync, exited, in_parallel, in_parallel_async
from weakincentives.runtime.loop.inquiry import HeldGuard, Inquiry, held_guards
from weakincentives.runtime.messages import ToolCall
from weakincentives.serde import encode, is_record

logger = logging.getLogger("weakincentives.runtime")

_EDITED = "A person changed the arguments of this call to {}. What follows is the result with these arguments."
_UNDECIDED = "Not decided: the user went on before a person decided about this call. It had no effect."


class ToolExecutor:
    """Runs the tool calls of a run.

    `results` takes and records what calls return, and `calls` runs their handlers.
    """

    def __init__(self, context: LiveRun) -> None:
        self.context = context
        self.results = Results(context)
        self.calls = Transactions(context, self.results)

    @property
    def toolbox(self) -> Toolbox:
        return self.context.toolbox

    def execute_all(self, calls: Sequence[ToolCall]) -> list[CallOutcome]:
        """Run the calls in order, or in parallel if they may overlap.

        No call runs after one that ends the turn.
        """
        self.context.calls.ended.clear()
        thread = self.context.loop_thread
        if len(calls) > 1 and self._overlap(calls):
            try:
                beside = [partial(call_sync, steps, thread) for steps in self._beside(calls)]
                first_parts = in_parallel(beside, self.context.abandon_children)
                pairs = zip(calls, first_parts, strict=True)
                return [call_sync(self._after_others(call, first), thread) for call, first in pairs]
            finally:
                call_sync(self._give_up(), thread)
        outcomes: list[CallOutcome] = []
        for call in calls:
            outcomes.append(call_sync(self._steps(call), thread))
            if outcomes[-1].ends_turn:
                break
        return outcomes

    async def execute_all_async(self, calls: Sequence[ToolCall]) -> list[CallOutcome]:
        """`execute_all` on an event loop; sync handlers run in threads."""
        self.context.calls.ended.clear()
        if len(calls) > 1 and self._overlap(calls):
            try:
                first_parts = await in_parallel_async([call_async(steps) for steps in self._beside(calls)])
                pairs = zip(calls, first_parts, strict=True)
                return [await call_async(self._after_others(call, first)) for call, first in pairs]
            finally:
                await call_async(self._give_up())
        outcomes: list[CallOutcome] = []
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
        changes = False
        for call in calls:
            tool = self.toolbox.tool(call.name)
            if tool is None:
                return False
            if tool.read_only:
                continue
            # Guards may replace params, ask or refuse, which is settled one call after another.
            if not tool.concurrent or tool.approval is not None or self._is_guarded(tool):
                return False
            changes = changes or tool.transactional
        return not changes or self.context.resources.can_overlap

    def _is_guarded(self, tool: Tool[Any, Any]) -> bool:
        """True if guards decide about calls of the tool, or about those of runs inside them."""
        names = self.toolbox.names_of(tool.name) if tool.transactional else ()
        return any(held_guards(self.context, hook, names) for hook in TOOL_HOOKS)

    def _beside(self, calls: Sequence[ToolCall]) -> list[Generator[Step, Any, CallOutcome | HeldCall | None]]:
        """The calls at the same time, those that write each on a branch of what is there before any of them begins."""
        context = self.context
        parts: list[Generator[Step, Any, CallOutcome | HeldCall | None]] = []
        for call in calls:
            tool, branch = self.toolbox.tool(call.name), None
            if tool is not None and tool.transactional and not tool.read_only:
                branch = Branch(context.session.branch(), context.resources.tool_scope(branch=True))
            parts.append(self._first_part(call, branch))
        return parts

    def _first_part(self, call: ToolCall, branch: Branch | None) -> Generator[Step, Any, CallOutcome | HeldCall | None]:
        """The first part of a call at the same time as others: what it would change is held back.

        None if it cannot be kept apart from what others change.
        """
        try:
            outcome: CallOutcome | HeldCall = yield from self._steps(call, branch)
        except StaleEffectsError:
            return None
        return outcome

    def _after_others(self, call: ToolCall, first: CallOutcome | HeldCall | None) -> Generator[Step, Any, CallOutcome]:
        """The second part: its changes are made, unless a call before it has changed the same; then it runs again."""
        if isinstance(first, ToolExecutionOutcome | Waits):
            return first
        live = self.context.calls.held.pop(call.id, None)
        if live is None:
            raise AbandonedCallError(f"Tool '{call.name}' was undone: its run was stopped.")
        checked = live.checked
        if first is not None:
            try:
                return (yield from self.calls.apply(checked, first.effects, first.ran))
            except StaleEffectsError as error:
                logger.info("Tool '%s' runs again, alone: %s.", call.name, error)
        ran = checked.failed("Not run again after a conflict.")
        ran = yield from self.calls.compensate(checked, ran)
        if ran.compensation not in ("", "done"):
            return self.results.recorded(ran)
        return (yield from self.calls.run(checked))

    def _give_up(self) -> Generator[Step, Any, None]:
        """Undo the calls whose changes are still held back when the run is stopped."""
        left = self.context.fence.leave()
        try:
            for call_id in list(self.context.calls.held):
                live = self.context.calls.held.pop(call_id, None)
                if live is not None:
                    ran = live.stopped("the run was stopped", rolled_back=True)
                    self.results.record((yield from self.calls.compensate(live.checked, ran)))
        finally:
            self.context.fence.enter_again(left)

    def _steps(self, call: ToolCall, branch: Branch | None = None) -> Generator[Step, Any, Any]:
        """One call; with a branch, the first part of one beside others."""
        try:
            return (yield from self._execution(call, branch))
        except CallRefused as refused:
            return self.results.recorded(refused.ran)
        except SystemExit as error:
            # Of code around the handler, such as a reducer: a handler's own has become its failure.
            raise exited(error, self.context.prompt.name, "tool") from error

    def _execution(self, call: ToolCall, branch: Branch | None) -> Generator[Step, Any, CallOutcome | HeldCall]:
        """One call, from checking it to recording it, or to asking a person about it."""
        decisions = self.context.decisions
        waits = waiting_calls(self.context.session)
        waiting = waits.get(call.id)
        if waiting is not None:
            decision = decisions.pop(call.id, None)
            if decision is None:
                return Waits(call.id, call.name, waiting)
            return (yield from self._settle(call, waiting, decision))
        inside = [call_id for call_id in waits if is_inside(call_id, call.id)]
        if inside and not any(call_id in decisions for call_id in inside):
            return Waits(call.id, call.name, waits[inside[0]])
        if not inside:
            self.context.meter.begin_tool_call(self.context.prompt.name)
            recorded = self.context.calls.recorded_before.pop(call.id, None)
            if recorded is not None:
                self.context.calls.ended[call.id] = recorded
                return recorded
        checked = self._checked(call)
        if inside:
            # It was permitted before the calls inside it were made.
            return (yield from self.calls.run(checked))
        permitted = yield from self._permitted(checked)
        checked, needs = permitted.checked, permitted.needs
        if needs == "effects":
            return (yield from self.calls.preview(checked))
        if needs is not None:
            return (yield from self.calls.ask(checked, needs))
        if branch is not None:
            return (yield from self.calls.run_beside(checked, branch))
        return (yield from self.calls.run(checked))

    def _checked(self, call: ToolCall) -> CheckedCall:
        """The call, if its tool is offered and its arguments fit."""
        since = self.context.session.clock.monotonic()
        tool, refusal = self.toolbox.tool(call.name), self.results.refusal(call.name)
        if tool is None or refusal:
            raise CallRefused(refused_call(call, since, refusal))
        try:
            return CheckedCall(call, tool, tool.parse(call.arguments), since, call.arguments)
        except SerdeError as error:
            listed = "; ".join(f"{problem.path.removeprefix('$.')}: {problem.message}" for problem in error.problems)
            raise CallRefused(refused_call(call, since, f"Invalid arguments for '{tool.name}': {listed}")) from None

    def _permitted(self, checked: CheckedCall) -> Generator[Step, Any, PermittedCall]:
        """The call as guards let it pass, and what a person is to be asked for."""
        tool = checked.tool
        guards = held_guards(self.context, "before_tool", self.toolbox.names_of(tool.name))
        if guards:
            checked = yield from self._guarded(guards, checked)
        needs: Needs | None = None
        if tool.approval is not None:
            deadline = self.context.meter.deadline
            try:
                needs = yield from rule_steps(tool, checked.params, self.context.session, deadline=deadline)
            except (Exception, SystemExit) as error:
                logger.warning("The approval rule of tool '%s' failed.", tool.name, exc_info=error)
                problem = f"Tool '{tool.name}' was not run, because its approval rule failed: {error}"
                raise CallRefused(checked.failed(problem)) from None
        if needs is None and checked.note:
            needs = "call"
        if needs == "effects" and (unbound := self._unbound(tool)):
            raise CallRefused(checked.failed(unbound))
        if needs is not None and self.context.calls.unattended:
            raise CallRefused(checked.failed(f"Tool '{tool.name}' was not run: {self.context.calls.unattended}"))
        return PermittedCall(checked, needs)

    def _unbound(self, tool: Tool[Any, Any]) -> str:
        """The refusal of a tool that declares changes of a resource to which nothing is bound."""
        bound = self.context.resources
        for kind in tool.changes or ():
            if has_snapshots(kind) and not is_record(kind) and kind not in bound:
                problem = (
                    f"Tool '{tool.name}' was not run: it declares changes of {kind.__qualname__}, but nothing is bound "
                    f"to it, so a person could not be asked. Write prompt.bind(resources={{{kind.__qualname__}: ...}})."
                )
                logger.warning("%s", problem)
                return problem
        return ""

    def _guarded(
        self, guards: Sequence[HeldGuard], checked: CheckedCall, *, approved: bool = False
    ) -> Generator[Step, Any, CheckedCall]:
        """The call as guards let it pass; `approved` by a person, nobody is asked again."""
        tool = checked.tool
        call = self.toolbox.guarded(checked.call, checked.arguments, checked.params)

        def accept(params: Any) -> GuardedCall:
            arguments = encode(params, as_input=True).decode()
            parsed = tool.parse(arguments)
            if type(parsed) is not type(params):
                raise TypeError(f"Replace takes the params of tool '{tool.name}', got {type(params).__name__}")
            return replace(call, arguments=arguments, params=params)

        inquiry = Inquiry(self.context, "before_tool", call, accept=accept, call_id=call.id)
        verdict = yield from inquiry.steps(guards)
        if self.context.fence.closed:
            raise AbandonedCallError(f"Tool '{tool.name}' was not run: its run was stopped.")
        if not verdict.outcomes:
            return checked
        if approved:
            verdict = replace(verdict, outcomes=tuple(each for each in verdict.outcomes if each.outcome != "ask"))
        inquiry.record(verdict)
        if verdict.replaced:
            checked = checked.with_params(verdict.value.params, verdict.value.arguments)
        if verdict.refuses:
            raise CallRefused(self.calls.refused(checked.ran(NO_RESULT), verdict, inquiry))
        return checked if approved else replace(checked, note=verdict.message)

    def _settle(self, call: ToolCall, waiting: PendingCall, decision: Settled) -> Generator[Step, Any, CallOutcome]:
        """Act on the decision about a call that waits."""
        tool, refusal = self.toolbox.tool(call.name), self.results.refusal(call.name)
        if tool is not None and self.toolbox.asked_about(waiting) is None:
            # Its name belongs to another tool by now, which nobody was asked about.
            tool, refusal = None, self.results.replaced_tool(waiting)
        since = self.context.session.clock.monotonic()
        ran = RanCall(call, since, NO_RESULT, waiting.params, rolled_back=waiting.effects is not None)
        if isinstance(decision, Approve | Edit) and tool is not None and not refusal:
            try:
                # While it still waits: if the run is stopped meanwhile, nothing is lost.
                checked = yield from self._still_permitted(call, tool, waiting, decision, since)
            except CallRefused as refused:
                ran = replace(refused.ran, rolled_back=ran.rolled_back)
            else:
                self._record_decision(waiting, decision)
                return (yield from self._go_on(checked, waiting, decision))
        self._record_decision(waiting, decision)
        match decision:
            case Deny(reason=reason):
                ran = ran.failed(f"A person denied this call{reason and f': {reason}'}")
            case Undecided():
                ran = ran.failed(_UNDECIDED)
            case Answer(text=text):
                ran = yield from self.calls.inspected(replace(ran, result=ToolResult(text)), waiting.arguments)
            case _ if refusal or tool is None:
                ran = ran.failed(refusal)
        return self.results.recorded(ran)

    def _record_decision(self, waiting: PendingCall, decision: Settled) -> None:
        self.context.session[PendingCall].clear(lambda pending: pending.call_id == waiting.call_id)
        self.context.emit(
            CallDecided,
            call_id=waiting.call_id,
            decision=type(decision).__name__.lower(),
            by=decision.by,
            reason=decision.reason if isinstance(decision, Deny) else "",
        )

    def _go_on(
        self, checked: CheckedCall, waiting: PendingCall, decision: Approve | Edit
    ) -> Generator[Step, Any, CallOutcome]:
        """Make a call that was approved, as it was shown; one that has changed since is asked about again."""
        is_as_shown = isinstance(decision, Approve) and checked.params == waiting.params
        if waiting.effects is None:
            if is_as_shown or isinstance(decision, Edit):
                return (yield from self.calls.run(checked))
            # Guards have replaced what was approved.
            return (yield from self.calls.ask(checked, "call"))
        if is_as_shown:
            shown = checked.ran(waiting.result or NO_RESULT)
            try:
                return (yield from self.calls.apply(checked, waiting.effects, shown))
            except StaleEffectsError as error:
                logger.info("Tool '%s' runs again, and is asked about again: %s.", checked.tool.name, error)
        return (yield from self.calls.preview(checked))

    def _still_permitted(
        self, call: ToolCall, tool: Tool[Any, Any], waiting: PendingCall, decision: Approve | Edit, since: float
    ) -> Generator[Step, Any, CheckedCall]:
        """The call as it was approved, or with a person's arguments, and as guards now let it pass."""
        notice = _EDITED.format(waiting.arguments) if waiting.edited else ""
        checked = CheckedCall(call, tool, waiting.params, since, waiting.arguments, notice, waiting.note)
        if isinstance(decision, Edit):
            arguments = edited_arguments(tool, waiting, decision, self.context.prompt.name)
            checked = replace(checked.with_params(tool.parse(arguments), arguments), notice=_EDITED.format(arguments))
        guards = held_guards(self.context, "before_tool", self.toolbox.names_of(tool.name))
        if not guards:
            return checked
        if isinstance(decision, Approve) and not waiting.edited:
            # They see what they saw before, so that the same replacement is what was approved.
            checked = checked.with_params(tool.parse(call.arguments), call.arguments)
        checked = yield from self._guarded(guards, checked, approved=True)
        return replace(checked, notice=checked.notice and _EDITED.format(checked.arguments))

    def abandon(self) -> None:
        """End the running calls from another thread, as stopped; one that is already ending is waited for."""
        self.calls.abandon()
        call_sync(self._give_up(), self.context.loop_thread)
