"""What the user says reaches the model, in the order that every provider accepts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.disclosure.desk import a_tool
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.runtime import Message
from weakincentives.session import Session, Snapshot


def prompt(*tools: Any) -> Prompt[None]:
    task = MarkdownSection(title="Task", key="task", template="Help.", tools=tools)
    return Prompt(PromptTemplate(ns="t", key="talk", sections=[task]))


def conversation(session: Session) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in session[Message].all()][1:]


def test_what_the_user_said_before_the_run_is_its_first_turn() -> None:
    session = Session()
    session.dispatch(Message("user", "Where is order 7?"))
    with ScriptedAdapter(["In Lyon."]) as adapter:
        adapter.evaluate(prompt(), session=session)
    assert conversation(session) == [("user", "Where is order 7?"), ("assistant", "In Lyon.")]


def test_a_finished_conversation_is_no_part_of_the_next_run() -> None:
    session = Session()
    session.dispatch(Message("user", "One."))
    with ScriptedAdapter(["First.", "Second."]) as adapter:
        adapter.evaluate(prompt(), session=session)
        session.dispatch(Message("user", "Two."))
        adapter.evaluate(prompt(), session=session)
    assert conversation(session) == [("user", "Two."), ("assistant", "Second.")]


def test_a_user_message_during_a_call_follows_its_result() -> None:
    @tool
    def ask(*, context: ToolContext) -> str:
        """Ask the user."""
        context.session.dispatch(Message("user", "Also the blue one."))
        return "asked"

    session = Session()
    with ScriptedAdapter([call("ask"), "Done."]) as adapter:
        adapter.evaluate(prompt(ask), session=session)
    assert conversation(session)[1:3] == [("tool", "asked"), ("user", "Also the blue one.")]


def test_a_user_who_speaks_over_open_calls_answers_them() -> None:
    session, bound = Session(), prompt(a_tool("one"), a_tool("two"))
    taken: list[Snapshot] = []
    session.observe(lambda event: taken.append(session.snapshot()) if getattr(event, "tool_calls", ()) else None)
    ScriptedAdapter([[call("one"), call("two")], "Done."]).evaluate(bound, session=session)
    interrupted = Session()
    interrupted.restore(taken[0])
    interrupted.dispatch(Message("user", "Stop!"))
    with ScriptedAdapter(["Stopped."]) as adapter:
        adapter.resume(prompt(a_tool("one"), a_tool("two")), session=interrupted)
    refusal = ("tool", "Not run: the user spoke before this call was made.")
    assert conversation(interrupted)[1:] == [refusal, refusal, ("user", "Stop!"), ("assistant", "Stopped.")]


def test_a_role_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"role must be one of system, user, .*, got 'human'"):
        Message("human", "Hi.")  # type: ignore[arg-type]
