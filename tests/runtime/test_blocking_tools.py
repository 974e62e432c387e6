"""Blocking tools of async runs are called in threads, which hold up neither each other nor the program."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from tests.waiting import until_async
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import DeadlineExceededError
from weakincentives.limits import Deadline
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from weakincentives.runtime import Channel, ModelReply, ModelRequest, ToolInvoked
from weakincentives.runtime.loop import bridge
from weakincentives.runtime.loop.bridge import MAX_THREADS
from weakincentives.session import Session

tenant: ContextVar[str] = ContextVar("tenant")


def asked(handler: Any, compensate: Any = None) -> tuple[ScriptedAdapter, Prompt[None]]:
    work: Tool[None, None] = Tool(name="work", description="Work.", handler=handler, compensate=compensate)
    task = MarkdownSection(title="Task", key="task", template="Go.", tools=[work])
    return ScriptedAdapter([call("work"), "Done."]), Prompt(ns="tests", key="threads", sections=[task])


def test_blocking_tools_of_several_runs_wait_for_each_other() -> None:
    together = threading.Barrier(8)

    def meet(params: None, *, context: ToolContext) -> ToolResult[None]:
        together.wait(10)
        return ToolResult(tenant.get())

    async def one(name: str) -> str:
        tenant.set(name)
        (adapter, prompt), session = asked(meet), Session()
        await adapter.evaluate_async(prompt, session=session)
        return session[ToolInvoked].all()[0].result.message

    async def main() -> list[str]:
        return await asyncio.gather(*(one(f"tenant {number}") for number in range(8)))

    assert asyncio.run(main()) == [f"tenant {number}" for number in range(8)]


async def hanging(go: threading.Event, compensate: Any = None) -> asyncio.Future[list[Any]]:
    """Runs that keep all threads busy until `go`."""
    all_hang = threading.Barrier(MAX_THREADS + 1)

    def hang(params: None, *, context: ToolContext) -> ToolResult[None]:
        all_hang.wait(30)
        go.wait(30)
        return ToolResult("ok")

    agents = [asked(hang, compensate) for _ in range(MAX_THREADS)]
    runs = asyncio.gather(*(adapter.evaluate_async(prompt, session=Session()) for adapter, prompt in agents))
    await asyncio.to_thread(all_hang.wait, 30)
    return runs


def test_a_call_that_is_given_up_while_it_waits_for_a_thread_is_neither_made_nor_compensated() -> None:
    go, made = threading.Event(), list[str]()

    def pay(params: None, *, context: ToolContext) -> ToolResult[None]:
        made.append("pay")
        return ToolResult("ok")

    async def main() -> None:
        runs = await hanging(go)
        adapter, prompt = asked(pay, lambda *arguments, **named: made.append("undo"))
        with pytest.raises(DeadlineExceededError):
            await adapter.evaluate_async(prompt, session=Session(), deadline=Deadline.after(0.5))
        go.set()
        await runs

    asyncio.run(main())
    assert made == []


def test_a_compensation_that_waits_for_a_thread_is_made_although_the_run_is_cancelled() -> None:
    go, failed, made = threading.Event(), asyncio.Event(), list[str]()

    async def pay(params: None, *, context: ToolContext) -> ToolResult[None]:
        made.append("pay")
        failed.set()
        return ToolResult("no", success=False)

    async def main() -> None:
        runs = await hanging(go)
        adapter, prompt = asked(pay, lambda *arguments, **named: made.append("undo"))
        run = asyncio.ensure_future(adapter.evaluate_async(prompt, session=Session()))
        await failed.wait()
        await asyncio.sleep(0)
        run.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await run
        await runs

    asyncio.run(main())
    assert made == ["pay", "undo"]


@pytest.mark.parametrize("compensated", [False, True])
def test_calls_that_are_given_up_give_their_threads_back(compensated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "CLEANUP_SECONDS", 0.2)
    go, undone = threading.Event(), list[str]()

    def undo(params: None, *, context: ToolContext) -> None:
        undone.append("undo")

    async def main() -> str:
        runs = await hanging(go, undo if compensated else None)
        waiting_adapter, waiting_prompt = asked(lambda params, *, context: ToolResult("ok"))
        waiting = asyncio.ensure_future(waiting_adapter.evaluate_async(waiting_prompt, session=Session()))
        await asyncio.sleep(0)
        runs.cancel()
        with pytest.raises(asyncio.CancelledError):
            await runs
        assert (await waiting).text == "Done."
        # As often as all threads hang, and beyond.
        for _ in range(2):
            again = await hanging(go)
            again.cancel()
            with pytest.raises(asyncio.CancelledError):
                await again
        adapter, prompt = asked(lambda params, *, context: ToolResult("ok"))
        return (await adapter.evaluate_async(prompt, session=Session())).text

    try:
        assert asyncio.run(asyncio.wait_for(main(), 30)) == "Done."
    finally:
        go.set()
    assert undone == ["undo"] * (MAX_THREADS if compensated else 0)


class Own(Channel):
    """A channel of a user's own, which only knows how to block."""

    def call(self, request: ModelRequest) -> ModelReply:
        return ModelReply("Done.") if request.messages[-1].role == "tool" else ModelReply(tool_calls=(call("work"),))


class OwnAdapter(ScriptedAdapter):
    def channel(self) -> Channel:
        return Own()


def test_a_run_does_not_wait_for_asyncios_own_threads() -> None:
    go, started, made = threading.Event(), threading.Event(), list[str]()

    def pay(params: None, *, context: ToolContext) -> ToolResult[None]:
        started.set()
        go.wait(0.2)
        made.append("pay")
        return ToolResult("ok")

    def undo(params: None, *, context: ToolContext) -> None:
        made.append("undo")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, go.wait, 30)
        try:
            run = asyncio.ensure_future(OwnAdapter([]).evaluate_async(asked(pay, undo)[1], session=Session()))
            async with asyncio.timeout(10):
                await until_async(lambda: started.is_set())
            run.cancel()
            await asyncio.wait([run], timeout=10)
            assert (run.cancelled(), made) == (True, ["pay", "undo"])
        finally:
            go.set()
            await busy

    asyncio.run(main())


HANGS = """
import asyncio, threading
from tests.runtime.test_blocking_tools import asked
from weakincentives import Deadline, Session
from weakincentives.errors import DeadlineExceededError

adapter, prompt = asked(lambda params, *, context: threading.Event().wait())
try:
    asyncio.run(adapter.evaluate_async(prompt, session=Session(), deadline=Deadline.after(0.5)))
except DeadlineExceededError:
    print("late")
"""


def test_a_tool_that_never_returns_does_not_keep_the_program_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "late\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_threads_of_its_own() -> None:
    def answer() -> str:
        adapter, prompt = asked(lambda params, *, context: ToolResult("ok"))
        return asyncio.run(adapter.evaluate_async(prompt, session=Session())).text or ""

    assert answer() == "Done."
    with warnings.catch_warnings():
        # From Python 3.12 on, forking beside threads warns, and that is what this test does on purpose.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os._exit(0 if answer() == "Done." else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
