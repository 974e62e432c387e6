"""Runs inside a run: the tool guards of those around it hold there too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guarding.cases import OUTSIDE, pay
from weakincentives import MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter, Session, call, delegate, run
from weakincentives.guards import Guard, GuardContext, GuardedCall, GuardRefusedError, MaxCalls, Outcome, Refuse, Stop


@pytest.mark.parametrize("outcome", [Refuse("Too much."), Stop("Fraud.")], ids=["refuse", "stop"])
@pytest.mark.parametrize("levels", [1, 2])
def test_tool_guards_reach_the_runs_inside(outcome: Outcome, levels: int) -> None:
    OUTSIDE.clear()

    class Modest(Guard):
        tools = ("pay",)

        def before_tool(self, call: GuardedCall, *, context: GuardContext) -> Outcome | None:
            return outcome if call.params.amount > 5 else None

    replies: list[Any] = [call("pay", amount=6), "Paid."]
    section = MarkdownSection(key="bills", title="Bills", template="Pay.", tools=[pay])
    template: PromptTemplate[Any] = PromptTemplate(ns="tests", key="child", sections=[section])
    for level in range(levels):
        helper = delegate(template, name=f"help_{level}", description="Help.")
        section = MarkdownSection(key="boss", title="Boss", template="Delegate.", tools=[helper])
        guards = [Modest()] if level == levels - 1 else []
        template = PromptTemplate(ns="tests", key=f"boss-{level}", sections=[section], guards=guards)
        replies = [call(f"help_{level}"), *replies, "Done."]
    session = Session()
    try:
        run(Prompt(template), ScriptedAdapter(replies), session=session)
    except GuardRefusedError as error:
        assert isinstance(outcome, Stop), error
    assert OUTSIDE == []


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("concurrent", [False, True])
def test_the_calls_of_all_runs_inside_count_together(
    levels: int, concurrent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    OUTSIDE.clear()
    section = MarkdownSection(key="bills", title="Bills", template="Pay.", tools=[pay])
    template: PromptTemplate[Any] = PromptTemplate(ns="tests", key="child", sections=[section])
    bottom = ScriptedAdapter(lambda request: "Paid." if request.messages[-1].role == "tool" else call("pay", amount=6))
    below = delegate(template, name="help_0", description="Help.", adapter=bottom, concurrent=concurrent)
    for level in range(1, levels):
        section = MarkdownSection(key="boss", title="Boss", template="Delegate.", tools=[below])
        template = PromptTemplate(ns="tests", key=f"boss-{level}", sections=[section])
        middle = ScriptedAdapter(
            lambda request: "Done." if request.messages[-1].role == "tool" else [call("help_0"), call("help_0")]
        )
        below = delegate(template, name=f"help_{level}", description="Help.", adapter=middle, concurrent=concurrent)
    section = MarkdownSection(key="boss", title="Boss", template="Delegate.", tools=[below])
    top: Prompt[Any] = Prompt(ns="tests", key="top", sections=[section], guards=[MaxCalls("pay", 2)])
    run(top, ScriptedAdapter([[call(below.name), call(below.name)], call(below.name), "Done."]))
    assert OUTSIDE == ["pay 6", "pay 6"]
    assert "which no section has offered" not in caplog.text
