"""A restart replaces the system text and the tools, never the conversation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.disclosure.desk import a_tool, desk, section
from tests.helpers.endings import endings
from weakincentives.adapters import FallbackAdapter
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import BudgetExceededError, PromptEvaluationError
from weakincentives.limits import Budget
from weakincentives.prompt import (
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    Prompt,
    PromptTemplate,
    ReadSections,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
    VisibilityOverrides,
    tool,
)
from weakincentives.runtime import (
    Conversation,
    MainLoop,
    Message,
    ModelRequest,
    PromptResponse,
    ProviderAdapter,
    Restarted,
    RunEnded,
    SectionOpened,
    ToolEnded,
    ToolInvoked,
)
from weakincentives.session import Session, Snapshot

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
READ = call("read_section", section_key="refunds")


@dataclass(frozen=True)
class Tea:
    price: int


@dataclass(frozen=True)
class Opened:
    pass


@tool
def opening(*, context: ToolContext) -> str:
    "Open the refunds."
    context.session.dispatch(Opened())
    context.session.dispatch(SetVisibilityOverride(("refunds",), FULL))
    return "opened"


def down() -> PromptEvaluationError:
    return PromptEvaluationError("down", prompt_name="shop", phase="request")


def open_(*keys: str) -> Any:
    return call("open_sections", section_keys=list(keys), reason="needed")


def shop(*more: MarkdownSection[Any], **kwargs: Any) -> PromptTemplate[None]:
    task = MarkdownSection(title="Task", key="task", template="Help.", tools=[a_tool("order"), opening])
    return PromptTemplate(ns="t", key="shop", sections=[task, section("refunds", tools=("refund",)), *more], **kwargs)


def opener(key: str, **options: Any) -> Tool[None, None]:
    """A tool whose handler asks for a section."""

    def handle(params: None, *, context: ToolContext) -> ToolResult[None]:
        raise VisibilityExpansionRequired(requested_overrides={(key,): FULL}, reason=f"{key}?", section_keys=(key,))

    return Tool(name=f"open_{key}", description="Open.", handler=handle, **options)


def said(session: Session) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in session[Message].all() if message.role != "system"]


def test_what_was_said_before_a_restart_is_in_the_next_request() -> None:
    session = Session()
    with ScriptedAdapter([call("order"), open_("refunds"), call("refund"), "Done."]) as adapter:
        MainLoop().execute(Prompt(shop(disclosure=OpenOrRead())), session=session, adapter=adapter)
    assert [message.role for message in adapter.requests[2].messages] == [
        "system", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert "All of refunds." in adapter.requests[2].messages[0].text
    assert said(session)[:4] == [
        ("assistant", ""),
        ("tool", "order done"),
        ("assistant", ""),
        ("tool", "Opening: refunds."),
    ]


def test_a_reading_that_restarts_is_answered_without_repeating_the_section() -> None:
    session = Session()
    script = [call("read_section", section_key="refunds"), call("refund"), "Done."]
    with ScriptedAdapter(script, supports_dynamic_tools=False) as adapter:
        MainLoop().execute(Prompt(shop()), session=session, adapter=adapter)
    assert said(session)[1] == (
        "tool",
        "Opening refunds: once it is open, the prompt shows the full text, and its tools are available.",
    )
    assert "All of refunds." in adapter.requests[1].messages[0].text


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_section_whose_reading_was_stopped_can_be_read_in_the_next_turn(elsewhere: bool) -> None:
    script = [READ, READ, call("refund"), "Done."]
    with ScriptedAdapter(script, supports_dynamic_tools=False) as adapter:
        chat = Conversation(Prompt(shop()), adapter=adapter)
        with chat.stream("Refund it.") as events:
            next(event for event in events if isinstance(event, ToolEnded))
        if elsewhere:
            session = Session()
            session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
            chat = Conversation(Prompt(shop()), adapter=adapter, session=session)
        assert chat.send("Go on.").text == "Done."
    assert ("tool", "refund done") in said(chat.session)


def test_calls_after_one_that_opens_sections_are_answered_as_not_run() -> None:
    session = Session()
    with ScriptedAdapter([[open_("refunds"), call("order")], "Done."]) as adapter:
        MainLoop().execute(Prompt(shop(disclosure=OpenAndHalt())), session=session, adapter=adapter)
    assert [event.name for event in session[ToolInvoked]] == ["open_sections"]
    last = session[Message].all()[-2]
    assert (last.role, last.name, last.success) == ("tool", "order", False)
    assert last.text.startswith("Not run: the turn ended to open sections.")


def test_a_halted_run_is_resumed_without_the_calls_that_were_discarded() -> None:
    session, prompt = Session(), Prompt(shop(disclosure=OpenAndHalt()))
    with ScriptedAdapter([[open_("refunds"), call("order")], "Done."]) as adapter:
        assert adapter.evaluate(prompt, session=session).halt is not None
        restored = Session()
        restored.restore(Snapshot.from_json(session.snapshot().to_json()))
        assert adapter.resume(Prompt(shop(disclosure=OpenAndHalt())), session=restored).text == "Done."
    assert [event.name for event in restored[ToolInvoked]] == ["open_sections"]


def test_a_halt_and_the_restart_after_it_say_why() -> None:
    session = Session()
    with ScriptedAdapter([open_("refunds"), "Done."]) as adapter:
        MainLoop().execute(Prompt(shop(disclosure=OpenAndHalt())), session=session, adapter=adapter)
    assert [event.reason for event in endings(session, "restarted")] == ["needed"]
    with ScriptedAdapter([open_("refunds")]) as adapter:
        halt = adapter.evaluate(Prompt(shop(disclosure=OpenAndHalt())), session=Session()).halt
    assert halt is not None and halt.reason == "needed"


@pytest.mark.parametrize("strategy", [OpenAndHalt, OpenOrRead])
def test_a_run_ends_once_and_every_attempt_before_it_as_a_restart(strategy: Any) -> None:
    session = Session()
    with ScriptedAdapter([open_("refunds"), "Done."]) as adapter:
        MainLoop().execute(Prompt(shop(disclosure=strategy())), session=session, adapter=adapter)
    assert [(event.status, event.section_keys, event.text) for event in session[RunEnded]] == [
        ("restarted", ("refunds",), ""),
        ("completed", (), "Done."),
    ]


def test_a_stream_that_is_closed_between_two_attempts_has_stopped() -> None:
    session = Session()
    adapter = ScriptedAdapter([open_("refunds"), "Done."])
    with MainLoop().stream(Prompt(shop(disclosure=OpenOrRead())), session=session, adapter=adapter) as events:
        assert next(event for event in events if isinstance(event, Restarted)) == Restarted("needed")
    assert [event.status for event in session[RunEnded]] == ["restarted", "stopped"]


def test_an_adapter_with_its_own_evaluate_is_restarted_too() -> None:
    class Own(ProviderAdapter[Any]):
        def evaluate(self, prompt: Any, *, session: Session, **options: Any) -> PromptResponse[Any]:
            shown = prompt.render(session=session).text
            if "All of refunds." not in shown:
                raise VisibilityExpansionRequired(requested_overrides={("refunds",): FULL}, section_keys=("refunds",))
            return PromptResponse(prompt.name, shown)

    session, prompt = Session(), Prompt(shop())
    assert "All of refunds." in MainLoop().execute(prompt, session=session, adapter=Own("own")).text
    with pytest.raises(PromptEvaluationError, match="max_expansions"):
        MainLoop(max_expansions=0).execute(prompt, session=Session(), adapter=Own("own"))


def test_an_evaluation_by_hand_goes_on_after_the_signal_it_raised() -> None:
    session, prompt = Session(), Prompt(shop(disclosure=OpenOrRead()))
    with ScriptedAdapter([call("order"), open_("refunds"), "Done."]) as adapter:
        with pytest.raises(VisibilityExpansionRequired) as caught:
            adapter.evaluate(prompt, session=session)
        for path, visibility in caught.value.requested_overrides.items():
            session.dispatch(SetVisibilityOverride(path, visibility))
        adapter.evaluate(prompt, session=session)
    assert ("tool", "order done") in said(session)


@pytest.mark.parametrize(
    ("strategy", "opening"),
    [(ReadSections(), READ), (OpenOrRead(), open_("refunds")), (OpenAndHalt(), open_("refunds"))],
    ids=lambda value: type(value).__name__,
)
def test_a_caller_may_refuse_to_open_what_needs_a_new_evaluation(strategy: Any, opening: Any) -> None:
    session, prompt = Session(), Prompt(shop(disclosure=strategy))
    with ScriptedAdapter([opening, call("refund"), "Done."], supports_dynamic_tools=False) as adapter:
        try:
            assert adapter.evaluate(prompt, session=session).halt is not None
        except VisibilityExpansionRequired as signal:
            assert signal.requested_overrides == {("refunds",): FULL}
        assert adapter.evaluate(prompt, session=session).text == "Done."
    assert session[VisibilityOverrides].latest() in (None, VisibilityOverrides())
    assert said(session)[-2][1].startswith("Unknown tool 'refund'.")


@pytest.mark.parametrize(
    ("strategy", "opening"), [(ReadSections(), READ), (OpenOrRead(), open_("refunds"))], ids=["read", "open"]
)
def test_what_was_asked_for_once_too_often_stays_closed(strategy: Any, opening: Any) -> None:
    session, prompt = Session(), Prompt(shop(disclosure=strategy))
    adapter = ScriptedAdapter([opening, "Done."], supports_dynamic_tools=False)
    with pytest.raises(PromptEvaluationError, match="max_expansions"):
        MainLoop(max_expansions=0).execute(prompt, session=session, adapter=adapter)
    assert not prompt.view(session).is_open(("refunds",))


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    ("strategy", "script"),
    [
        (ReadSections(), [READ]),
        (OpenOrRead(), [open_("refunds")]),
        (OpenAndHalt(), [open_("refunds")]),
        (ReadSections(), [call("order")]),
    ],
    ids=["read", "open", "halt", "rule"],
)
def test_a_stream_names_the_tools_of_a_section_that_is_opened(strategy: Any, script: Any, dynamic: bool) -> None:
    tools = [a_tool("order"), a_tool("count")]
    task = MarkdownSection(title="Task", key="task", template="Help.", tools=tools)
    rule = {"open_when": lambda text: "refund" in text} if strategy == ReadSections() and script != [READ] else {}
    refunds = section("refunds", tools=("refund",), **rule)
    prompt = Prompt(PromptTemplate[None](ns="t", key="shop", sections=[task, refunds], disclosure=strategy))
    adapter = ScriptedAdapter([*script, "Done."], supports_dynamic_tools=dynamic)
    with Conversation(prompt, adapter=adapter).stream("A refund, please.") as events:
        assert [event for event in events if isinstance(event, SectionOpened)] == [
            SectionOpened("refunds", ("refund",))
        ]


@pytest.mark.parametrize("same", [True, False])
def test_a_prompt_with_other_params_begins_a_new_conversation_and_an_equal_one_restarts(same: bool) -> None:
    session, template = Session(), shop(disclosure=OpenAndHalt())
    with ScriptedAdapter([open_("refunds"), "Hello."]) as adapter:
        assert adapter.evaluate(Prompt(template).bind(Tea(1)), session=session).halt is not None
        adapter.evaluate(Prompt(template).bind(Tea(1 if same else 2)), session=session)
    roles = [role for role, _ in said(session)]
    assert roles == (["assistant", "tool", "assistant"] if same else ["assistant"])


def test_a_tool_revealed_in_a_turn_may_be_called_later_in_the_same_turn() -> None:
    session = Session()
    turn = [call("read_section", section_key="refunds"), call("refund")]
    with ScriptedAdapter([turn, "Done."]) as adapter:
        adapter.evaluate(Prompt(shop()), session=session)
    roles = [message.role for message in session[Message].all()]
    assert roles == ["system", "assistant", "tool", "tool", "tools_added", "assistant"]
    assert session[Message].all()[3].text == "refund done"


def test_the_main_loop_takes_visibility_overrides() -> None:
    with ScriptedAdapter(["Done."]) as adapter:
        overrides = {("orders",): FULL}
        MainLoop().execute(Prompt(desk()), session=Session(), adapter=adapter, visibility_overrides=overrides)
    assert "All of orders." in adapter.requests[0].messages[0].text


def test_a_view_for_another_session_knows_nothing_of_an_earlier_run() -> None:
    prompt = Prompt(desk())
    ScriptedAdapter(["Done."]).evaluate(prompt, session=Session(), visibility_overrides={("orders",): FULL})
    assert not prompt.view(Session()).is_open(("orders",))


def test_a_budget_covers_a_restart_and_the_adapter_after_it() -> None:
    first = ScriptedAdapter([call("order"), call("order"), READ, down()], supports_dynamic_tools=False)
    second = ScriptedAdapter([call("refund"), call("refund"), "Done."], supports_dynamic_tools=False)
    loop = MainLoop(budget=Budget(max_turns=4))
    with pytest.raises(BudgetExceededError, match="max_turns=4, spent 4"):
        loop.execute(Prompt(shop()), session=Session(), adapter=FallbackAdapter(first, second))


def test_a_run_resumed_after_a_restart_counts_all_it_has_spent() -> None:
    session, prompt = Session(), Prompt(shop())
    adapter = ScriptedAdapter([call("order"), READ, down(), "Done."], supports_dynamic_tools=False)
    with pytest.raises(PromptEvaluationError, match="down"):
        MainLoop().execute(prompt, session=session, adapter=adapter)
    assert adapter.resume(prompt, session=session).turns == 3


@pytest.mark.parametrize("again", ["evaluate", "resume"])
def test_an_evaluation_goes_on_after_code_opened_a_section(again: str) -> None:
    session, prompt = Session(), Prompt(shop())
    with ScriptedAdapter([call("opening"), "Done."], supports_dynamic_tools=False) as adapter:
        with pytest.raises(VisibilityExpansionRequired):
            adapter.evaluate(prompt, session=session)
        getattr(adapter, again)(prompt, session=session)
    assert said(session) == [("assistant", ""), ("tool", "opened"), ("assistant", "Done.")]
    assert "All of refunds." in adapter.requests[-1].messages[0].text


def test_a_prompt_that_halted_on_two_sessions_goes_on_with_both() -> None:
    first, second, prompt = Session(), Session(), Prompt(shop(disclosure=OpenAndHalt()))
    with ScriptedAdapter([open_("refunds"), open_("refunds"), "One.", "Two."]) as adapter:
        for session in (first, second, first, second):
            adapter.evaluate(prompt, session=session)
    assert [len(said(first)), said(first)[-1]] == [3, ("assistant", "One.")]
    assert [len(said(second)), said(second)[-1]] == [3, ("assistant", "Two.")]


def test_a_prompt_that_resumed_a_run_goes_on_when_that_halts() -> None:
    session, prompt, other = Session(), Prompt(shop(disclosure=OpenAndHalt())), Prompt(shop(disclosure=OpenAndHalt()))
    with ScriptedAdapter([down(), "Else.", open_("refunds"), "Done."]) as adapter:
        with pytest.raises(PromptEvaluationError, match="down"):
            adapter.evaluate(prompt, session=session)
        adapter.evaluate(other, session=Session())
        adapter.resume(other, session=session)
        adapter.evaluate(other, session=session)
    assert [role for role, _ in said(session)] == ["assistant", "tool", "assistant"]


def test_a_halted_run_that_was_resumed_and_answered_is_over() -> None:
    session, prompt = Session(), Prompt(shop(disclosure=OpenAndHalt()))
    with ScriptedAdapter([open_("refunds"), "One.", "Two."]) as adapter:
        adapter.evaluate(prompt, session=session)
        assert adapter.resume(prompt, session=session).text == "One."
        assert adapter.evaluate(prompt, session=session).text == "Two."
    assert said(session) == [("assistant", "Two.")]


@pytest.mark.parametrize("strategy", [ReadSections(), OpenAndHalt()])
def test_what_is_enabled_stands_through_restarts(strategy: Any) -> None:
    until_opened: Any = section("early", closed=False, enabled=lambda *, session: not session[Opened].all())
    other = open_("more") if isinstance(strategy, OpenAndHalt) else call("read_section", section_key="more")
    template = shop(until_opened, section("more", tools=("extra",)), disclosure=strategy)
    with ScriptedAdapter([call("opening"), other, "Done."], supports_dynamic_tools=False) as adapter:
        MainLoop().execute(Prompt(template), session=Session(), adapter=adapter)
    assert [len(adapter.requests), adapter.requests[-1].messages[0].text.count("All of")] == [3, 3]


def chat_about(*sections: MarkdownSection[Any], script: list[Any], params: Any, **kwargs: Any) -> Conversation[None]:
    adapter = ScriptedAdapter(script, supports_dynamic_tools=False)
    return Conversation(Prompt(shop(*sections, **kwargs)).bind(params), adapter=adapter)


def test_a_changed_text_that_the_model_has_read_is_told_again_after_a_restart() -> None:
    tea = MarkdownSection[Tea](key="tea", title="Tea", template="Tea: ${price}.", summary="Tea.", visibility=SUMMARY)
    chat = chat_about(tea, script=[call("read_section", section_key="tea"), "10.", READ, "20."], params=Tea(10))
    chat.send("How much?")
    chat.bind(Tea(20))
    chat.send("And now?")
    texts = [message.text for message in chat.messages if "Tea:" in message.text]
    assert texts == [
        "Content of section 'tea':\n\n## Tea\n\nTea: 10.",
        "The instructions have changed. From now on these sections read:\n\n## Tea\n\nTea: 20.",
    ]


def test_what_was_read_as_a_system_message_stays_through_a_restart() -> None:
    class Operated(ScriptedAdapter):
        supports_operator_text = True

    template = shop(section("docs"), disclosure=ReadSections(voice="system"))
    with Operated([call("read_section", section_key="docs"), READ, "Done."], supports_dynamic_tools=False) as adapter:
        MainLoop().execute(Prompt(template), session=Session(), adapter=adapter)
    told = [message.text for message in adapter.requests[-1].messages if message.role == "system"]
    assert ("All of refunds." in told[0], told[1:]) == (True, ["## Docs\n\nAll of docs."])


def test_each_question_of_a_user_section_stays_before_its_answer() -> None:
    asks = MarkdownSection[Tea](key="asks", title="Asks", template="Is ${price} fair?", role="user")
    chat = chat_about(asks, script=["Yes.", READ, "No."], params=Tea(10))
    chat.send()
    chat.bind(Tea(20))
    chat.send()
    assert said(chat.session) == [
        ("user", "## 3. Asks\n\nIs 10 fair?"),
        ("assistant", "Yes."),
        ("user", "## 3. Asks\n\nIs 20 fair?"),
        ("assistant", ""),
        ("tool", "Opening refunds: once it is open, the prompt shows the full text, and its tools are available."),
        ("assistant", "No."),
    ]


def test_a_conversation_rewound_to_before_a_restart_is_told_what_changed_since() -> None:
    tea = MarkdownSection[Tea](key="tea", title="Tea", template="Tea: ${price}.")
    chat = chat_about(tea, script=["One.", READ, "Two.", "Three."], params=Tea(10))
    chat.send("one")
    before = chat.session.snapshot()
    chat.bind(Tea(20))
    chat.send("two")
    chat.session.restore(before)
    chat.send("three")
    assert "Tea: 10." in chat.messages[0].text
    assert chat.messages[3].text.endswith("these sections read:\n\n## Tea\n\nTea: 20.")


def drink(key: str, **kwargs: Any) -> MarkdownSection[Tea]:
    text = f"{key}: ${{price}}."
    return MarkdownSection[Tea](key=key, title=key, template=text, summary="Ask.", visibility=SUMMARY, **kwargs)


def check_texts(chat: Conversation[None], request: ModelRequest) -> None:
    """The newest text of every section that is open, or that was read and has no tools, is the bound one."""
    view, told = chat.prompt.view(chat.session), "\n".join(message.text for message in request.messages)
    for key in ("tea", "mate", "milk"):
        found = re.findall(rf"{key}: (\d+)", told)
        if view.is_open((key,)) or (key == "milk" and found):
            assert found[-1] == str(chat.prompt.params[0].price)


turns = ["read_section tea", "read_section mate", "read_section milk", "collapse_section tea", "bind", "save", "back"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(turns), max_size=10), st.booleans())
def test_the_model_has_the_bound_text_whatever_is_read_closed_bound_restarted_or_undone(
    script: list[str], dynamic: bool
) -> None:
    sections = [drink("tea", tools=[a_tool("brew")]), drink("mate", tools=[a_tool("pour")]), drink("milk")]
    step, asked = "", False

    def answer(request: ModelRequest) -> Any:
        nonlocal asked
        check_texts(chat, request)
        name, _, key = step.partition(" ")
        asked = not asked and bool(key) and name in {offer.name for offer in request.tools}
        return call(name, section_key=key) if asked else "Done."

    adapter = ScriptedAdapter(answer, supports_dynamic_tools=dynamic)
    chat = Conversation(Prompt(shop(*sections, allow_collapse=True)).bind(Tea(0)), adapter=adapter)
    saved = chat.session.snapshot()
    for number, step in enumerate(script):
        if step == "back":
            chat.session.restore(saved)
        saved = chat.session.snapshot() if step == "save" else saved
        chat.bind(*([Tea(number)] if step == "bind" else ()))
        chat.send("Go on.")


def test_a_call_that_asks_for_a_new_evaluation_is_compensated() -> None:
    undone: list[str] = []
    charge = opener("refunds", compensate=lambda params, *, context: undone.append(context.call_id))
    task, session = MarkdownSection(title="Task", key="task", template="Help.", tools=[charge]), Session()
    template = PromptTemplate(ns="t", key="k", sections=[task, section("refunds", tools=("refund",))])
    adapter = ScriptedAdapter([call("open_refunds", call_id="c1"), "Done."])
    MainLoop().execute(Prompt(template), session=session, adapter=adapter)
    (event,) = session[ToolInvoked].all()
    assert (undone, event.rolled_back, event.compensation) == (["c1"], True, "done")


def test_all_sections_that_calls_of_one_group_ask_for_are_opened() -> None:
    openers = [opener(key, read_only=True) for key in ("docs", "orders")]
    task, session = MarkdownSection(title="Task", key="task", template="Help.", tools=openers), Session()
    template = PromptTemplate(ns="t", key="k", sections=[task, section("docs"), section("orders", tools=("lookup",))])
    adapter = ScriptedAdapter([[call("open_docs"), call("open_orders")], call("lookup"), "Done."])
    MainLoop().execute(Prompt(template), session=session, adapter=adapter)
    assert [(event.section_keys, event.reason) for event in endings(session, "restarted")] == [
        (("docs", "orders"), "docs?; orders?")
    ]
    assert [text for role, text in said(session) if role == "tool"] == [
        "Opening: docs.",
        "Opening: orders.",
        "lookup done",
    ]


def test_a_signal_that_ends_the_evaluation_of_another_prompt_fails_the_call() -> None:
    def ask(params: None, *, context: ToolContext) -> ToolResult[None]:
        inner = ScriptedAdapter([open_("refunds"), "Done."])
        return ToolResult(inner.evaluate(Prompt(shop(disclosure=OpenOrRead())), session=Session()).text)

    tools = [Tool(name="ask", description="Ask another agent.", handler=ask)]
    task, session = MarkdownSection(title="Task", key="task", template="Help.", tools=tools), Session()
    template = PromptTemplate(ns="t", key="k", sections=[task, section("refunds", tools=("refund",))])
    MainLoop().execute(Prompt(template), session=session, adapter=ScriptedAdapter([call("ask"), "Done."]))
    assert len(endings(session, "restarted")) == 0
    (result,) = [message for message in session[Message] if message.role == "tool"]
    assert (result.success, result.text) == (
        False,
        "Tool 'ask' failed: VisibilityExpansionRequired: Section expansion requires restart: "
        "opening refunds needs a new evaluation; MainLoop starts one.",
    )


@dataclass(frozen=True)
class Guest:
    here: bool


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_user_section_that_is_gone_is_told_whether_or_not_the_run_restarts(dynamic: bool) -> None:
    rank = MarkdownSection[Guest](key="rank", title="Rank", template="Admiral.", role="user", enabled=lambda p: p.here)
    adapter = ScriptedAdapter(["Hello.", READ, "Done."], supports_dynamic_tools=dynamic)
    chat = Conversation(Prompt(shop(rank)).bind(Guest(True)), adapter=adapter)
    chat.send("one")
    chat.bind(Guest(False))
    chat.send("two")
    assert any("no longer apply: rank" in message.text for message in adapter.requests[-1].messages)


def test_what_the_token_budget_opened_stays_open_after_a_fallback_and_a_restart() -> None:
    more: Any = MarkdownSection(
        key="more", title="More", template="more " * 3000, summary="More.", visibility=SUMMARY, tools=[a_tool("extra")]
    )
    script = [call("read_section", section_key="more"), "One.", "Two."]
    first, second = (ScriptedAdapter(each, supports_dynamic_tools=False) for each in ([down()], script))
    template = shop(more, token_budget=1_000)
    chat = Conversation(Prompt(template), adapter=FallbackAdapter(first, second))
    chat.send("hi")
    chat.adapter = second
    chat.send("again")
    assert "refund" in {tool.name for tool in second.requests[-1].tools} - second.requests[-1].revoked


def test_another_prompt_that_takes_over_a_conversation_asks_its_own_question_last() -> None:
    prompts = [
        Prompt(ns="t", key=key, sections=[MarkdownSection(key="q", title="Q", template=f"{key}?", role="user")])
        for key in ("first", "second")
    ]
    session = Session()
    for prompt in prompts:
        Conversation(prompt, adapter=ScriptedAdapter([f"To {prompt.key}."]), session=session).send()
    assert [text for _, text in said(session)] == [
        "## 1. Q\n\nfirst?",
        "To first.",
        "## 1. Q\n\nsecond?",
        "To second.",
    ]


class Ticking(MarkdownSection[None]):
    """A section whose text is new each time it is rendered."""

    ticks = 0

    def render_body(self, params: None) -> str:
        self.ticks += 1
        return f"Tick {self.ticks}."


@pytest.mark.parametrize("role", ["system", "user"])
@pytest.mark.parametrize(
    ("strategy", "opening"),
    [(ReadSections(), READ), (OpenOrRead(), open_("refunds")), (OpenAndHalt(), open_("refunds"))],
    ids=lambda value: type(value).__name__,
)
def test_a_section_that_always_reads_differently_is_shown_once_by_a_restart(
    role: Any, strategy: Any, opening: Any
) -> None:
    clock = Ticking(key="clock", title="Clock", template="", role=role)
    session = Session()
    with ScriptedAdapter([opening, "Done."], supports_dynamic_tools=False) as adapter:
        MainLoop().execute(Prompt(shop(clock, disclosure=strategy)), session=session, adapter=adapter)
    texts = [message.text for message in adapter.requests[-1].messages]
    assert not any("The instructions have changed" in text for text in texts)
    assert sum(text.count("Tick") for text in texts) == 1
