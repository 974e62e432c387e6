"""What a run leaves closed and may have needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disclosure.desk import shop
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.cli import main
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolResult
from weakincentives.runtime import PossibleMiss, run_history
from weakincentives.session import Session
from weakincentives.telemetry import record

QUESTION = "Do couriers deliver parcels on Saturdays?"


def asked(question: str) -> PromptTemplate[None]:
    return shop(MarkdownSection(title="Question", key="question", template=question, role="user"))


def misses(question: str, *script: object) -> list[tuple[str, str]]:
    session = Session()
    with ScriptedAdapter([*script]) as adapter:
        adapter.evaluate(Prompt(asked(question)), session=session)
    assert run_history(session).misses == tuple(session[PossibleMiss])
    return [(miss.section_key, miss.reason) for miss in session[PossibleMiss]]


def test_a_closed_section_that_fits_the_question_best_is_a_possible_miss() -> None:
    assert misses(QUESTION, "Certainly.") == [("shipping", "it ranks first for what was asked and answered")]


def test_a_section_that_was_opened_or_read_is_no_miss() -> None:
    assert misses(QUESTION, call("read_section", section_key="shipping"), "Yes.") == []
    assert misses("How long is a voucher valid?", call("read_section", section_key="vouchers"), "Two years.") == []


def test_what_ranks_above_the_section_that_was_opened_is_a_miss() -> None:
    question = "Do couriers deliver parcels on two Saturdays?"
    found = misses(question, call("read_section", section_key="vouchers"), "Certainly.")
    assert found == [("shipping", "it ranks first for what was asked and answered, above 'vouchers', which was opened")]


def test_words_that_fit_no_section_are_no_miss() -> None:
    assert misses("Tell me a joke about penguins.", "Why not.") == []


def test_a_tool_that_is_called_while_its_section_is_closed_is_a_miss() -> None:
    found = misses("Hello!", call("refund"), "Sorry.")
    assert found == [("refunds", "its tool 'refund' was called while it was closed")]


def test_an_answer_that_something_is_missing_names_the_section_that_fits_best() -> None:
    found = misses("Is a refund for vouchers possible?", "I do not have access to the rules.")
    assert [key for key, _ in found] == ["vouchers"]
    assert found[0][1] == 'the answer says "do not have"'


def test_a_tool_that_fails_for_want_of_a_closed_sections_rules_names_it() -> None:
    def pay(params: None, *, context: object) -> ToolResult[None]:
        return ToolResult("a manager must approve it after thirty days", success=False)

    paying = Tool[None, None](name="pay", description="Pay.", handler=pay)
    task = MarkdownSection(title="Till", key="till", template="Pay.", tools=[paying])
    session = Session()
    with ScriptedAdapter([call("pay"), "Not possible."]) as adapter:
        adapter.evaluate(Prompt(shop(task)), session=session)
    (miss,) = session[PossibleMiss]
    assert (miss.section_key, miss.reason) == (
        "refunds.late",
        "'pay' failed: a manager must approve it after thirty days",
    )


def test_the_report_lists_what_may_have_been_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.db"
    with record(file), ScriptedAdapter(["Certainly."]) as adapter:
        adapter.evaluate(Prompt(asked(QUESTION)), session=Session())
    assert main(["report", str(file), "--missed"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "section   why it may have been needed",
        "shipping  it ranks first for what was asked and answered",
    ]
    assert main(["report", str(file)]) == 0
    assert "possibly missed in 1 of 1 runs" in capsys.readouterr().out
