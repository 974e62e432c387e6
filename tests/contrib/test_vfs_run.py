"""The file tools in a whole run, with the scripted model."""

import threading
import time

import pytest

from tests.disclosure.desk import answers
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.errors import DeadlineExceededError, PromptValidationError
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.limits import Deadline
from weakincentives.prompt import Prompt, PromptTemplate, ToolResult, tool
from weakincentives.runtime import ToolInvoked
from weakincentives.session import Session


@pytest.fixture(params=["memory", "host"])
def fs(request, tmp_path):
    return InMemoryFilesystem() if request.param == "memory" else HostFilesystem(tmp_path)


@tool
def spoil(context) -> ToolResult[None]:
    """Changes files and then fails."""
    context.filesystem.delete("notes", recursive=True)
    context.filesystem.write("rubbish/deep", "x")
    return ToolResult("It went wrong.", success=False)


def run(fs, *script):
    session = Session()
    template = PromptTemplate(ns="tests", key="vfs", sections=[VfsToolsSection(fs, tools=[spoil])])
    with ScriptedAdapter([*script, "Done."]) as adapter:
        adapter.evaluate(Prompt(template), session=session)
    # Read-only calls run side by side and end in any order.
    events = sorted(session[ToolInvoked].all(), key=lambda event: int(event.call_id.removeprefix("call_")))
    return [event.result for event in events]


def test_a_search_ends_with_the_deadline_of_its_run():
    files = InMemoryFilesystem({"a.txt": "a" * 40 + "b"})
    search = Prompt(PromptTemplate(ns="tests", key="search", sections=[VfsToolsSection(files)]))
    adapter = ScriptedAdapter([call("grep", pattern="a+"), "Found.", call("grep", pattern="(a+)+$")])
    adapter.evaluate(search, session=Session())
    started = time.monotonic()
    with pytest.raises(DeadlineExceededError, match="while tool 'grep' was running"):
        adapter.evaluate(search, session=Session(), deadline=Deadline.after(1))
    assert time.monotonic() - started < 4.5


class Stuck(InMemoryFilesystem):
    """Files on a disk that no longer answers."""

    def __init__(self) -> None:
        super().__init__({"a.txt": "a"})
        self.go = threading.Event()

    def read(self, path, *, offset=0, limit=None):
        self.go.wait(60)
        return super().read(path, offset=offset, limit=limit)


@pytest.mark.parametrize("timeout", [0.3, {"read": 0.3}])
def test_a_file_tool_that_takes_too_long_fails_and_the_run_continues(timeout):
    files, session = Stuck(), Session()
    section = VfsToolsSection(files, timeout=timeout)
    adapter = ScriptedAdapter([call("read", path="a.txt"), call("ls"), "Done."])
    try:
        adapter.evaluate(Prompt(ns="tests", key="stuck", sections=[section]), session=session)
    finally:
        files.go.set()
    assert answers(session) == [(False, "Tool 'read' did not end within 0.3 s."), (True, "a.txt (1 bytes)")]


@pytest.mark.parametrize(
    ("timeout", "read_only", "problem"),
    [
        (0, False, "timeout must be a number of seconds above 0, or None for no limit, got 0."),
        ({"read": True}, False, "timeout of tool 'read' must be a number of seconds above 0, or None for no limit, "),
        ({"reed": 1}, False, "timeout= names 'reed', which is none of its tools: ls, read, glob, grep, write, edit"),
        ({"write": 1}, True, "timeout= names 'write', which is none of its tools: ls, read, glob, grep."),
    ],
)
def test_timeouts_that_make_no_sense_are_refused_when_they_are_declared(timeout, read_only, problem):
    with pytest.raises(PromptValidationError, match=f"VfsToolsSection 'vfs': {problem}"):
        VfsToolsSection(timeout=timeout, read_only=read_only)


def test_a_model_writes_edits_and_reads_files(fs):
    results = run(
        fs,
        call("write", path="notes/a.md", content="# Title\n"),
        call("edit", path="notes/a.md", old="Title", new="Heading"),
        [call("read", path="notes/a.md"), call("ls"), call("grep", pattern="Heading")],
    )
    assert [result.success for result in results] == [True] * 5
    assert results[2].render() == "# Heading\n"
    assert fs.read("notes/a.md") == "# Heading\n"


def test_a_failing_tool_leaves_the_files_as_they_were(fs):
    results = run(fs, call("write", path="notes/a.md", content="kept"), call("spoil"))
    assert [result.success for result in results] == [True, False]
    assert fs.glob("**") == ("notes/a.md",)
    assert not fs.exists("rubbish")
