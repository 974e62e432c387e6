"""Each hook with each outcome, however the prompt is run."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.durable.answers import approve
from tests.guarding.cases import ASKED, CASES, OUTSIDE, WORDS, Case, Paid, check, guard_for, prompt_for
from weakincentives import (
    Answer,
    Approve,
    Conversation,
    Deny,
    Edit,
    MarkdownSection,
    Prompt,
    ScriptedAdapter,
    Session,
    call,
    delegate,
    run,
    run_async,
)
from weakincentives.guards import (
    Ask,
    Guard,
    GuardContext,
    GuardDecided,
    GuardedCall,
    GuardRefusedError,
    Outcome,
    Replace,
    Stop,
)
from weakincentives.runtime import Completed, MainLoop, Message, PromptResponse, ToolInvoked

Way = Callable[[Prompt[Any], ScriptedAdapter, Session], PromptResponse[Any]]


def by_run(prompt: Prompt[Any], model: ScriptedAdapter, session: Session) -> PromptResponse[Any]:
    return run(prompt, model, session=session)


def by_run_async(prompt: Prompt[Any], model: ScriptedAdapter, session: Session) -> PromptResponse[Any]:
    return asyncio.run(run_async(prompt, model, session=session))


def by_stream(prompt: Prompt[Any], model: ScriptedAdapter, session: Session) -> PromptResponse[Any]:
    with MainLoop().stream(prompt, session=session, adapter=model) as events:
        *_, last = events
    assert isinstance(last, Completed)
    return last.response


def by_stream_async(prompt: Prompt[Any], model: ScriptedAdapter, session: Session) -> PromptResponse[Any]:
    async def work() -> PromptResponse[Any]:
        async with MainLoop().stream_async(prompt, session=session, adapter=model) as events:
            seen = [event async for event in events]
        assert isinstance(seen[-1], Completed)
        return seen[-1].response

    return asyncio.run(work())


def by_conversation(prompt: Prompt[Any], model: ScriptedAdapter, session: Session) -> PromptResponse[Any]:
    return Conversation(prompt, adapter=model, session=session).send(WORDS)


WAYS: tuple[Way, ...] = (by_run, by_run_async, by_stream, by_stream_async, by_conversation)


def scripted() -> ScriptedAdapter:
    return ScriptedAdapter([call("pay", amount=5), "Done.", "It is paid."])


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_guard_decides_however_the_prompt_is_run(case: Case, way: Way, is_async: bool) -> None:
    words = "" if way is by_conversation else WORDS
    prompt, session = prompt_for(guard_for(case, is_async=is_async), words=words), Session()
    check(case, session, lambda: way(prompt, scripted(), session))


@dataclass(frozen=True)
class Bill:
    text: str


ANSWERED = [case for case in CASES if not isinstance(case.outcome, Ask)]
DECIDED: list[tuple[Any, tuple[str, ...], str]] = [
    (Approve(), ("pay 5",), "paid 5"),
    (Deny("Too much."), (), "A person denied this call: Too much."),
    (Answer("Later."), (), "Later."),
    (Edit({"amount": 4}), ("pay 4",), "paid 4"),
]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("case", ANSWERED, ids=lambda case: case.id)
def test_a_guard_decides_in_the_durable_loop(case: Case, is_async: bool, tmp_path: Path) -> None:
    pytest.importorskip("dbos", reason="needs the extra [durable]: pip install 'weakincentives[durable]'")
    from weakincentives.durable import DurableMainLoop

    prompt, session = prompt_for(guard_for(case, is_async=is_async)), Session()
    loop = DurableMainLoop(
        "guards", lambda bill: prompt, scripted(), str(tmp_path / "durable.db"), new_session=lambda bill: session
    )
    with loop:
        check(case, session, lambda: loop.execute(Bill("5"), key="bill"))


@pytest.mark.parametrize(("decision", "outside", "result"), DECIDED, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("levels", [0, 1])
def test_a_person_whom_a_guard_asks_decides_in_the_durable_loop(
    decision: Any, outside: tuple[str, ...], result: str, levels: int, tmp_path: Path
) -> None:
    pytest.importorskip("dbos", reason="needs the extra [durable]: pip install 'weakincentives[durable]'")
    from tests.waiting import PATIENCE, until
    from weakincentives.durable import DurableMainLoop

    case = next(case for case in CASES if isinstance(case.outcome, Ask))
    OUTSIDE.clear()
    child = scripted()
    prompt = prompt_for(guard_for(case, is_async=False))
    model = child if not levels else ScriptedAdapter([call("child", call_id="c"), "All done."])
    prompt = prompt if not levels else parent_of(prompt.template, child)
    with DurableMainLoop("guards", lambda bill: prompt, model, str(tmp_path / "durable.db")) as loop:
        loop.start()
        loop.submit(Bill("5"), key="bill")
        until(lambda: loop.questions("bill"), "the question")
        (question,) = loop.questions("bill")
        assert (question.text, OUTSIDE) == (ASKED, [])
        loop.approve("bill", question.id, decision)
        assert loop.result("bill", timeout=PATIENCE).text == ("All done." if levels else "Done.")
    assert tuple(OUTSIDE) == outside
    (read,) = [message.text for message in child.requests[-1].messages if message.role == "tool"]
    assert read.rpartition("\n")[2] == result


def parent_of(child: Any, adapter: ScriptedAdapter, *guards: Guard) -> Prompt[Any]:
    below = delegate(child, name="child", description="Pay.", adapter=adapter)
    section = MarkdownSection(key="task", title="Task", template="Delegate.", tools=[below])
    return Prompt(ns="tests", key="parent", sections=[section], guards=guards)


def by_durable(prompt: Prompt[Any], model: ScriptedAdapter, session: Session) -> PromptResponse[Any]:
    pytest.importorskip("dbos", reason="needs the extra [durable]: pip install 'weakincentives[durable]'")
    from weakincentives.durable import DurableMainLoop

    with tempfile.TemporaryDirectory() as folder:
        loop = DurableMainLoop(
            "guards", lambda bill: prompt, model, f"{folder}/durable.db", new_session=lambda bill: session
        )
        with loop:
            return loop.execute(Bill("5"), key="bill")


HELD_BY_CHILD = [(case, "child") for case in CASES]
HELD_BY_PARENT = [(case, "parent") for case in CASES if case.hook in ("before_tool", "after_tool")]


@pytest.mark.parametrize("way", [*WAYS, by_durable], ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    ("case", "holder"),
    [*HELD_BY_CHILD, *HELD_BY_PARENT],
    ids=lambda each: each if isinstance(each, str) else each.id,
)
def test_a_guard_decides_about_a_child_however_its_parent_is_run(case: Case, holder: str, way: Way) -> None:
    asks, stops = isinstance(case.outcome, Ask), isinstance(case.outcome, Stop)
    if asks and way is by_durable:
        return  # Tested above: there, nobody gets a response before the person has decided.
    OUTSIDE.clear()
    session, child, guard = Session(), scripted(), guard_for(case, is_async=False)
    guard.tools = ("pay",)
    template = prompt_for(*([guard] if holder == "child" else [])).template
    parent = parent_of(template, child, *([guard] if holder == "parent" else []))
    model = ScriptedAdapter([call("child", call_id="c"), "All done."])
    try:
        response = way(parent, model, session)
    except GuardRefusedError as error:
        assert (stops, holder, error.message) == (True, "parent", case.text)
    else:
        assert not (stops and holder == "parent")
        asked = [("c/call_1", ASKED)] if asks else []
        assert [(each.call_id, each.text) for each in response.pending] == asked
        assert response.text == ("" if asks else "All done.")
        results = [message.text for message in session[Message].all() if message.role == "tool"]
        if case.error:
            (result,) = results
            assert result.startswith("'child' failed: Rule ") and result.endswith(case.text)
        else:
            assert results == ([] if asks else [case.text])
    assert tuple(OUTSIDE) == case.outside
    assert tuple(each.amount for each in session[Paid].all()) == case.paid
    invoked = [each.text for each in session[ToolInvoked].all() if each.name == "pay"]
    assert invoked == ([] if case.result is None else [case.result])
    expected = [] if case.outcome is None else [("Rule", case.hook, type(case.outcome).__name__.lower())]
    assert [(each.guard, each.hook, each.outcome) for each in session[GuardDecided].all()] == expected


def test_a_replay_asks_no_guard_again_and_a_call_that_runs_again_does(tmp_path: Path) -> None:
    pytest.importorskip("dbos", reason="needs the extra [durable]: pip install 'weakincentives[durable]'")
    from tests.durable.desk import Refund, model, refunding
    from tests.waiting import PATIENCE, until
    from weakincentives.durable import DurableMainLoop

    asked: list[str] = []

    class Looks(Guard):
        def before_run(self, words: str, *, context: GuardContext) -> Outcome:
            asked.append(f"run {words}")
            return Replace("Refund 5, please.")

        async def before_tool(self, call: GuardedCall, *, context: GuardContext) -> None:
            asked.append(f"call {call.params.amount}")

        async def before_answer(self, answer: str, *, context: GuardContext) -> Outcome:
            asked.append("answer")
            return Replace(f"{answer} Bye.")

    def prepare(refund: Refund) -> Prompt[Any]:
        sections = [
            MarkdownSection(key="desk", title="Desk", template="Refund.", tools=[refunding()]),
            MarkdownSection(key="words", title="Words", template="Refund!", role="user", heading=False),
        ]
        return Prompt(ns="tests", key="desk", sections=sections, guards=[Looks()])

    def desk() -> DurableMainLoop[Refund, Any]:
        return DurableMainLoop("desk", prepare, ScriptedAdapter(model), str(tmp_path / "durable.db"))

    with desk() as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        until(lambda: loop.status("r").status == "waiting", "the question")
        assert loop.drain(PATIENCE)
    with desk() as loop:
        loop.start()
        approve(loop, "r", "c1", by="Ann")
        assert loop.result("r").text.endswith("says Ann (desk/r:4:c1). Bye.")
        steps = ["begin", "before_run", "model", "refund", "refund", "model", "before_answer"]
        assert [step.name for step in loop.store.steps("desk/r")] == steps
    assert asked == ["run Refund!", "call 5", "call 5", "answer"]
