from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from scripts.viewer_runs import investigate
from tests.cli.conftest import Wink
from weakincentives.cli import main


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("view") / "runs.db"
    investigate(path)
    return path


def test_a_run_is_exported_to_one_file(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "run.html"
    assert main(["view", str(recorded), "--export", str(target)]) == 0
    page = target.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert 'src="' not in page
    assert f"to {target}" in capsys.readouterr().err


def test_it_serves_until_it_is_interrupted(recorded: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'weakincentives[viewer]'")
    command = [sys.executable, "-m", "weakincentives.cli", "view", str(recorded), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=10) as page:
            assert b"importmap" in page.read()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "stop with Ctrl+C" in said


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["nowhere.db"], "There is no run file at 'nowhere.db'", 1),
        (["{file}", "--run", "zzz"], "There is no run 'zzz'", 1),
        (["{file}", "--export", "/nowhere/run.html"], "cannot write /nowhere/run.html", 2),
        (["{file}", "--export", ""], "cannot write .: Is a directory", 2),
        (["{file}", "--run", ""], "There is no run ''", 1),
    ],
)
def test_what_cannot_be_done_is_said(
    recorded: Path, words: list[str], message: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", *(word.format(file=recorded) for word in words)]) == code
    assert message in capsys.readouterr().err


def test_play_refuses_an_adapter_that_does_not_exist(wink: Wink) -> None:
    refused = wink("play", "desk:template", "--adapter", "nope", "--no-open")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "no adapter 'nope'; there are local, openai" in refused.stderr


def test_play_says_which_adapters_lack_a_key(wink: Wink) -> None:
    pytest.importorskip("claude_agent_sdk", reason="needs the SDK: pip install 'weakincentives[claude]'")
    command = [sys.executable, "-m", "weakincentives.cli", "play", "desk:template", "--port", "0", "--no-open"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "CLAUDE_"))}
    with subprocess.Popen(command, cwd=wink.folder, env=kept, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().partition("#")[0].replace("/?", "/api/play?")
        with urllib.request.urlopen(address, timeout=10) as answer:
            problems = {choice["name"]: choice["problem"] for choice in json.load(answer)["adapters"]}
        process.terminate()
    assert problems["claude"] == "set ANTHROPIC_API_KEY"
