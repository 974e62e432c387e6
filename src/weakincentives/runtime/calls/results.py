"""The results of tool calls: what the model reads of them, what they open, and their record in the session."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import (
    AnyTool,
    DisclosureRequest,
    SectionVisibility,
    SetVisibilityOverride,
    ToolResult,
    VisibilityOverrides,
)
from weakincentives.runtime.calls.approval import PendingCall
from weakincentives.runtime.calls.call import RanCall, ToolExecutionOutcome
from weakincentives.runtime.events import ModelCalled, ToolInvoked
from weakincentives.runtime.known.toolbox import Toolbox
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.messages import Message, ToolCall

logger = logging.getLogger("weakincentives.runtime")


@dataclass(frozen=True, slots=True)
class Results:
    """Takes and records the results of a run's tool calls."""

    context: LiveRun

    @property
    def toolbox(self) -> Toolbox:
        return self.context.toolbox

    def take_over(self, calls: Iterable[ToolCall]) -> None:
        """Find those of the open calls of the last turn that had ended, so that they are not made again."""
        call_ids = set(map(attrgetter("id"), calls))
        turn_began = next((event.timestamp for event in self.context.events(ModelCalled)), 0.0)
        for event in self.context.events(ToolInvoked):
            if event.timestamp < turn_began:
                break
            if event.call_id in call_ids and event.run_id == self.context.run_id and self._took_effect(event):
                self.context.calls.recorded_before.setdefault(event.call_id, outcome_of(event))

    def _took_effect(self, event: ToolInvoked) -> bool:
        """False for a call that opens its sections by ending the turn, which it has to do again."""
        request = event.result.disclosure if event.result.success else None
        if request is None:
            return True
        overrides = self.context.session[VisibilityOverrides].latest() or VisibilityOverrides()
        takes_effect = not request.halt
        for path, visibility in request.overrides.items():
            takes_effect = takes_effect and overrides.overrides.get(path) is visibility
        return takes_effect

    def recorded(self, ran: RanCall) -> ToolExecutionOutcome:
        """The recorded outcome of a call that ended; raises the error that it ended with."""
        outcome = self.record(ran)
        if ran.error is not None:
            raise ran.error
        return outcome

    def refusal(self, name: str) -> str:
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

    def replaced_tool(self, waiting: PendingCall) -> str:
        """The refusal of a call that waited while its tool's name became another's."""
        was, now = waiting.section_key, self.toolbox.section_of(waiting.tool)
        return (
            f"Not run: the question was about the tool '{waiting.own_name or waiting.tool}' of section "
            f"'{was}', and '{waiting.tool}' is a tool of section '{now}' now. Call the tool again."
        )

    def accept(self, ran: RanCall, result: Any) -> RanCall:
        """The call with this result and its text for the model; a result that cannot be rendered ends the run."""
        name = ran.call.name
        if not isinstance(result, ToolResult):
            problem = f"The handler of tool '{name}' returned a {type(result).__name__}; return a ToolResult."
            return self.programming_error(ran, problem, None)
        try:
            result = self._without_missing(name, result)
            message = result.render()
        except (Exception, SystemExit) as error:
            problem = (
                f"The result of tool '{name}' cannot be shown to the model: {type(error).__name__}: {error}; give its "
                "value a render() method or JSON-able fields; images and other media go into attachments=."
            )
            return self.programming_error(ran, problem, error)
        try:
            if result.attachments:
                ended = (outcome.as_message() for outcome in list(self.context.calls.ended.values()))
                self.context.model.check_parts(result.attachments, (*self.context.session[Message].view(), *ended))
        except PromptEvaluationError as error:
            return ran.failed(f"{message}\n\nThe attachments cannot be shown: {error}".lstrip())
        return replace(ran, result=result, message=message, declined=not result.success)

    def _without_missing(self, name: str, result: ToolResult[Any]) -> ToolResult[Any]:
        """The result of a disclosure tool, naming only tools that can be called afterwards, and sections that exist."""
        value: Any = result.value
        request = DisclosureRequest.of(value)
        if not (request.tools or request.found):
            return result
        tools = self._callable_tools(name, result, request.tools)
        sections: dict[str, set[str]] = {}
        for key in request.found:
            names = self._tools_of_section(key)
            if names is None:
                logger.warning("The result of tool '%s' names a section '%s' that does not exist.", name, key)
            else:
                sections[key] = names
        return replace(result, value=value.limited(tools, sections))

    def _callable_tools(self, name: str, result: ToolResult[Any], tools: tuple[AnyTool, ...]) -> tuple[AnyTool, ...]:
        """Those of the tools in the result of a reading call that can be called afterwards."""
        if not tools:
            return ()
        request = result.disclosure if result.success else None
        overrides = {} if request is None or request.halt else request.overrides
        view = self.context.view.opened(overrides) if overrides else self.context.view
        callable_names = {tool.name for _, tool in view.offered()}
        callable_names.update(tool.name for tool in self.context.own_tools)
        missing = [tool.name for tool in tools if tool.name not in callable_names]
        if missing:
            logger.warning(
                "The result of tool '%s' names tools that nothing offers: %s; give it "
                "disclosure=context.view.request([key]) to open the section that has them.",
                name,
                ", ".join(missing),
            )
        return tuple(tool for tool in self.toolbox.available(tools) if tool.name in callable_names)

    def _tools_of_section(self, key: str) -> set[str] | None:
        """The tools that may be called once a section is open; None if there is no such section."""
        view = self.context.view
        path = view.find(key)
        if path is None:
            return None
        names = {tool.name for _, tool in view.offered()}
        names.update(tool.name for tool in self.toolbox.available(view.opening(path).tools))
        return names

    def programming_error(self, ran: RanCall, problem: str, cause: BaseException | None) -> RanCall:
        """The call as one that fails and ends the run, because of a mistake in the program."""
        mistake = PromptEvaluationError(problem, prompt_name=self.context.prompt.name, phase="tool")
        mistake.__cause__ = cause
        return replace(ran.failed(problem), error=mistake)

    def record(self, ran: RanCall) -> ToolExecutionOutcome:
        """Open what was read, record the call, and return its outcome."""
        call, result = ran.call, self.with_disclosure(ran.result)
        value: Any = result.value
        named = DisclosureRequest.of(value)
        asked = result.disclosure if result.success else None
        offer = self.toolbox.get(call.name)
        restarts, expanded = ran.expansion is not None, tuple[AnyTool, ...]()
        if asked is not None and asked.overrides:
            expanded = self._added_tools(asked)
            if expanded and not (restarts or asked.halt or self.context.attempt.dynamic):
                # The next attempt opens it, if there is one; else the caller decides.
                restarts, asked = True, replace(asked, reason="Adapter does not support dynamic tools.")
        message, operator_text = ran.message or result.message, ""
        if ran.notice:
            message = f"{ran.notice}\n\n{message}"
        if asked is not None and restarts and ran.expansion is None:
            keys = ", ".join(asked.keys)
            message = f"Opening {keys}: once it is open, the prompt shows the full text, and its tools are available."
        elif asked is not None and named.quotes and self._speaks_as_system(asked):
            message, operator_text = "The section's text follows as a system message.", value.render()
        if named.tools:
            # They are in the outcome, and cannot be stored.
            result = replace(result, value=value.limited((), {}))
        event = ToolInvoked(
            name=call.name,
            params=ran.params,
            result=result,
            call_id=call.id,
            arguments=call.arguments,
            rolled_back=ran.rolled_back,
            duration=self.context.session.clock.monotonic() - ran.since,
            section_key="" if offer is None else offer.ref.section_key,
            own_name="" if offer is None else offer.ref.own_name,
            compensation=ran.compensation,
            text=message,
            operator_text=operator_text,
            unchanged=ran.unchanged,
            **self.context.stamp,
        )
        # All at once: a snapshot has the call and what it has opened, or neither.
        with self.context.session.together():
            if asked is not None and not (restarts or asked.halt):
                for path, visibility in asked.overrides.items():
                    self.context.session.dispatch(SetVisibilityOverride(path, visibility))
            self.context.session.dispatch(event)
        self.context.calls.ended[call.id] = outcome = ToolExecutionOutcome(
            tool_call_id=call.id,
            message=message,
            success=result.success,
            expanded_tools=expanded,
            name=call.name,
            disclosure=asked,
            restarts=restarts,
            attachments=() if restarts else result.attachments,
            operator_text=operator_text,
            found=named.found,
        )
        return outcome

    def with_disclosure(self, result: ToolResult[Any]) -> ToolResult[Any]:
        """A value that opens sections makes the result a disclosure, whatever the tool's name."""
        named = DisclosureRequest.of(result.value)
        if result.disclosure is not None or not (named.overrides or named.files or named.halt):
            return result
        request = self.context.view.request(
            named.keys, named.reason, overrides=named.overrides, files=named.files, halt=named.halt
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
            self.context.model.supports_operator_text
            and self.context.prompt.template.disclosure.voice == "system"
            and all(
                asked.current_visibility_state.get(path) is not SectionVisibility.FULL and view.is_literal(path)
                for path in asked.content
            )
        )


def outcome_of(event: ToolInvoked) -> ToolExecutionOutcome:
    """The outcome of a recorded call."""
    result = event.result
    return ToolExecutionOutcome(
        tool_call_id=event.call_id,
        message=event.text,
        success=result.success,
        name=event.name,
        disclosure=result.disclosure if result.success else None,
        attachments=result.attachments,
        operator_text=event.operator_text,
        found=DisclosureRequest.of(result.value).found,
    )
