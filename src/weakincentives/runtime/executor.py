"""Tool calls as transactions: check, snapshot, run, and undo what a failed call did."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weakincentives import serde
from weakincentives.errors import FieldProblem, PromptEvaluationError, SerdeError
from weakincentives.prompt import (
    OpenSectionsParams,
    OpenSectionsResult,
    Prompt,
    ReadSectionParams,
    ReadSectionResult,
    SectionPath,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.prompt.disclosure.collapse import CollapseSectionParams
from weakincentives.resources import ScopedResourceContext
from weakincentives.runtime.bridge import AsyncBridge, Step, call_async, call_sync, side_by_side, side_by_side_async
from weakincentives.runtime.events import DisclosureRequest, ToolInvoked
from weakincentives.runtime.messages import ToolCall
from weakincentives.runtime.run import RunScope
from weakincentives.runtime.toolbox import Toolbox
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.runtime")


@dataclass(frozen=True, slots=True)
class Expansion:
    """Sections that must be opened by a new evaluation."""

    requested_overrides: Mapping[SectionPath, SectionVisibility]
    reason: str
    section_keys: tuple[str, ...]

    def signal(self) -> VisibilityExpansionRequired:
        return VisibilityExpansionRequired(
            f"Opening {', '.join(self.section_keys)} needs a new evaluation.",
            requested_overrides=self.requested_overrides,
            reason=self.reason,
            section_keys=self.section_keys,
        )


@dataclass(frozen=True, slots=True)
class ToolExecutionOutcome:
    """What one call came to. `message` is what the model reads.

    `expanded_tools` appeared with a section; `expansion` and `halt` end the turn.
    """

    tool_call_id: str
    message: str
    success: bool
    expanded_tools: tuple[Any, ...] = ()
    name: str = ""
    expansion: Expansion | None = None
    halt: OpenSectionsResult | None = None

    @property
    def ends_turn(self) -> bool:
        return self.expansion is not None or self.halt is not None


@dataclass(slots=True)
class ToolExecutor:
    """Runs the calls of one evaluation, with the tools of its toolbox."""

    prompt: Prompt[Any]
    session: Session
    scope: RunScope
    toolbox: Toolbox = field(default_factory=Toolbox)
    supports_dynamic_tools: bool = False
    bridge: AsyncBridge = field(default_factory=AsyncBridge)
    idempotency_key: Callable[[ToolCall], str] | None = None

    def execute_all(self, calls: Sequence[ToolCall]) -> list[ToolExecutionOutcome]:
        """Run the calls: one after the other, or side by side when there are several and all are read-only.

        A call that ends the turn is the last one to run.
        """
        if len(calls) > 1 and self.all_read_only(calls):
            return side_by_side([functools.partial(self._execute, call) for call in calls])
        outcomes: list[ToolExecutionOutcome] = []
        for call in calls:
            outcomes.append(self._execute(call))
            if outcomes[-1].ends_turn:
                break
        return outcomes

    async def execute_all_async(self, calls: Sequence[ToolCall]) -> list[ToolExecutionOutcome]:
        """`execute_all` on an event loop; sync handlers run in threads."""
        if len(calls) > 1 and self.all_read_only(calls):
            return await side_by_side_async([call_async(self._execution(call)) for call in calls])
        outcomes: list[ToolExecutionOutcome] = []
        for call in calls:
            outcomes.append(await call_async(self._execution(call)))
            if outcomes[-1].ends_turn:
                break
        return outcomes

    def all_read_only(self, calls: Sequence[ToolCall]) -> bool:
        return all((tool := self.toolbox.registry.get(call.name)) is not None and tool.read_only for call in calls)

    def _execute(self, call: ToolCall) -> ToolExecutionOutcome:
        return call_sync(self._execution(call), self.bridge)

    def _execution(self, call: ToolCall) -> Generator[Step, Any, ToolExecutionOutcome]:
        """One call from check to event."""
        self.scope.meter.begin_tool_call(self.prompt.name)
        started = self.session.clock.monotonic()
        tool = self.toolbox.registry.get(call.name)
        refusal = self._refusal(call.name)
        if tool is None or refusal:
            return self._finish(call, _Attempt(ToolResult(refusal, success=False)), started)
        try:
            params = parse_arguments(tool, call.arguments)
        except SerdeError as error:
            listed = "; ".join(f"{problem.path.removeprefix('$.')}: {problem.message}" for problem in error.problems)
            result: ToolResult[Any] = ToolResult(f"Invalid arguments for '{tool.name}': {listed}", success=False)
            return self._finish(call, _Attempt(result), started)
        disclosure = self._disclosure(params)
        attempt = yield from self._attempt(tool, params, call)
        attempt.params, attempt.disclosure = params, disclosure
        outcome = self._finish(call, attempt, started)
        if attempt.mistake is not None:
            raise attempt.mistake
        return outcome

    def _attempt(self, tool: Tool[Any, Any], params: Any, call: ToolCall) -> Generator[Step, Any, _Attempt]:
        """Call the handler within the resources of this one call; if it fails, compensate and undo what it did."""
        before = None if tool.read_only else (self.session.snapshot(), self.prompt.resources.context.snapshot())
        resources = self.prompt.resources.context.tool_scope()
        context = self._context(call, resources)
        attempt = _Attempt(ToolResult())
        try:
            try:
                result = yield functools.partial(tool.handler, params, context=context)
            except VisibilityExpansionRequired as signal:
                attempt.expansion = Expansion(signal.requested_overrides, signal.reason, tuple(signal.section_keys))
                result = ToolResult(f"Opening: {', '.join(signal.section_keys)}.")
            except Exception as error:
                logger.warning("Tool '%s' raised %s.", tool.name, type(error).__name__, exc_info=error)
                result = ToolResult(f"Tool '{tool.name}' failed: {type(error).__name__}: {error}", success=False)
            self._take(tool, result, attempt)
            if not attempt.result.success:
                yield from _compensate(tool, params, context, attempt)
        except BaseException:
            self._undo(before, resources)
            resources.close()
            raise
        if not attempt.result.success or attempt.expansion is not None:
            attempt.rolled_back = self._undo(before, resources)
        try:
            yield resources
        except Exception as error:
            message = f"Tool '{tool.name}' failed to close its resources: {error}"
            logger.warning("%s", message, exc_info=error)
            if attempt.result.success:
                attempt.result, attempt.message = ToolResult(message, success=False), ""
                with self.prompt.resources.context.tool_scope() as resources:
                    yield from _compensate(tool, params, self._context(call, resources), attempt)
            attempt.rolled_back = self._undo(before, self.prompt.resources.context)
        return attempt

    def _context(self, call: ToolCall, resources: ScopedResourceContext) -> ToolContext:
        meter = self.scope.meter
        key = call.id if self.idempotency_key is None else self.idempotency_key(call)
        return ToolContext(
            session=self.session,
            resources=resources,
            prompt=self.prompt,
            call_id=call.id,
            deadline=meter.deadline,
            budget=meter.budget,
            idempotency_key=key,
        )

    def _refusal(self, name: str) -> str:
        if name in self.toolbox.revoked:
            key = self.toolbox.sections.get(name, "")
            return f"Tool '{name}' is not available: section '{key}' is closed. Open the section again to use it."
        if name not in self.toolbox.registry:
            offered = ", ".join(known for known in self.toolbox.registry if known not in self.toolbox.revoked)
            return f"Unknown tool '{name}'. Available tools: {offered or 'none'}."
        return ""

    def _take(self, tool: Tool[Any, Any], result: Any, attempt: _Attempt) -> None:
        """Keep the result and what the model reads of it; one that cannot be read is the programmer's mistake."""
        if not isinstance(result, ToolResult):
            self._fault(f"The handler of tool '{tool.name}' returned a {type(result).__name__}", None, attempt)
            return
        try:
            attempt.result, attempt.message = result, result.render()
        except Exception as error:
            problem = f"The result of tool '{tool.name}' cannot be shown to the model: {type(error).__name__}: {error}"
            self._fault(problem, error, attempt)

    def _fault(self, problem: str, cause: Exception | None, attempt: _Attempt) -> None:
        way = "return a ToolResult." if cause is None else "give its value a render() method or JSON-able fields."
        mistake = PromptEvaluationError(f"{problem}; {way}", prompt_name=self.prompt.name, phase="tool")
        mistake.__cause__ = cause
        attempt.result, attempt.message, attempt.mistake = ToolResult(str(mistake), success=False), "", mistake

    def _disclosure(self, params: Any) -> DisclosureRequest | None:
        keys: tuple[str, ...]
        if isinstance(params, ReadSectionParams | CollapseSectionParams):
            keys, reason = (params.section_key,), ""
        elif isinstance(params, OpenSectionsParams):
            keys, reason = tuple(params.section_keys), params.reason
        else:
            return None
        return DisclosureRequest(keys, reason, self.prompt.view(self.session).visibility())

    def _undo(self, before: tuple[Any, Any] | None, resources: ScopedResourceContext) -> bool:
        """Go back to how session and resources were before the call; a read-only call has nothing to undo."""
        if before is None:
            return False
        session, states = before
        self.session.restore(session)
        resources.restore(states)
        return True

    def _finish(self, call: ToolCall, attempt: _Attempt, started: float) -> ToolExecutionOutcome:
        """Open what was read, record the call, and say what it came to."""
        result, value, halt = attempt.result, attempt.result.value, None
        expanded: tuple[Any, ...] = ()
        if isinstance(value, ReadSectionResult) and value.expanded_tools:
            if self.supports_dynamic_tools:
                expanded = value.expanded_tools
                for path, visibility in value.requested_overrides.items():
                    self.session.dispatch(SetVisibilityOverride(path, visibility))
            else:
                reason = "The adapter cannot add tools to a conversation."
                asked = attempt.disclosure and attempt.disclosure.requested_sections
                keys = asked or tuple(".".join(path) for path in value.requested_overrides)
                attempt.expansion = Expansion(value.requested_overrides, reason, keys)
        elif isinstance(value, OpenSectionsResult) and value.requested_overrides and result.success:
            halt = value
        message = attempt.message or result.message
        if isinstance(value, ReadSectionResult):
            result = replace(result, value=replace(value, expanded_tools=()))
        self.session.dispatch(
            ToolInvoked(
                name=call.name,
                params=attempt.params,
                result=result,
                call_id=call.id,
                run_id=self.scope.run_id,
                arguments=call.arguments,
                rolled_back=attempt.rolled_back,
                duration=self.session.clock.monotonic() - started,
                section_key=self.toolbox.sections.get(call.name, ""),
                disclosure=attempt.disclosure,
                compensation=attempt.compensation,
                timestamp=self.session.clock.now().timestamp(),
            )
        )
        return ToolExecutionOutcome(
            tool_call_id=call.id,
            message=message,
            success=result.success,
            expanded_tools=expanded,
            name=call.name,
            expansion=attempt.expansion,
            halt=halt,
        )


def parse_arguments(tool: Tool[Any, Any], arguments: str) -> Any:
    """The tool's params out of the model's JSON; a `SerdeError` lists every misfit."""
    text = arguments.strip() or "{}"
    if tool.params_type is not None:
        return serde.decode(tool.params_type, text)
    given = serde.decode(dict[str, Any], text)
    if given:
        raise SerdeError(tuple(FieldProblem(f"$.{name}", "unknown field; this tool takes no arguments") for name in given))
    return None


@dataclass(slots=True)
class _Attempt:
    result: ToolResult[Any]
    message: str = ""
    mistake: PromptEvaluationError | None = None
    params: Any = None
    expansion: Expansion | None = None
    rolled_back: bool = False
    compensation: str = ""
    disclosure: DisclosureRequest | None = None


def _compensate(
    tool: Tool[Any, Any], params: Any, context: ToolContext, attempt: _Attempt
) -> Generator[Step, Any, None]:
    if tool.compensate is None:
        return
    try:
        yield functools.partial(tool.compensate, params, context=context)
        attempt.compensation = "done"
    except Exception as error:
        attempt.compensation = f"Compensation of '{tool.name}' failed: {type(error).__name__}: {error}"
        logger.error("%s", attempt.compensation, exc_info=error)
        attempt.result = replace(attempt.result, message=f"{attempt.result.message}\n{attempt.compensation}")
        attempt.message = attempt.message and f"{attempt.message}\n{attempt.compensation}"
