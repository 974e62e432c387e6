"""The file tools in a whole run, with the scripted model."""

import time

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.errors import DeadlineExceededError
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
