"""Runs inside the calls of a durable run: they are part of the recorded step, and are not run again."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.approval.bank import Paid
from tests.delegation.agents import pay, spend, template
from tests.durable.answers import approve
from tests.durable.desk import Question, prompt_with
from tests.waiting import PATIENCE, until
from weakincentives import Approve, Deny, Edit, PromptEvaluationError, ScriptedAdapter, Session, call, delegate, tool
from weakincentives.durable import DurableMainLoop
from weakincentives.runtime import Message, ModelRequest
from weakincentives.telemetry import RunStore, record

LOOP = "desk"


class Agents:
    """A durable loop whose prompt delegates to another, each with a scripted model."""

    def __init__(self, path: Path, child: list[Any], parent: list[Any], *tools: Any) -> None:
        self.path = path
        self.child, self.parent = ScriptedAdapter(child), ScriptedAdapter(parent)
        self._tool = delegate(template("inner", *tools), description="Work.", adapter=self.child)

    def loop(self) -> DurableMainLoop[Question, Any]:
        return DurableMainLoop(LOOP, prompt_with(self._tool), self.parent, str(self.path / "durable.db"))


def test_a_child_is_part_of_its_call_and_is_not_run_again(tmp_path: Path) -> None:
    overloaded = PromptEvaluationError("overloaded", prompt_name="loop", phase="request")
    before = Agents(tmp_path, [call("spend", amount=3), "The child is done."], [call("inner"), overloaded], spend)
    with record(tmp_path / "runs.db"), before.loop() as loop, pytest.raises(PromptEvaluationError, match="overloaded"):
        loop.execute(Question("Work."), key="k", timeout=PATIENCE)
    after = Agents(tmp_path, [], ["All done."], spend)
    with record(tmp_path / "runs.db"), after.loop() as loop:
        loop.start()
        loop.retry("k")
        response = loop.result("k", timeout=PATIENCE)
        assert [step.name for step in loop.store.steps("desk/k")] == ["begin", "model", "inner", "model"]
    assert (response.text, response.turns, len(after.child.requests)) == ("All done.", 4, 0)
    with RunStore(tmp_path / "runs.db") as store:
        (parent,) = store.list_runs()
        (child,) = store.children(parent.run_id)
        assert (parent.run_id, child.run_id, child.status, child.turns) == ("desk/k", "desk/k/call_1", "ok", 2)
        assert response.usage == parent.total_usage
        assert store.run("des").run_id == store.run("desk/k").run_id == "desk/k"
        assert store.run("desk/k/").run_id == child.run_id


@pytest.mark.parametrize("decision", [Approve(), Deny("Too much.")])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_call_of_a_child_waits_for_a_decision(tmp_path: Path, decision: Any, restarts: bool) -> None:
    agents = Agents(tmp_path, [call("pay", amount=3), "The child is done."], [call("inner"), "All done."], pay)
    with record(tmp_path / "runs.db"), agents.loop() as loop:
        loop.start()
        loop.submit(Question("Work."), key="k")
        until(lambda: loop.questions("k"), "the question")
        (question,) = loop.questions("k")
        assert (question.call_id, question.tool) == ("call_1/call_1", "pay")
        if not restarts:
            loop.approve("k", question.id, decision)
            response = loop.result("k", timeout=PATIENCE)
    if restarts:
        with record(tmp_path / "runs.db"), agents.loop() as loop:
            loop.approve("k", question.id, decision)
            loop.start()
            response = loop.result("k", timeout=PATIENCE)
    assert response.text == "All done." and response.turns == 4
    with RunStore(tmp_path / "runs.db") as store:
        (child,) = store.children("desk/k")
        assert (child.status, child.turns, child.answer) == ("ok", 2, "The child is done.")
        assert response.usage == store.run("desk/k").total_usage


@pytest.mark.parametrize(("restarts", "misfit"), [(False, {"amount": "x"}), (True, {"sum": 1})])
def test_an_edit_of_a_childs_call_that_does_not_fit_is_asked_about_again(
    tmp_path: Path, restarts: bool, misfit: dict[str, Any]
) -> None:
    child = [[call("pay", amount=3), call("pay", amount=4)], "The child is done."]
    agents = Agents(tmp_path, child, [call("inner"), "All done."], pay)

    def open_questions(loop: DurableMainLoop[Question, Any], *names: str) -> Any:
        until(lambda: [each.call_id for each in loop.questions("k")] == [*names], f"questions {names}")
        return loop.questions("k")

    approved, edited = "call_1/call_1", "call_1/call_2"
    with agents.loop() as loop:
        loop.submit(Question("Work."), key="k")
        loop.start()
        open_questions(loop, approved, edited)
        approve(loop, "k", edited, Edit(misfit))
        approve(loop, "k", approved, Approve())
        if not restarts:
            (again,) = open_questions(loop, f"{edited}#2")
            loop.approve("k", again.id, Edit({"amount": 5}))
            open_questions(loop, f"{edited}#3")
    with agents.loop() as loop:
        loop.start()
        if restarts:
            (again,) = open_questions(loop, f"{edited}#2")
            loop.approve("k", again.id, Edit({"amount": 5}))
        (shown,) = open_questions(loop, f"{edited}#3")
        loop.approve("k", shown.id, Approve())
        response = loop.result("k", timeout=PATIENCE)
    assert again.text.splitlines()[0].startswith("The edit of call 'call_2' does not fit 'pay': ")
    assert next(iter(misfit)) in again.text.splitlines()[0] and "\npay\n  amount: 4" in again.text
    assert response.text == "All done." and "\npay\n  amount: 5" in shown.text
    notice = 'A person changed the arguments of this call to {"amount": 5}. What follows is the result with these '
    results = {each.call_id: each.text for each in agents.child.requests[-1].messages if each.role == "tool"}
    assert results == {"call_1": "paid 3", "call_2": f"{notice}arguments.\n\npaid 5"}


def test_children_side_by_side_overlap_and_wait_and_none_is_run_again(tmp_path: Path) -> None:
    together, sessions = threading.Barrier(2), list[Session]()

    @tool(read_only=True)
    def meet() -> str:
        "Wait for the other."
        together.wait(PATIENCE)
        return "met"

    def model(request: ModelRequest) -> Any:
        results = sum(message.role == "tool" for message in request.messages)
        return [call("meet"), call("pay", call_id="p", amount=3), "The child is done."][results]

    def new_session(request: Question) -> Session:
        sessions.append(Session())
        return sessions[-1]

    children = ScriptedAdapter(model)
    below = delegate(template("inner", meet, pay), description="Work.", adapter=children, concurrent=True)
    parent = ScriptedAdapter([[call("inner", call_id="a"), call("inner", call_id="b")], "All done."])

    def loop() -> DurableMainLoop[Question, Any]:
        return DurableMainLoop(LOOP, prompt_with(below), parent, str(tmp_path / "durable.db"), new_session=new_session)

    with loop() as first:
        first.start()
        first.submit(Question("Work."), key="k")
        until(lambda: {each.call_id for each in first.questions("k")} == {"a/p", "b/p"}, "both questions")
        approve(first, "k", "b/p", Approve())
        until(lambda: {each.call_id for each in first.questions("k")} == {"a/p"}, "one question")
    with loop() as second:
        second.start()
        approve(second, "k", "a/p", Deny("Too much."))
        assert second.result("k", timeout=PATIENCE).text == "All done."
    assert (len(children.requests), len(parent.requests)) == (6, 2)
    assert [each.amount for each in sessions[-1][Paid].all()] == [3]
    results = [(each.call_id, each.text) for each in sessions[-1][Message].all() if each.role == "tool"]
    assert results == [("a", "The child is done."), ("b", "The child is done.")]
