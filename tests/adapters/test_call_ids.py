"""Ids of calls that a provider gives more than once: each call still has its own question, record and result."""

from __future__ import annotations

import pytest

from tests.adapters.vendors import VENDORS, Vendor
from tests.servers.turn import Call, Turn
from weakincentives import Approve, Deny, MarkdownSection, Prompt, Session, call, run, tool
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.guards import MaxCalls
from weakincentives.runtime import Conversation, Message, ToolInvoked

DONE = Turn("Done.")
REPEATED_IN_A_REPLY = (("c1", "c1", "c1"),)
REPEATED_LATER = (("c1",), ("c1", "c2"), ("c1", "c2"))
ONE_INSIDE_ANOTHER = (("c1/x", "c1", "c1/y"),)
UNIQUE = (("c1", "c2"), ("c3",))
PAID: list[int] = []


@tool
def pay(amount: int) -> str:
    "Pay an amount."
    PAID.append(amount)
    return f"paid {amount}"


def prompt_with(*guards: MaxCalls) -> Prompt[None]:
    PAID.clear()
    section = MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=[pay])
    return Prompt(ns="tests", key="ids", sections=[section], guards=guards)


def turns(ids: tuple[tuple[str, ...], ...]) -> list[Turn]:
    """Replies whose calls have these ids and pay 0, 1, 2 and so on."""
    amounts = iter(range(10))
    replies = [Turn(calls=tuple(Call("pay", {"amount": next(amounts)}, call_id) for call_id in reply)) for reply in ids]
    return [*replies, DONE]


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ids", [REPEATED_IN_A_REPLY, REPEATED_LATER, ONE_INSIDE_ANOTHER, UNIQUE])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_each_call_has_an_id_and_a_result_of_its_own(
    vendor: Vendor, streamed: bool, ids: tuple[tuple[str, ...], ...]
) -> None:
    pytest.importorskip(vendor.package)
    session = Session()
    with vendor.server(turns(ids)) as server, vendor.adapter(server) as adapter:
        prompt = prompt_with()
        if streamed:
            list(adapter.stream(prompt, session=session))
        else:
            adapter.evaluate(prompt, session=session)
    messages = session[Message].all()
    made = {made.id: made.arguments for message in messages for made in message.tool_calls}
    results = {message.call_id: message.text for message in messages if message.role == "tool"}
    count = sum(map(len, ids))
    assert list(results.values()) == [f"paid {amount}" for amount in range(count)]
    assert list(made) == list(results) == [event.call_id for event in session[ToolInvoked].all()]
    if ids == UNIQUE:
        assert list(made) == ["c1", "c2", "c3"]


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
@pytest.mark.parametrize("ids", [REPEATED_IN_A_REPLY, REPEATED_LATER, ONE_INSIDE_ANOTHER])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_limit_of_calls_counts_calls_with_the_same_id(vendor: Vendor, ids: tuple[tuple[str, ...], ...]) -> None:
    pytest.importorskip(vendor.package)
    with vendor.server(turns(ids)) as server, vendor.adapter(server) as adapter:
        adapter.evaluate(prompt_with(MaxCalls("pay", 1)), session=Session())
    assert PAID == [0]


def test_an_id_of_an_earlier_exchange_is_not_used_again() -> None:
    calls = [call("pay", amount=amount, call_id="c1") for amount in range(2)]
    chat = Conversation(prompt_with(), adapter=ScriptedAdapter([calls[0], "Done.", calls[1], "Done."]))
    chat.send("Pay.")
    chat.send("Again.")
    before, after = [event.call_id for event in chat.session[ToolInvoked].all()]
    assert before == "c1" and len(after) == 9
    assert PAID == [0, 1]


def test_the_new_id_is_the_same_whenever_the_conversation_is_the_same() -> None:
    found = []
    for _ in range(2):
        session = Session()
        script = [[call("pay", amount=amount, call_id="c1") for amount in range(4)], "Done."]
        run(prompt_with(), ScriptedAdapter(script), session=session)
        found.append([event.call_id for event in session[ToolInvoked].all()])
    assert found[0] == found[1]
    assert len(set(found[0])) == 4


def test_a_decision_about_one_call_leaves_the_other_with_its_id_open() -> None:
    @tool(approval="call")
    def send(text: str) -> str:
        "Send a text."
        return f"sent {text}"

    section = MarkdownSection(key="mail", title="Mail", template="Mail.", tools=[send])
    prompt: Prompt[None] = Prompt(ns="tests", key="ids", sections=[section])
    session = Session()
    calls = [call("send", text="a", call_id="c1"), call("send", text="b", call_id="c1")]
    model = ScriptedAdapter([calls, "Done."])
    before, after = run(prompt, model, session=session).pending
    (left,) = run(prompt, model, session=session, decisions={before.call_id: Approve()}).pending
    assert left.call_id == after.call_id
    run(prompt, model, session=session, decisions={after.call_id: Deny("No.")})
    results = [message.text for message in session[Message].all() if message.role == "tool"]
    assert results == ["sent a", "A person denied this call: No."]
