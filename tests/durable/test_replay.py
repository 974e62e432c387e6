"""Replaying recorded steps restores everything: session, visibility, files, tools, times."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.durable.agent import PAPER, Added, Task, Total
from weakincentives import (
    Binding,
    MarkdownSection,
    Prompt,
    PromptEvaluationError,
    PromptTemplate,
    ResourceRegistry,
    ScriptedAdapter,
    Session,
    Snapshot,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.adapters.scripted import call
from weakincentives.durable import DurableMainLoop
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import OpenOrRead, ReadSections, SearchSections, VisibilityOverrides
from weakincentives.runtime import ModelRequest, ToolCall, ToolInvoked
from weakincentives.session import observing


def fail_after_writing(params: None, *, context: ToolContext) -> ToolResult[None]:
    """A transaction that is rolled back."""
    context.session.dispatch(Added(100))
    assert context.filesystem is not None
    context.filesystem.write("wrong.txt", "x")
    return ToolResult("No.", success=False)


@dataclass(frozen=True, slots=True)
class Thought:
    messages: int


FAILING = Tool[None, None](name="fail", description="Fail.", handler=fail_after_writing)
SCRIPT = [
    call("append_line", call_id="1", text="a"),
    call("fail", call_id="2"),
    call("append_line", call_id="3", text="b"),
]
OPENING: dict[str, tuple[Any, ToolCall | list[ToolCall]]] = {
    "injected": (ReadSections(), call("read_section", call_id="0", section_key="paper")),
    "searched": (
        SearchSections(menu="none"),
        [
            call("search_sections", call_id="s", query="paper"),
            call("read_section", call_id="0", section_key="paper"),
        ],
    ),
    "restarted": (OpenOrRead(), call("open_sections", call_id="0", section_keys=["paper"], reason="to write")),
}


@pytest.fixture(params=OPENING)
def twice(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The session, the request and the files at the last model call: of the live run, and of its replay."""
    monkeypatch.setattr("tests.durable.agent.CONTROL", tmp_path)
    disclosure, opening = OPENING[request.param]
    lines = iter([opening, *SCRIPT])
    sessions: list[Session] = []
    filesystems: list[Filesystem] = []
    heard: list[str] = []
    seen: list[Any] = []

    def new_filesystem(_: object) -> Filesystem:
        filesystems.append(InMemoryFilesystem())
        return filesystems[-1]

    def prepare(task: Task) -> Prompt[None]:
        section = MarkdownSection(title="Task", key="task", template=task.name, tools=[FAILING])
        template = PromptTemplate[None](ns="t", key="k", sections=[section, PAPER], disclosure=disclosure)
        return Prompt(template).bind(resources=ResourceRegistry.of(Binding(Filesystem, new_filesystem)))

    def model(request: ModelRequest) -> Any:
        if line := next(lines, None):
            # As an adapter does whose vendor runs tools itself.
            sessions[-1].dispatch(Thought(len(request.messages)))
            return line
        offered = [tool.name for tool in request.tools]
        files = [entry.path for entry in filesystems[-1].list()]
        seen.append((sessions[-1].snapshot(), list(request.messages), offered, files, filesystems[-1].read("log.txt")))
        if len(seen) == 1:
            raise PromptEvaluationError("overloaded", prompt_name="k", phase="request")
        return "done"

    def new_session(task: Task) -> Session:
        sessions.append(Session())
        return sessions[-1]

    def hear(session: Session, event: Any) -> None:
        heard.append(type(event).__name__)

    database = str(tmp_path / "durable.db")
    loop = DurableMainLoop("replay", prepare, ScriptedAdapter(model), database, new_session=new_session)
    with loop, observing(hear):
        with pytest.raises(PromptEvaluationError):
            loop.execute(Task("t"), key="a")
        ran = len(heard)
        loop.retry("a")
        assert loop.result("a").text == "done"
    assert len(sessions) == len(filesystems) == 2
    assert heard[ran:] == ["ModelCalled", "Message", "RunEnded"]
    return seen


def test_the_replayed_session_is_the_one_that_ran(twice: list[Any]) -> None:
    ran, replayed = twice
    assert replayed == ran
    snapshot: Snapshot = replayed[0]
    assert snapshot[Total] == (Total(2),)
    assert snapshot[Added] == (Added(1), Added(1))
    assert snapshot[VisibilityOverrides] != ()
    assert len(snapshot[Thought]) == 4
    assert [event.rolled_back for event in snapshot[ToolInvoked] if event.name == "fail"] == [True]


def test_the_replayed_files_are_those_that_were_written(twice: list[Any]) -> None:
    assert [seen[3:] for seen in twice] == [(["log.txt"], "ab"), (["log.txt"], "ab")]
