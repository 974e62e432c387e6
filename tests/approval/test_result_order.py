"""The results of a turn stand in the order of its calls, whichever of them waited for a person, and for how long."""

from __future__ import annotations

import random
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, tool
from weakincentives.runtime import Approve, Conversation, Deny, Message, delegate, run
from weakincentives.session import Session, Snapshot


@tool(read_only=True)
def look(n: int) -> str:
    "Look."
    return f"looked {n}"


@tool(approval="call")
def pay(n: int) -> str:
    "Pay."
    return f"paid {n}"


TASK = MarkdownSection(key="task", title="Task", template="Help.", tools=[look, pay])
HELPER = PromptTemplate(
    ns="tests", key="helper", sections=[MarkdownSection(key="help", title="Help", template="Pay.", tools=[pay])]
)
ask = delegate(HELPER, description="Ask a helper, who pays.", name="ask")
TEMPLATE = PromptTemplate(
    ns="tests",
    key="order",
    sections=[MarkdownSection(key="task", title="Task", template="Help.", tools=[look, pay, ask])],
)


def scripted(names: list[str]) -> ScriptedAdapter:
    """A model that makes these calls in one turn, and a helper that pays once."""

    def script(request: Any) -> Any:
        results = [message for message in request.messages if message.role == "tool"]
        if request.messages[0].text.endswith("Pay."):
            return "Paid." if results else call("pay", n=1)
        if results:
            return "Done."
        return [call(name) if name == "ask" else call(name, n=number) for number, name in enumerate(names)]

    return ScriptedAdapter(script)


def check(messages: Any, names: list[str]) -> None:
    calls = [each.id for message in messages for each in message.tool_calls]
    results = [message.call_id for message in messages if message.role == "tool"]
    assert results == calls
    assert [message.name for message in messages if message.role == "tool"] == names


def restored(session: Session) -> Session:
    copy = Session()
    copy.restore(Snapshot.from_json(session.snapshot().to_json()))
    return copy


def last_of_parent(adapter: ScriptedAdapter) -> list[Message]:
    parents = [each for each in adapter.requests if not each.messages[0].text.endswith("Pay.")]
    return list(parents[-1].messages)


async def decide(door: str, chat: Conversation[Any], decisions: dict[str, Any]) -> Conversation[Any]:
    if door == "restored":
        chat = Conversation(chat.prompt, adapter=chat.adapter, session=restored(chat.session))
    if door == "async":
        await chat.decide_async(decisions)
    else:
        chat.decide(decisions)
    return chat


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("door", ["sync", "async", "restored"])
async def test_results_stand_in_the_order_of_the_calls_in_whatever_order_they_were_decided(
    seed: int, door: str
) -> None:
    choice = random.Random(seed)
    names = [choice.choice(["look", "pay", "pay", "ask"]) for _ in range(5)]
    adapter = scripted(names)
    chat: Conversation[Any] = Conversation(Prompt(TEMPLATE), adapter=adapter)
    response = chat.send("Go.")
    pending = list(response.pending)
    while pending:
        decided = choice.choice(pending)
        decision = Approve() if choice.random() < 0.7 else Deny()
        chat = await decide(door, chat, {decided.call_id: decision})
        pending = list(chat.pending)
    check(chat.messages, names)
    check(last_of_parent(adapter), names)


def test_a_run_continues_with_results_in_order() -> None:
    names = ["pay", "look", "pay", "look"]
    adapter, session = scripted(names), Session()
    response = run(Prompt(TEMPLATE), adapter, session=session)
    decisions = {pending.call_id: Approve() for pending in response.pending}
    assert run(Prompt(TEMPLATE), adapter, session=session, decisions=decisions).text == "Done."
    check(adapter.requests[-1].messages, names)


def test_calls_that_nobody_decided_have_their_results_in_order_too() -> None:
    names = ["pay", "look", "pay", "look"]
    adapter = scripted(names)
    chat: Conversation[Any] = Conversation(Prompt(TEMPLATE), adapter=adapter)
    chat.send("Go.")
    assert chat.send("Never mind.").text == "Done."
    check(adapter.requests[-1].messages, names)
    assert adapter.requests[-1].messages[-1].text == "Never mind."


def test_what_was_added_meanwhile_stays_where_it_is() -> None:
    names = ["pay", "look"]
    adapter = scripted(names)
    chat: Conversation[Any] = Conversation(Prompt(TEMPLATE), adapter=adapter)
    (pending,) = chat.send("Go.").pending
    chat.session.dispatch(Message("user", "Hurry."))
    chat.decide({pending.call_id: Approve()})
    check(adapter.requests[-1].messages, names)
    assert adapter.requests[-1].messages[-1].text == "Hurry."
