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
from weakincentives._loops import LoopThread
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
from weakincentives.prompt import (
    AnyTool,
    DisclosureRequest,
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
from weakincentives.resources import ScopedResourceContext
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
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.messages import Message, ToolCall
from weakincentives.runtime.runs import Toolbox

logger = logging.getLogger("weakincentives.runtime")


_NO_RESULT: ToolResult[Any] = ToolResult()


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
    `operator_text` is to be sent as a system message; `found` are the sections that a search has listed.
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
    that streams, receives the data that a call emits.
    """

    context: RunContext
    toolbox: Toolbox = field(default_factory=Toolbox)
    idempotency_key: Callable[[ToolCall], str] | None = None
    emitted: Callable[[ToolCall, Any], None] | None = None
    ended: dict[str, ToolExecutionOutcome] = field(default_factory=dict)
    _pending: list[PendingCall] = field(default_factory=list)

    def execute_all(self, calls: Sequence[ToolCall]) -> list[ToolExecutionOutcome]:
        """Run the calls in order, or in parallel if all of them are read-only.

        No call runs after one that ends the turn.
        """
        self.ended.clear()
        if len(calls) > 1 and self.all_read_only(calls):
            return in_parallel([functools.partial(self._execute, call) for call in calls])
        outcomes: list[ToolExecutionOutcome] = []
        for call in calls:
            outcomes.append(self._execute(call))
            if outcomes[-1].ends_turn:
                break
        return outcomes

    async def execute_all_async(self, calls: Sequence[ToolCall]) -> list[ToolExecutionOutcome]:
        """`execute_all` on an event loop; sync handlers run in threads."""
        self.ended.clear()
        if len(calls) > 1 and self.all_read_only(calls):
            return await in_parallel_async([call_async(self._steps(call)) for call in calls])
        outcomes: list[ToolExecutionOutcome] = []
        for call in calls:
            outcomes.append(await call_async(self._steps(call)))
            if outcomes[-1].ends_turn:
                break
        return outcomes

    def next_group(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The next call, or the next few when all of them are read-only."""
        size = 0
        while size < len(calls) and self.all_read_only(calls[size : size + 1]):
            size += 1
        return calls[: max(size, 1)]

    def all_read_only(self, calls: Sequence[ToolCall]) -> bool:
        return all((tool := self.toolbox.tool(call.name)) is not None and tool.read_only for call in calls)

    def _execute(self, call: ToolCall) -> ToolExecutionOutcome:
        return call_sync(self._steps(call), self._thread)

    def _thread(self) -> LoopThread:
        return self.context.resources.loop.thread()

    def _steps(self, call: ToolCall) -> Generator[Step, Any, ToolExecutionOutcome]:
        try:
            return (yield from self._execution(call))
        except SystemExit as error:
            # Of code around the handler, such as a reducer: a handler's own has become its failure.
            raise exited(error, self.context.prompt.name, "tool") from error

    def _execution(self, call: ToolCall) -> Generator[Step, Any, ToolExecutionOutcome]:
        """One call, from checking it to recording it."""
        self.context.scope.meter.begin_tool_call(self.context.prompt.name)
        started = self.context.session.clock.monotonic()
        tool = self.toolbox.tool(call.name)
        refusal = self._refusal(call.name)
        if tool is None or refusal:
            return self._record(ToolAttempt(call, started, ToolResult(refusal, success=False), None))
        try:
            params = tool.parse(call.arguments)
        except SerdeError as error:
            listed = "; ".join(f"{problem.path.removeprefix('$.')}: {problem.message}" for problem in error.problems)
            result: ToolResult[Any] = ToolResult(f"Invalid arguments for '{tool.name}': {listed}", success=False)
            return self._record(ToolAttempt(call, started, result, None))
        owner = object()
        with working_for(owner):
            pending = self._prepare(tool, params, call, started, owner)
            return (yield from self._run(pending))

    def _prepare(self, tool: Tool[Any, Any], params: Any, call: ToolCall, started: float, owner: object) -> PendingCall:
        """Take a snapshot of what the call may change, and prepare its handler."""
        resources = self.context.resources.tool_scope()
        before = None if tool.read_only else (self.context.session.snapshot(), resources.begin_call())
        handler = functools.partial(tool.handler, params, context=self._tool_context(call, resources))
        deadline, effect = self.context.scope.meter.deadline, tool.compensate is not None
        run = HandlerCall(handler, deadline, effect=effect)
        return PendingCall(call, started, _NO_RESULT, params, tool, owner, before, resources, run)

    def abandon(self) -> None:
        """End the pending calls from another thread, as stopped; one that is already ending is waited for."""
        for pending in list(self._pending):
            if pending.claim_end():
                with working_for(pending.owner):
                    call_sync(self._stop(pending), self._thread)
            elif pending.owner not in current_calls():
                pending.ended.wait()

    def _run(self, pending: PendingCall) -> Generator[Step, Any, ToolExecutionOutcome]:
        """Call the handler with resources scoped to this call, and end the call."""
        self._pending.append(pending)
        result = error = None
        try:
            result = yield pending.handler
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised
        if not pending.claim_end():
            pending.ended.wait()
            raise AbandonedCallError(f"Tool '{pending.tool.name}' was stopped.")
        # The end of a call is not stopped itself: others who would stop the call wait for it.
        left = self.context.scope.fence.leave()
        try:
            if isinstance(error, CallSuspended):
                self._undo(pending)
                pending.resources.close()
                raise error
            if error is not None:
                result = self._failed(pending, error)
            self._accept_result(pending, result)
            outcome = yield from self._end(pending)
        finally:
            self._remove(pending, left)
        if self.context.scope.fence.closed:
            raise AbandonedCallError(f"Tool '{pending.tool.name}' ended, but its run was stopped.")
        if pending.error is not None:
            raise pending.error
        return outcome

    def _stop(self, pending: PendingCall) -> Generator[Step, Any, None]:
        """End a call whose handler is running in another thread."""
        left = self.context.scope.fence.leave()
        try:
            pending.handler.abandon()
            pending.result = pending.stopped("the run was stopped")
            yield from self._end(pending)
        finally:
            self._remove(pending, left)

    def _remove(self, pending: PendingCall, left: Any) -> None:
        self._pending.remove(pending)
        pending.ended.set()
        self.context.scope.fence.enter_again(left)

    def _end(self, pending: PendingCall) -> Generator[Step, Any, ToolExecutionOutcome]:
        """Compensate and roll back a call that failed or asked for a new attempt, close its resources, record it."""
        undone = not pending.result.success or pending.expansion is not None
        if undone and not pending.handler.dropped:
            yield from self._compensate(pending)
        if undone:
            self._roll_back(pending)
        try:
            yield pending.resources
        except GeneratorExit:
            raise
        except BaseException as error:
            self._keep_interrupt(error, pending)
            message = f"Tool '{pending.tool.name}' failed to close its resources: {error}"
            logger.warning("%s", message, exc_info=error)
            pending.resources = self.context.resources
            if pending.result.success:
                pending.result, pending.message = ToolResult(message, success=False), ""
            if not undone:
                with self.context.resources.tool_scope() as pending.resources:
                    yield from self._compensate(pending)
                pending.resources = self.context.resources
            self._roll_back(pending)
        return self._record(pending)

    def _failed(self, pending: PendingCall, error: BaseException) -> ToolResult[Any]:
        """The result for the model; an error that is not for the model to handle is kept, and raised once recorded."""
        tool = pending.tool
        error = error.error if (exits := isinstance(error, UserCodeExit)) else error
        match error:
            case VisibilityExpansionRequired(prompt_name=""):
                pending.expansion = self.context.view.request(
                    error.section_keys, error.reason, overrides=error.requested_overrides
                )
                return ToolResult(f"Opening: {', '.join(error.section_keys)}.", disclosure=pending.expansion)
            case ToolValidationError():
                return ToolResult(str(error), success=False)
            case HandlerTimeout() | AbandonedCallError():
                pending.error = DeadlineExceededError(
                    f"The deadline of prompt '{self.context.prompt.name}' passed while tool '{tool.name}' was running.",
                    prompt_name=self.context.prompt.name,
                    phase="tool",
                )
                return pending.stopped("the deadline passed")
            case WinkError(ends_run=True):
                if isinstance(error, PromptEvaluationError):
                    error.prompt_name = error.prompt_name or self.context.prompt.name
                pending.error = error
                return ToolResult(f"Tool '{tool.name}' was stopped: {error}", success=False)
            case _ if isinstance(error, self.context.adapter.raised_errors):
                pending.error = error
                return ToolResult(f"Tool '{tool.name}' failed: {type(error).__name__}: {error}", success=False)
            case _ if exits or isinstance(error, Exception):
                trace = (type(error), error, callers_traceback(error))
                logger.warning("Tool '%s' raised %s.", tool.name, type(error).__name__, exc_info=trace)
                return ToolResult(f"Tool '{tool.name}' failed: {type(error).__name__}: {error}", success=False)
            case _:
                pending.error = error
                return pending.stopped("the run was stopped")

    def _tool_context(self, call: ToolCall, resources: ScopedResourceContext) -> ToolContext:
        meter = self.context.scope.meter
        own = f"{self.context.scope.run_id}:{meter.turns}:{call.id}"  # Some providers give an id again in a later turn.
        key = own if self.idempotency_key is None else self.idempotency_key(call)
        return ToolContext(
            session=self.context.session,
            resources=resources,
            prompt=self.context.prompt,
            call_id=call.id,
            deadline=meter.deadline,
            budget=meter.budget,
            idempotency_key=key,
            presentation=self.context.presentation,
            sink=None if self.emitted is None else functools.partial(self.emitted, call),
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

    def _accept_result(self, pending: PendingCall, result: Any) -> None:
        """Keep the result and its text for the model; one that cannot be rendered is the programmer's mistake."""
        name = pending.tool.name
        if not isinstance(result, ToolResult):
            problem = f"The handler of tool '{name}' returned a {type(result).__name__}; return a ToolResult."
            self._programming_error(problem, None, pending)
            return
        value = result.value
        if isinstance(value, ReadSectionResult):
            result = replace(result, value=replace(value, expanded_tools=self.toolbox.available(value.expanded_tools)))
        try:
            pending.result, pending.message = result, result.render()
        except (Exception, SystemExit) as error:
            problem = (
                f"The result of tool '{name}' cannot be shown to the model: {type(error).__name__}: {error}; give its "
                "value a render() method or JSON-able fields; images and other media go into attachments=."
            )
            self._programming_error(problem, error, pending)
            return
        try:
            if result.attachments:
                ended = (outcome.as_message() for outcome in list(self.ended.values()))
                self.context.adapter.check_parts(result.attachments, (*self.context.session[Message].view(), *ended))
        except PromptEvaluationError as error:
            text = f"{pending.message}\n\nThe attachments cannot be shown: {error}".lstrip()
            pending.result, pending.message = ToolResult(text, success=False), ""

    def _programming_error(self, problem: str, cause: BaseException | None, pending: PendingCall) -> None:
        mistake = PromptEvaluationError(problem, prompt_name=self.context.prompt.name, phase="tool")
        mistake.__cause__ = cause
        pending.result, pending.message, pending.error = ToolResult(problem, success=False), "", mistake

    def _compensate(self, pending: PendingCall) -> Generator[Step, Any, None]:
        tool = pending.tool
        if tool.compensate is None:
            return
        context = self._tool_context(pending.call, pending.resources)
        try:
            yield functools.partial(tool.compensate, pending.params, context=context)
            pending.compensation = "done"
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised.error if isinstance(raised, UserCodeExit) else raised
            self._keep_interrupt(error, pending)
            pending.compensation = f"Compensation of '{tool.name}' failed: {type(error).__name__}: {error}"
            logger.error("%s", pending.compensation, exc_info=error)
            pending.result = replace(pending.result, message=f"{pending.result.message}\n{pending.compensation}")
            pending.message = pending.message and f"{pending.message}\n{pending.compensation}"

    def _keep_interrupt(self, error: BaseException, attempt: ToolAttempt) -> None:
        """Raise Ctrl-C once the call has ended."""
        if isinstance(error, KeyboardInterrupt) and attempt.error is None:
            attempt.error = error

    def _undo(self, pending: PendingCall) -> bool:
        """Restore session and resources to their state before the call; a read-only call has nothing to undo.

        The conversation stays: the user may have spoken in the meantime.
        """
        if pending.before is None:
            return False
        session, states = pending.before
        self.context.session.restore(session, keep=(Message,))
        pending.resources.restore(states)
        return True

    def _roll_back(self, pending: PendingCall) -> None:
        """Undo the call. A failed restore is raised at the end, unless the call was stopped, which takes precedence."""
        try:
            pending.rolled_back = self._undo(pending)
        except (Exception, KeyboardInterrupt) as error:
            if pending.error is None:
                pending.error = error
            else:
                pending.error.add_note(f"Rolling back failed as well: {error}")

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
                run_id=self.context.scope.run_id,
                conversation_id=self.context.scope.conversation_id,
                arguments=call.arguments,
                rolled_back=attempt.rolled_back,
                duration=self.context.session.clock.monotonic() - attempt.started,
                section_key=self.toolbox.section_of(call.name),
                compensation=attempt.compensation,
                text=message,
                timestamp=self.context.session.timestamp(),
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
    """A call and its outcome so far; `error` is raised once the call is recorded."""

    call: ToolCall
    started: float
    result: ToolResult[Any]
    params: Any
    _: KW_ONLY
    message: str = ""
    error: BaseException | None = None
    expansion: DisclosureRequest | None = None
    rolled_back: bool = False
    compensation: str = ""


@dataclass(slots=True, eq=False)
class PendingCall(ToolAttempt):
    """A call that has started: what it runs, what to restore if it fails, and whether it has ended.

    Whoever is the first to `claim_end` ends it; others wait until it has `ended`.
    """

    tool: Tool[Any, Any]
    owner: object
    before: tuple[Any, Any] | None
    resources: ScopedResourceContext
    handler: HandlerCall
    ended: Latch = field(default_factory=Latch)
    _unclaimed: threading.Lock = field(default_factory=threading.Lock)

    def claim_end(self) -> bool:
        return self._unclaimed.acquire(blocking=False)

    def stopped(self, why: str) -> ToolResult[Any]:
        """The result that the model reads if the call did not end by itself."""
        if self.handler.dropped:
            return ToolResult(f"Not run: {why}.", success=False)
        undone = self.tool.read_only or self.tool.compensate is not None
        unknown = "" if undone else " Whether this call had an effect is not known."
        return ToolResult(f"Not finished: {why}.{unknown}", success=False)
