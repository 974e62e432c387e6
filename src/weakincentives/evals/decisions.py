"""Decides about calls that wait in an evaluation, where no person is asked: by a rule, by tool, or by a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from weakincentives._base.annotations import signature_of
from weakincentives.evals.cases import Case
from weakincentives.evals.identity import declared
from weakincentives.evals.scorers import Unscored
from weakincentives.runtime import Answer, Approve, Deny, Edit, PendingCall

Decision: TypeAlias = Approve | Deny | Edit | Answer
Rule: TypeAlias = Callable[..., Decision | None]
EvalDecisions: TypeAlias = Rule | Mapping[str, Decision | Rule] | Sequence[Decision]
"""A rule, `rule(call)` or `rule(call, case=)`; decisions or rules by tool; or a list of decisions for each case."""

EVERY_TOOL = "*"
_DECISIONS = (Approve, Deny, Edit, Answer)
_HOW = (
    "decisions must be a function of the call that waits, a mapping from tools to decisions or functions, or a list of "
    "decisions"
)


class Decider:
    """Decides about the calls of one run; a list begins anew for each."""

    def __init__(self, decisions: EvalDecisions, case: Case) -> None:
        self._decisions = decisions
        self._case = case
        self._used = 0

    def decide(self, pending: Sequence[PendingCall]) -> dict[str, Decision]:
        """The decisions about these calls, by question; raises `Unscored` if there is none about any of them."""
        decided: dict[str, Decision] = {}
        for call in pending:
            decision, source = self._decision(call)
            if decision is not None:
                if not isinstance(decision, _DECISIONS):
                    what = "Approve(), Deny(), Edit(), Answer() or None"
                    raise TypeError(f"{source} must return {what}, got {decision!r}")
                if not decision.by:
                    decision = replace(decision, by=source)
                decided[call.question.id] = decision
        if not decided:
            names = ", ".join(call.tool for call in pending)
            raise Unscored(f"calls wait for a person's decision, and decisions= has none about them: {names}")
        return decided

    def _decision(self, call: PendingCall) -> tuple[Decision | None, str]:
        """The decision about a call, and what made it."""
        decisions = self._decisions
        if isinstance(decisions, Mapping):
            own_name = call.own_name or call.tool
            names = (f"{call.section_key}.{own_name}", own_name, call.tool, EVERY_TOOL)
            entry = next((decisions[name] for name in names if name in decisions), None)
            if callable(entry):
                return self._by_rule(entry, call)
            return entry, f"decisions[{call.tool!r}]"
        if callable(decisions):
            return self._by_rule(decisions, call)
        if self._used >= len(decisions):
            raise Unscored(f"all {len(decisions)} decisions of the list are used, and '{call.tool}' waits for another")
        self._used += 1
        return decisions[self._used - 1], "decisions"

    def _by_rule(self, rule: Rule, call: PendingCall) -> tuple[Decision | None, str]:
        name = getattr(rule, "__qualname__", type(rule).__qualname__)
        if "case" in signature_of(rule).parameters:
            return rule(call, case=self._case), f"rule {name}"
        return rule(call), f"rule {name}"


def approve_all(call: PendingCall) -> Decision:
    """The rule that approves every call; one without a handler cannot be, and is denied."""
    return Approve() if "approve" in call.question.answers else Deny()


def deny_all(call: PendingCall) -> Decision:
    """The rule that denies every call."""
    return Deny()


def checked_decisions(decisions: Any) -> EvalDecisions | None:
    """The decisions of an evaluation, if they are some."""
    if decisions is None:
        return None
    entries: list[Any] = []
    if isinstance(decisions, Mapping):
        entries = [entry for entry in decisions.values() if not _is_rule(entry)]
    elif isinstance(decisions, list | tuple):
        entries = list(decisions)
    elif not _is_rule(decisions):
        raise TypeError(f"{_HOW}, got {decisions!r}")
    for entry in entries:
        if not isinstance(entry, _DECISIONS):
            raise TypeError(f"{_HOW}, got {entry!r} in it")
    return cast(EvalDecisions, decisions)


def decisions_facts(decisions: EvalDecisions | None) -> Any:
    """What decides about calls, as facts of an evaluation."""
    if isinstance(decisions, Mapping):
        return [[name, _fact(entry)] for name, entry in decisions.items()]
    return _fact(decisions)


def _fact(value: Any) -> Any:
    if callable(value):
        return declared(value)
    return value


def _is_rule(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)
