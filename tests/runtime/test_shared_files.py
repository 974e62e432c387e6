"""Runs that share files at the same time: a failed call undoes its own changes, never those of another run."""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    ToolContext,
    WorkspaceSection,
    tool,
)
from weakincentives.runtime import Conversation
from weakincentives.session import Session


@dataclass(frozen=True)
class Customer:
    name: str


@pytest.fixture(params=["memory", "host", "two hosts", "tracking"])
def shared(request: Any, tmp_path: Any) -> tuple[Filesystem, Filesystem]:
    """The files of two runs: one filesystem, or two with the same root."""
    if request.param == "memory":
        return (InMemoryFilesystem(),) * 2
    files = HostFilesystem(tmp_path, track_external=request.param == "tracking")
    return files, HostFilesystem(tmp_path) if request.param == "two hosts" else files


def prompt(tool: Any, files: Filesystem) -> Prompt[None]:
    task = MarkdownSection(title="Task", key="task", template="Go.", tools=[tool])
    return Prompt(PromptTemplate(ns="tests", key="shared", sections=[task, WorkspaceSection(files)]))


def evaluate(tool: Any, files: Filesystem, **arguments: Any) -> None:
    adapter = ScriptedAdapter([call(tool.name, **arguments), "done"])
    adapter.evaluate(prompt(tool, files), session=Session())


def test_context_files_of_two_runs_stay_apart_in_a_workspace_of_their_own() -> None:
    account = MarkdownSection[Customer](
        key="account", title="A", template="${name}'s.", summary="?", visibility=SectionVisibility.SUMMARY
    )
    sections = [account, VfsToolsSection()]
    template: PromptTemplate[None] = PromptTemplate(ns="t", key="k", sections=sections, disclosure=OpenToFiles())
    opening = call("open_sections", section_keys=["account"], reason="r")
    read = call("read", path="context/account.md")
    ann, bob = (
        Conversation(Prompt(template).bind(Customer(name)), adapter=ScriptedAdapter([opening, "1", read, "2"]))
        for name in ("Ann", "Bob")
    )
    with ann, bob:
        for chat in (ann, bob, ann):
            chat.send("Go on.")
    assert ann.messages[-2].text == "## A\n\nAnn's."


class Stage:
    """Two runs that take turns: `play("a write x 1", "b write x 2", "a fail")`."""

    def __init__(self, shared: tuple[Filesystem, Filesystem]) -> None:
        self.files = dict(zip("ab", shared, strict=True))
        self.lines: list[str] = []

    def play(self, *lines: str) -> dict[str, str]:
        """Each run acts out its lines in one tool call; returns the files afterwards."""
        self.lines = [*lines]
        asyncio.run(self._play())
        files = self.files["a"]
        return {path: files.read(path) for path in files.glob("**")}

    async def _play(self) -> None:
        await asyncio.gather(*(self._run(actor) for actor in self.files))

    async def _run(self, actor: str) -> None:
        @tool
        async def act(*, context: ToolContext) -> str:
            """Act."""
            while any(line.startswith(actor) for line in self.lines):
                if self.lines[0].startswith(actor):
                    self.do(context.filesystem, *self.lines.pop(0).split()[1:])
                await asyncio.sleep(0)
            return "done"

        adapter = ScriptedAdapter([call("act"), "done"])
        await adapter.evaluate_async(prompt(act, self.files[actor]), session=Session())

    def do(self, files: Filesystem | None, what: str, path: str = "", content: str = "") -> None:
        assert files is not None
        if what == "fail":
            raise ValueError("failed")
        if what == "write":
            files.write(path, content)
        else:
            files.delete(path, recursive=True)


def test_a_failed_call_leaves_alone_what_another_run_wrote(shared):
    assert Stage(shared).play("a write mine 1", "b write report 2", "a fail") == {"report": "2"}


def test_the_later_write_of_another_run_wins_over_a_rollback(shared):
    assert Stage(shared).play("a write x 1", "b write x 2", "a fail") == {"x": "2"}


def test_a_rollback_brings_back_what_another_run_wrote_in_between(shared):
    assert Stage(shared).play("a write x 1", "b write x 2", "a write x 3", "a fail") == {"x": "2"}


def test_two_rollbacks_bring_back_nothing_that_was_undone(shared):
    shared[0].write("x", "0")

    assert Stage(shared).play("a write x 1", "b write x 2", "a fail", "b fail") == {"x": "0"}


def test_a_directory_that_holds_files_of_another_run_stays(shared):
    assert Stage(shared).play("a write d/x 1", "b write d/y 2", "a fail") == {"d/y": "2"}


def test_deleted_files_come_back_beside_those_of_another_run(shared):
    shared[0].write("d/x", "0")

    assert Stage(shared).play("a delete d", "b write d/y 2", "a fail") == {"d/x": "0", "d/y": "2"}


def test_a_write_outside_of_any_call_survives_a_rollback(shared):
    @tool
    def act(*, context: ToolContext) -> str:
        """Act."""
        assert context.filesystem is not None
        context.filesystem.write("x", "1")
        contextvars.Context().run(shared[1].write, "upload", "2")
        raise ValueError("failed")

    evaluate(act, shared[0])

    assert shared[0].glob("**") == ("upload",)


def test_a_failed_tool_undoes_what_the_run_inside_it_did(shared):
    @tool
    def write(path: str, *, context: ToolContext) -> str:
        """Write."""
        assert context.filesystem is not None
        context.filesystem.write(path, "new")
        return "written"

    @tool
    def delegate(*, context: ToolContext) -> str:
        """Delegate."""
        evaluate(write, shared[0], path="x")
        raise ValueError("failed")

    evaluate(delegate, shared[0])

    assert shared[0].glob("**") == ()


def test_a_snapshot_taken_by_a_tool_restores_everything_and_the_call_can_still_be_undone(shared):
    @tool
    def act(*, context: ToolContext) -> str:
        """Act."""
        files: Any = context.filesystem
        files.write("x", "1")
        before = files.snapshot()
        files.write("d/y", "2")
        files.delete("x")
        files.restore(before)
        seen.append(files.glob("**"))
        raise ValueError("failed")

    seen: list[tuple[str, ...]] = []
    shared[0].write("x", "0")
    evaluate(act, shared[0])

    assert (seen, shared[0].glob("**"), shared[0].read("x")) == ([("x",)], ("x",), "0")


def test_a_users_snapshot_restores_what_rollbacks_changed_since(shared):
    shared[0].write("x", "0")
    before = shared[0].snapshot()  # type: ignore[attr-defined]
    Stage(shared).play("a write x 1", "b write y 2", "a write x 3", "a fail", "b write z 4")
    shared[0].restore(before)  # type: ignore[attr-defined]

    assert shared[0].read("x") == "0"
