from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.conftest import Wink

pty = pytest.importorskip("pty", reason="needs a POSIX terminal")


def on_a_terminal(wink: Wink, **environment: str) -> tuple[str, str]:
    """Run a prompt with stderr on a terminal; give back stdout and what the terminal got."""
    (wink.folder / "script.json").write_text(json.dumps(["Hello."]), encoding="utf-8")
    words = ["run", "desk:template", "-p", "Guest.name=Ada", "-a", "scripted:script.json"]
    ours, theirs = pty.openpty()
    done: Any = subprocess.run(
        [sys.executable, "-m", "weakincentives.cli", *words],
        cwd=wink.folder,
        env={"PATH": os.environ["PATH"], "HOME": str(wink.folder), "TERM": "xterm-256color", **environment},
        stdout=subprocess.PIPE,
        stderr=theirs,
        check=True,
        text=True,
    )
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    return done.stdout, shown


def test_a_terminal_gets_colour_and_stdout_does_not(wink: Wink) -> None:
    stdout, shown = on_a_terminal(wink)
    assert stdout == "Hello.\n"
    assert "\x1b[" in shown


def test_no_color_is_honoured(wink: Wink) -> None:
    _, shown = on_a_terminal(wink, NO_COLOR="1")
    assert "\x1b" not in shown
    assert shown.startswith("prompt  desk on script.json: ")


def test_an_answer_cannot_command_the_terminal(wink: Wink) -> None:
    (wink.folder / "script.json").write_text(json.dumps(["\x1b[31mHalf a pair: \ud83d"]), encoding="utf-8")
    words = ["run", "desk:template", "-q", "-p", "Guest.name=Ada", "-a", "scripted:script.json"]
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-m", "weakincentives.cli", *words], cwd=wink.folder, stdout=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert shown == "\\x1b[31mHalf a pair: \\ud83d\r\n"
