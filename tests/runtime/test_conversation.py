"""Conversations: several turns on one session, which can be stopped, saved and changed in between."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tests.disclosure.desk import a_tool, desk, section, tool_names
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.content import Image
from weakincentives.errors import BudgetExceededError, PromptEvaluationError
from weakincentives.limits import Budget
from weakincentives.prompt import MarkdownSection, OpenAndHalt, OpenOrRead, Prompt, PromptTemplate, ToolContext, tool
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime import (
    ArgumentsDelta,
    Completed,
    Conversation,
    Message,
    ModelCalled,
    ModelReply,
    PartialOutput,
    PromptChanged,
    PromptRendered,
    Restarted,
    SectionOpened,
    TextDelta,
    ToolEnded,
    ToolStarted,
)
from weakincentives.runtime.spi import CORRECTION
from weakincentives.session import Session, Snapshot

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8) + (3).to_bytes(4, "big") + (4).to_bytes(4, "big")


def said(chat: Conversation[Any]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in chat.messages if message.role in ("user", "assistant")]


def test_each_turn_goes_on_with_the_conversation() -> None:
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["In Lyon.", "Tomorrow."]))
    first, second = chat.send("Where is it?"), chat.send("When does it arrive?")
    assert said(chat) == [
        ("user", "Where is it?"),
        ("assistant", "In Lyon."),
        ("user", "When does it arrive?"),
        ("assistant", "Tomorrow."),
    ]
    assert first.run_id != second.run_id
    assert first.conversation_id == second.conversation_id == chat.conversation_id


def test_the_system_text_is_sent_once_and_never_rendered_anew() -> None:
    adapter = ScriptedAdapter(["One.", "Two."])
    chat = Conversation(Prompt(desk()), adapter=adapter)
    chat.send("a")
    chat.send("b")
    before, after = (request.messages for request in adapter.requests)
    assert tuple(after[: len(before)]) == tuple(before)
    assert [message.role for message in after] == ["system", "user", "assistant", "user"]


def test_a_section_that_was_opened_stays_open_with_its_tools() -> None:
    adapter = ScriptedAdapter([call("read_section", section_key="orders"), "Read.", call("lookup"), "Found."])
    chat = Conversation(Prompt(desk()), adapter=adapter)
    chat.send("Look it up.")
    assert chat.send("Again.").text == "Found."
    assert "lookup" in tool_names(adapter.requests[2].tools)
    assert adapter.requests[2].initial_tools == adapter.requests[0].initial_tools


def test_usage_is_that_of_the_turn_and_of_the_whole() -> None:
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two."]))
    first, second = chat.send("a").usage, chat.send("b").usage
    assert second.input_tokens > first.input_tokens
    assert chat.usage == first + second


def test_a_budget_holds_for_one_turn() -> None:
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two."]), budget=Budget(max_turns=1))
    assert [chat.send("a").text, chat.send("b").text] == ["One.", "Two."]
    with pytest.raises(BudgetExceededError):
        chat.send("c", budget=Budget(max_input_tokens=0))


def test_a_conversation_goes_on_from_a_snapshot_in_another_process() -> None:
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter([call("read_section", section_key="orders"), "Read."]))
    chat.send("Look.")
    session = Session()
    session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
    adapter = ScriptedAdapter([call("lookup"), "Found."])
    later = Conversation(Prompt(desk()), adapter=adapter, session=session)
    assert later.send("Go on.").text == "Found."
    assert later.conversation_id == chat.conversation_id
    assert later.usage.input_tokens > chat.usage.input_tokens


@pytest.mark.parametrize("strategy", [OpenOrRead(), OpenAndHalt()])
def test_a_restart_in_mid_conversation_keeps_it(strategy: Any) -> None:
    opened = call("open_sections", section_keys=["orders"], reason="needed")
    adapter = ScriptedAdapter(["Hello.", opened, call("lookup"), "Found."])
    chat = Conversation(Prompt(desk(disclosure=strategy)), adapter=adapter)
    chat.send("Hi.")
    assert chat.send("Look it up.").text == "Found."
    assert said(chat)[:3] == [("user", "Hi."), ("assistant", "Hello."), ("user", "Look it up.")]
    assert [text for role, text in said(chat) if role == "user"] == ["Hi.", "Look it up."]
    assert "All of orders." in adapter.requests[2].messages[0].text


def test_stopping_in_the_text_keeps_what_was_shown_and_the_next_turn_works() -> None:
    adapter = ScriptedAdapter(["One.\nTwo.\nThree.", "As I said."])
    chat = Conversation(Prompt(desk()), adapter=adapter)
    with chat.stream("Count.") as events:
        assert next(events) == TextDelta("One.\n")
    assert chat.send("Go on.").text == "As I said."
    assert said(chat) == [
        ("user", "Count."),
        ("assistant", "One.\n"),
        ("user", "Go on."),
        ("assistant", "As I said."),
    ]


def test_stopping_at_a_tool_answers_its_call() -> None:
    prompt = Prompt(PromptTemplate(ns="t", key="k", sections=[section("a", closed=False, tools=("one", "two"))]))
    chat = Conversation(prompt, adapter=ScriptedAdapter([[call("one"), call("two")], "Fine."]))
    with chat.stream("Go.") as events:
        assert any(isinstance(event, ToolStarted) for event in events)
    assert chat.send("Stop that.").text == "Fine."
    results = [message.text for message in chat.messages if message.role == "tool"]
    assert results == ["Not run: the run was stopped."] * 2


def test_a_failed_turn_keeps_what_the_user_said() -> None:
    failure = PromptEvaluationError("overloaded", phase="request")
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter([failure, "Sorry."]))
    with pytest.raises(PromptEvaluationError):
        chat.send("Where is it?")
    assert chat.send("Hello?").text == "Sorry."
    assert [text for role, text in said(chat) if role == "user"] == ["Where is it?", "Hello?"]


def test_a_stream_tells_what_happens_through_restarts() -> None:
    opened = call("open_sections", section_keys=["orders"], reason="needed", call_id="1")
    adapter = ScriptedAdapter([opened, "Open."])
    chat = Conversation(Prompt(desk(disclosure=OpenOrRead())), adapter=adapter)
    with chat.stream("Open it.") as stream:
        events = list(stream)
    assert events[:-1] == [
        ArgumentsDelta("1", "open_sections", opened.arguments),
        ToolStarted("1", "open_sections", opened.arguments),
        ToolEnded("1", "open_sections", True, "Opening: orders."),
        SectionOpened("orders", ("lookup",)),
        Restarted("needed"),
        TextDelta("Open."),
    ]
    assert isinstance(events[-1], Completed) and events[-1].response.text == "Open."


def test_a_stream_tells_that_a_rejected_answer_is_written_again() -> None:
    template = PromptTemplate[int](ns="t", key="n", sections=[section("task")])
    chat = Conversation(Prompt(template), adapter=ScriptedAdapter(["many", "3"]))
    with chat.stream("How many?") as stream:
        events = [event for event in stream if not isinstance(event, PartialOutput | Completed)]
    assert events == [TextDelta("many"), Restarted("The answer contains no JSON value for int"), TextDelta("3")]
    assert [m.kind for m in chat.messages if m.role == "user"] == ["", CORRECTION]


def test_turns_can_be_awaited_and_streamed_on_an_event_loop() -> None:
    async def main() -> list[str]:
        chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two."]))
        await chat.send_async("a")
        async with chat.stream_async("b") as events:
            return [type(event).__name__ async for event in events]

    assert asyncio.run(main()) == ["TextDelta", "Completed"]


@dataclass(frozen=True)
class Plan:
    title: str
    steps: list[str]


def test_a_typed_answer_is_shown_while_it_is_written() -> None:
    pytest.importorskip("jiter")
    text = '{"title": "Move house",\n"steps": ["pack the boxes",\n"call a van"]}'
    prompt = Prompt(PromptTemplate[Plan](ns="t", key="k", sections=[section("a", closed=False)]))
    chat = Conversation(prompt, adapter=ScriptedAdapter([text]))
    with chat.stream("Plan it.") as events:
        partial = [event.value for event in events if isinstance(event, PartialOutput)]
    assert partial == [
        {"title": "Move house"},
        {"title": "Move house", "steps": ["pack the boxes"]},
        {"title": "Move house", "steps": ["pack the boxes", "call a van"]},
        {"title": "Move house", "steps": ["pack the boxes", "call a van"]},
    ]


def test_a_typed_answer_that_was_paused_is_shown_from_its_beginning() -> None:
    pytest.importorskip("jiter")
    paused = ModelReply('{"title": "Move', stop_reason="pause")
    prompt = Prompt(PromptTemplate[Plan](ns="t", key="k", sections=[section("a", closed=False)]))
    chat = Conversation(prompt, adapter=ScriptedAdapter([paused, ' house", "steps": ["pack"]}']))
    with chat.stream("Plan it.") as events:
        partial = [event.value for event in events if isinstance(event, PartialOutput)]
    assert partial[:2] == [{"title": "Move"}, {"title": "Move house", "steps": ["pack"]}]


@dataclass(frozen=True)
class Customer:
    name: str


def test_params_bound_anew_are_told_with_the_next_turn() -> None:
    customer = MarkdownSection[Customer](title="Customer", key="customer", template="Serve ${name}.")
    adapter = ScriptedAdapter(["Hello.", "Hello again."])
    prompt = Prompt(PromptTemplate(ns="t", key="k", sections=[customer])).bind(Customer("Ann"))
    chat = Conversation(prompt, adapter=adapter)
    chat.send("Hi.")
    chat.bind(Customer("Bob"))
    chat.send("It is Bob now.")
    roles = [(message.role, message.text) for message in adapter.requests[1].messages]
    assert roles[-2][0] == "system" and "Serve Bob." in roles[-2][1]
    assert roles[0] == ("system", "## 1. Customer\n\nServe Ann.")
    assert [event.changed_sections for event in chat.session[PromptChanged]] == [("customer",)]


def test_pictures_go_with_what_the_user_says() -> None:
    adapter = ScriptedAdapter(["A box."])
    picture = Image.from_bytes(PNG, "image/png", name="box.png")
    chat = Conversation(Prompt(desk()), adapter=adapter)
    chat.send([picture, "What is it?"])
    (message,) = [message for message in adapter.requests[0].messages if message.role == "user"]
    assert [type(part).__name__ for part in message.parts] == ["Image", "Text"]
    assert message.text == "[image box.png (image/png, 24 bytes)]\nWhat is it?"


class TextOnly(ScriptedAdapter):
    def check_content(self, parts: Any) -> None:
        if any(isinstance(part, Image) for part in parts):
            raise PromptEvaluationError("no pictures", phase="request")


def test_media_that_the_model_does_not_take_is_refused_before_it_is_said() -> None:
    adapter = TextOnly(["Hello."])
    chat = Conversation(Prompt(desk()), adapter=adapter)
    with pytest.raises(PromptEvaluationError, match="no pictures"):
        chat.send([Image.from_bytes(PNG, "image/png"), "What is it?"])
    assert chat.send("Hi.").text == "Hello."
    assert said(chat) == [("user", "Hi."), ("assistant", "Hello.")]


def test_every_run_of_a_conversation_is_recorded_as_its_continuation() -> None:
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["One.", "Two."]))
    first, second = chat.send("a"), chat.send("b")
    rendered = chat.session[PromptRendered].all()
    assert [(event.run_id, event.continues) for event in rendered] == [
        (first.run_id, ""),
        (second.run_id, first.run_id),
    ]
    assert {event.conversation_id for event in chat.session[ModelCalled]} == {chat.conversation_id}


def test_content_that_is_nothing_or_no_list_is_refused() -> None:
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter([]))
    with pytest.raises(ValueError, match="needs some content"):
        chat.send("")
    for wrong in ([b"x"], {"role": "user", "content": "Hi."}, {"Hi."}, (text for text in ["Hi."])):
        with pytest.raises(TypeError, match="Content must be text, an Image"):
            chat.send(wrong)  # type: ignore[arg-type]
    assert chat.messages == ()


def test_a_message_dispatched_by_hand_is_part_of_the_next_turn() -> None:
    chat = Conversation(Prompt(desk()), adapter=ScriptedAdapter(["Hello.", "Yes."]))
    chat.send("Hi.")
    chat.session.dispatch(Message("user", "The parcel is blue."))
    chat.send("Do you see it?")
    assert [text for role, text in said(chat) if role == "user"][1:] == ["The parcel is blue.", "Do you see it?"]


def test_a_system_message_dispatched_by_hand_keeps_its_place_through_restarts() -> None:
    session = Session()
    for message in (Message("user", "Hi."), Message("assistant", "Yes?"), Message("system", "Ann is a VIP.")):
        session.dispatch(message)
    adapter = ScriptedAdapter([call("read_section", section_key="orders"), "Done."], supports_dynamic_tools=False)
    chat = Conversation(Prompt(desk()), adapter=adapter, session=session)
    chat.send("Where is it?")
    first, second = ([(m.role, m.text) for m in request.messages[1:5]] for request in adapter.requests)
    assert first == [("user", "Hi."), ("assistant", "Yes?"), ("system", "Ann is a VIP."), ("user", "Where is it?")]
    assert second == first and "All of orders." in adapter.requests[1].messages[0].text
    assert [m.text for m in chat.messages if m.role == "system" and not m.kind] == ["Ann is a VIP."]


def test_the_tools_of_a_conversation_are_those_of_its_prompt() -> None:
    adapter = ScriptedAdapter(["One.", "Two."])
    prompt = Prompt(
        PromptTemplate(
            ns="t", key="k", sections=[MarkdownSection(title="A", key="a", template="x", tools=[a_tool("go")])]
        )
    )
    chat = Conversation(prompt, adapter=adapter)
    chat.send("a")
    chat.send("b")
    assert [tool_names(request.tools) for request in adapter.requests] == [["go"], ["go"]]


def test_a_conversation_keeps_its_resources_open_between_turns() -> None:
    closed: list[str] = []

    class Connection:
        def close(self) -> None:
            closed.append("closed")

    @tool
    def use(*, context: ToolContext) -> str:
        """Use it."""
        return str(id(context.resources.get(Connection)))

    task = MarkdownSection(title="A", key="a", template="x", tools=[use])
    registry = ResourceRegistry.of(Binding(Connection, lambda resolver: Connection()))
    prompt = Prompt(PromptTemplate(ns="t", key="k", sections=[task], resources=registry))
    with Conversation(prompt, adapter=ScriptedAdapter([call("use"), "a", call("use"), "b"])) as chat:
        chat.send("1")
        chat.send("2")
        assert closed == []
    first, second = [message.text for message in chat.messages if message.role == "tool"]
    assert (first == second, closed) == (True, ["closed"])
