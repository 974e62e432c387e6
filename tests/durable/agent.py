"""The agent of the durable tests: five model calls, four tool calls, and a folder to watch and stop it.

`python -m tests.durable.agent KEY` runs one request in this process. Every call is appended to the file `calls`; the
file `kill` names the call in which the process kills itself with SIGKILL, the file `hold` one that waits until the
file is gone.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import until
from weakincentives import (
    Binding,
    FallbackAdapter,
    MarkdownSection,
    Prompt,
    PromptEvaluationError,
    PromptTemplate,
    ResourceRegistry,
    ScriptedAdapter,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.adapters.scripted import call
from weakincentives.durable import DurableMainLoop
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.runtime import ModelRequest, ProviderAdapter, ToolCall
from weakincentives.session import reducer

CONTROL = Path(os.environ.get("WINK_TEST_CONTROL", "."))
LATENCY = float(os.environ.get("WINK_TEST_LATENCY", "0"))
ATTEMPTS = int(os.environ.get("WINK_TEST_ATTEMPTS", "5"))
LEASE = float(os.environ.get("WINK_TEST_LEASE", "5"))


@dataclass(frozen=True, slots=True)
class Task:
    name: str


@dataclass(frozen=True, slots=True)
class Line:
    text: str


@dataclass(frozen=True, slots=True)
class Added:
    amount: int


@dataclass(frozen=True, slots=True)
class Total:
    value: int = 0

    @reducer(on=Added)
    def add(self, event: Added) -> "Total":
        return Total(self.value + event.amount)


def note(what: str) -> None:
    """Append to the log of calls, in one write, and die or wait here if told to."""
    with open(CONTROL / "calls", "ab", buffering=0) as log:
        log.write(f"{os.getpid()} {what}\n".encode())
    time.sleep(LATENCY)
    with suppress(FileNotFoundError):
        if what.endswith((CONTROL / "kill").read_text()):
            (CONTROL / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    with suppress(FileNotFoundError):
        until(lambda: not what.endswith((CONTROL / "hold").read_text()), "the file `hold` to be deleted")


def append_line(params: Line, *, context: ToolContext) -> ToolResult[int]:
    """Change the session and a file, and return the state of both."""
    filesystem = context.filesystem
    assert filesystem is not None
    context.session.dispatch(Added(1))
    filesystem.write("log.txt", params.text, mode="append" if filesystem.exists("log.txt") else "create")
    note(f"{context.session.session_id} tool {params.text}")
    return ToolResult(f"{context.session[Total].latest()} {filesystem.read('log.txt')}")


def model(request: ModelRequest) -> ToolCall | str:
    """Open the section that holds the tool, append a, b and c with it, then repeat the tool's last result."""
    answers = [message for message in request.messages if message.role == "tool"]
    name = request.messages[0].text.rpartition(" ")[2].strip()
    note(f"agent/{name} model {len(answers)}")
    if not answers:
        return call("read_section", call_id="open", section_key="paper")
    if len(answers) < 4:
        return call("append_line", call_id=f"call-{len(answers)}", text="abc"[len(answers) - 1])
    return f"{answers[-1].text} for {name}"


PAPER = MarkdownSection(
    title="Paper",
    key="paper",
    template="Write.",
    summary="Paper to write on.",
    visibility=SectionVisibility.SUMMARY,
    tools=[Tool[Line, int](name="append_line", description="Append a line.", handler=append_line)],
)


def prepare(task: Task) -> Prompt[None]:
    task_section = MarkdownSection(title="Task", key="task", template=f"Work on {task.name}")
    note(f"agent/{task.name} prepare")
    template = PromptTemplate[None](ns="tests", key="agent", sections=[PAPER, task_section])
    files = ResourceRegistry.of(Binding(Filesystem, lambda _: InMemoryFilesystem()))
    return Prompt(template).bind(resources=files)


def failing(request: ModelRequest) -> ToolCall | str:
    """A provider that answers twice and is down from then on."""
    answers = sum(message.role == "tool" for message in request.messages)
    if answers < 2:
        return model(request)
    note(f"agent/{request.messages[0].text.rpartition(' ')[2].strip()} down {answers}")
    raise PromptEvaluationError("down", prompt_name="agent", phase="request")


adapter: ProviderAdapter = ScriptedAdapter(model)
if os.environ.get("WINK_TEST_FALLBACK"):
    adapter = FallbackAdapter(ScriptedAdapter(failing), adapter)
loop = DurableMainLoop("agent", prepare, adapter, max_attempts=ATTEMPTS, lease_seconds=LEASE)

if __name__ == "__main__":
    with loop:
        print(loop.execute(Task(sys.argv[1]), key=sys.argv[1]).text)
