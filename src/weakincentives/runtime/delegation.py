"""Delegation: a tool that runs another prompt as a child of the run that calls it, in the same session.

The child has a conversation, sections and pending calls of its own; the application's slices and files are shared, and
its ids are below those of the call. A child that waits for a person leaves its state in the session, under its path.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, make_dataclass, replace
from typing import Any, Generic, TypeVar

from weakincentives.errors import (
    AbandonedCallError,
    BudgetExceededError,
    DeadlineExceededError,
    GuardRefusedError,
    OutputParseError,
    PromptEvaluationError,
)
from weakincentives.filesystem import Filesystem
from weakincentives.limits import Budget, Deadline, Meter
from weakincentives.prompt import (
    ApprovalRule,
    LoadedSections,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityOverrides,
    parse_structured_output,
)
from weakincentives.prompt.tools import check_flags, check_timeout
from weakincentives.prompt.visibility import VISIBILITY_CHANGES
from weakincentives.runtime.adapter import ProviderAdapter
from weakincentives.runtime.calls.approval import DecisionError, PendingCall, Undecided, waiting_calls
from weakincentives.runtime.calls.transactions import CallWaits
from weakincentives.runtime.events import ContextWindow, Exposure
from weakincentives.runtime.live import LiveRun
from weakincentives.runtime.loop.drive import RunDriver
from weakincentives.runtime.messages import Message, PromptResponse, last_exchange, user_message
from weakincentives.runtime.spec import RunSpec
from weakincentives.runtime.state import RunState
from weakincentives.serde import declare_type
from weakincentives.session import Snapshot

OutputT = TypeVar("OutputT")
MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class ChildState:
    """The state of a child that waits: its own slices as the text of a snapshot, under the id of its run."""

    run_id: str
    snapshot: str


declare_type(ChildState)
_OWN: tuple[type, ...] = (
    *(Message, RunState, PendingCall, ChildState, Exposure, ContextWindow, VisibilityOverrides),
    *VISIBILITY_CHANGES,
)
"""The slices that a child has for itself."""
logger = logging.getLogger("weakincentives.runtime")
_FAILURES = (PromptEvaluationError, OutputParseError)


class DelegateTool(Tool[Any, Any], Generic[OutputT]):
    """A tool that runs a template; made by `delegate`."""

    transactional = False

    def __init__(
        self,
        template: PromptTemplate[OutputT],
        name: str,
        description: str,
        *,
        adapter: ProviderAdapter | None,
        budget: Budget | None,
        seconds: float | None,
        approval: ApprovalRule | None,
        fork: bool,
        concurrent: bool,
    ) -> None:
        if approval == "effects":
            raise PromptValidationError(
                f"Tool '{name}': a delegation has no effects of its own to show; use approval='call', or ask in the "
                "tools of its template."
            )
        check_flags(name, fork=fork)
        check_timeout(f"Tool '{name}': timeout", seconds)
        Meter(budget)  # Rejects what is not a budget.
        params_type, self._types = _params_of(template, name)
        super().__init__(
            name=name,
            description=description,
            handler=self._run,
            params_type=params_type,
            approval=approval,
            concurrent=concurrent,
        )
        self.blocking = self._run_blocking
        self.template = template
        self._adapter = adapter
        self._budget = budget
        self._seconds = seconds
        self.fork = fork

    async def _run(self, params: Any, /, *, context: ToolContext) -> ToolResult[Any]:
        child = self._child(params, context)
        if isinstance(child, ToolResult):
            return child
        try:
            with child.running():
                response = await child.driver().awaited()
        except _FAILURES as error:
            if child.settles_rest_after(error):
                await child.driver().awaited()
            return child.failed(error)
        return child.ended(response)

    def _run_blocking(self, params: Any, /, *, context: ToolContext) -> ToolResult[Any]:
        """The handler in a sync run, which needs no event loop."""
        child = self._child(params, context)
        if isinstance(child, ToolResult):
            return child
        try:
            with child.running():
                response = child.driver().returned()
        except _FAILURES as error:
            if child.settles_rest_after(error):
                child.driver().returned()
            return child.failed(error)
        return child.ended(response)

    def _child(self, params: Any, context: ToolContext) -> _Child | ToolResult[Any]:
        parent = context.run
        if not isinstance(parent, LiveRun):
            raise PromptEvaluationError(f"Tool '{self.name}' runs only in a run of a prompt.", phase="tool")
        if parent.spec.depth < MAX_DEPTH:
            return _Child(self, parent, context, params)
        problem = f"'{self.name}' cannot be called here: delegation goes at most {MAX_DEPTH} levels deep."
        return ToolResult(problem, success=False)


class _Child:
    """One run of a delegate tool, or the part of it until it waits for a person."""

    def __init__(self, tool: DelegateTool[Any], parent: LiveRun, context: ToolContext, params: Any) -> None:
        self._tool = tool
        self._parent = parent
        self._call_id = context.call_id
        self._run_id = f"{parent.run_id}/{context.call_id}"
        self.session = parent.session.child(_OWN)
        given = [params] if len(tool._types) == 1 else [getattr(params, name) for name in tool._types]
        self.prompt: Prompt[Any] = Prompt(tool.template).bind(*(given if tool._types else ()))
        self._asked: Message | None = None
        loaded = LoadedSections()
        if tool.fork:
            self._asked = _words(self.prompt)
            self.prompt = _forked(parent)
            loaded = parent.presentation.copy_content()
        elif (files := context.filesystem) is not None:
            self.prompt.bind(resources={Filesystem: files})
        spec = replace(
            self._own_spec(),
            loaded=loaded,
            budget=tool._budget,
            deadline=self._deadline(),
            max_expansions=10,
            tags=parent.spec.tags,
            compaction=parent.spec.compaction,
            run_id=self._run_id,
            conversation_id=parent.conversation_id,
            # A fork has the parent's tools, but does not delegate itself.
            depth=MAX_DEPTH if tool.fork else parent.spec.depth + 1,
            call_key=context.idempotency_key,
            handler_of=parent.spec.handler_of,
            parents=(*parent.spec.parents, parent.run_id),
        )
        self._gone_on = False
        state = self._stored()
        if state is not None:
            self.session.restore_own(Snapshot.from_json(state.snapshot))
            decisions = self._decisions()
            spec = replace(spec, beginning="resume", decisions=decisions)
            self._gone_on = any(isinstance(decision, Undecided) for decision in decisions.values())
        elif self._asked is not None:
            self._begin_as_parent()
            spec = replace(spec, beginning="exchange", in_conversation=True, message=self._asked)
        self._live = LiveRun(spec, self.session, parent)

    def _own_spec(self) -> RunSpec:
        """A run on the tool's adapter, or on the parent's model in use and those that would follow it."""
        if self._tool._adapter is not None:
            return self._tool._adapter.run_spec(self.prompt, {})
        models = self._parent.spec.models[self._parent.state.model :]
        return RunSpec(prompt=self.prompt.bound(), models=models, resources=self.prompt.resources)

    def _deadline(self) -> Deadline | None:
        """The parent's deadline, or an earlier one of the tool."""
        parent, seconds = self._parent, self._tool._seconds
        deadline = parent.meter.deadline
        if seconds is None:
            seconds = parent.prompt.template.tool_timeout
        if seconds is None:
            return deadline
        own = Deadline.after(seconds, parent.session.clock)
        return own if deadline is None else min(own, deadline, key=Deadline.remaining)

    def driver(self) -> RunDriver[Any]:
        """The child, or what is left of it, ready to begin."""
        options = {"tags": self._live.spec.tags, "compaction": self._live.spec.compaction, "within": self._live}
        return RunDriver(self._live, self.prompt, own_options=options)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have the parent stop the child when it is stopped itself."""
        children = self._parent.children
        children.append(self)
        try:
            yield
        except _FAILURES:
            raise
        except BaseException:
            # If another thread has stopped the child, it keeps what waits.
            with suppress(AbandonedCallError):
                self._keep_waiting()
            raise
        finally:
            children.remove(self)

    def abandon(self) -> None:
        """Stop the child from another thread than its own."""
        if self._live.abandon is not None:
            self._live.abandon()
            self._keep_waiting()

    def settles_rest_after(self, error: PromptEvaluationError | OutputParseError) -> bool:
        """Prepare to settle the calls that wait in a child that has failed, as not decided; False if there are none.

        Raises what ends the parent too: its limits, and whatever ends a run. The calls then go on waiting.
        """
        if isinstance(error, DecisionError):
            self._keep_waiting()
            raise error
        try:
            if isinstance(error, BudgetExceededError | DeadlineExceededError):
                self._parent.meter.check_tool_call(self._parent.name)
            elif error.ends_run and not (isinstance(error, GuardRefusedError) and error.run_id == self._run_id):
                raise error
        except PromptEvaluationError:
            self._keep_waiting()
            raise
        waiting = waiting_calls(self.session)
        if not waiting:
            return False
        decisions = dict.fromkeys(waiting, Undecided())
        spec = replace(self._live.spec, beginning="resume", message=None, decisions=decisions)
        self._live = LiveRun(spec, self.session, self._parent)
        # What is left is settled whatever the run has spent.
        self._live.meter = Meter(None, self._parent.meter.deadline)
        return True

    def failed(self, error: Exception) -> ToolResult[Any]:
        """The result if the child alone may not go on, or its model failed."""
        # What was decided has happened, so nobody is asked about it again.
        self._forget()
        if isinstance(error, PromptEvaluationError) and error.phase == "render":
            # Its prompt could not be prepared, which is for a developer to mend.
            logger.warning("'%s' could not begin.", self._tool.name, exc_info=error)
            return ToolResult(f"'{self._tool.name}' is not available now; go on without it.", success=False)
        if not isinstance(error, BudgetExceededError | DeadlineExceededError):
            return ToolResult(f"'{self._tool.name}' failed: {error}", success=False)
        said = [each.text for each in self.session[Message].all() if each.role == "assistant" and each.text]
        words = f"\n\nSo far it said:\n\n{said[-1]}" if said else " It had said nothing yet."
        return ToolResult(f"'{self._tool.name}' ended before it was finished: {error}{words}")

    def ended(self, response: PromptResponse[Any]) -> ToolResult[Any]:
        """The result of the child; raises if calls of it wait."""
        self._forget()
        name = self._tool.name
        if response.pending:
            raise CallWaits(self._stored_calls())
        if self._gone_on:
            return ToolResult(f"'{name}' was stopped: the user went on before its calls were decided.", success=False)
        if response.halt is not None:
            return ToolResult(f"'{name}' stopped to open sections, which its caller cannot do.", success=False)
        return self._result(response)

    def _result(self, response: PromptResponse[Any]) -> ToolResult[Any]:
        output = self._tool.template.structured_output
        if self._asked is None or output is None:
            return ToolResult(value=response.text if response.output is None else response.output)
        try:
            return ToolResult(value=parse_structured_output(response.text, output))
        except OutputParseError as error:
            return ToolResult(f"'{self._tool.name}' failed: {error}", success=False)

    def _keep_waiting(self) -> None:
        """Leave the calls of the child that still wait in the parent's session."""
        self._forget()
        if waiting_calls(self.session):
            for call in self._stored_calls():
                self._parent.session.dispatch(call)

    def _stored_calls(self) -> tuple[PendingCall, ...]:
        """Leave the child's state in the parent's session; the calls of it that wait, as the parent names them."""
        self._parent.session.dispatch(ChildState(self._run_id, self.session.own_snapshot().to_json()))
        waiting = waiting_calls(self.session).values()
        return tuple(call.inside(self._call_id) for call in waiting)

    def _begin_as_parent(self) -> None:
        """Take over the parent's conversation up to its last complete turn, and what it has open."""
        kinds = set(_OWN) - {PendingCall, ChildState}
        marks = {kind: mark for kind, mark in self._parent.session.state().marks.items() if kind in kinds}
        self.session.restore_own(Snapshot(self.session.session_id, marks))
        self.session[Message].update(lambda said: said[: last_exchange(said) - 1])

    def _stored(self) -> ChildState | None:
        states = self._parent.session[ChildState].where(lambda each: each.run_id == self._run_id)
        return states[-1] if states else None

    def _forget(self) -> None:
        session, prefix = self._parent.session, f"{self._call_id}/"
        session[ChildState].clear(lambda each: each.run_id == self._run_id)
        session[PendingCall].clear(lambda each: each.call_id.startswith(prefix))

    def _decisions(self) -> dict[str, Any]:
        given, prefix = self._parent.decisions, f"{self._call_id}/"
        mine = [call_id for call_id in given if call_id.startswith(prefix)]
        return {call_id.removeprefix(prefix): given.pop(call_id) for call_id in mine}


def delegate(
    template: PromptTemplate[OutputT],  #: the prompt of the child
    *,
    description: str,  #: what the model reads about the tool
    name: str | None = None,  #: by default the template's key
    adapter: ProviderAdapter | None = None,  #: another model for the child
    budget: Budget | None = None,
    fork: bool = False,
    concurrent: bool = False,
    timeout: float | None = None,
    approval: ApprovalRule | None = None,  #: when a person decides about the call
) -> DelegateTool[OutputT]:
    """A tool that hands a part of the work to another prompt; its params are the template's, its value the output.

    The child runs on the parent's adapter unless it has another, within the parent's deadline and budget; `budget` and
    `timeout` may limit it further, and then it returns what it has. Its calls may wait for a person like any others.

    A `fork` continues the parent's conversation instead, with the parent's tools, so that the provider's prompt cache
    holds: the template's text is sent as a user message, and a typed output is asked for in words.

    With `concurrent`, children that stand side by side run at the same time; those of their calls that write wait for
    each other.
    """
    if not isinstance(template, PromptTemplate):
        raise TypeError(f"delegate() takes a PromptTemplate, got {template!r}")
    if not isinstance(adapter, ProviderAdapter | None):
        raise TypeError(f"adapter must be a ProviderAdapter, got {adapter!r}")
    return DelegateTool(
        template,
        re.sub(r"[^a-z0-9_-]", "_", template.key.lower()) if name is None else name,
        description,
        adapter=adapter,
        budget=budget,
        seconds=timeout,
        approval=approval,
        fork=fork,
        concurrent=concurrent,
    )


def _forked(parent: LiveRun) -> Prompt[Any]:
    """The parent's prompt for a fork, whose answer has a type of its own."""
    prompt, resources = parent.prompt, parent.resources_opened
    assert resources is not None
    if prompt.template.structured_output is not None:
        prompt = prompt.with_template(prompt.template.with_(output=None))
    forked = Prompt.of(prompt)
    forked.resources.borrow(resources)
    return forked


def _words(prompt: Prompt[Any]) -> Message:
    """A template as the message that a fork begins with."""
    rendered = prompt.render()
    output, asked = prompt.template.structured_output, ""
    if output is not None:
        asked = f"Answer with JSON alone, which fits this schema: {json.dumps(output.wire_schema)}"
    texts = (rendered.system_text, rendered.user_text, asked)
    return user_message("\n\n".join(text for text in texts if text))


def _params_of(template: PromptTemplate[Any], name: str) -> tuple[type | None, tuple[str, ...]]:
    """The params of a tool that runs the template: its own, or one argument for each of several; and their names."""
    types = template.outline.params_types
    if len(types) < 2:
        return (types[0], (types[0].__name__,)) if types else (None, ())
    names = tuple(re.sub(r"(?<!^)(?=[A-Z])", "_", each.__name__).lower() for each in types)
    made = make_dataclass(name, list(zip(names, types, strict=True)), frozen=True)
    made.__module__, made.__qualname__ = __name__, f"{name}_params"
    return made, names
