"""The coding agent on a real folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from examples.coding import SAMPLE, SCRIPT, Project, Report, agent
from weakincentives import ScriptedAdapter, call
from weakincentives.runtime import ToolInvoked

DONE = Report("Nothing to do.", [], tests_pass=True)
REFACTORING = call("read_section", section_key="refactoring")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in SAMPLE.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


def outcome(chat: Any) -> tuple[bool, str]:
    last = chat.session[ToolInvoked].all()[-1]
    return last.success, last.result.render()


def test_it_mends_a_bug_that_the_tests_show(folder: Path) -> None:
    model = ScriptedAdapter(SCRIPT)
    with model, agent(Project(folder), model) as chat:
        report = chat.send("A test fails. Please mend the code.").require_output()
    assert report == Report("`total` left out the first price.", ["prices.py"], tests_pass=True)
    verdicts = [event.result.render() for event in chat.session[ToolInvoked].all() if event.name == "run_tests"]
    assert [verdict.splitlines()[0] for verdict in verdicts] == ["The tests fail:", "The tests pass."]
    assert "sum(prices)\n" in (folder / "prices.py").read_text()


def test_it_renames_across_files(folder: Path) -> None:
    script = [REFACTORING, call("find_definition", name="total"), call("rename", old="total", new="add_up"), DONE]
    with agent(Project(folder), ScriptedAdapter(script)) as chat:
        chat.send("Rename total to add_up.")
    assert outcome(chat) == (True, "Renamed in prices.py, test_prices.py.")
    found = chat.session[ToolInvoked].all()[1].result.render()
    assert found == "prices.py:1: def total(prices: list[int]) -> int:"
    assert "from prices import add_up" in (folder / "test_prices.py").read_text()


def test_a_rename_that_breaks_a_file_changes_none(folder: Path) -> None:
    before = contents(folder)
    with agent(Project(folder), ScriptedAdapter([REFACTORING, call("rename", old="total", new="1st"), DONE])) as chat:
        chat.send("Rename total to 1st.")
    assert not outcome(chat)[0] and "prices.py would no longer be Python" in outcome(chat)[1]
    assert contents(folder) == before


def test_tests_that_take_too_long_are_stopped_and_what_they_wrote_is_undone(folder: Path) -> None:
    before = contents(folder)
    program = "import time; open('left.txt', 'w').close(); time.sleep(60)"
    project = Project(folder, (sys.executable, "-c", program), seconds=2)
    with agent(project, ScriptedAdapter([call("run_tests"), DONE])) as chat:
        chat.send("Test it.")
    assert outcome(chat) == (False, "The tests took more than 2 seconds and were stopped.")
    assert contents(folder) == before


def test_files_outside_the_folder_cannot_be_reached(folder: Path) -> None:
    (folder.parent / "secret.txt").write_text("secret")
    script = [call("read", path="../secret.txt"), DONE]
    with agent(Project(folder), ScriptedAdapter(script)) as chat:
        chat.send("Read the secret.")
    assert not outcome(chat)[0] and "secret.txt" in outcome(chat)[1]
