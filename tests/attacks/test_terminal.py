"""Recordings, prompts and paths that try to command the terminal, shown by every command of `wink` on a real one."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests import warm
from tests.cli.conftest import Wink
from tests.telemetry.agents import FAIL, prompt, run
from weakincentives.adapters.scripted import call
from weakincentives.cli import printable
from weakincentives.cli.commands import PURPOSES
from weakincentives.runtime import ModelReply
from weakincentives.telemetry import record

pty = pytest.importorskip("pty", reason="needs a POSIX terminal")

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202egnp.exe\u2066\u200f\u061c\u2028\r\x08end"
UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
AGENT = f"""
from weakincentives import MarkdownSection, PromptTemplate, Tool, ToolResult
from weakincentives.adapters.scripted import ScriptedAdapter

EVIL = {EVIL!r}
tool = Tool(name="act", description=EVIL, handler=lambda params, *, context: ToolResult(EVIL))
section = MarkdownSection(key="a", title="A " + EVIL, template="Text " + EVIL, summary="S " + EVIL, tools=[tool])
template = PromptTemplate(ns="n", key="k", name="name " + EVIL, sections=[section])
adapter = ScriptedAdapter([EVIL], model="model " + EVIL)
"""


@pytest.fixture
def wink(tmp_path: Path) -> Wink:
    """A folder with a hostile agent, and a recording whose names and texts are hostile too."""
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    path = tmp_path / "runs.db"
    replies = (call("fail"), ModelReply(text=EVIL, model=EVIL))
    run(*replies, bound=prompt(FAIL, intro=EVIL), recorder=record(path, redact=None))
    run(recorder=record(path))
    evil = json.dumps(EVIL, ensure_ascii=False)[1:-1]
    with closing(sqlite3.connect(path)) as connection, connection:
        for column in ("prompt", "prompt_name", "model", "adapter", "error", "session_id"):
            connection.execute(f"UPDATE runs SET {column} = ?", (EVIL,))
        for name in ("fail", "read_section", "sums", "guide", "ValueError"):
            connection.execute("UPDATE events SET payload = replace(payload, ?, ?)", (f'"{name}"', f'"{evil}"'))
    return Wink(tmp_path)


def on_terminal(wink: Wink, *words: str, **variables: str) -> str:
    """What a terminal gets of stdout and stderr."""
    ours, theirs = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": str(wink.folder), "TERM": "xterm", "NO_COLOR": "1", **variables}
    (wink.folder / "typed").write_text("Hello.\n", encoding="utf-8")
    with (wink.folder / "typed").open() as typed:
        streams = {"stdin": typed, "stdout": theirs, "stderr": theirs}
        words = ("-m", "weakincentives.cli", *words)
        process = warm.start(*words, cwd=wink.folder, env=environment, preload=["weakincentives.cli"], **streams)
    os.close(theirs)
    shown = bytearray()
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        # Linux says so when the other end of a terminal is closed.
        pass
    process.wait(60)
    os.close(ours)
    return shown.decode("utf-8", "replace").replace("\r\n", "\n")


COMMANDS: dict[str, list[tuple[str, ...]]] = {
    "run": [("agent:template", "-a", "agent:adapter"), ("agent:template", "-a", f"no{EVIL}:model")],
    "render": [("agent:template", "--tools"), ("agent:template", "--json"), (f"agent:{EVIL}",)],
    "explain": [("agent:template", "-a", "agent:adapter"), ("agent:template", "-a", "agent:adapter", "--json")],
    "overrides": [
        ("show", "agent:template"),
        ("edit", "agent:template", "a", "--from", "agent.py"),
        ("list", "--store", EVIL),
    ],
    "runs": [
        ("list", "runs.db"),
        ("list", "runs.db", "--json"),
        ("show", "runs.db"),
        ("show", "runs.db", "--json"),
        ("show", "runs.db", "--turn", "1"),
        ("show", "runs.db", "--turn", "1", "--json"),
        ("show", "runs.db", EVIL),
        ("export", "runs.db"),
        ("prune", "runs.db", EVIL),
        ("list", f"no {EVIL}.db"),
    ],
    "view": [("runs.db", "--export", "run.html"), ("runs.db", "--run", EVIL)],
    "report": [("runs.db",), ("runs.db", "--json"), ("runs.db", "--price", EVIL)],
    "worker": [(f"agent:{EVIL}",), ("agent:template",)],
    "work": [("show", EVIL, "--database-url", f"no{EVIL}.db"), ("list", "--status", EVIL)],
    "completion": [("bash",), (EVIL,)],
    "chat": [("agent:template", "-a", "agent:adapter"), (f"agent:{EVIL}",)],
    "init": [(EVIL,)],
    "play": [(f"agent:{EVIL}",)],
    "model": [("list",), ("list", "--json")],
    "skills": [("check", EVIL), ("install", "skills")],
    "mcp": [("serve", f"agent:{EVIL}"), ("lock", f"no{EVIL}.json")],
    "fork": [(EVIL, "--file", "runs.db"), (EVIL, f"agent:{EVIL}", "--turn", "1")],
    "export": [("runs.db", "--atif"), (f"no {EVIL}.db", "--atif"), ("runs.db", EVIL, "--atif")],
    "eval": [("show", "--file", "runs.db"), ("show", EVIL), ("compare", EVIL, EVIL), ("cases", f"no {EVIL}.db")],
    "tune": [(f"agent:{EVIL}", "cases.jsonl"), ("agent:template", EVIL)],
}


def test_every_command_is_tried() -> None:
    assert set(COMMANDS) == set(PURPOSES)


FAILING = """
import asyncio, logging, threading, warnings
from random import Random
from weakincentives import MarkdownSection, PromptTemplate, ScriptedAdapter, call, tool

random = Random(3)
CONTROL = [*map(chr, [*range(32), *range(0x7f, 0xa0)]), *"\u202e\u2066\u2028\u061c\ufeff"]

def evil():
    return "evil" + "".join(random.choices(CONTROL, k=12)) + "end"

class Dying:
    def __del__(self):
        raise ValueError(evil())

async def failing_callback():
    asyncio.get_running_loop().call_soon(fail_now)
    await asyncio.sleep(0)

def fail_now():
    raise ValueError(evil())

@tool
def act(way: str) -> str:
    "Act."
    match way:
        case "log":
            logging.getLogger("shop").error("lost %s", evil())
        case "warn":
            warnings.warn(evil())
        case "thread":
            thread = threading.Thread(target=fail_now, name=evil())
            thread.start()
            thread.join()
        case "delete":
            Dying()
        case "loop":
            asyncio.run(failing_callback())
        case "raise":
            raise ValueError(evil())
        case "cause":
            try:
                fail_now()
            except ValueError as error:
                raise RuntimeError(evil()) from error
    return "Acted."

def abort():
    raise ArithmeticError(evil())

section = MarkdownSection(key="a", title="A", template="Act.", tools=[act])
template = PromptTemplate(ns="n", key="k", sections=[section])
WAYS = ["log", "warn", "thread", "delete", "loop", "raise", "cause"]
def adapter():
    return ScriptedAdapter([*(call("act", way=way) for way in WAYS), "Done."])
"""
HANDLERS = {
    "none": "",
    "the program's": "logging.basicConfig(level=logging.INFO)",
    "asked for warnings": "logging.captureWarnings(True)",
}


@pytest.mark.parametrize("handlers", HANDLERS)
@pytest.mark.parametrize("command", ["run", "chat"])
def test_nothing_that_is_logged_or_raised_commands_the_terminal(wink: Wink, command: str, handlers: str) -> None:
    (wink.folder / "failing.py").write_text(FAILING + HANDLERS[handlers], encoding="utf-8")
    shown = on_terminal(wink, command, "failing:template", "-a", "failing:adapter")
    # Whatever was raised is there, to be read.
    assert shown.count("evil") >= 7 and UNSAFE.findall(shown) == []


@pytest.mark.parametrize("debug", ["", "1"])
def test_an_error_of_the_program_does_not_command_the_terminal(wink: Wink, debug: str) -> None:
    (wink.folder / "failing.py").write_text(FAILING, encoding="utf-8")
    shown = on_terminal(wink, "render", "failing:abort", WINK_DEBUG=debug)
    assert "ArithmeticError" in shown and UNSAFE.findall(shown) == []


@pytest.mark.parametrize(
    "words", [(name, *words) for name, every in COMMANDS.items() for words in every], ids=lambda w: ascii(w[:3])
)
def test_no_command_lets_text_command_the_terminal(wink: Wink, words: tuple[str, ...]) -> None:
    shown = on_terminal(wink, *words)
    assert shown and UNSAFE.findall(shown) == []
    assert "Traceback" not in shown


def test_names_cannot_forge_a_line_of_a_table(wink: Wink) -> None:
    with closing(sqlite3.connect(wink.folder / "runs.db")) as connection, connection:
        connection.execute("UPDATE runs SET prompt = 'a' || char(10) || 'forged  ok  2026'")
    lines = wink("runs", "list", "runs.db").stdout.splitlines()
    assert len(lines) == 3 and "a␊forged  ok  2026" in lines[1]


def test_characters_that_hide_are_printed_as_marks() -> None:
    assert printable("a\x1b[31mb\u202ec\td\ne") == "a␛[31mb⟨U+202E⟩c\td\ne"
    assert printable("a\nb\tc", one_line=True) == "a␊b␉c"
