"""Calls of the library's own tools wait in one process, and are read in another that has only declared the tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weakincentives import Prompt, ScriptedAdapter, Session, call, run
from weakincentives.contrib.commands import CommandSection
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import HostFilesystem

DECLARED = """
from weakincentives.contrib.commands import CommandSection
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.filesystem import HostFilesystem
files = HostFilesystem(sys.argv[1], track_external=True)
sections = [VfsToolsSection(files), CommandSection(files, programs=[sys.executable])]
"""
READ = f"""
import sys
from weakincentives import Session, Snapshot
from weakincentives.runtime import PendingCall
{DECLARED}
session = Session()
session.restore(Snapshot.from_json(sys.stdin.read()))
(pending,) = session[PendingCall].all()
print(pending.params)
"""
CALLS: dict[str, dict[str, Any]] = {
    "write": {"path": "a.txt", "content": "new"},
    "edit": {"path": "a.txt", "old": "old", "new": "new"},
    "rm": {"path": "a.txt"},
    "run_command": {"command": [sys.executable, "-c", "pass"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_waits_is_read_in_another_process(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("old")
    files = HostFilesystem(tmp_path, track_external=True)
    sections = [
        VfsToolsSection(files, approval="call"),
        CommandSection(files, programs=[sys.executable], approval="call"),
    ]
    session = Session()
    model = ScriptedAdapter([call(name, **CALLS[name])])
    (pending,) = run(Prompt(ns="tests", key="stored", sections=sections), model, session=session).pending
    stored = session.snapshot().to_json()
    command = [sys.executable, "-c", READ, str(tmp_path)]
    printed = subprocess.run(command, input=stored, capture_output=True, text=True, check=True).stdout
    assert printed == f"{pending.params}\n"
