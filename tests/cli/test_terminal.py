from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.conftest import Wink
from tests.cli.terminal import Terminal, pty, settled
from weakincentives._base.display import cell_width


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
    shown = settled(on_a_terminal(wink, NO_COLOR="1")[1])
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
    assert shown == "␛[31mHalf a pair: ⟨U+D83D⟩\r\n"


@pytest.fixture
def recorded(wink: Wink) -> Wink:
    (wink.folder / "script.json").write_text(json.dumps(["Hello. " * 30]), encoding="utf-8")
    message = "Is there a room with a view of the sea, 日本語で, " * 6
    wink("run", "desk:template", message, "-q", "-p", "Guest.name=Ada", "-a", "scripted:script.json")
    return wink


@pytest.mark.parametrize(
    ("columns", "heading"),
    [
        (80, ["run", "status", "started", "input", "question"]),
        (200, ["run", "status", "started", "prompt", "model", "turns", "input", "output", "time", "question"]),
    ],
)
def test_a_table_is_as_wide_as_the_terminal(recorded: Wink, columns: int, heading: list[str]) -> None:
    with Terminal(recorded.folder, "runs", columns=columns, NO_COLOR="1") as terminal:
        lines = terminal.rest()[1].splitlines()
    assert lines[0].split() == heading
    assert cell_width(lines[1]) == columns and lines[1].endswith("…")


def test_into_a_pipe_a_table_is_whole_and_plain(recorded: Wink) -> None:
    done = recorded.process("python", "-m", "weakincentives.cli", "runs", COLUMNS="40")
    assert done.stdout.splitlines()[1].endswith("日本語で,") and "\x1b" not in done.stdout


def test_a_story_is_wrapped_beside_its_labels_and_coloured(recorded: Wink) -> None:
    with Terminal(recorded.folder, "runs", "show", columns=80) as terminal:
        lines = terminal.rest()[1].splitlines()
    plain = [re.sub(r"\x1b\[\d*m", "", line) for line in lines]
    assert lines[0].startswith("\x1b[32m") and all(len(line) <= 80 for line in plain[2:])
    answer = next(index for index, line in enumerate(plain) if line.startswith("answer  Hello."))
    assert lines[answer].startswith("\x1b[1manswer") and plain[answer + 1].startswith("        Hello.")


@pytest.mark.parametrize("columns", [60, 80])
def test_the_text_of_a_prompt_and_of_a_turn_ends_its_lines_between_words(wink: Wink, columns: int) -> None:
    long = "One two three four five six seven eight nine ten. " * 4
    (wink.folder / "words.py").write_text(
        "from weakincentives import MarkdownSection, PromptTemplate\n"
        f"section = MarkdownSection(key='c', title='C', template={long!r})\n"
        "template = PromptTemplate(ns='a', key='b', sections=[section])\n",
        encoding="utf-8",
    )
    (wink.folder / "script.json").write_text(json.dumps([long]), encoding="utf-8")
    assert wink("run", "words:template", "-q", "-a", "scripted:script.json").returncode == 0
    for words in (["render", "words:template"], ["runs", "show", "--turn", "1"]):
        with Terminal(wink.folder, *words, columns=columns, NO_COLOR="1") as terminal:
            shown = terminal.rest()[1].splitlines()
        assert max(map(len, shown)) <= columns
        assert long.strip() in " ".join(" ".join(shown).split())


def test_a_reader_who_closes_the_pipe_sees_no_traceback(wink: Wink) -> None:
    (wink.folder / "script.json").write_text('["Hello."]', encoding="utf-8")
    command = "python -m weakincentives.cli run desk:template -p Guest.name=Ada -a scripted:script.json 2>&1 | head -0"
    done = wink.process("sh", "-c", command.replace("python", sys.executable))
    assert (done.stdout, done.stderr) == ("", "")
