from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from shlex import quote
from threading import Timer
from typing import Any

import pytest

from scripts.viewer_runs import investigate
from tests.cli.conftest import Wink
from tests.cli.terminal import Terminal
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
    assert "stop with Ctrl-C" in said


def test_ctrl_c_on_a_terminal_is_followed_by_a_line_of_its_own(recorded: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'weakincentives[viewer]'")
    with Terminal(recorded.parent, "view", str(recorded), "--port", "0", "--no-open", NO_COLOR="1") as terminal:
        terminal.read("Ctrl-C.\n")
        assert terminal.press("\x03", until="stopped\n").endswith("\rstopped\n")
        assert terminal.rest() == (0, "")


def test_ctrl_c_stops_a_server_that_waits_for_a_line(wink: Wink) -> None:
    pytest.importorskip("mcp", reason="needs the extra [mcp]")
    with Terminal(wink.folder, "mcp", "serve", "desk:template", "-p", "Guest.name=Ada") as terminal:
        terminal.read("stop with Ctrl-C")
        terminal.press("\x03", until="^C")
        assert terminal.rest()[0] == -signal.SIGINT


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["nowhere.db"], "There is no run file at 'nowhere.db'", 2),
        (["{file}", "--run", "zzz"], "There is no run 'zzz'", 2),
        (["{file}", "--export", "/nowhere/run.html"], "cannot write /nowhere/run.html", 2),
        (["{file}", "--export", ""], "cannot write .: Is a directory", 2),
        (["{file}", "--run", ""], "There is no run ''", 2),
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
    assert "no adapter 'nope'; there are local, anthropic" in refused.stderr


BROWSER = """
import json, os, subprocess, sys, urllib.error, urllib.request
from pathlib import Path
from shlex import quote
from urllib.parse import unquote

address = Path(unquote(sys.argv[1].removeprefix("file://")))
page = address.read_text()
url = page.partition("url=")[2].partition('"')[0]
def status(path):
    try:
        return urllib.request.urlopen(url.partition("?")[0] + path, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
token = url.partition("token=")[2].partition("#")[0]
seen = {
    "arguments": sys.argv[1:], "token": token, "folder": str(address.parent),
    "modes": [oct(path.stat().st_mode & 0o777) for path in (address.parent, address)],
    "with": status(f"api/runs?token={token}"), "without": status("api/runs"),
}
if os.geteuid() == 0:
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    read = subprocess.run(["cat", str(address)], capture_output=True, text=True, **nobody)
    seen["nobody"] = [read.stdout, read.stderr]
print(json.dumps(seen), flush=True)
"""


@pytest.fixture(params=["view", "play"])
def opened(request: pytest.FixtureRequest, recorded: Path, wink: Wink, tmp_path: Path) -> dict[str, Any]:
    """What a browser that either command starts is given and can do, and what is left when the command has ended."""
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'weakincentives[viewer]'")
    browser, temporary = tmp_path / "browser.py", tmp_path / "tmp"
    browser.write_text(BROWSER, encoding="utf-8")
    temporary.mkdir()
    what = [str(recorded)] if request.param == "view" else ["desk:template"]
    command = [sys.executable, "-m", "weakincentives.cli", request.param, *what, "--port", "0"]
    env = {**os.environ, "BROWSER": f"{quote(sys.executable)} {quote(str(browser))} %s", "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, cwd=wink.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        limit = Timer(30, process.kill)
        limit.start()
        assert process.stdout is not None
        printed, seen = process.stdout.readline(), json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.wait(timeout=10)
        limit.cancel()
    return {**seen, "printed": printed, "left": Path(seen["folder"]).exists()}


def test_other_users_see_no_token_of_the_browser_that_a_command_starts(opened: dict[str, Any]) -> None:
    assert opened["token"] and f"?token={opened['token']}" in opened["printed"]
    assert not any(opened["token"] in word for word in opened["arguments"])
    assert opened["modes"] == ["0o700", "0o600"]
    assert (opened["with"], opened["without"], opened["left"]) == (200, 403, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_read_the_page_that_forwards_to_the_token(opened: dict[str, Any]) -> None:
    output, complaint = opened["nobody"]
    assert output == "" and "Permission denied" in complaint


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
