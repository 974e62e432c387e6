"""Approval of tool calls by a person: calls that wait in the session, and the decisions about them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

from weakincentives._base.annotations import signature_of
from weakincentives._base.display import shortened
from weakincentives.errors import PromptEvaluationError, SerdeError
from weakincentives.limits import Deadline
from weakincentives.prompt import Tool, ToolResult
from weakincentives.runtime.calls.question import AskedCall, Needs, Question
from weakincentives.runtime.loop.bridge import HandlerTimeout, Step, TimedCall, TimedCalls
from weakincentives.serde import declare_type
from weakincentives.session import Session

RULE_SECONDS = 10.0
"""How long an approval rule may take to decide, from when it is called."""


class DecisionError(PromptEvaluationError):
    """A decision cannot be taken; nothing has acted, and the calls still wait."""

    # It is the program's mistake, also if it concerns a run inside a tool.
    ends_run = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall(AskedCall):
    """A tool call that waits for a person's decision; it is in the session until it has one.

    `question` is what the person sees, and `result` what the handler returned, if it ran for the question.
    """

    question: Question
    result: ToolResult[Any] | None = field(default=None, repr=False)
    round: int = field(default=0, compare=False)  #: how often its run had waited before

    @property
    def text(self) -> str:
        """The question as a person reads it, without secrets."""
        return self.question.text

    def inside(self, outer_id: str) -> PendingCall:
        """The call as the run around it knows it, whose call has this id."""
        return replace(self, call_id=f"{outer_id}/{self.call_id}", question=self.question.inside(outer_id))


class _Decision:
    __slots__ = ()

    def __post_init__(self) -> None:
        for name in ("reason", "text", "by"):
            if not isinstance(value := getattr(self, name, ""), str):
                raise TypeError(f"{type(self).__name__} takes {name} as a str, got {shortened(repr(value), 100)}")


@dataclass(frozen=True, slots=True)
class Approve(_Decision):
    """Let the call happen as it was shown."""

    by: str = ""  #: who decided, for the record


@dataclass(frozen=True, slots=True)
class Deny(_Decision):
    """Keep the call from happening; the model reads the reason."""

    reason: str = ""  #: the text that the model reads
    by: str = ""  #: who decided, for the record


@dataclass(frozen=True, slots=True)
class Edit(_Decision):
    """Let the call happen with these arguments; the model reads which were used."""

    arguments: Mapping[str, Any]  #: the arguments to use
    by: str = ""  #: who decided, for the record


@dataclass(frozen=True, slots=True)
class Answer(_Decision):
    """Give this text to the model as the result, in place of the call."""

    text: str  #: the result
    by: str = ""  #: who decided, for the record


@dataclass(frozen=True, slots=True)
class Undecided:
    """The run went on without a decision."""

    by: str = ""


Decision: TypeAlias = Approve | Deny | Edit | Answer
Decisions: TypeAlias = Mapping[str, Decision]
Settled: TypeAlias = Decision | Undecided


declare_type(PendingCall)


def rule_steps(
    tool: Tool[Any, Any], params: Any, session: Session, rule: Any = None, deadline: Deadline | None = None
) -> Generator[Step, Any, Needs | None]:
    """The approval that a call needs, by the tool's rule or the one given.

    A rule is code that protects people, as guards are, so it is called like one: off the event loop, with a limit of
    time. This raises if it is late, fails, or does not say clearly what it needs.
    """
    rule = tool.approval if rule is None else rule
    if rule == "answer":
        return "answer"
    if callable(rule):
        rule = yield from _call_rule(rule, params, session, deadline)
    if rule not in (None, "call", "effects"):
        raise ValueError(f"it must return 'call', 'effects' or None, got {shortened(repr(rule), 100)}")
    if rule == "effects" and tool.read_only:
        raise ValueError("it returned 'effects', but the tool is read_only; return 'call'")
    if rule == "effects" and tool.reaches_outside and tool.changes is not None:
        raise ValueError("it returned 'effects', but the tool acts outside, as it declares; return 'call'")
    if rule == "effects" and not tool.changes:
        raise ValueError(
            f"it returned 'effects', which tool '{tool.name}' cannot have, because it does not declare what it may "
            "change; return 'call', or write changes=(...)"
        )
    needs: Needs | None = rule
    return needs


def _call_rule(
    rule: Callable[..., Any], params: Any, session: Session, deadline: Deadline | None
) -> Generator[Step, Any, Any]:
    decided: list[Any] = []
    failures: list[BaseException] = []

    def settle(needs: Any, error: BaseException | None) -> None:
        if error is None:
            decided.append(needs)
        elif isinstance(error, HandlerTimeout):
            failures.append(TimeoutError(f"it did not decide within {RULE_SECONDS:g} s"))
        else:
            failures.append(error)

    options = {"session": session} if _takes_session(rule) else {}
    limit = None if deadline is None else max(0.0, deadline.remaining().total_seconds())
    is_async = inspect.iscoroutinefunction(rule)
    call = TimedCall(partial(rule, params, **options), RULE_SECONDS, settle, is_async=is_async)
    yield TimedCalls([call], limit)
    for error in failures:
        raise ValueError(f"it raised {error!r}") if not isinstance(error, Exception) else error
    return decided[0]


@lru_cache(maxsize=1024)
def _takes_session(rule: Callable[..., Any]) -> bool:
    return "session" in signature_of(rule).parameters


def waiting_calls(session: Session) -> dict[str, PendingCall]:
    """The calls that wait for a decision, by id."""
    return {call.call_id: call for call in session[PendingCall].view()} if PendingCall in session else {}


def is_inside(call_id: str, outer_id: str) -> bool:
    """True if the call is one of a run inside the other."""
    return call_id.startswith(f"{outer_id}/")


def is_waiting(call_id: str, waiting: Iterable[str]) -> bool:
    """True if the call waits, or one of a run inside it."""
    return any(each == call_id or is_inside(each, call_id) for each in waiting)


def check_decisions(decisions: Any, waiting: Mapping[str, PendingCall], prompt_name: str) -> None:
    """Raise unless each decision is one, and is about a call that waits; nothing has acted yet."""
    open_calls = ", ".join(f"'{call.call_id}' ({call.tool})" for call in waiting.values())
    open_calls = open_calls or "none; it was decided, or waits in another session"
    if not isinstance(decisions, Mapping) or not all(isinstance(call_id, str) for call_id in decisions):
        raise TypeError(
            f"decisions must map call ids to decisions, got {shortened(repr(decisions), 100)}; "
            "write decisions={call.call_id: Approve()}"
        )
    for key, decision in decisions.items():
        call_id = call_of(key, waiting)
        if call_id is None:
            raise _refused(f"No call {key!r} waits for a decision; open calls: {open_calls}.", prompt_name)
        if not isinstance(decision, Approve | Deny | Edit | Answer | Undecided):
            raise TypeError(
                f"The decision about call {call_id!r} must be Approve(), Deny(reason), Edit(arguments) or "
                f"Answer(text), got {shortened(repr(decision), 100)}; open calls: {open_calls}"
            )
        call = waiting[call_id]
        if call.needs == "answer" and not isinstance(decision, Answer | Deny | Undecided):
            raise _refused(
                f"Call {call_id!r} of '{call.tool}' has no handler; decide it with Answer(text) or Deny(reason).",
                prompt_name,
            )
        if isinstance(decision, Edit) and not isinstance(decision.arguments, Mapping):
            raise TypeError(f"Edit takes the arguments as a mapping, got {shortened(repr(decision.arguments), 100)}")


def call_of(key: str, waiting: Mapping[str, PendingCall]) -> str | None:
    """The id of the call that a key of decisions names, by itself or by its question; None if it does not wait."""
    if key in waiting:
        return key
    for call in waiting.values():
        if call.question.id == key:
            return call.call_id
    return None


def by_call(decisions: Mapping[str, Any], waiting: Mapping[str, PendingCall]) -> dict[str, Any]:
    """Checked decisions by the ids of their calls."""
    found: dict[str, Any] = {}
    for key, decision in decisions.items():
        found[call_of(key, waiting) or key] = decision
    return found


def edited_arguments(tool: Tool[Any, Any], call: PendingCall, decision: Edit, prompt_name: str) -> str:
    """The edited arguments as JSON text; an error names the fields that do not fit, and the call stays open."""
    try:
        text = json.dumps(dict(decision.arguments), ensure_ascii=False)
        tool.parse(text)
    except SerdeError as error:
        listed = "; ".join(f"{problem.path.removeprefix('$.')}: {problem.message}" for problem in error.problems)
        raise _refused(f"The edit of call {call.call_id!r} does not fit '{call.tool}': {listed}", prompt_name) from None
    except (TypeError, ValueError) as error:
        raise _refused(f"The edit of call {call.call_id!r} is not JSON: {error}", prompt_name) from None
    return text


def _refused(problem: str, prompt_name: str) -> DecisionError:
    return DecisionError(problem, prompt_name=prompt_name, phase="tool")
