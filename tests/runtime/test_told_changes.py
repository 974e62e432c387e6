"""What a conversation tells the model when its prompt changes: each change once, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.disclosure.desk import a_tool, section
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import BudgetExceededError, PromptEvaluationError
from weakincentives.limits import Budget
from weakincentives.prompt import (
    CollapseSection,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SearchSections,
    SectionVisibility,
    SetVisibilityOverride,
    ToolContext,
    tool,
)
from weakincentives.runtime import (
    Conversation,
    Exposure,
    Message,
    ModelCalled,
    PromptChanged,
    PromptRendered,
    SectionsOpened,
    ToolInvoked,
    run_history,
)
from weakincentives.session import Session, Snapshot

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
ANSWERS = ("One.", "Two.", "Three.", "Four.", "Five.")
CHANGED = "The instructions have changed. From now on these sections read:\n\n"
APPLIES = "This section of the instructions applies now:\n\n"


@dataclass(frozen=True)
class Customer:
    name: str = "Ann"
    vip: bool = False


@dataclass(frozen=True)
class LoggedIn:
    pass


def chat_with(
    *sections: Any, script: Any = ANSWERS, session: Session | None = None, **options: Any
) -> Conversation[Any]:
    dynamic = options.pop("supports_dynamic_tools", True)
    template: PromptTemplate[Any] = PromptTemplate(ns="t", key="k", sections=sections, **options)
    adapter = ScriptedAdapter(script, supports_dynamic_tools=dynamic)
    return Conversation(Prompt(template), adapter=adapter, session=session)


def restored(chat: Conversation[Any]) -> Session:
    session = Session()
    session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
    return session


def told(chat: Conversation[Any]) -> list[str]:
    """What the model was told besides the first system text, with what the user said."""
    return [message.text for message in chat.messages[1:] if message.role in ("system", "user")]


def customer(**options: Any) -> MarkdownSection[Customer]:
    return MarkdownSection[Customer](title="Customer", key="customer", template="Serve ${name}.", **options)


def perks(**options: Any) -> MarkdownSection[Customer]:
    return MarkdownSection[Customer](
        title="Perks", key="perks", template="Be lavish.", tools=[a_tool("give")], **options
    )


TASK = section("task", closed=False)


def test_a_change_is_told_once_and_so_is_the_change_back() -> None:
    chat = chat_with(customer())
    for name in ("Ann", "Bob", "Bob", "Ann"):
        chat.bind(Customer(name))
        chat.send(f"I am {name}.")
    told_bob, told_ann = (f"{CHANGED}## Customer\n\nServe {name}." for name in ("Bob", "Ann"))
    assert told(chat) == ["I am Ann.", told_bob, "I am Bob.", "I am Bob.", told_ann, "I am Ann."]
    assert [event.changed_sections for event in chat.session[PromptChanged]] == [("customer",)] * 2


def test_a_change_that_was_told_is_not_told_again_after_a_restore() -> None:
    chat = chat_with(customer())
    chat.send("a")
    chat.bind(Customer("Bob"))
    chat.send("b")
    again = chat_with(customer(), session=restored(chat))
    again.bind(Customer("Bob"))
    again.send("c")
    assert told(again) == [*told(chat), "c"]


def test_what_a_user_section_says_anew_is_said_once() -> None:
    chat = chat_with(customer(role="user"))
    chat.send()
    chat.bind(Customer("Bob"))
    chat.send()
    chat.send("Thanks.")
    chat.bind(Customer("Ann"))
    chat.send()
    asked = [message.text for message in chat.messages if message.role == "user"]
    assert asked[1:] == ["## Customer\n\nServe Bob.", "Thanks.", "## Customer\n\nServe Ann."]


def test_a_section_and_its_tool_that_were_removed_and_return_are_told_once_each() -> None:
    chat = chat_with(TASK, perks(), script=["One."])
    chat.send("a")
    without = chat_with(TASK, script=["Two.", "Three."], session=restored(chat))
    without.send("b")
    without.send("c")
    back = chat_with(TASK, perks(), script=[call("give"), "Four."], session=restored(without))
    back.send("d")
    gone = "These sections no longer apply: perks.\n\nThese tools are no longer available: give."
    assert told(back) == ["a", gone, "b", "c", f"{APPLIES}## Perks\n\nBe lavish.", "d"]
    assert [(m.role, m.tools) for m in back.messages if m.tools] == [("tools_added", ("give",))]
    assert [event.success for event in back.session[ToolInvoked]] == [True]


@pytest.mark.parametrize("tools", [(), (a_tool("find"),)])
def test_a_change_to_a_section_that_the_model_has_read_is_told(tools: tuple[Any, ...]) -> None:
    closed = customer(summary="Whom you serve.", visibility=SUMMARY, tools=tools)
    chat = chat_with(closed, script=[call("read_section", section_key="customer"), *ANSWERS])
    chat.send("a")
    chat.bind(Customer("Bob"))
    chat.send("b")
    chat.send("c")
    assert told(chat) == ["a", f"{CHANGED}## Customer\n\nServe Bob.", "b", "c"]


@pytest.mark.parametrize("source", ["prompt", "conversation"])
def test_a_change_to_a_section_that_was_hidden_since_is_told_wherever_its_text_stands(source: str) -> None:
    closed = source == "conversation"
    outer = section("outer", closed=closed, tools=("act",), children=[customer()])
    script = [call("read_section", section_key="outer"), *ANSWERS] if closed else ANSWERS
    chat = chat_with(TASK, outer, script=script, allow_collapse=True)
    chat.send("a")
    assert (chat.session[Exposure].latest() or Exposure())["outer", "customer"].source == source
    chat.session.dispatch(CollapseSection(("outer",)))
    chat.send("b")
    chat.bind(Customer("Bob"))
    chat.send("c")
    chat.send("d")
    assert told(chat)[-3:] == [f"{CHANGED}## Customer\n\nServe Bob.", "c", "d"]


def test_the_text_of_a_closed_section_may_change_unnoticed() -> None:
    chat = chat_with(TASK, customer(summary="Whom you serve.", visibility=SUMMARY))
    chat.send("a")
    chat.bind(Customer("Bob"))
    chat.send("b")
    assert told(chat) == ["a", "b"]


@pytest.mark.parametrize(
    "enabled",
    [lambda customer: customer.vip, lambda *, session: session[LoggedIn].latest() is not None],
    ids=["params", "session"],
)
def test_enabled_is_asked_again_at_each_turn(enabled: Callable[..., bool]) -> None:
    chat = chat_with(TASK, perks(enabled=enabled), script=["One.", call("give"), "Two.", call("give"), "Three."])
    chat.send("a")
    chat.bind(Customer(vip=True))
    chat.session.dispatch(LoggedIn())
    chat.send("b")
    chat.bind(Customer(vip=False))
    chat.session[LoggedIn].clear()
    chat.send("c")
    assert told(chat) == ["a", f"{APPLIES}## Perks\n\nBe lavish.", "b", "These sections no longer apply: perks.", "c"]
    assert [message.text for message in chat.messages if message.role == "tool"] == [
        "give done",
        "Tool 'give' is not available: section 'perks' no longer applies.",
    ]


def test_a_section_enabled_later_may_be_a_summary() -> None:
    chat = chat_with(TASK, perks(enabled=lambda each: each.vip, summary="What we give.", visibility=SUMMARY))
    chat.send("a")
    chat.bind(Customer(vip=True))
    chat.send("b")
    (note,) = [text for text in told(chat) if text not in ("a", "b")]
    assert note.startswith(f"{CHANGED}## Perks\n\nWhat we give.\n\n---\n")
    assert [message.tools for message in chat.messages if message.tools] == [("read_section",)]


def test_a_visibility_that_code_decides_is_asked_again_unless_the_model_has_opened_the_section() -> None:
    def chooses(each: Customer) -> SectionVisibility:
        return FULL if each.vip else SUMMARY

    chat = chat_with(TASK, perks(summary="What we give.", visibility=chooses))
    for vip in (False, True, False):
        chat.bind(Customer(vip=vip))
        chat.send("x")
    opened, closed = (text for text in told(chat) if text != "x")
    assert opened == f"{APPLIES}## Perks\n\nBe lavish."
    assert closed.startswith(f"{CHANGED}## Perks\n\nWhat we give.")
    read = chat_with(
        TASK,
        perks(summary="What we give.", visibility=chooses),
        script=[call("read_section", section_key="perks"), "One.", call("give"), "Two."],
    )
    read.send("x")
    read.send("x")
    assert [event.success for event in read.session[ToolInvoked]] == [True, True]


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_section_opened_by_code_between_turns_is_told_with_its_text(dynamic: bool) -> None:
    chat = chat_with(TASK, section("returns", tools=("refund",)), supports_dynamic_tools=dynamic)
    chat.send("a")
    chat.session.dispatch(SetVisibilityOverride(("returns",), FULL))
    chat.send("b")
    chat.send("c")
    assert "\n".join(message.text for message in chat.messages).count("All of returns.") == 1
    assert [event.decided_by for event in chat.session[SectionsOpened]] == ["code"]
    seen = {each.key: each.seen for each in run_history(chat.session).now.sections}
    assert seen["returns"] == ("conversation" if dynamic else "prompt")


def test_a_section_that_a_tool_opens_or_closes_by_code_is_told() -> None:
    @tool
    def turn(open: bool, *, context: ToolContext) -> str:
        """Open or close the returns."""
        path = ("returns",)
        context.session.dispatch(SetVisibilityOverride(path, FULL) if open else CollapseSection(path))
        return "turned"

    task = MarkdownSection(title="Task", key="task", template="Go.", tools=[turn])
    rules = MarkdownSection(title="Returns", key="returns", template="Never.", summary="When.", visibility=SUMMARY)
    chat = chat_with(task, rules, script=[call("turn", open=True), call("turn", open=False), "Done."])
    chat.send("a")
    said, opened, closed = told(chat)
    assert (said, opened) == ("a", f"{APPLIES}## Returns\n\nNever.")
    assert closed.startswith(f"{CHANGED}## Returns\n\nWhen.")


def test_a_section_opened_by_code_is_told_although_the_model_reads_its_child_in_the_same_turn() -> None:
    @tool
    def unlock(*, context: ToolContext) -> str:
        """Open the returns."""
        context.session.dispatch(SetVisibilityOverride(("returns",), FULL))
        return "unlocked"

    task = MarkdownSection(title="Task", key="task", template="Go.", tools=[unlock])
    returns = section("returns", tools=("refund",), children=[section("rules", tools=("rule",))])
    both = [call("unlock"), call("read_section", section_key="returns.rules")]
    chat = chat_with(task, returns, script=[both, "Done."])
    chat.send("a")
    assert told(chat)[-1].startswith(f"{APPLIES}## Returns\n\nAll of returns.")


def test_a_section_that_the_model_closes_is_not_announced_to_it() -> None:
    script = [call("collapse_section", section_key="returns"), "Done.", "Two."]
    rules = MarkdownSection(title="Returns", key="returns", template="Never.", summary="When.")
    chat = chat_with(TASK, rules, script=script, allow_collapse=True)
    chat.send("a")
    chat.send("b")
    assert told(chat) == ["a", "b"]


def test_every_message_of_a_conversation_may_open_sections() -> None:
    pages = [
        MarkdownSection(title=key.title(), key=key, template=text, summary=key, visibility=SUMMARY)
        for key, text in (("refunds", "A manager approves refunds."), ("camera", "Take screenshots of the screen."))
    ]
    chat = chat_with(TASK, *pages, disclosure=SearchSections(preopen=1))
    chat.send("Who approves refunds?")
    chat.send("Now take a screenshot of the screen.")
    assert told(chat)[-1] == f"{APPLIES}## Camera\n\nTake screenshots of the screen."
    assert [(event.section_keys, event.decided_by) for event in chat.session[SectionsOpened]] == [
        (("refunds",), "search"),
        (("camera",), "search"),
    ]


def test_a_snapshot_does_not_grow_by_the_prompt_with_each_turn() -> None:
    chat = chat_with(MarkdownSection(title="Book", key="book", template="Words. " * 10_000), script=["x"] * 10)
    responses = [chat.send("a") for _ in range(10)]
    assert chat.session.snapshot().to_json().count("Words.") == 10_000
    histories = [run_history(chat.session, response.run_id) for response in (responses[0], responses[-1])]
    assert histories[0].renders[0].text == histories[1].renders[0].text
    assert [each.now.sections[0].seen for each in histories] == ["prompt", "prompt"]


def test_the_history_of_a_turn_knows_the_sections_that_were_enabled_for_it() -> None:
    chat = chat_with(TASK, perks(enabled=lambda each: each.vip))
    runs = []
    for vip in (False, True, False):
        chat.bind(Customer(vip=vip))
        runs.append(chat.send("x").run_id)
    turns = [run_history(chat.session, run).turns[0] for run in runs]
    found = [{each.key: (each.seen, each.tools_offered) for each in turn.state.sections}.get("perks") for turn in turns]
    assert found == [None, ("conversation", ("give",)), ("conversation", ())]
    assert [message.role for message in chat.session[Message]].count("tools_removed") == 1


def test_a_change_is_told_after_the_results_of_open_calls() -> None:
    greeting = MarkdownSection[Customer](key="u", title="U", template="You serve ${name}.", tools=[a_tool("go")])
    chat = chat_with(greeting, script=[call("go"), "Done."])
    with pytest.raises(BudgetExceededError):
        chat.send("one", budget=Budget(max_tool_calls=0))
    chat.bind(Customer("Bob"))
    chat.send("two")
    assert [message.role for message in chat.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "system",
        "user",
        "assistant",
    ]


def test_a_reducer_may_keep_only_the_newest_render() -> None:
    session = Session()
    session[PromptRendered].register(PromptRendered, lambda renders, event: (event,))
    chat = chat_with(section("task"), session=session)
    assert [chat.send("hello").text for _ in range(3)] == ["One.", "Two.", "Three."]


def test_a_section_that_begins_to_apply_is_not_taken_for_the_users_words() -> None:
    shipping = MarkdownSection[Customer](
        key="ship", title="Ship", template="${name} ships to Norway.", summary="Where to.", visibility=SUMMARY
    )
    customs = section("customs", open_when=lambda *, text: "Norway" in text)
    chat = chat_with(TASK, shipping, customs)
    chat.send("Hello.")
    chat.session.dispatch(SetVisibilityOverride(("ship",), FULL))
    chat.send("And now?")
    assert [(m.kind, m.text) for m in chat.messages if "Norway" in m.text] == [
        ("instructions", f"{APPLIES}## Ship\n\nAnn ships to Norway.")
    ]
    assert [event.section_keys for event in chat.session[SectionsOpened]] == [("ship",)]


def test_a_changed_user_section_is_not_the_users_own_message() -> None:
    words = MarkdownSection[Customer](key="u", title="U", template="I am ${name}.", role="user")
    chat = chat_with(section("task"), words)
    chat.send()
    chat.bind(Customer("Bob"))
    chat.send("Hello.")
    said = [(message.kind, message.text) for message in chat.messages if message.role == "user"]
    assert said == [("prompt", "## 2. U\n\nI am Ann."), ("prompt", "## U\n\nI am Bob."), ("", "Hello.")]


@pytest.mark.parametrize("dynamic", [True, False])
def test_the_visibilities_passed_to_a_turn_hold_for_that_turn(dynamic: bool) -> None:
    orders, rules = section("orders", tools=("lookup",)), section("rules", closed=False, tools=("cite",))
    chat = chat_with(orders, rules, supports_dynamic_tools=dynamic)
    swapped = {("orders",): FULL, ("rules",): SUMMARY}
    for overrides in (swapped, {}, {("orders",): FULL}, swapped):
        chat.send("Hi.", visibility_overrides=overrides)
    called = [set(event.tools) - {"read_section"} for event in chat.session[ModelCalled]]
    assert called == [{"lookup"}, {"cite"}, {"lookup", "cite"}, {"lookup"}]
    shown = {each.key: each.visibility for each in run_history(chat.session).now.sections}
    assert shown == {"orders": FULL, "rules": SUMMARY}


def test_a_turn_is_resumed_elsewhere_with_the_visibilities_passed_to_it() -> None:
    chat = chat_with(
        section("orders", tools=("lookup",)), script=["One.", PromptEvaluationError("down", phase="request")]
    )
    chat.send("Hi.")
    with pytest.raises(PromptEvaluationError, match="down"):
        chat.send("Where is it?", visibility_overrides={("orders",): FULL})
    adapter = ScriptedAdapter([call("lookup"), "In Lyon."])
    assert adapter.resume(Prompt(chat.prompt.template), session=restored(chat)).text == "In Lyon."
    assert "lookup" not in adapter.requests[-1].revoked


def test_a_section_that_closes_and_changes_at_once_is_told_with_its_new_text_at_once() -> None:
    chat = chat_with(TASK, customer(summary="A customer.", visibility=lambda params: SUMMARY if params.vip else FULL))
    for given in (Customer("Ann"), Customer("Bob", vip=True), Customer("Bob", vip=True), Customer("Bob")):
        chat.bind(given)
        chat.send("Hello.")
    told_bob, applies = f"{CHANGED}## Customer\n\nServe Bob.", f"{APPLIES}## Customer\n\nServe Bob."
    assert told(chat) == ["Hello.", told_bob, "Hello.", "Hello.", applies, "Hello."]
