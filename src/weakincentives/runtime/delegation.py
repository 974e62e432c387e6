"""Delegation: a tool that runs another prompt as a child of the run that calls it, in the same session.

The child has a conversation, sections and pending calls of its own; the application's slices and files are shared, and
its ids are below those of the call. A child that waits for a person leaves its state in the session, under its path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, make_dataclass, replace
from typing import Any, Generic, TypeVar

from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError
from weakincentives.filesystem import Filesystem
from weakincentives.limits import Budget, Deadline, Meter
from weakincentives.prompt import (
    ApprovalRule,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityOverrides,
)
from weakincentives.runtime.adapter import ProviderAdapter, RunOptions
from weakincentives.runtime.approval import PendingCall, Undecided
from weakincentives.runtime.context import RunContext
from weakincentives.runtime.events import Exposure
from weakincentives.runtime.executor import CallWaits
from weakincentives.runtime.messages import Message, PromptResponse
from weakincentives.runtime.runs import Run, RunScope
from weakincentives.serde import declare_type
from weakincentives.session import Snapshot

OutputT = TypeVar("OutputT")
MAX_DEPTH = 3
_OWN: tuple[type, ...] = (Message, Run, PendingCall, Exposure, VisibilityOverrides)
"""The slices that a child has for itself."""


@dataclass(frozen=True, slots=True)
class ChildState:
    """The state of a child that waits: its own slices as the text of a snapshot, under the id of its run."""

    run_id: str
    snapshot: str


declare_type(ChildState)


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
    ) -> None:
        if approval == "effects":
            raise PromptValidationError(
                f"Tool '{name}': a delegation has no effects of its own to show; use approval='call', or ask in the "
                "tools of its template."
            )
        Meter(budget)  # Rejects what is not a budget.
        params_type, self._types = _params_of(template, name)
        super().__init__(
            name=name, description=description, handler=self._run, params_type=params_type, approval=approval
        )
        self.template = template
        self._adapter = adapter
        self._budget = budget
        self._seconds = seconds

    async def _run(self, params: Any, /, *, context: ToolContext) -> ToolResult[Any]:
        parent = context.run
        if not isinstance(parent, RunContext):
            raise PromptEvaluationError(f"Tool '{self.name}' runs only in a run of a prompt.", phase="tool")
        if parent.scope.depth >= MAX_DEPTH:
            problem = f"'{self.name}' cannot be called here: delegation goes at most {MAX_DEPTH} levels deep."
            return ToolResult(problem, success=False)
        child = _Child(self, parent, context, params)
        try:
            response = await child.evaluate()
        except (BudgetExceededError, DeadlineExceededError) as error:
            # Raises if it is the whole tree that may not go on.
            parent.scope.meter.check_tool_call(parent.name)
            return child.unfinished(error)
        except PromptEvaluationError as error:
            if error.ends_run:
                raise
            return ToolResult(f"'{self.name}' failed: {error}", success=False)
        if child.gone_on:
            return ToolResult(
                f"'{self.name}' was stopped: the user went on before a person had decided.", success=False
            )
        if response.halt is not None:
            return ToolResult(f"'{self.name}' stopped to open sections, which its caller cannot do.", success=False)
        return ToolResult(value=response.text if response.output is None else response.output)


class _Child:
    """One run of a delegate tool, or the part of it until it waits for a person."""

    def __init__(self, tool: DelegateTool[Any], parent: RunContext, context: ToolContext, params: Any) -> None:
        self._tool = tool
        self._parent = parent
        self._call_id = context.call_id
        self._run_id = f"{parent.scope.run_id}/{context.call_id}"
        self.session = parent.session.child(_OWN)
        given = [params] if len(tool._types) == 1 else [getattr(params, name) for name in tool._types]
        files = context.filesystem
        self._prompt = Prompt(tool.template).bind(*(given if tool._types else ()))
        if files is not None and Filesystem not in self._prompt.bound_resources:
            self._prompt.bind(resources={Filesystem: files})
        deadline = parent.scope.meter.deadline
        if tool._seconds is not None:
            own = Deadline.after(tool._seconds, parent.session.clock)
            deadline = own if deadline is None else min(own, deadline, key=Deadline.remaining)
        meter = Meter(tool._budget, deadline, parent=parent.scope.meter)
        self.gone_on = False
        self._scope = RunScope(meter, self._run_id, depth=parent.scope.depth + 1, max_expansions=10)

    async def evaluate(self) -> PromptResponse[Any]:
        parent, state = self._parent, self._stored()
        options: RunOptions = {"scope": self._scope, "tags": parent.scope.tags}
        if state is not None:
            self.session.restore_own(Snapshot.from_json(state.snapshot))
            options["decisions"] = decisions = self._decisions()
            self.gone_on = any(isinstance(each, Undecided) for each in decisions.values())
        adapter = self._tool._adapter or parent.adapter
        assert isinstance(adapter, ProviderAdapter)
        response = await adapter.evaluate_async(self._prompt, session=self.session, **options)
        self._forget()
        if response.pending:
            parent.session.dispatch(ChildState(self._run_id, self.session.own_snapshot().to_json()))
            prefix = f"{self._call_id}/"
            raise CallWaits(tuple(replace(call, call_id=f"{prefix}{call.call_id}") for call in response.pending))
        return response

    def unfinished(self, error: Exception) -> ToolResult[Any]:
        """What the child has said so far, as a normal result."""
        said = [message.text for message in self.session[Message].all() if message.role == "assistant" and message.text]
        words = f"\n\nSo far it said:\n\n{said[-1]}" if said else " It had said nothing yet."
        return ToolResult(f"'{self._tool.name}' ended before it was finished: {error}{words}")

    def _stored(self) -> ChildState | None:
        states = self._parent.session[ChildState].where(lambda each: each.run_id == self._run_id)
        return states[-1] if states else None

    def _forget(self) -> None:
        session, prefix = self._parent.session, f"{self._call_id}/"
        session[ChildState].clear(lambda each: each.run_id == self._run_id)
        session[PendingCall].clear(lambda each: each.call_id.startswith(prefix))

    def _decisions(self) -> dict[str, Any]:
        given, prefix = self._parent.scope.decisions or {}, f"{self._call_id}/"
        mine = [call_id for call_id in given if call_id.startswith(prefix)]
        return {call_id.removeprefix(prefix): given.pop(call_id) for call_id in mine}


def delegate(
    template: PromptTemplate[OutputT],
    *,
    description: str,
    name: str | None = None,
    adapter: ProviderAdapter | None = None,
    budget: Budget | None = None,
    timeout: float | None = None,
    approval: ApprovalRule | None = None,
) -> DelegateTool[OutputT]:
    """A tool that hands a part of the work to another prompt; its params are the template's, its value the output.

    The child runs on the parent's adapter unless it has another, within the parent's deadline and budget; `budget` and
    `timeout` may limit it further, and then it returns what it has. Its calls may wait for a person like any others.
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
    )


def _params_of(template: PromptTemplate[Any], name: str) -> tuple[type | None, tuple[str, ...]]:
    """The params of a tool that runs the template: its own, or one argument for each of several; and their names."""
    types = template.outline.params_types
    if len(types) < 2:
        return (types[0], (types[0].__name__,)) if types else (None, ())
    names = tuple(re.sub(r"(?<!^)(?=[A-Z])", "_", each.__name__).lower() for each in types)
    made = make_dataclass(name, list(zip(names, types, strict=True)), frozen=True)
    made.__module__, made.__qualname__ = __name__, f"{name}_params"
    return made, names
