"""Nothing of ours leaks into a run, and nothing of a run leaks out."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")

from tests.adapters.claude_agent_sdk.cli_runs import adapter, prompt, section
from tests.servers.claude_cli import CliServer, call, say
from weakincentives.session import Session


def test_the_cli_and_its_commands_see_no_variable_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")
    with CliServer([call("Bash", command="env", description="look"), say("ok")]) as api:
        adapter(api, allowed_cli_tools=("Bash",), env={"GIVEN": "1"}).evaluate(
            prompt(section("task")), session=Session()
        )
    printed = api.results()[0]["content"]
    assert "GIVEN=1" in printed
    assert "DATABASE_PASSWORD" not in printed


def test_the_users_own_instructions_stay_out_unless_asked_for(tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "CLAUDE.md").write_text("Always answer in rhyme.")
    with CliServer([say("ok")] * 2) as api:
        adapter(api).evaluate(prompt(section("task")), session=Session())
        adapter(api, setting_sources=("user",)).evaluate(prompt(section("task")), session=Session())
    assert ["rhyme" in str(request.json) for request in api.requests] == [False, True]


def test_the_cli_talks_to_the_model_and_to_nobody_else() -> None:
    with CliServer([say("ok")]) as api, socket.create_server(("127.0.0.1", 0)) as proxy:
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        env = {"HTTPS_PROXY": url, "HTTP_PROXY": url, "NO_PROXY": "127.0.0.1"}
        adapter(api, env=env).evaluate(prompt(section("task")), session=Session())
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    assert {request.target for request in api.requests} == {"/v1/messages?beta=true"}


def test_a_run_leaves_no_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with CliServer([say("ok")]) as api:
        adapter(api).evaluate(prompt(section("task")), session=Session())
    assert not list(tmp_path.iterdir())
