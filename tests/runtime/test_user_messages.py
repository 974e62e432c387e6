"""What the user says reaches the model, in the order that every provider accepts."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.disclosure.desk import a_tool
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import BudgetExceededError
from weakincentives.limits import Budget
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.runtime import Conversation, Message, ModelReply, ModelRequest, PromptRendered
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


def test_a_user_message_during_a_call_stays_if_the_call_is_rolled_back() -> None:
    @tool
    def fail(*, context: ToolContext) -> str:
        """Fail."""
        said = threading.Thread(target=context.session.dispatch, args=[Message("user", "Also the blue one.")])
        said.start()
        said.join()
        raise ValueError("out of stock")

    session = Session()
    with ScriptedAdapter([call("fail"), "Done."]) as adapter:
        adapter.evaluate(prompt(fail), session=session)
    failed = ("tool", "Tool 'fail' failed: ValueError: out of stock")
    assert conversation(session)[1:] == [failed, ("user", "Also the blue one."), ("assistant", "Done.")]


def test_a_user_message_during_the_answer_follows_it_and_is_answered_too() -> None:
    session, replies = Session(), iter(["In Lyon.", "Blue, then."])

    def reply(request: ModelRequest) -> str:
        if len(request.messages) == 2:
            session.dispatch(Message("user", "The blue one!"))
        return next(replies)

    chat = Conversation(prompt(), adapter=ScriptedAdapter(reply), session=session)
    assert chat.send("Where is it?").text == "Blue, then."
    assert conversation(session) == [
        ("user", "Where is it?"),
        ("assistant", "In Lyon."),
        ("user", "The blue one!"),
        ("assistant", "Blue, then."),
    ]


def test_a_user_message_while_the_prompt_is_rendered_follows_what_was_sent() -> None:
    session = Session()
    session.observe(
        lambda event: session.dispatch(Message("user", "Quick!")) if isinstance(event, PromptRendered) else None
    )
    Conversation(prompt(), adapter=ScriptedAdapter(["Yes."]), session=session).send("Go.")
    assert [(message.role, message.text) for message in session[Message]][1:] == [
        ("user", "Go."),
        ("user", "Quick!"),
        ("assistant", "Yes."),
    ]


@pytest.mark.parametrize("other", [False, True])
def test_a_copy_made_during_a_call_can_be_continued(other: bool) -> None:
    copies: list[Session] = []

    @tool
    def fork(*, context: ToolContext) -> str:
        """Copy the conversation."""
        copies.append(context.session.clone())
        return "copied"

    Conversation(prompt(fork), adapter=ScriptedAdapter([call("fork"), "Done."])).send("Go.")
    advice = Prompt(ns="t", key="advice", sections=[MarkdownSection(title="Task", key="task", template="Advise.")])
    Conversation(advice if other else prompt(fork), adapter=ScriptedAdapter(["Yes."]), session=copies[0]).send("Well?")
    unknown = "Not finished: the conversation went on without it. Whether this call had an effect is not known."
    assert conversation(copies[0])[1:] == [
        ("assistant", ""),
        ("tool", unknown),
        ("user", "Well?"),
        ("assistant", "Yes."),
    ]


def test_a_call_left_open_by_a_limit_was_not_run() -> None:
    chat = Conversation(prompt(a_tool("one")), adapter=ScriptedAdapter([call("one"), "Fine."]))
    with pytest.raises(BudgetExceededError):
        chat.send("Go.", budget=Budget(max_tool_calls=0))
    chat.send("Go on.")
    assert conversation(chat.session)[2] == ("tool", "Not run: the turn ended before this call was made.")


def test_a_user_message_during_a_paused_reply_does_not_come_between_its_parts() -> None:
    session, replies = Session(), iter([ModelReply("In ", stop_reason="pause"), "Lyon."])

    def reply(request: ModelRequest) -> ModelReply | str:
        if len(request.messages) == 2:
            session.dispatch(Message("user", "Quick!"))
        return next(replies)

    chat = Conversation(prompt(), adapter=ScriptedAdapter(reply), session=session)
    assert chat.send("Where is it?").text == "In Lyon."
    assert [text for _, text in conversation(session)] == ["Where is it?", "Quick!", "In ", "Lyon."]
