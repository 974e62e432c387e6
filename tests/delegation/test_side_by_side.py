"""Children that run at the same time: their conversations overlap, and those of their calls that write do not."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.approval.bank import Balance, Paid
from tests.delegation.agents import pay, spend, template
from weakincentives import (
    Approve,
    Budget,
    Deny,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    Session,
    Snapshot,
    ToolContext,
    call,
    delegate,
    run,
    run_async,
    tool,
)
from weakincentives.errors import BudgetExceededError, ToolValidationError
from weakincentives.runtime import Message, ModelRequest, RunEnded, ToolInvoked

WAYS = ("sync", "async")


@dataclass(frozen=True)
class Task:
    steps: str


@tool
def waste(amount: int, context: ToolContext) -> str:
    "Spend and fail."
    context.session.dispatch(Paid(amount))
    raise ToolValidationError("broken")


@tool(read_only=True)
def look() -> str:
    "Look."
    return "seen"


VERBS = {"s": "spend", "p": "pay", "w": "waste", "l": "look"}


def worker(request: ModelRequest) -> Any:
    """Make the calls of the task, one in each turn, such as `s3 w4 p5`."""
    steps = request.messages[0].text.splitlines()[-1].split()
    made = sum(message.role == "tool" for message in request.messages)
    if made == len(steps):
        return "Child is done."
    verb, amount = steps[made][0], int(steps[made][1:])
    return call(VERBS[verb]) if verb == "l" else call(VERBS[verb], amount=amount)


def parent_of(tasks: list[str], *, concurrent: bool = True) -> tuple[Prompt[Any], ScriptedAdapter]:
    section = MarkdownSection[Task](key="t", title="T", template="${steps}", tools=[spend, pay, waste, look])
    below = delegate(
        PromptTemplate(ns="tests", key="child", sections=[section]),
        description="Work.",
        adapter=ScriptedAdapter(worker),
        concurrent=concurrent,
    )
    calls = [call("child", call_id=f"c{number}", steps=steps) for number, steps in enumerate(tasks)]
    return Prompt(template("parent", below)), ScriptedAdapter([calls, "All done."])


def evaluated(way: str, prompt: Prompt[Any], model: ScriptedAdapter, **options: Any) -> Any:
    if way == "sync":
        return run(prompt, model, **options)
    return asyncio.run(run_async(prompt, model, **options))


@pytest.mark.parametrize("way", WAYS)
def test_children_overlap_and_their_results_keep_the_order_of_the_calls(way: str) -> None:
    together = threading.Barrier(3)

    @tool(read_only=True)
    def meet() -> str:
        "Wait for the others."
        together.wait(20)
        return "met"

    def model(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return f"We {last.text}." if last.role == "tool" else call("meet")

    below = delegate(template("child", meet), description="Meet.", adapter=ScriptedAdapter(model), concurrent=True)
    session = Session()
    parent = ScriptedAdapter([[call("child", call_id=name) for name in "abc"], "All done."])
    response = evaluated(way, Prompt(template("parent", below)), parent, session=session)
    assert (response.text, response.turns) == ("All done.", 8)
    results = [(each.call_id, each.text) for each in session[Message].all() if each.role == "tool"]
    assert results == [(name, "We met.") for name in "abc"]


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.sampled_from(["s1", "s2", "w3", "l0"]), max_size=4).map(" ".join), min_size=2, max_size=4),
    st.sampled_from(WAYS),
)
def test_what_a_failed_call_of_a_child_undoes_is_its_own(tasks: list[str], way: str) -> None:
    session = Session()
    evaluated(way, *parent_of(tasks), session=session)
    made = Counter(step for task in tasks for step in task.split())
    assert Counter(each.amount for each in session[Paid].all()) == Counter({1: made["s1"], 2: made["s2"]})
    assert Counter(each.success for each in session[ToolInvoked].all() if each.name != "child")[False] == made["w3"]
    assert sum(each.status == "completed" for each in session[RunEnded].all()) == len(tasks) + 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tasks", [["p1 s2", "p3", "s4 w5"], ["s4 w5", "p1 w1 p2", "p3 s6"]])
def test_children_that_wait_are_decided_in_parts_by_any_process(way: str, tasks: list[str]) -> None:
    prompt, model = parent_of(tasks)
    session = Session()
    response = evaluated(way, prompt, model, session=session)
    shown: set[int] = set()
    while response.pending:
        first = response.pending[-1]
        decision = Approve() if first.params.amount != 3 else Deny("No.")
        shown.add(first.params.amount)
        stored = session.snapshot().to_json()
        session = Session()
        session.restore(Snapshot.from_json(stored))
        response = evaluated(way, prompt, model, session=session, decisions={first.call_id: decision})
    assert response.text == "All done."
    steps = [step for task in tasks for step in task.split()]
    assert shown == {int(step[1:]) for step in steps if step[0] == "p"}
    kept = [int(step[1:]) for step in steps if step[0] == "s" or (step[0] == "p" and step != "p3")]
    assert sorted(each.amount for each in session[Paid].all()) == sorted(kept)
    assert session[Balance].latest() == Balance(100 - sum(kept))
    results = [each.call_id for each in session[Message].all() if each.role == "tool"]
    assert sorted(results) == sorted(f"c{number}" for number in range(len(tasks)))


@pytest.mark.parametrize("way", WAYS)
def test_the_budget_of_the_tree_holds_for_children_that_overlap(way: str) -> None:
    session = Session()
    with pytest.raises(BudgetExceededError):
        evaluated(way, *parent_of(["s1 s1 s1", "s2 s2 s2"]), session=session, budget=Budget(max_tool_calls=4))
    assert len(session[Paid]) in (2, 3), "one or two calls were those of the parent"


def test_ctrl_c_stops_the_children_that_overlap() -> None:
    begun, ends = threading.Barrier(3), threading.Event()

    @tool(read_only=True)
    def hang() -> str:
        "Wait."
        begun.wait(20)
        ends.wait(20)
        return "free"

    below = delegate(
        template("child", hang), description="Wait.", adapter=ScriptedAdapter(lambda _: call("hang")), concurrent=True
    )
    session, parent = Session(), ScriptedAdapter([[call("child"), call("child")], "All done."])

    def interrupt() -> None:
        begun.wait(20)
        # A signal that comes while a thread is being started may get lost.
        for _ in range(20):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if stopped.wait(1):
                break
        ends.set()

    stopped = threading.Event()
    session.observe(lambda event: stopped.set() if isinstance(event, RunEnded) and event.status == "stopped" else None)
    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        run(Prompt(template("parent", below)), parent, session=session)
    helper.join()
    assert [each.status for each in session[RunEnded].all()] == ["stopped"] * 3
    results = [each.text for each in session[Message].all() if each.role == "tool"]
    assert len(results) == 2 and all("stopped" in text for text in results)
