"""Five real servers behind one config file and its lock file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.mcp_agent import CONFIG, agent, script, template
from weakincentives import Prompt, ScriptedAdapter
from weakincentives.mcp import lock_file, read_lock
from weakincentives.runtime import SectionLoaded, ToolInvoked

SERVERS = ["files", "memory", "git", "time", "database"]


def test_every_server_is_a_closed_section_whose_summary_names_its_tools() -> None:
    locked = read_lock(lock_file(CONFIG))
    assert sorted(locked) == sorted(SERVERS)
    rendered = Prompt(template()).render()
    assert [tool.name for tool in rendered.tools] == ["read_section"]
    for name in ("write_file", "create_entities", "git_status", "convert_time", "read_query"):
        assert name in rendered.text


@pytest.mark.slow
@pytest.mark.limit(240)
@pytest.mark.usefixtures("mcp_launchers")
def test_five_real_servers_start_when_they_are_opened_and_work_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    monkeypatch.setenv("WORK", "")  # The example sets it; this takes it back.
    with ScriptedAdapter(script(folder)) as model, agent(folder, model) as chat:
        answer = chat.send("When is noon UTC in Tokyo? Note it down everywhere.").text
    assert answer.startswith("The call to Tokyo is at 21:00")
    calls = chat.session[ToolInvoked].all()
    assert [event.name for event in calls if not event.success] == []
    results = {event.name: event.result.render() for event in calls}
    assert "21:00" in results["time_convert_time"] and "note.txt" in results["git_git_status"]
    assert results["database_read_query"].startswith("[{'who': 'Tokyo', 'at': '21:00'}]")
    assert "buy two bottles" in (folder / "memory.jsonl").read_text()
    loaded = chat.session[SectionLoaded].all()
    assert sorted(event.section_key for event in loaded) == sorted(SERVERS)
    assert [event.changed_tools for event in loaded] == [()] * 5


@pytest.mark.slow
def test_the_program_says_which_launchers_are_missing(tmp_path: Path) -> None:
    program = CONFIG.with_name("mcp_agent.py")
    done = subprocess.run([sys.executable, program], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "needs npx and uvx: npx comes with Node.js, uvx with uv (pip install uv)\n",
    )
