"""Each hook with each outcome, however the prompt is run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.guarding.cases import CASES, WORDS, Case, check, guard_for, prompt_for
from weakincentives import Conversation, MarkdownSection, Prompt, ScriptedAdapter, Session, call, run, run_async
from weakincentives.guards import Ask, Guard, GuardContext, GuardedCall, Outcome, Replace
from weakincentives.runtime import Completed, MainLoop, PromptResponse

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


def test_a_replay_asks_no_guard_again_and_a_call_that_runs_again_does(tmp_path: Path) -> None:
    pytest.importorskip("dbos", reason="needs the extra [durable]: pip install 'weakincentives[durable]'")
    from tests.durable.desk import Refund, model, refunding
    from tests.durable.fleet import PATIENCE, until
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
        loop.approve("r", "c1", by="Ann")
        assert loop.result("r").text.endswith("says Ann (desk/r:4:c1). Bye.")
        steps = ["begin", "before_run", "model", "refund", "refund", "model", "before_answer"]
        assert [step.name for step in loop.store.steps("desk/r")] == steps
    assert asked == ["run Refund!", "call 5", "call 5", "answer"]
