"""Whatever a person writes passes the guards first: messages, text documents, and words in decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.guarding.loaded import Loaded
from weakincentives import (
    Answer,
    Approve,
    Conversation,
    Deny,
    Edit,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ScriptedAdapter,
    Session,
    Snapshot,
    Tool,
    call,
    delegate,
    run,
    run_async,
    tool,
)
from weakincentives.content import Document, Text
from weakincentives.guards import Guard, GuardRefusedError, Outcome, Refuse, Replace
from weakincentives.runtime import Message, PendingCall

CARD = "4111-1111"
PAID: list[str] = []


@tool(approval="call")
def pay(note: str, codes: dict[str, int] | None = None) -> str:
    "Pay."
    PAID.append(f"{note} {codes or ''}".strip())
    return f"paid {note}"


ask: Tool[Any, Any] = Tool(name="ask", description="Ask the user.", handler=None)


class NoCards(Guard):
    def __init__(self, *, replaces: bool = False, is_broken: bool = False) -> None:
        self.replaces = replaces
        self.is_broken = is_broken

    def before_run(self, words: str, *, context: Any) -> Outcome | None:
        if CARD not in words:
            return None
        if self.is_broken:
            raise ValueError("broken")
        return Replace(words.replace(CARD, "[card]")) if self.replaces else Refuse("No cards.")


def prompt_with(*guards: Guard) -> Prompt[Any]:
    PAID.clear()
    section = MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=[pay, ask])
    return Prompt(ns="tests", key="words", sections=[section], guards=guards)


DECISIONS: dict[str, Any] = {
    "a reason": Deny(f"Not with {CARD}."),
    "edited text": Edit({"note": f"to {CARD}"}),
    "an edited key": Edit({"note": "x", "codes": {CARD: 1}}),
    "an answer in place of the call": Answer(f"It is {CARD}."),
}


def waiting(guard: Guard) -> tuple[Prompt[Any], ScriptedAdapter, Session, str]:
    prompt, session = prompt_with(guard), Session()
    model = ScriptedAdapter([call("pay", note="rent"), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    return prompt, model, session, pending.call_id


def by_run(prompt: Prompt[Any], model: ScriptedAdapter, session: Session, decisions: Any) -> None:
    run(prompt, model, session=session, decisions=decisions)


def by_run_async(prompt: Prompt[Any], model: ScriptedAdapter, session: Session, decisions: Any) -> None:
    asyncio.run(run_async(prompt, model, session=session, decisions=decisions))


def by_conversation(prompt: Prompt[Any], model: ScriptedAdapter, session: Session, decisions: Any) -> None:
    Conversation(prompt, session=session, adapter=model).decide(decisions)


def by_stream(prompt: Prompt[Any], model: ScriptedAdapter, session: Session, decisions: Any) -> None:
    with Conversation(prompt, session=session, adapter=model).stream(decisions=decisions) as events:
        list(events)


def with_a_message(prompt: Prompt[Any], model: ScriptedAdapter, session: Session, decisions: Any) -> None:
    Conversation(prompt, session=session, adapter=model).send("Go on.", decisions=decisions)


DOORS: list[Callable[..., None]] = [by_run, by_run_async, by_conversation, by_stream, with_a_message]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("what", DECISIONS)
@pytest.mark.parametrize("is_broken", [False, True], ids=["refuses", "fails"])
def test_a_refused_decision_leaves_the_call_waiting(is_broken: bool, what: str, door: Callable[..., None]) -> None:
    prompt, model, session, call_id = waiting(NoCards(is_broken=is_broken))
    before = session[Message].all()
    with pytest.raises(GuardRefusedError, match="NoCards refused the user's words") as refused:
        door(prompt, model, session, {call_id: DECISIONS[what]})
    assert refused.value.message == ("" if is_broken else "No cards.")
    assert [pending.call_id for pending in session[PendingCall].all()] == [call_id]
    assert (session[Message].all(), PAID) == (before, [])
    door(prompt, model, session, {call_id: Approve()})
    assert PAID == ["rent"]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("what", DECISIONS)
def test_a_decision_acts_as_the_guards_have_left_it(what: str, door: Callable[..., None]) -> None:
    prompt, model, session, call_id = waiting(NoCards(replaces=True))
    door(prompt, model, session, {call_id: DECISIONS[what]})
    (result,) = [message for message in session[Message].all() if message.role == "tool"]
    assert CARD not in "".join([*PAID, *(message.text for message in session[Message].all())])
    assert "[card]" in "".join([*PAID, result.text])


def test_arguments_that_the_model_wrote_are_not_a_person_s_words() -> None:
    prompt, session = prompt_with(NoCards()), Session()
    model = ScriptedAdapter([call("pay", note=f"to {CARD}"), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    decision = Edit({"note": f"to {CARD}", "codes": {"a": 1}})
    run(prompt, model, session=session, decisions={pending.call_id: decision})
    assert [f"to {CARD} {{'a': 1}}"] == PAID


def test_an_answer_to_a_question_passes_the_guards() -> None:
    chat = Conversation(prompt_with(NoCards()), adapter=ScriptedAdapter([call("ask"), "Thanks."]))
    (pending,) = chat.send("Hello.").pending
    with pytest.raises(GuardRefusedError, match="No cards"):
        chat.decide({pending.call_id: Answer(CARD)})
    assert chat.decide({pending.call_id: Answer("Cash.")}).text == "Thanks."


@pytest.mark.parametrize("whose", ["the parent", "the child"])
def test_the_guards_of_each_run_pass_a_decision_about_a_call_inside(whose: str) -> None:
    PAID.clear()
    guards = {"the parent": [NoCards()], "the child": []}
    bills = MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=[pay])
    below = [] if whose == "the parent" else [NoCards()]
    template: PromptTemplate[Any] = PromptTemplate(ns="tests", key="child", sections=[bills], guards=below)
    child = delegate(
        template,
        name="child",
        description="Help.",
        adapter=ScriptedAdapter([call("pay", note="rent"), "Paid."]),
    )
    boss = MarkdownSection(key="boss", title="Boss", template="Delegate.", tools=[child])
    prompt: Prompt[Any] = Prompt(ns="tests", key="top", sections=[boss], guards=guards[whose])
    session, model = Session(), ScriptedAdapter([call("child"), "Done."])
    (pending,) = run(prompt, model, session=session).pending
    with pytest.raises(GuardRefusedError, match="No cards"):
        run(prompt, model, session=session, decisions={pending.call_id: Deny(CARD)})
    assert [waits.call_id for waits in session[PendingCall].all()] == [pending.call_id]
    assert run(prompt, model, session=session, decisions={pending.call_id: Approve()}).text == "Done."
    assert PAID == ["rent"]


TEXTS = {"utf-8": CARD.encode(), "utf-16": CARD.encode("utf-16"), "json": f'{{"card": "{CARD}"}}'.encode()}


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("replaces", [False, True], ids=["refused", "replaced"])
def test_a_text_document_passes_the_guards(encoding: str, replaces: bool) -> None:
    kind = "application/json" if encoding == "json" else "text/plain"
    document = Document.from_bytes(TEXTS[encoding], kind, name="a.txt")
    model = ScriptedAdapter(["Done."])
    chat = Conversation(prompt_with(NoCards(replaces=replaces)), adapter=model)
    if not replaces:
        with pytest.raises(GuardRefusedError, match="No cards"):
            chat.send([Text("Look."), document])
        assert (chat.messages, model.requests) == ((), [])
        return
    chat.send([Text("Look."), document])
    (sent,) = [message for message in model.requests[-1].messages if message.by_user]
    shown = TEXTS[encoding].decode("utf-16" if encoding == "utf-16" else "utf-8").replace(CARD, "[card]")
    assert [part.data.decode() for part in sent.parts if isinstance(part, Document)] == [shown]


def page_tool(where: str) -> Tool[Any, Any]:
    schema = {"type": "object", "properties": {"color": {"type": "string"}}}
    if where == "a property":
        schema["properties"] = {CARD: {"type": "string"}}
    elif where == "a choice":
        schema["properties"] = {"color": {"type": "string", "enum": [CARD]}}
    description = f"Never {CARD}." if where == "the description" else "Pick a color."
    return Tool.from_schema(name="page.pick", description=description, schema=schema, handler=None)


@pytest.mark.parametrize("where", ["the description", "a property", "a choice"])
@pytest.mark.parametrize("replaces", [False, True], ids=["refused", "replaced"])
def test_the_words_in_a_tool_of_a_page_pass_the_guards(where: str, replaces: bool) -> None:
    model = ScriptedAdapter([call("pay", note="rent"), "Done."])
    chat = Conversation(prompt_with(NoCards(replaces=replaces)), adapter=model)
    with pytest.raises(GuardRefusedError, match="cannot be replaced" if replaces else "No cards"):
        chat.send("Hello.", tools=[page_tool(where)])
    assert (chat.messages, model.requests) == ((), [])
    (pending,) = chat.send("Hello.", tools=[page_tool("")]).pending
    with pytest.raises(GuardRefusedError):
        chat.decide({pending.call_id: Approve()}, tools=[page_tool(where)])
    assert (len(chat.pending), PAID) == (1, [])
    assert chat.decide({pending.call_id: Approve()}, tools=[page_tool("")]).text == "Done."


@pytest.mark.parametrize("door", ["send", "async", "stream", "with decisions", "while a call waits"])
def test_a_guard_that_a_section_brings_sees_the_first_words_after_a_restart(door: str) -> None:
    PAID.clear()
    bills = MarkdownSection(key="bills", title="Bills", template="Pay bills.", tools=[pay])
    prompt: Prompt[Any] = Prompt(ns="tests", key="words", sections=[bills, Loaded(NoCards())])
    session = Session()
    waits = door in ("with decisions", "while a call waits")
    script = [call("pay", note="rent") if waits else "Hello."]
    Conversation(prompt, adapter=ScriptedAdapter(script), session=session).send("Hello.")
    restored = Session()
    restored.restore(Snapshot.from_json(session.snapshot().to_json()))
    chat = Conversation(prompt, adapter=ScriptedAdapter(["Done."]), session=restored)
    with pytest.raises(GuardRefusedError, match="No cards"):
        if door in ("send", "while a call waits"):
            chat.send(CARD)
        elif door == "async":
            asyncio.run(chat.send_async(CARD))
        elif door == "stream":
            list(chat.stream(CARD))
        else:
            chat.send(CARD, decisions={chat.pending[0].call_id: Approve()})
    assert (CARD not in [message.text for message in chat.messages], PAID) == (True, [])
