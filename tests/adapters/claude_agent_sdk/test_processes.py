"""However a run ends, its processes are gone, and nobody waits for a CLI that waits for us."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")

import claude_agent_sdk as sdk

from tests.adapters.claude_agent_sdk.cli_runs import Words, adapter, keep, processes, prompt, section, tool
from tests.servers.claude_cli import HANG, CliServer, call, say
from tests.servers.turn import Call, Turn
from weakincentives.adapters.claude_agent_sdk import cli
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.clock import FakeClock
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt import OpenAndHalt, OpenOrRead, Tool, ToolContext, ToolResult
from weakincentives.runtime import Compacted, Compaction, Conversation, MainLoop, ToolStarted
from weakincentives.session import Session

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes are looked up in /proc")


def waiting_tool(clock: FakeClock, seconds: float) -> Tool[Words, None]:
    def wait(params: Words, *, context: ToolContext) -> ToolResult[None]:
        clock.advance(seconds)
        return ToolResult("It is late.")

    return tool("wait", wait)


def test_an_answered_run_leaves_no_process() -> None:
    with CliServer([say("ok")]) as api:
        adapter(api).evaluate(prompt(section("task")), session=Session())
        assert processes(api) == []


def test_a_deadline_in_mid_run_leaves_no_process() -> None:
    clock = FakeClock()
    with CliServer([call("wait", text="x"), HANG]) as api:
        task = section("task", tools=(waiting_tool(clock, 59.5),))
        with pytest.raises(DeadlineExceededError):
            adapter(api).evaluate(prompt(task), session=Session(), deadline=Deadline.after(60, clock))
        assert clock.monotonic() > 59
        assert processes(api) == []


def test_a_deadline_while_the_cli_runs_a_command_leaves_no_process() -> None:
    clock = FakeClock()
    with CliServer([call("wait", text="x"), call("Bash", command="sleep 60", description="wait")]) as api:
        run = adapter(api, allowed_cli_tools=("Bash",))
        task = section("task", tools=(waiting_tool(clock, 59.5),))
        with pytest.raises(DeadlineExceededError):
            run.evaluate(prompt(task), session=Session(), deadline=Deadline.after(60, clock))
        assert processes(api) == []


def test_a_budget_that_is_used_up_leaves_no_process() -> None:
    with CliServer([call("keep", text="one"), HANG]) as api:
        run = adapter(api)
        with pytest.raises(BudgetExceededError, match="max_turns=1"):
            run.evaluate(prompt(section("task", tools=(tool("keep"),))), session=Session(), budget=Budget(max_turns=1))
        assert processes(api) == []


@pytest.mark.limit(300)
def test_an_endless_loop_is_stopped_after_fifty_turns_and_leaves_no_process() -> None:
    with CliServer([call("keep", text="again")] * 60) as api:
        with pytest.raises(BudgetExceededError, match="max_turns=50, spent 50") as caught:
            adapter(api).evaluate(prompt(section("task", tools=(tool("keep"),))), session=Session())
        assert caught.value.usage.input_tokens > 0
        assert len(api.requests) <= 51
        assert processes(api) == []


def test_an_error_of_ours_in_mid_run_leaves_no_process() -> None:
    def answer_wrongly(params: Words, *, context: ToolContext) -> ToolResult[None]:
        return "not a result"  # type: ignore[return-value]

    with CliServer([call("break", text="one")]) as api:
        with pytest.raises(PromptEvaluationError, match="return a ToolResult"):
            adapter(api).evaluate(prompt(section("task", tools=(tool("break", answer_wrongly),))), session=Session())
        assert processes(api) == []


def test_a_stream_that_nobody_finishes_leaves_no_process() -> None:
    with CliServer([say("one two three")]) as api:
        stream = adapter(api).stream(prompt(section("task")), session=Session())
        next(stream)
        stream.close()
        assert processes(api) == []


def test_killing_our_process_kills_the_cli() -> None:
    program = (
        "import sys; from tests.adapters.claude_agent_sdk.cli_runs import *\n"
        "from weakincentives.session import Session\n"
        "class Api: url = sys.argv[1]\n"
        "adapter(Api).evaluate(prompt(section('task')), session=Session())"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with CliServer([HANG]) as api:
        with subprocess.Popen([sys.executable, "-c", program, api.url], env={"PYTHONPATH": path}) as ours:
            assert api.wait_for_requests(1)
            watched = [os.pidfd_open(pid) for pid in processes(api)]
            ours.send_signal(signal.SIGKILL)
        assert watched
        assert all(select.select([process], [], [], 60)[0] for process in watched)
        for process in watched:
            os.close(process)


@pytest.fixture
def closings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each CLI was closed: "cut" kills it, "disconnect" gives it time to end by itself."""
    steps: list[str] = []
    cut, disconnect = cli.Home.cut, sdk.ClaudeSDKClient.disconnect

    def noted_cut(home: Any) -> None:
        if home._lifeline >= 0:
            steps.append("cut")
        cut(home)

    async def noted_disconnect(client: Any) -> None:
        steps.append("disconnect")
        await disconnect(client)

    monkeypatch.setattr(cli.Home, "cut", noted_cut)
    monkeypatch.setattr(sdk.ClaudeSDKClient, "disconnect", noted_disconnect)
    return steps


KILLED, ENDED = ["cut", "disconnect"], ["disconnect", "cut"]
OPEN = call("open_sections", section_keys=["notes"], reason="needed")
NOTES = section("notes", summarized=True, tools=(tool("keep"),))


def restarts(api: CliServer) -> None:
    run = prompt(section("task"), NOTES, disclosure=OpenOrRead())
    assert MainLoop().execute(run, session=Session(), adapter=adapter(api)).text == "Done."


def halts(api: CliServer) -> None:
    run = prompt(section("task"), NOTES, disclosure=OpenAndHalt())
    assert adapter(api).evaluate(run, session=Session()).halt is not None


def waits_for_a_person(api: CliServer) -> None:
    pay = Tool[Words, None](name="keep", description="Keep.", handler=keep, approval="call")
    assert adapter(api).evaluate(prompt(section("task", tools=(pay,))), session=Session()).pending


def is_interrupted_in_a_tool(api: CliServer) -> None:
    def interrupt(params: Words, *, context: ToolContext) -> ToolResult[None]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapter(api).evaluate(prompt(section("task", tools=(tool("keep", interrupt),))), session=Session())


def is_closed_in_a_tool(api: CliServer) -> None:
    with adapter(api).stream(prompt(section("task", tools=(tool("keep"),))), session=Session()) as events:
        assert any(isinstance(event, ToolStarted) for event in events)


def is_cancelled_in_the_reply(api: CliServer) -> None:
    async def main() -> None:
        run = asyncio.ensure_future(adapter(api).evaluate_async(prompt(section("task")), session=Session()))
        await asyncio.to_thread(api.wait_for_requests, 1)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    asyncio.run(main())


def is_closed_by_another_thread(api: CliServer) -> None:
    events = adapter(api).stream(prompt(section("task")), session=Session())
    reader = threading.Thread(target=list, args=(events,))
    reader.start()
    assert api.wait_for_requests(1)
    events.close()
    reader.join(30)
    assert not reader.is_alive()


ENDINGS: list[tuple[Callable[[CliServer], None], list[Any], list[str]]] = [
    (restarts, [OPEN, say("Done.")], [*KILLED, *ENDED]),
    (halts, [OPEN], KILLED),
    (waits_for_a_person, [call("keep", text="x")], KILLED),
    (is_interrupted_in_a_tool, [call("keep", text="x")], KILLED),
    (is_closed_in_a_tool, [call("keep", text="x")], KILLED),
    (is_cancelled_in_the_reply, [HANG], KILLED),
    (is_closed_by_another_thread, [HANG], KILLED),
]


@pytest.mark.parametrize(("ending", "script", "steps"), ENDINGS, ids=[case[0].__name__ for case in ENDINGS])
def test_a_cli_in_the_middle_of_a_turn_is_killed_and_not_waited_for(
    ending: Callable[[CliServer], None], script: list[Any], steps: list[str], closings: list[str]
) -> None:
    with CliServer(script) as api:
        ending(api)
        assert (closings, processes(api)) == (steps, [])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_summary_by_another_cli_leaves_no_process(is_async: bool, closings: list[str]) -> None:
    with CliServer([say("They greeted.")]) as api:
        compaction = Compaction(window=200, at=0.1, keep=1, by=adapter(api))
        chat = Conversation(prompt(section("task")), adapter=ScriptedAdapter(["a " * 300, "b"]), compaction=compaction)
        chat.send("Hi.")
        if is_async:
            asyncio.run(chat.send_async("And?"))
        else:
            chat.send("And?")
        assert (len(chat.session[Compacted]), closings, processes(api)) == (1, ENDED, [])


def test_a_cli_that_dies_during_a_call_is_not_taken_for_one_that_ignores_new_tools() -> None:
    def kill(params: Words, *, context: ToolContext) -> ToolResult[None]:
        for process in processes(api):
            os.kill(process, signal.SIGKILL)
        return ToolResult("Killed.")

    calls = (Call("kill", {"text": "x"}), Call("read_section", {"section_key": "notes"}))
    with CliServer([Turn(calls=calls), say("ok")]) as api:
        run = adapter(api)
        # If its end is noticed before the next request, another CLI resumes.
        with suppress(PromptEvaluationError):
            run.evaluate(prompt(section("task", tools=(tool("kill", kill),)), NOTES), session=Session())
        assert (run.supports_dynamic_tools, processes(api)) == (True, [])
