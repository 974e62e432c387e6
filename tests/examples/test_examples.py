"""The examples run, and are no longer than those they are compared with."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import Message, PendingCall

EXAMPLES = Path(__file__).parents[2] / "examples"


def lines_of_code(source: str) -> int:
    """The lines with code, docstrings included; blank lines, comments and the main block do not count."""
    main = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    spaces = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = [token for token in tokens if token.type not in spaces and token.start[0] < main.lineno]
    return len({line for token in code for line in range(token.start[0], token.end[0] + 1)})


@pytest.mark.parametrize(
    ("name", "most"),
    [("bank_support", 37), ("triage", 46), ("guardrail", 57), ("handoff", 47), ("approval", 41)],
)
def test_an_example_has_no_more_lines_than_that_of_the_other_library(name: str, most: int) -> None:
    assert lines_of_code((EXAMPLES / f"{name}.py").read_text(encoding="utf-8")) <= most


def test_bank_support_answers_with_the_balance() -> None:
    from examples.bank_support import Customer, Support, ask

    answer = Support(advice="John, your balance is $123.45.", block_card=False, risk=1)
    model = ScriptedAdapter([call("customer_balance", include_pending=True), answer])
    assert ask("What is my balance?", Customer(123, "John"), model) == answer
    first, second = model.requests
    assert "a customer of our bank called John." in first.messages[0].text
    assert second.messages[-1].text == "$123.45"


def test_bank_support_refuses_a_risk_that_is_no_risk() -> None:
    from examples.bank_support import Customer, Support, ask

    answer = Support(advice="John, your card is blocked.", block_card=True, risk=8)
    model = ScriptedAdapter(['{"advice": "Hm", "block_card": true, "risk": 80}', answer])
    assert ask("I lost my card!", Customer(123, "John"), model) == answer
    assert "risk: Input should be less than or equal to 10, got int 80" in model.requests[1].messages[-1].text


def test_triage_opens_the_tutor_and_no_other() -> None:
    from examples.triage import Check, ask

    script = [Check(True, "History."), call("read_section", section_key="history"), "George Washington."]
    model = ScriptedAdapter(script)
    assert ask("Who was the first president?", model) == "George Washington."
    said: list[Message] = [message for message in model.requests[-1].messages if message.role == "tool"]
    assert ["important events" in message.text for message in said] == [True]
    assert "each step" not in "".join(message.text for message in model.requests[-1].messages)


def test_triage_stops_what_is_no_homework() -> None:
    from examples.triage import Check, ask

    model = ScriptedAdapter([Check(False, "It is about lunch.")])
    assert ask("What shall I eat?", model) == "I help with homework only. It is about lunch."


def test_a_guardrail_refuses_homework_before_the_model_reads_it() -> None:
    from examples.guardrail import Homework, desk, reply

    script = [Homework("A question.", False), "Sacramento.", Homework("An equation.", True)]
    model = ScriptedAdapter(script)
    chat = desk(model)
    assert reply(chat, "What is the capital of California?") == "Sacramento."
    assert reply(chat, "Solve 2x + 5 = 11 for me.") == "Sorry, I can't help you with your math homework."
    assert "2x" not in "".join(message.text for message in chat.messages)


def test_a_hand_off_opens_the_section_of_the_language_and_stays_there() -> None:
    from examples.handoff import desk, reply

    model = ScriptedAdapter([call("read_section", section_key="french"), "Bonjour.", "De rien."])
    chat = desk(model)
    assert "".join(reply(chat, "Bonjour !")) == "Bonjour."
    assert "".join(reply(chat, "Merci.")) == "De rien."
    said = "".join(message.text for message in model.requests[-1].messages)
    assert "Speak only French." in said and "Speak only Spanish." not in said


@pytest.mark.parametrize("approved", [True, False])
def test_a_person_decides_about_what_would_change(approved: bool) -> None:
    from examples.approval import work

    files, shown = InMemoryFilesystem({"notes.txt": "old\n"}), []

    def decide(pending: PendingCall) -> bool:
        shown.append(pending.text)
        return approved

    calls = [
        call("write_file", path="notes.txt", content="new\n"),
        call("execute_sql", query="DELETE FROM old"),
        call("read_data", table="t"),
    ]
    model = ScriptedAdapter([calls, "Done."])
    assert work("Clean up.", model, files, decide) == "Done."
    assert "-old\n+new" in shown[0] and shown[1].endswith('execute_sql\n  query: "DELETE FROM old"')
    assert files.read("notes.txt") == ("new\n" if approved else "old\n")
    results = {message.name: message.text for message in model.requests[-1].messages if message.role == "tool"}
    denied = "A person denied this call: No."
    assert results["read_data"] == "3 rows from t"
    assert results["execute_sql"] == ("Deleted 42 rows" if approved else denied)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("support", "  noted: refund, Order 7: 49.00 EUR"),
        ("coding", "changed: prices.py; tests pass: True"),
    ],
)
def test_an_example_with_a_script_of_its_own_runs_without_a_key(name: str, last: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == last
