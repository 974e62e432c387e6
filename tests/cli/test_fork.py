"""Going back in the chat, and going on with a recorded run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Done, Wink

TILL = """
from dataclasses import dataclass, replace
from weakincentives import PromptTemplate, TextSection, ToolContext, WorkspaceSection, tool
from weakincentives.session import reducer

@dataclass(frozen=True)
class Paid:
    amount: int

@dataclass(frozen=True)
class Till:
    total: int = 0

    @reducer(on=Paid)
    def add(self, event: Paid) -> "Till":
        return replace(self, total=self.total + event.amount)

@tool
def pay(amount: int, context: ToolContext) -> str:
    "Pay."
    files = context.filesystem
    files.write("paid.txt", f"{amount} ", mode="append")
    context.session.dispatch(Paid(amount))
    return f"paid {files.read('paid.txt')}, in all {context.session[Till].latest().total}"

template = PromptTemplate(
    ns="shop", key="till", sections=[WorkspaceSection(), TextSection(key="a", title="A", text="Pay.", tools=[pay])]
)

def made():
    return PromptTemplate(ns="shop", key="made", sections=[TextSection(key="a", title="A", text="Hi.")])
"""


def pay(amount: int) -> dict[str, Any]:
    return {"call": "pay", "arguments": {"amount": amount}}


def chat(wink: Wink, lines: str, *replies: Any, words: tuple[str, ...] = ("chat", "till:template")) -> Any:
    (wink.folder / "till.py").write_text(TILL, encoding="utf-8")
    (wink.folder / "script.json").write_text(json.dumps(replies), encoding="utf-8")
    return wink(*words, "-a", "scripted:script.json", stdin=lines)


def forked(wink: Wink, *words: str) -> Done:
    """In a process of its own, since the classes of a module are found by their names."""
    (wink.folder / "script.json").write_text(json.dumps([pay(16), "Forked."]), encoding="utf-8")
    return wink.process("python", "-m", "weakincentives.cli", "fork", *words, "-a", "scripted:script.json")


def test_the_chat_lists_its_points_goes_back_and_undoes_it(wink: Wink) -> None:
    lines = "First.\nSecond.\n/back\n/back 4\n/back undo\n/back 4\nThird.\n"
    done = chat(wink, lines, pay(1), "One.", pay(2), "Two.", pay(4), "Three.")
    assert done.returncode == 0, done.stderr
    assert [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()[3:9]] == [
        "before the message: First.",
        "turn 1 of the answer, before its reply",
        "turn 2 of the answer, before its reply",
        "before the message: Second.",
        "turn 1 of the answer, before its reply",
        "turn 2 of the answer, before its reply",
    ]
    told = [line for line in done.stderr.splitlines() if line.split()[0] in ("file", "back")]
    went = ["file    paid.txt", "back    before the message: Second."]
    assert told == [*went, "file    paid.txt", "back    undone", *went]
    assert "paid 1 4 , in all 5" in done.stderr


def test_after_going_back_to_a_turn_the_model_replies_again(wink: Wink) -> None:
    done = chat(wink, "First.\n/back 2\n/again\n", "One.", "Other.")
    assert (done.returncode, done.stdout) == (0, "One.\nOther.\n")


def test_the_chat_forks_and_leaves_the_first_conversation_as_it_was(wink: Wink) -> None:
    done = chat(wink, "First.\nSecond.\n/fork 4\nThird.\n", pay(1), "One.", pay(2), "Two.", pay(4), "Three.")
    assert "paid 1 4 , in all 5" in done.stderr and "fork    before the message: Second." in done.stderr
    second = wink.json("runs", "list")[1]["run_id"]
    assert "undone" not in wink("runs", "show", second).stdout


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("/back", "there is no point to go back to yet"),
        ("/back 1", "/back and /fork take nothing yet: there is no point to go back to, got '1'"),
        ("/back undo", "There is no rewind to undo"),
    ],
)
def test_what_cannot_be_gone_back_to_is_said(wink: Wink, line: str, problem: str) -> None:
    assert problem in chat(wink, f"{line}\n").stderr


def test_a_recorded_run_goes_on_from_a_turn_with_its_state_and_files(wink: Wink) -> None:
    chat(wink, "First.\nSecond.\n/back 4\nThird.\n", pay(1), "One.", pay(2), "Two.", pay(4), "Three.")
    third, second, first = (row["run_id"] for row in wink.json("runs", "list"))
    done = forked(wink, first, "till:template", "--turn", "2")
    assert (done.returncode, done.stdout) == (0, "Forked.\n"), done.stderr
    assert f"from turn 2 of {first}" in done.stderr and "paid 1 16 , in all 17" in done.stderr
    # What the undone run wrote is not there.
    assert "paid 1 4 16 , in all 21" in forked(wink, third, "till:template").stderr
    shown = wink("runs", "show", second).stdout
    assert "back    it was undone" in shown
    assert wink.json("runs", "show", second)["undone_from"] == 0


def test_a_turn_that_a_run_has_not_had_cannot_be_forked(wink: Wink) -> None:
    chat(wink, "Hi.\n", "Hello.", words=("chat", "till:made"))
    (run,) = wink.json("runs", "list")
    assert "has 1 turns, so there is no turn 3" in wink("fork", run["run_id"], "till:made", "--turn", "3").stderr
