"""`MaxCalls` over random trees of delegation: whoever decides what in which order, the limit holds."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.rounds import rounds
from weakincentives import (
    Approve,
    Deny,
    Edit,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    Session,
    Snapshot,
    call,
    delegate,
    run,
    run_async,
    tool,
)
from weakincentives.guards import MaxCalls
from weakincentives.prompt import Tool
from weakincentives.runtime import PromptResponse, ToolCall


@dataclass
class Tree:
    """A tree of templates that call `pay` and delegate to each other, made by chance."""

    chance: random.Random
    paid: list[str] = field(default_factory=list)
    calls: int = 0

    def pay_tool(self) -> Tool[Any, Any]:
        @tool(approval="call" if self.chance.random() < 0.7 else None)
        def pay(key: str) -> str:
            "Pay."
            self.paid.append(key)
            if self.chance.random() < 0.1:
                raise RuntimeError("not paid")
            return f"paid {key}"

        return pay

    def script(self, depth: int, pay: Tool[Any, Any]) -> tuple[list[Any], list[Tool[Any, Any]]]:
        """The replies of a run at this depth, and the tools of its template."""
        replies: list[Any] = []
        tools = [pay]
        for _ in range(self.chance.choice([1, 1, 2])):
            turn: list[ToolCall] = []
            for _ in range(self.chance.choice([1, 2, 3])):
                self.calls += 1
                if depth == 2 or self.chance.random() < 0.6:
                    call_id = self.chance.choice(["c", f"c{self.calls}"])
                    turn.append(call("pay", key=str(self.calls), call_id=call_id))
                else:
                    child = self.child(depth + 1, pay)
                    tools.append(child)
                    turn.append(call(child.name))
            replies.append(turn)
        return [*replies, "Done."], tools

    def child(self, depth: int, pay: Tool[Any, Any]) -> Tool[Any, Any]:
        name = f"child_{self.calls}"
        replies, tools = self.script(depth, pay)
        section = MarkdownSection(key="bills", title="Bills", template="Pay.", tools=tools)
        template: PromptTemplate[Any] = PromptTemplate(ns="tests", key=name, sections=[section])
        concurrent = self.chance.random() < 0.4
        return delegate(
            template, name=name, description="Help.", adapter=ScriptedAdapter(replies), concurrent=concurrent
        )


@pytest.mark.parametrize("seed", range(rounds(15, 100)))
def test_no_order_of_decisions_passes_the_limit(seed: int) -> None:
    chance = random.Random(seed)
    tree = Tree(chance)
    limit = chance.choice([0, 1, 2, 3])
    replies, tools = tree.script(0, tree.pay_tool())
    section = MarkdownSection(key="bills", title="Bills", template="Pay.", tools=tools)
    prompt: Prompt[Any] = Prompt(ns="tests", key="top", sections=[section], guards=[MaxCalls("pay", limit)])
    model = ScriptedAdapter(replies)
    session = Session()
    is_async = chance.random() < 0.5

    def go_on(**options: Any) -> PromptResponse[Any]:
        if is_async:
            return asyncio.run(run_async(prompt, model, session=session, **options))
        return run(prompt, model, session=session, **options)

    response = go_on()
    for _ in range(60):
        if not response.pending:
            break
        if chance.random() < 0.3:
            stored = session.snapshot().to_json()
            session = Session()
            session.restore(Snapshot.from_json(stored))
        decided = chance.sample(response.pending, chance.randint(1, len(response.pending)))
        decisions = {}
        for pending in decided:
            edit = Edit({"key": f"edited {pending.call_id}"})
            decisions[pending.call_id] = chance.choice([Approve(), Approve(), Deny("No."), edit])
        response = go_on(decisions=decisions)
    assert response.text == "Done."
    assert len(tree.paid) <= limit


def test_a_later_call_that_was_decided_first_counts() -> None:
    """Two calls of a child wait; the second is approved, the parent makes one, then the first is approved."""
    paid: list[str] = []

    @tool(approval="call")
    def pay(key: str) -> str:
        "Pay."
        paid.append(key)
        return "paid"

    section = MarkdownSection(key="bills", title="Bills", template="Pay.", tools=[pay])
    template: PromptTemplate[Any] = PromptTemplate(ns="tests", key="child", sections=[section])
    turn = [call("pay", key="first", call_id="a"), call("pay", key="second", call_id="b")]
    child = delegate(template, name="child", description="Help.", adapter=ScriptedAdapter([turn, "Done."]))
    boss = MarkdownSection(key="boss", title="Boss", template="Delegate.", tools=[pay, child])
    prompt: Prompt[Any] = Prompt(ns="tests", key="top", sections=[boss], guards=[MaxCalls("pay", 2)])
    script = [[call("child", call_id="c"), call("pay", key="own", call_id="p")], "Done."]
    model = ScriptedAdapter(script)
    session = Session()
    waiting = [pending.call_id for pending in run(prompt, model, session=session).pending]
    assert waiting == ["c/a", "c/b", "p"]
    for call_id in ("c/b", "p", "c/a"):
        response = run(prompt, model, session=session, decisions={call_id: Approve()})
    assert response.pending == ()
    assert paid == ["second", "own"]
