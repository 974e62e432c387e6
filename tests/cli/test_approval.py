"""A person at a terminal decides about tool calls; without a terminal they wait."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Wink, plain_environment
from tests.cli.terminal import Terminal
from weakincentives.cli.approval import HELP

SECRET = "sk-ant-api03-" + "a1B2" * 24
BILLS = f"""
from pathlib import Path
from weakincentives import MarkdownSection, Prompt, Tool, ToolContext, tool
from weakincentives.filesystem import Filesystem, HostFilesystem

@tool(approval="effects", changes=(Filesystem,))
def pay(amount: int, *, context: ToolContext) -> str:
    "Pay an amount."
    context.filesystem.write("log.txt", f"paid {{amount}} with {SECRET}\\n", mode="append")
    return f"paid {{amount}}"

@tool(approval="call")
def send(text: str) -> str:
    "Send a text."
    with open("sent.txt", "a") as sent:
        sent.write(text + "\\n")
    return "sent"

ask = Tool(name="ask", description="Ask the user.", handler=None)
section = MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=[pay, send, ask])

def prompt():
    return Prompt(ns="bills", key="desk", sections=[section]).bind(resources={{Filesystem: HostFilesystem("files")}})
"""
PAY, MORE = ({"call": "pay", "arguments": {"amount": amount}} for amount in (5, 6))
SEND, ASK = {"call": "send", "arguments": {"text": "hi"}}, {"call": "ask", "arguments": {}}
RESUME = "wink run bills:prompt -a scripted:script.json --resume .wink/runs.db.waiting/"
QUESTION = "approve (y), deny (n), edit (e), answer (a), help (?): "


@pytest.fixture
def bills(tmp_path: Path) -> Wink:
    (tmp_path / "bills.py").write_text(BILLS, encoding="utf-8")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "log.txt").write_text("begin\n", encoding="utf-8")
    return Wink(tmp_path)


def script(bills: Wink, *replies: Any) -> tuple[str, ...]:
    (bills.folder / "script.json").write_text(json.dumps(replies), encoding="utf-8")
    return ("bills:prompt", "-a", "scripted:script.json")


def log(bills: Wink) -> str:
    return (bills.folder / "files" / "log.txt").read_text(encoding="utf-8").replace(f" with {SECRET}", "")


def sent(bills: Wink) -> str:
    file = bills.folder / "sent.txt"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def kept(bills: Wink) -> list[Path]:
    return sorted((bills.folder / ".wink").glob("runs.db.waiting/*.json"))


def plain(text: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", text)


@pytest.mark.parametrize(
    ("keys", "written", "result"),
    [
        ("y\n", "begin\npaid 5\n", "paid 5"),
        ("n too much\n", "begin\n", "A person denied this call: too much"),
        ("n\ntoo much\n", "begin\n", "A person denied this call: too much"),
        ("n\n\n", "begin\n", "A person denied this call"),
        ("a later\n", "begin\n", "later"),
        ('e {"amount": 7}\ny\n', "begin\npaid 7\n", "paid 7"),
        ('e\n{"amount": 7}\ny\n', "begin\npaid 7\n", "paid 7"),
        ('e {\ne [1]\n?\nwhat\ne {"amount": "x"}\ny\n', "begin\npaid 5\n", "paid 5"),
    ],
)
@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_call_is_shown_with_its_diff_and_decided(
    bills: Wink, command: str, keys: str, written: str, result: str
) -> None:
    words = script(bills, PAY, "Done.")
    with Terminal(bills.folder, command, *words, EDITOR="", VISUAL="") as terminal:
        if command == "chat":
            terminal.read("> ")
            terminal.type("Pay.\n")
        shown = terminal.read(QUESTION)
        assert "Make these changes?" in shown and "  amount: 5\n" in shown
        assert "\x1b[32m+paid 5 with [redacted]" in shown and SECRET not in shown
        assert log(bills) == "begin\n"
        terminal.type(keys)
        terminal.read("Done.")
        if command == "chat":
            terminal.read("> ")
            terminal.type("/quit\n")
        assert terminal.rest()[0] == 0
    assert (log(bills), kept(bills)) == (written, [])
    story = bills("runs", "show").stdout
    assert "asks    Make these changes?" in story and "+paid 5" in story and "decided " in story and result in story


def test_the_arguments_are_edited_in_the_editor(bills: Wink) -> None:
    with Terminal(bills.folder, "run", *script(bills, PAY, "Done."), EDITOR="sed -i s/5/8/") as terminal:
        terminal.read(QUESTION)
        terminal.type("e\n")
        assert "+paid 8" in terminal.read(QUESTION)
        terminal.type("y\n")
        terminal.read("Done.")
    assert log(bills) == "begin\npaid 8\n"


def test_several_calls_are_asked_about_one_after_the_other_and_each_acts_at_once(bills: Wink) -> None:
    with Terminal(bills.folder, "run", *script(bills, [PAY, SEND, ASK], "Done.")) as terminal:
        assert "Make these changes? They were tried and taken back. (2 more after it)" in plain(terminal.read(QUESTION))
        terminal.type("y\n")
        assert "Allow this call? It has not run yet. (1 more after it)" in plain(terminal.read(QUESTION))
        assert log(bills) == "begin\npaid 5\n"
        terminal.type("y\n")
        assert "This needs your answer." in plain(terminal.read("answer (a), deny (n), help (?): "))
        assert sent(bills) == "hi\n"
        terminal.type("y\na blue\n")
        terminal.read("Done.")
        assert terminal.rest()[0] == 0
    assert "tool    ask({}) -> blue" in bills("runs", "show").stdout


def test_ctrl_c_at_a_question_loses_nothing(bills: Wink) -> None:
    words = script(bills, [PAY, SEND], "Done.")
    with Terminal(bills.folder, "run", *words) as terminal:
        terminal.read(QUESTION)
        terminal.type("y\n")
        terminal.read(QUESTION)
        terminal.type("\x03")
        code, rest = terminal.rest()
    assert code == 3 and "1 call waits for a decision" in rest
    assert (log(bills), sent(bills)) == ("begin\npaid 5\n", "")
    (file,) = kept(bills)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    resume = f".wink/runs.db.waiting/{file.name}"
    assert f"wink run bills:prompt -a scripted:script.json --resume {resume}" in plain(rest).replace("\n", "")
    assert [run["status"] for run in bills.json("runs", "list")] == ["waiting"]
    (bills.folder / "script.json").write_text('["Done."]', encoding="utf-8")
    with Terminal(bills.folder, "run", *words, "--resume", resume) as terminal:
        assert 'text: "hi"' in terminal.read(QUESTION)
        terminal.type("y\n")
        terminal.read("Done.")
        assert terminal.rest()[0] == 0
    assert (log(bills), sent(bills), kept(bills)) == ("begin\npaid 5\n", "hi\n", [])
    (run,) = bills.json("runs", "list")
    assert (run["status"], run["answer"]) == ("ok", "Done.")


def test_a_process_that_is_killed_at_a_question_leaves_it_for_the_next(bills: Wink) -> None:
    words = script(bills, PAY, "Done.")
    with Terminal(bills.folder, "chat", *words) as terminal:
        terminal.read("> ")
        terminal.type("Pay.\n")
        terminal.read(QUESTION)
    (file,) = kept(bills)
    (bills.folder / "script.json").write_text('["Done."]', encoding="utf-8")
    with Terminal(bills.folder, "chat", *words, "--resume", str(file)) as terminal:
        assert "+paid 5" in terminal.read(QUESTION)
        terminal.type("y\n")
        terminal.read("Done.")
        terminal.read("> ")
    assert (log(bills), kept(bills)) == ("begin\npaid 5\n", [])


def test_in_a_chat_ctrl_c_leaves_the_call_for_decide_or_for_a_message(bills: Wink) -> None:
    words = script(bills, PAY, "First.", MORE, "As you wish.")
    with Terminal(bills.folder, "chat", *words) as terminal:
        terminal.read("> ")
        terminal.type("Pay.\n")
        terminal.read(QUESTION)
        terminal.press("\x03", "/decide asks again")
        terminal.read("> ")
        terminal.type("/decide\n")
        terminal.read(QUESTION)
        terminal.type("y\n")
        terminal.read("First.")
        terminal.read("> ")
        terminal.type("Pay more.\n")
        terminal.read(QUESTION)
        terminal.press("\x04", "/decide asks again")
        terminal.read("> ")
        assert len(kept(bills)) == 1
        terminal.type("Never mind.\n")
        terminal.read("As you wish.")
        terminal.read("> ")
        terminal.type("/decide\n")
        terminal.read("no call waits for a decision")
        terminal.read("> ")
        terminal.type("/quit\n")
        assert terminal.rest()[0] == 0
    assert (log(bills), kept(bills)) == ("begin\npaid 5\n", [])


def test_a_chat_that_is_left_with_calls_waiting_says_how_to_go_on(bills: Wink) -> None:
    with Terminal(bills.folder, "chat", *script(bills, PAY), columns=300) as terminal:
        terminal.read("> ")
        terminal.type("Pay.\n")
        terminal.read(QUESTION)
        terminal.press("\x03", "/decide asks again")
        terminal.read("> ")
        terminal.type("/quit\n")
        code, rest = terminal.rest()
    (file,) = kept(bills)
    assert code == 3
    assert f"wink chat bills:prompt -a scripted:script.json --resume .wink/runs.db.waiting/{file.name}" in rest


@pytest.mark.parametrize("where", ["pipe", "null"])
def test_without_a_terminal_nothing_runs_and_the_exit_code_says_so(bills: Wink, where: str) -> None:
    words = script(bills, [PAY, SEND], "Done.")
    command = [sys.executable, "-m", "weakincentives.cli", "run", *words]
    done: Any = subprocess.run(
        command,
        cwd=bills.folder,
        env=plain_environment(bills.folder),
        input="y\ny\n" if where == "pipe" else None,
        stdin=None if where == "pipe" else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "wink: 2 calls wait for a decision:" in done.stderr
    assert "pay\n  amount: 5\n" in done.stderr and "+paid 5 with [redacted]" in done.stderr
    assert 'send\n  text: "hi"\n' in done.stderr and SECRET not in done.stderr
    (file,) = kept(bills)
    assert f"decide on a terminal: {RESUME}{file.name}\n" in done.stderr
    assert (log(bills), sent(bills)) == ("begin\n", "")


def test_json_lists_the_calls_that_wait_and_what_is_not_recorded_cannot_go_on(bills: Wink) -> None:
    done = bills("run", *script(bills, [SEND, PAY]), "--json", "--no-record")
    assert done.returncode == 3 and SECRET not in done.stdout
    pending, pays = json.loads(done.stdout)["pending"]
    assert (pending["tool"], pending["arguments"], pending["complete"]) == ("send", {"text": "hi"}, True)
    assert "+paid 5 with [redacted]" in pays["text"] and not pays["complete"]
    assert "it is not kept in a file, so it cannot be continued; run it again on a terminal" in done.stderr
    assert not (bills.folder / ".wink").exists()


def test_in_a_pipe_a_chat_names_the_calls_and_the_next_line_goes_on(bills: Wink) -> None:
    words = script(bills, SEND, "So be it.", SEND)
    done = bills("chat", *words, stdin="Send.\nNever mind.\nSend it.\n")
    assert (done.returncode, done.stdout, sent(bills)) == (3, "So be it.\n", "")
    assert done.stderr.count("wink: 1 call waits for a decision:") == 3
    assert len(kept(bills)) == 1


def test_a_waiting_run_is_shown_with_its_question_and_how_to_go_on(bills: Wink) -> None:
    bills("run", *script(bills, PAY), "Please pay.")
    shown = bills("runs", "show").stdout
    (file,) = kept(bills)
    assert re.search(r"^asks    Make these changes\?", shown, re.MULTILINE) and "        pay\n" in shown
    assert "        +paid 5 with [redacted]\n" in shown
    assert "waits   for a decision about pay\n" in shown
    assert f"go on   {RESUME}{file.name}\n" in shown
    assert bills.json("runs", "list", "--status", "waiting")[0]["question"] == "Please pay."
    data = bills.json("runs", "show")
    assert ([call["tool"] for call in data["pending"]], data["continue"].split()[:2]) == (["pay"], ["wink", "run"])
    bills("runs", "prune", "--keep", "0")
    assert kept(bills) == []


def test_a_message_after_resume_goes_on_without_the_calls(bills: Wink) -> None:
    words = script(bills, SEND, "So be it.")
    bills("run", *words)
    (file,) = kept(bills)
    (bills.folder / "script.json").write_text('["So be it."]', encoding="utf-8")
    done = bills("run", *words, "Never mind.", "--resume", str(file))
    assert (done.returncode, done.stdout, kept(bills), sent(bills)) == (0, "So be it.\n", [], "")


def test_a_run_that_cannot_be_kept_is_asked_about_all_the_same(bills: Wink) -> None:
    (bills.folder / ".wink").mkdir()
    (bills.folder / ".wink" / "runs.db.waiting").write_text("in the way")
    with Terminal(bills.folder, "run", *script(bills, PAY, "Done."), columns=200) as terminal:
        assert "cannot keep the run while its calls wait" in terminal.read(QUESTION)
        terminal.type("y\n")
        terminal.read("Done.")
    assert log(bills) == "begin\npaid 5\n"


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_the_help_of_a_question_and_the_question_end_their_lines_between_words(bills: Wink, columns: int) -> None:
    with Terminal(bills.folder, "chat", *script(bills, PAY), columns=columns, NO_COLOR="1") as terminal:
        terminal.read("> ")
        terminal.type("Pay.\n")
        terminal.read("help (?): ")
        terminal.type("?\n")
        shown = terminal.read("help (?): ").replace("\r\n", "\n").split("?\n", 1)[1]
    assert max(map(len, shown.split("\n"))) <= columns
    assert " ".join(shown.split()) == " ".join(f"{HELP} {QUESTION}".split())
