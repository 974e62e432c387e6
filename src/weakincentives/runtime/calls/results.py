"""The results of tool calls: what the model reads of them, what they open, and their record in the session."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from operator import attrgetter
from typing import Any

from weakincentives._base.frozen import quick_init
from weakincentives.content import Part, parts_of, text_of
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import (
    AnyTool,
    DisclosureRequest,
    FoundSection,
    OpenSectionsResult,
    ReadSectionResult,
    SearchSectionsResult,
    SectionVisibility,
    SetVisibilityOverride,
    ToolResult,
    VisibilityOverrides,
)
from weakincentives.runtime.calls.approval import PendingCall
from weakincentives.runtime.context import RunContext
from weakincentives.runtime.events import ModelCalled, ToolInvoked
from weakincentives.runtime.messages import Message, ToolCall
from weakincentives.runtime.runs import Toolbox

logger = logging.getLogger("weakincentives.runtime")
NO_RESULT: ToolResult[Any] = ToolResult()


@quick_init
@dataclass(frozen=True, slots=True)
class ToolExecutionOutcome:
    """The outcome of one call. `message` is what the model reads.

    `disclosure` is what a successful call opened or closed, and `expanded_tools` are the tools that appeared with it.
    A call ends the turn if it `restarts` the run, which alone can open the sections, or halts for the caller.
    `operator_text` is to be sent as a system message; `found` are the sections that a search has listed. A call that
    waits for a person is `pending`: it has no result yet.
    """

    tool_call_id: str  #: the id of the call
    message: str
    success: bool  #: False if the call failed or was refused
    expanded_tools: tuple[Any, ...] = ()
    name: str = ""  #: the tool's name
    disclosure: DisclosureRequest | None = None
    restarts: bool = False
    attachments: tuple[Part, ...] = ()  #: media for the model
    operator_text: str = ""
    found: tuple[str, ...] = ()
    pending: PendingCall | None = None

    def as_message(self, tools: tuple[str, ...] = ()) -> Message:
        """The message for the model; `tools` are those that come with it."""
        parts = parts_of([self.message, *self.attachments]) if self.attachments else ()
        text = text_of(parts) if parts else self.message
        made = Message("tool", text, call_id=self.tool_call_id, name=self.name, success=self.success, parts=parts)
        return replace(made, tools=tools) if tools else made

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


@dataclass(slots=True)
class Results:
    """Takes and records the results of one attempt's calls, with the tools of its toolbox.

    `ended` has the outcomes of the last calls by id, also if running them raised an error. `recorded_before` has those
    of calls that had ended when the run stopped, and whose results the conversation did not have yet.
    """

    context: RunContext
    toolbox: Toolbox = field(default_factory=Toolbox)
    ended: dict[str, ToolExecutionOutcome] = field(default_factory=dict)
    recorded_before: dict[str, ToolExecutionOutcome] = field(default_factory=dict)

    def take_over(self, calls: Iterable[ToolCall]) -> None:
        """Find those of the open calls of the last turn that had ended, so that they are not made again."""
        call_ids = set(map(attrgetter("id"), calls))
        turn_began = next((event.timestamp for event in self.context.own(ModelCalled)), 0.0)
        for event in self.context.own(ToolInvoked):
            if event.timestamp < turn_began:
                break
            if event.call_id in call_ids and event.run_id == self.context.scope.run_id and self._took_effect(event):
                self.recorded_before.setdefault(event.call_id, outcome_of(event))

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

    def recorded(self, attempt: ToolAttempt) -> ToolExecutionOutcome:
        """The recorded outcome of a call that ended; raises the error that it ended with."""
        outcome = self.record(attempt)
        if attempt.error is not None:
            raise attempt.error
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

    def accept(self, running: ToolAttempt, result: Any) -> None:
        """Keep the result and its text for the model; one that cannot be rendered is the programmer's mistake."""
        name = running.call.name
        if not isinstance(result, ToolResult):
            problem = f"The handler of tool '{name}' returned a {type(result).__name__}; return a ToolResult."
            self.programming_error(problem, None, running)
            return
        try:
            if isinstance(result.value, ReadSectionResult) and result.value.expanded_tools:
                result = self._with_callable_tools(name, result, result.value)
            elif isinstance(result.value, SearchSectionsResult):
                result = self._with_existing_sections(name, result, result.value)
            running.result, running.message = result, result.render()
        except (Exception, SystemExit) as error:
            problem = (
                f"The result of tool '{name}' cannot be shown to the model: {type(error).__name__}: {error}; give its "
                "value a render() method or JSON-able fields; images and other media go into attachments=."
            )
            self.programming_error(problem, error, running)
            return
        try:
            if result.attachments:
                ended = (outcome.as_message() for outcome in list(self.ended.values()))
                self.context.adapter.check_parts(result.attachments, (*self.context.session[Message].view(), *ended))
        except PromptEvaluationError as error:
            text = f"{running.message}\n\nThe attachments cannot be shown: {error}".lstrip()
            running.result, running.message = ToolResult(text, success=False), ""

    def _with_callable_tools(self, name: str, result: ToolResult[Any], value: ReadSectionResult) -> ToolResult[Any]:
        """The result of reading a section, naming only tools that can be called afterwards."""
        request = result.disclosure if result.success else None
        overrides = {} if request is None or request.halt else request.overrides
        view = self.context.view.opened(overrides) if overrides else self.context.view
        callable_names = {tool.name for _, tool in view.offered()}
        callable_names.update(tool.name for tool in self.context.own_tools)
        missing = [tool.name for tool in value.expanded_tools if tool.name not in callable_names]
        if missing:
            logger.warning(
                "The result of tool '%s' names tools that nothing offers: %s; give it "
                "disclosure=context.view.request([key]) to open the section that has them.",
                name,
                ", ".join(missing),
            )
        free = self.toolbox.available(value.expanded_tools)
        tools = tuple(tool for tool in free if tool.name in callable_names)
        return replace(result, value=replace(value, expanded_tools=tools))

    def _with_existing_sections(
        self, name: str, result: ToolResult[Any], value: SearchSectionsResult
    ) -> ToolResult[Any]:
        """The result of a search, naming only sections of the prompt and tools that opening them adds."""
        view = self.context.view
        offered = {tool.name for _, tool in view.offered()}
        sections: list[FoundSection] = []
        for section in value.sections:
            path = view.find(section.key)
            if path is None:
                logger.warning("The result of tool '%s' names a section '%s' that does not exist.", name, section.key)
                continue
            added = {tool.name for tool in self.toolbox.available(view.opening(path).tools)}
            tools = tuple(tool for tool in section.tools if tool in added or tool in offered)
            sections.append(replace(section, tools=tools))
        return replace(result, value=replace(value, sections=tuple(sections)))

    def programming_error(self, problem: str, cause: BaseException | None, running: ToolAttempt) -> None:
        mistake = PromptEvaluationError(problem, prompt_name=self.context.prompt.name, phase="tool")
        mistake.__cause__ = cause
        running.result, running.message, running.error = ToolResult(problem, success=False), "", mistake

    def record(self, attempt: ToolAttempt) -> ToolExecutionOutcome:
        """Open what was read, record the call, and return its outcome."""
        call, result, value = attempt.call, self.with_disclosure(attempt.result), attempt.result.value
        asked = result.disclosure if result.success else None
        offer = self.toolbox.get(call.name)
        restarts, expanded = attempt.expansion is not None, tuple[AnyTool, ...]()
        if asked is not None and asked.overrides:
            expanded = self._added_tools(asked)
            if expanded and not (restarts or asked.halt or self.context.config.supports_dynamic_tools):
                # The next attempt opens it, if there is one; else the caller decides.
                restarts, asked = True, replace(asked, reason="Adapter does not support dynamic tools.")
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
        event = ToolInvoked(
            name=call.name,
            params=attempt.params,
            result=result,
            call_id=call.id,
            arguments=call.arguments,
            rolled_back=attempt.rolled_back,
            duration=self.context.session.clock.monotonic() - attempt.since,
            section_key=self.toolbox.section_of(call.name),
            own_name="" if offer is None else offer.ref.own_name,
            compensation=attempt.compensation,
            text=message,
            operator_text=operator_text,
            **self.context.stamp,
        )
        # All at once: a snapshot has the call and what it has opened, or neither.
        with self.context.session.together():
            if asked is not None and not (restarts or asked.halt):
                for path, visibility in asked.overrides.items():
                    self.context.session.dispatch(SetVisibilityOverride(path, visibility))
            self.context.session.dispatch(event)
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
            found=_listed_keys(value),
        )
        return outcome

    def with_disclosure(self, result: ToolResult[Any]) -> ToolResult[Any]:
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
        found=_listed_keys(result.value),
    )


def _listed_keys(value: Any) -> tuple[str, ...]:
    """The keys of the sections that a search has listed."""
    keys: list[str] = []
    if isinstance(value, SearchSectionsResult):
        for section in value.sections:
            keys.append(section.key)
    return tuple(keys)
