"""A restart replaces the system text and the tools, never the conversation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.disclosure.desk import a_tool, desk, section
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import (
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.runtime import MainLoop, Message, RunRestarted, ToolInvoked
from weakincentives.session import Session, Snapshot

FULL = SectionVisibility.FULL


def open_(*keys: str) -> Any:
    return call("open_sections", section_keys=list(keys), reason="needed")


def shop(**kwargs: Any) -> PromptTemplate[None]:
    task = MarkdownSection(title="Task", key="task", template="Help.", tools=[a_tool("order")])
    return PromptTemplate(ns="t", key="shop", sections=[task, section("refunds", tools=("refund",))], **kwargs)


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
        "Opened refunds: the prompt now shows the full text, and its tools are available.",
    )
    assert "All of refunds." in adapter.requests[1].messages[0].text


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
    assert [event.reason for event in session[RunRestarted]] == ["needed"]
    with ScriptedAdapter([open_("refunds")]) as adapter:
        halt = adapter.evaluate(Prompt(shop(disclosure=OpenAndHalt())), session=Session()).halt
    assert halt is not None and halt.reason == "needed"


def test_an_evaluation_by_hand_goes_on_after_the_signal_it_raised() -> None:
    session, prompt = Session(), Prompt(shop(disclosure=OpenOrRead()))
    with ScriptedAdapter([call("order"), open_("refunds"), "Done."]) as adapter:
        with pytest.raises(VisibilityExpansionRequired) as caught:
            adapter.evaluate(prompt, session=session)
        for path, visibility in caught.value.requested_overrides.items():
            session.dispatch(SetVisibilityOverride(path, visibility))
        adapter.evaluate(prompt, session=session)
    assert ("tool", "order done") in said(session)


def test_a_new_prompt_on_the_same_session_begins_a_new_conversation() -> None:
    session = Session()
    with ScriptedAdapter([open_("refunds"), "Hello."]) as adapter:
        assert adapter.evaluate(Prompt(shop(disclosure=OpenAndHalt())), session=session).halt is not None
        adapter.evaluate(Prompt(shop(disclosure=OpenAndHalt())), session=session)
    assert said(session) == [("assistant", "Hello.")]


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
    assert [(event.section_keys, event.reason) for event in session[RunRestarted]] == [
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
    assert len(session[RunRestarted]) == 0
    (result,) = [message for message in session[Message] if message.role == "tool"]
    assert (result.success, result.text) == (
        False,
        "Tool 'ask' failed: VisibilityExpansionRequired: Opening refunds needs a new evaluation; MainLoop starts one.",
    )
