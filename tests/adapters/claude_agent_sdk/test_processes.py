"""However a run ends, its processes are gone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")

from tests.adapters.claude_agent_sdk.cli_runs import Words, adapter, processes, prompt, section, tool
from tests.servers.claude_cli import HANG, CliServer, call, say
from weakincentives.clock import FakeClock
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt import Tool, ToolContext, ToolResult
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
