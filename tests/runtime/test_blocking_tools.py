"""Blocking tools of async runs are called in threads, which hold up neither each other nor the program."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import DeadlineExceededError
from weakincentives.limits import Deadline
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.bridge import MAX_THREADS
from weakincentives.session import Session

tenant: ContextVar[str] = ContextVar("tenant")


def asked(handler: Any) -> tuple[ScriptedAdapter, Prompt[None]]:
    work: Tool[None, None] = Tool(name="work", description="Work.", handler=handler)
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


def test_a_call_that_waits_for_a_thread_until_its_deadline_is_never_made() -> None:
    all_hang, go, made = threading.Barrier(MAX_THREADS + 1), threading.Event(), list[str]()

    def hang(params: None, *, context: ToolContext) -> ToolResult[None]:
        all_hang.wait(30)
        go.wait(30)
        return ToolResult("ok")

    def note(params: None, *, context: ToolContext) -> ToolResult[None]:
        made.append("made")
        return ToolResult("ok")

    async def main() -> None:
        hanging = [asked(hang) for _ in range(MAX_THREADS)]
        runs = [asyncio.ensure_future(one.evaluate_async(prompt, session=Session())) for one, prompt in hanging]
        await asyncio.to_thread(all_hang.wait, 30)
        adapter, prompt = asked(note)
        with pytest.raises(DeadlineExceededError):
            await adapter.evaluate_async(prompt, session=Session(), deadline=Deadline.after(0.5))
        go.set()
        await asyncio.gather(*runs)

    asyncio.run(main())
    assert made == []


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
    pid = os.fork()
    if pid == 0:
        os._exit(0 if answer() == "Done." else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
