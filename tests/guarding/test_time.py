"""The time of guards and approval rules: it begins with the call, and nobody waits longer for one that does not end."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from tests.guarding.cases import OUTSIDE, Paid, pay, prompt_for
from tests.waiting import forever
from weakincentives import (
    Deadline,
    DeadlineExceededError,
    MarkdownSection,
    Prompt,
    ScriptedAdapter,
    Session,
    call,
    run,
    run_async,
    tool,
)
from weakincentives.guards import Guard, GuardDecided, GuardRefusedError
from weakincentives.runtime import Message
from weakincentives.runtime.loop.bridge import MAX_GUARD_THREADS

HOOKS = ("before_run", "before_tool", "after_tool", "before_answer")
SCRIPT: list[Any] = [call("pay", amount=5), "Done.", "Done."]


async def returns_late(self: Guard, *given: Any, context: Any) -> None:
    try:
        await forever()
    except asyncio.CancelledError:
        return


async def goes_on(self: Guard, *given: Any, context: Any) -> None:
    while True:
        try:
            await forever()
        except asyncio.CancelledError:
            continue


async def blocks_the_loop(self: Guard, *given: Any, context: Any) -> None:
    threading.Event().wait(0.1)


def refused_by(guard: Guard, *, driver: str, **options: Any) -> Session:
    """The session of a run in which the guard refused, whatever its hook."""
    OUTSIDE.clear()
    session = Session()
    model = ScriptedAdapter(SCRIPT, tool_errors="tell")
    prompt = prompt_for(guard)
    try:
        if driver == "run_async":
            asyncio.run(run_async(prompt, model, session=session, **options))
        else:
            run(prompt, model, session=session, **options)
    except (GuardRefusedError, DeadlineExceededError):
        pass
    return session


@pytest.mark.parametrize("driver", ["run", "run_async"])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("behaviour", [returns_late, goes_on, blocks_the_loop])
def test_an_async_guard_that_is_late_has_refused_whatever_it_does_then(
    behaviour: Any, hook: str, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    guard: Guard = type("Late", (Guard,), {hook: behaviour, "timeout": 0.05})()
    with caplog.at_level(logging.CRITICAL, "weakincentives"):
        session = refused_by(guard, driver=driver)
    (decided,) = session[GuardDecided].all()
    assert (decided.outcome, decided.message) == ("refuse", "Guard 'Late' did not decide within 0.05 s.")
    assert session[Paid].all() == ((Paid(5),) if hook == "before_answer" else ())
    assert not any(message.text == "Done." for message in session[Message].all() if hook == "before_answer")


@pytest.mark.parametrize("driver", ["run", "run_async"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_guard_that_never_ends_keeps_no_run_beyond_its_deadline(hook: str, driver: str) -> None:
    guard: Guard = type("Endless", (Guard,), {hook: goes_on})()
    session = refused_by(guard, driver=driver, deadline=Deadline.after(0.1))
    assert session[Paid].all() == ((Paid(5),) if hook == "before_answer" else ())


def test_what_an_async_guard_writes_after_its_time_is_refused() -> None:
    errors: list[str] = []

    class Late(Guard):
        timeout = 0.05

        async def before_tool(self, call: Any, *, context: Any) -> None:
            try:
                await forever()
            except asyncio.CancelledError:
                try:
                    context.session.dispatch(Paid(1))
                except Exception as error:
                    errors.append(type(error).__name__)

    session = refused_by(Late(), driver="run_async")
    assert (session[Paid].all(), errors) == ((), ["AbandonedCallError"])


class Waits(Guard):
    """Keeps a thread until it is released; it has the threads that it has kept."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.released = threading.Event()
        self.all_begun = threading.Barrier(MAX_GUARD_THREADS + 1)
        self.threads: list[threading.Thread] = []

    def before_tool(self, call: Any, *, context: Any) -> None:
        self.threads.append(threading.current_thread())
        self.all_begun.wait(30)
        self.released.wait(30)


class Quick(Guard):
    timeout = 0.05

    def before_tool(self, call: Any, *, context: Any) -> None: ...


def many_runs(guard: Guard) -> list[asyncio.Task[Any]]:
    return [
        asyncio.create_task(run_async(prompt_for(guard), ScriptedAdapter(SCRIPT))) for _ in range(MAX_GUARD_THREADS)
    ]


def result_of(session: Session) -> str:
    (text,) = [message.text for message in session[Message].all() if message.role == "tool"]
    return text


def test_a_guard_that_waits_for_a_thread_loses_none_of_its_time() -> None:
    async def work() -> None:
        busy = Waits(timeout=30)
        running = many_runs(busy)
        await asyncio.to_thread(busy.all_begun.wait, 30)
        session = Session()
        queued = asyncio.create_task(run_async(prompt_for(Quick()), ScriptedAdapter(SCRIPT), session=session))
        assert await asyncio.wait((queued,), timeout=3 * Quick.timeout) == (set(), {queued})
        busy.released.set()
        await asyncio.gather(queued, *running)
        assert result_of(session) == "paid 5"

    asyncio.run(work())


def test_guards_that_hang_take_a_limited_number_of_threads_and_then_others_refuse(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> tuple[str, str]:
        hung = Waits(timeout=0.05)
        hung.all_begun = threading.Barrier(1)
        await asyncio.gather(*many_runs(hung))
        assert len(hung.threads) == MAX_GUARD_THREADS
        sessions = Session(), Session()
        await run_async(prompt_for(Quick()), ScriptedAdapter(SCRIPT), session=sessions[0])
        hung.released.set()
        for thread in hung.threads:
            thread.join(30)
        await run_async(prompt_for(Quick()), ScriptedAdapter(SCRIPT), session=sessions[1])
        return result_of(sessions[0]), result_of(sessions[1])

    with caplog.at_level(logging.CRITICAL, "weakincentives"):
        while_hung, afterwards = asyncio.run(work())
    assert "Guard 'Quick' failed: ThreadsExhausted: every thread is taken" in while_hung
    assert afterwards == "paid 5"


def ruled_prompt(rule: Any) -> Prompt[Any]:
    OUTSIDE.clear()

    @tool(approval=rule)
    def wire(amount: int) -> str:
        "Wire an amount."
        OUTSIDE.append(f"wire {amount}")
        return "wired"

    section = MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=[pay, wire])
    return Prompt(ns="tests", key="ruled", sections=[section])


@pytest.mark.parametrize("driver", ["run", "run_async"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync rule", "async rule"])
def test_an_approval_rule_that_does_not_end_lets_nothing_happen(is_async: bool, driver: str) -> None:
    released = threading.Event()

    def waits(params: Any) -> None:
        released.wait(30)

    async def waits_on_the_loop(params: Any) -> None:
        await forever()

    prompt = ruled_prompt(waits_on_the_loop if is_async else waits)
    model = ScriptedAdapter([call("wire", amount=5), "Done."], tool_errors="tell")
    deadline = Deadline.after(0.1)
    with pytest.raises(DeadlineExceededError):
        if driver == "run":
            run(prompt, model, deadline=deadline)
        else:
            asyncio.run(run_async(prompt, model, deadline=deadline))
    released.set()
    assert OUTSIDE == []


def test_an_approval_rule_does_not_keep_the_event_loop() -> None:
    async def work() -> None:
        released = threading.Event()
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def rule(params: Any) -> str | None:
            loop.call_soon_threadsafe(begun.set)
            return "call" if released.wait(5) else None

        running = asyncio.create_task(run_async(ruled_prompt(rule), ScriptedAdapter([call("wire", amount=5)])))
        await begun.wait()
        released.set()
        assert [pending.tool for pending in (await running).pending] == ["wire"]

    asyncio.run(work())
