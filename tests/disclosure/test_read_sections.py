"""The default strategy: read_section, injection in the same conversation, restart where that is not possible."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.disclosure.desk import FULL, SUMMARY, a_tool, answers, desk, play, section, tool_names
from tests.helpers.endings import endings
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import (
    CollapseSection,
    Disclosure,
    MarkdownSection,
    OpenAndHalt,
    OpenOrRead,
    OpenToFiles,
    Prompt,
    PromptTemplate,
    ReadSections,
    SearchSections,
    SetVisibilityOverride,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
    VisibilityOverrides,
    WorkspaceSection,
)
from weakincentives.runtime import (
    Conversation,
    Exposure,
    MainLoop,
    Message,
    ToolInvoked,
    ToolsInjected,
    ToolsWithdrawn,
)
from weakincentives.session import Session, Snapshot


def read(key: str) -> object:
    return call("read_section", section_key=key)


def test_a_content_only_section_comes_back_and_changes_nothing() -> None:
    session = Session()
    adapter = play(desk(), read("docs"), "done", session=session)
    assert answers(session) == [(True, "Content of section 'docs':\n\n## Docs\n\nAll of docs.")]
    assert session[VisibilityOverrides].latest() == VisibilityOverrides()
    assert tool_names(adapter.requests[1].tools) == ["read_section"]


def test_tools_appear_with_their_section_in_the_same_conversation() -> None:
    session = Session()
    adapter = play(desk(), read("orders"), call("lookup"), "done", session=session)
    assert tool_names(adapter.requests[1].tools) == ["read_section", "lookup"]
    assert adapter.requests[1].initial_tools == 1
    assert answers(session)[1] == (True, "lookup done")
    (injected,) = session[ToolsInjected].all()
    assert (injected.tool_names, injected.section_key, injected.route) == (("lookup",), "orders", "append")
    assert session[SetVisibilityOverride].all() == (SetVisibilityOverride(("orders",), FULL),)
    assert adapter.requests[1].messages[-1] == Message(role="tools_added", tools=("lookup",), section_key="orders")


def test_a_summarized_child_keeps_its_tools_until_it_is_read() -> None:
    adapter = play(desk(), read("orders"), read("orders.refunds"), "done")
    assert [tool_names(request.tools) for request in adapter.requests] == [
        ["read_section"],
        ["read_section", "lookup"],
        ["read_section", "lookup", "refund"],
    ]


def test_reading_a_hidden_child_opens_its_ancestors_and_shows_them() -> None:
    session = Session()
    adapter = play(desk(), read("orders.refunds"), "done", session=session)
    assert tool_names(adapter.requests[1].tools) == ["read_section", "lookup", "refund"]
    assert "## Orders\n\nAll of orders.\n\n### Refunds\n\nAll of refunds." in answers(session)[0][1]
    assert {event.section_key for event in session[ToolsInjected].all()} == {"orders", "orders.refunds"}


def shelf() -> MarkdownSection[None]:
    """A closed section with a tool, a closed child without tools, and an open one with a tool."""
    return section("ppp", tools=("use_ppp",), children=[section("cb"), section("ca", closed=False, tools=("use_ca",))])


def test_reading_a_content_only_child_of_a_closed_section_gives_that_child_alone_and_changes_nothing() -> None:
    session = Session()
    template = PromptTemplate(ns="t", key="k", sections=[shelf()])
    adapter = play(template, read("ppp.cb"), "done", session=session)
    assert answers(session) == [(True, "Content of section 'ppp.cb':\n\n## Cb\n\nAll of cb.")]
    assert session[VisibilityOverrides].latest() == VisibilityOverrides()
    assert tool_names(adapter.requests[1].tools) == ["read_section"]


def test_a_section_is_content_only_as_long_as_its_tools_stay_in_a_summarized_child() -> None:
    session = Session()
    template = PromptTemplate(ns="t", key="k", sections=[section("guide", children=[section("how", tools=("use",))])])
    adapter = play(template, read("guide"), read("guide.how"), "done", session=session)
    assert "About how." in answers(session)[0][1]
    assert [tool_names(request.tools) for request in adapter.requests[1:]] == [
        ["read_section"],
        ["read_section", "use"],
    ]
    assert session[VisibilityOverrides].latest() == VisibilityOverrides({("guide",): FULL, ("guide", "how"): FULL})


def test_an_unknown_key_lists_the_known_ones() -> None:
    session = Session()
    play(desk(), read("nope"), "done", session=session)
    assert answers(session) == [
        (False, "Unknown section key: 'nope'. Keys of summarized sections: docs, orders, guide.")
    ]


@pytest.mark.parametrize("strategy", [ReadSections(), OpenOrRead(), SearchSections()])
def test_an_unknown_key_lists_the_nested_ones_that_were_shown(strategy: Disclosure) -> None:
    session = Session()
    play(desk(disclosure=strategy), read("guide"), read("tone"), read("guide.tone"), read("x"), "done", session=session)
    listed = "Keys of summarized sections: docs, orders, guide, guide.tone."
    assert [answers(session)[at] for at in (1, 3)] == [
        (False, f"Unknown section key: 'tone'. {listed}"),
        (False, f"Unknown section key: 'x'. {listed}"),
    ]


def test_nested_keys_of_an_earlier_exchange_are_listed_too() -> None:
    adapter = ScriptedAdapter([read("guide"), "One.", read("x"), "Two."])
    with Conversation(Prompt(desk()), adapter=adapter) as chat:
        chat.send("Read it.")
        chat.send("And now?")
        assert answers(chat.session)[-1][1].endswith("Keys of summarized sections: docs, orders, guide, guide.tone.")


@pytest.mark.parametrize("form", ["[{}]", " {} ", "[{}] "])
@pytest.mark.parametrize("strategy", [ReadSections(suffix="key"), SearchSections(suffix="key")])
def test_a_key_may_be_copied_with_its_brackets(strategy: Disclosure, form: str) -> None:
    plain, bracketed = Session(), Session()
    keys = ["orders", "orders.refunds", "guide", "guide.tone"]
    template = desk(disclosure=strategy, allow_collapse=True)
    for session, written in ((plain, "{}"), (bracketed, form)):
        close = call("collapse_section", section_key=written.format("orders"))
        play(template, *(read(written.format(key)) for key in keys), close, "done", session=session)
    assert {success for success, _ in answers(plain)} == {True}
    assert answers(bracketed) == answers(plain)
    for kind in (VisibilityOverrides, Exposure):
        assert bracketed[kind].latest() == plain[kind].latest()


@pytest.mark.parametrize("strategy", [OpenOrRead(suffix="key"), OpenToFiles(suffix="key")])
def test_a_section_to_open_may_have_its_brackets(strategy: Disclosure) -> None:
    session = Session()
    opening = call("open_sections", section_keys=["[orders]"], reason="Needed.")
    adapter = ScriptedAdapter([opening, "done"])
    MainLoop().execute(Prompt(desk(disclosure=strategy)), session=session, adapter=adapter)
    assert "lookup" in tool_names(adapter.requests[-1].tools)
    assert session[VisibilityOverrides].latest() == VisibilityOverrides({("orders",): FULL})


def test_an_open_section_is_read_without_tools() -> None:
    session = Session()
    adapter = play(desk(), read("task"), read("orders"), read("orders"), "done", session=session)
    assert answers(session)[0] == (True, "Section is already expanded.\n\n## Task\n\nHelp.")
    assert answers(session)[2][1].startswith("Section is already expanded.")
    assert len(session[ToolsInjected].all()) == 1
    assert tool_names(adapter.requests[-1].tools) == ["read_section", "lookup"]


def test_two_sections_may_be_read_in_one_turn() -> None:
    adapter = play(desk(), [read("orders"), read("orders.refunds")], [call("lookup"), call("refund")], "done")
    assert tool_names(adapter.requests[1].tools) == ["read_section", "lookup", "refund"]


def test_a_duplicate_name_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    template = PromptTemplate(
        ns="t", key="k", sections=[section("a", closed=False, tools=("go",)), section("b", tools=("go", "more"))]
    )
    with caplog.at_level(logging.WARNING):
        adapter = play(template, read("b"), "done")
    assert tool_names(adapter.requests[1].tools) == ["go", "read_section", "more"]
    assert "Skipping duplicate tool 'go'" in caplog.text


def test_a_tool_may_open_a_section_by_itself() -> None:
    def open_orders(params: None, *, context: ToolContext) -> ToolResult[None]:
        context.session.dispatch(SetVisibilityOverride(("orders",), FULL))
        return ToolResult("opened")

    opener = Tool(name="opener", description="Open.", handler=open_orders)
    task = MarkdownSection(title="T", key="t", template="x", tools=[opener])
    template = PromptTemplate(ns="t", key="k", sections=[task, section("orders", tools=("lookup",))])
    adapter = play(template, call("opener"), call("lookup"), "done")
    assert tool_names(adapter.requests[1].tools) == ["opener", "read_section", "lookup"]


def test_without_dynamic_tools_reading_a_section_with_tools_asks_for_a_restart() -> None:
    session = Session()
    adapter = ScriptedAdapter([read("orders")], supports_dynamic_tools=False)
    with pytest.raises(VisibilityExpansionRequired) as caught:
        adapter.evaluate(Prompt(desk()), session=session)
    assert caught.value.requested_overrides == {("orders",): FULL}
    assert caught.value.section_keys == ("orders",)
    assert [event.name for event in session[ToolInvoked].all()] == ["read_section"]


def test_the_main_loop_restarts_with_the_section_open() -> None:
    session = Session()
    script = [read("docs"), read("orders"), call("lookup"), "done"]
    with ScriptedAdapter(script, supports_dynamic_tools=False) as adapter:
        response = MainLoop().execute(Prompt(desk()), session=session, adapter=adapter)
    assert (response.text, response.turns) == ("done", 4)
    assert "All of orders." in adapter.requests[2].messages[0].text
    assert [event.section_keys for event in endings(session, "restarted")] == [("orders",)]


def test_the_callers_pattern_of_the_specs_works() -> None:
    session, prompt = Session(), Prompt(desk())
    adapter = ScriptedAdapter([read("orders"), call("lookup"), "done"], supports_dynamic_tools=False)
    with prompt.resources:
        while True:
            try:
                response = adapter.evaluate(prompt, session=session)
                break
            except VisibilityExpansionRequired as signal:
                for path, visibility in signal.requested_overrides.items():
                    session[VisibilityOverrides].apply(SetVisibilityOverride(path=path, visibility=visibility))
    assert response.text == "done"


def test_a_view_of_a_prompt_shows_what_its_session_has_opened_and_nothing_of_a_run() -> None:
    prompt, session = Prompt(desk()), Session()
    ScriptedAdapter([read("docs"), read("guide"), "done"]).evaluate(
        prompt, session=session, visibility_overrides={("orders",): FULL}
    )
    session.dispatch(SetVisibilityOverride(("docs",), FULL))
    view = prompt.view(session)
    assert (view.is_open(("docs",)), view.is_open(("orders",))) == (True, False)
    assert not prompt.view(Session()).is_open(("docs",))


def test_every_disclosure_is_an_event_with_what_was_shown() -> None:
    session = Session()
    play(desk(), read("orders"), "done", session=session)
    (event,) = session[ToolInvoked].all()
    assert event.disclosure is not None
    assert event.disclosure.requested_sections == ("orders",)
    assert event.disclosure.current_visibility_state == {
        ("task",): FULL,
        ("docs",): SUMMARY,
        ("orders",): SUMMARY,
        ("guide",): SUMMARY,
    }


def test_a_failed_call_takes_its_opening_back() -> None:
    def half(params: None, *, context: ToolContext) -> ToolResult[None]:
        context.session.dispatch(SetVisibilityOverride(("orders",), FULL))
        return ToolResult("no", success=False)

    task = MarkdownSection(
        title="T", key="t", template="x", tools=[Tool(name="half", description="Half.", handler=half)]
    )
    template = PromptTemplate(ns="t", key="k", sections=[task, section("orders", tools=("lookup",))])
    adapter = play(template, call("half"), "done")
    assert tool_names(adapter.requests[1].tools) == ["half", "read_section"]


def test_injected_tools_survive_json_and_another_session() -> None:
    session = Session()
    play(desk(), read("orders"), call("lookup"), "done", session=session)
    copy = Session()
    copy.restore(Snapshot.from_json(session.snapshot().to_json()))
    assert tool_names(Prompt(desk()).render(session=copy).tools) == ["lookup", "read_section"]


def test_a_collapsed_section_closes_and_its_tools_are_refused() -> None:
    session = Session()
    template = desk(allow_collapse=True)
    script = [read("orders"), call("collapse_section", section_key="orders"), call("lookup"), read("orders")]
    adapter = play(template, *script, call("lookup"), "done", session=session)
    assert tool_names(adapter.requests[1].tools) == ["read_section", "lookup", "collapse_section"]
    assert adapter.requests[2].revoked == {"lookup"}
    assert adapter.requests[2].messages[-1].role == "tools_removed"
    assert "section 'orders' is closed" in answers(session)[2][1]
    assert adapter.requests[4].revoked == frozenset()
    assert answers(session)[4] == (True, "lookup done")
    assert session[ToolsWithdrawn].all()[0].tool_names == ("lookup",)


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_tool_is_refused_in_the_turn_that_closed_its_section(dynamic: bool) -> None:
    session = Session()
    closing = [call("collapse_section", section_key="orders"), call("lookup")]
    adapter = ScriptedAdapter([read("orders"), closing, "done"], supports_dynamic_tools=dynamic)
    MainLoop().execute(Prompt(desk(allow_collapse=True)), session=session, adapter=adapter)
    assert answers(session)[1:] == [
        (True, "Section 'orders' is closed; its tools are no longer available."),
        (False, "Tool 'lookup' is not available: section 'orders' is closed. Open the section again to use it."),
    ]


def test_collapse_is_off_by_default_and_refuses_what_cannot_close() -> None:
    assert "collapse_section" not in tool_names(desk().render(visibility_overrides={("orders",): FULL}).tools)
    session = Session()
    closing = [call("collapse_section", section_key=key) for key in ("task", "docs", "nope")]
    template = PromptTemplate(
        ns="t", key="k", sections=[*desk().sections, section("shown", closed=False)], allow_collapse=True
    )
    play(template, closing, "done", session=session)
    assert [success for success, _ in answers(session)] == [False, False, False]
    assert answers(session)[0][1] == "Section 'task' has no summary, so it stays open."


def test_a_closed_section_stays_closed_in_the_next_render() -> None:
    session = Session()
    session.dispatch(SetVisibilityOverride(("orders", "refunds"), FULL))
    session.dispatch(CollapseSection(("orders",)))
    assert tool_names(desk().render(session=session).tools) == ["read_section"]


def test_hosted_style_duplicates_never_shadow_an_offered_tool() -> None:
    template = PromptTemplate(
        ns="t", key="k", sections=[section("first", tools=("go",)), section("second", tools=("go",))]
    )
    adapter = play(template, read("second"), read("first"), call("go"), "done")
    assert [tool_names(request.tools) for request in adapter.requests][1:] == [["read_section", "go"]] * 3
    assert a_tool("go").name == "go"


class Broken(MarkdownSection[None]):
    """A section that cannot be rendered in full."""

    def render_body(self, params: None) -> str:
        raise OSError("no such file")


@pytest.mark.parametrize(
    ("strategy", "opening", "tools"),
    [
        (ReadSections(), read("broken"), ()),
        (ReadSections(), read("broken"), ("fix",)),
        (ReadSections(voice="system"), read("broken"), ("fix",)),
        (SearchSections(), read("broken"), ("fix",)),
        (OpenToFiles(), call("open_sections", section_keys=["broken"], reason=""), ()),
    ],
    ids=["read", "read with tools", "system", "search", "files"],
)
def test_a_section_that_cannot_be_rendered_fails_as_a_disclosure(
    strategy: Any, opening: Any, tools: tuple[str, ...]
) -> None:
    made = [a_tool(each) for each in tools]
    broken = Broken(key="broken", title="Broken", template="", summary="?", visibility=SUMMARY, tools=made)
    template: PromptTemplate[None] = PromptTemplate(
        ns="t", key="k", sections=[broken, WorkspaceSection()], disclosure=strategy
    )
    session = Session()
    play(template, opening, "Sorry.", session=session)
    (event,) = session[ToolInvoked].all()
    assert event.disclosure is not None and event.disclosure.requested_sections == ("broken",)
    assert not event.result.success
    if isinstance(strategy, OpenToFiles):
        cause = "Section 'broken' failed to render: OSError: no such file"
        assert event.result.message == f"Failed to write context for 'broken': {cause}"
    else:
        assert event.result.message == "Section 'broken' cannot be opened now; go on without it."


@pytest.mark.parametrize("strategy", [OpenOrRead(), OpenAndHalt()], ids=lambda strategy: type(strategy).__name__)
@pytest.mark.parametrize("middle", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_a_request_names_the_section_asked_for_and_every_closed_one_above_it(
    strategy: Any, middle: bool, closed: bool
) -> None:
    leaf = section("leaf", closed=closed, tools=("act",))
    inner = section("inner", closed=middle, children=[leaf])
    template: PromptTemplate[None] = PromptTemplate(
        ns="t", key="k", sections=[section("outer", children=[inner])], disclosure=strategy
    )
    session, path = Session(), ("outer", "inner", "leaf")
    opening = call("open_sections", section_keys=[".".join(path)], reason="")
    try:
        halted = ScriptedAdapter([opening]).evaluate(Prompt(template), session=session)
        assert halted.halt is not None
        requested = halted.halt.requested_overrides
    except VisibilityExpansionRequired as signal:
        requested = signal.requested_overrides
    assert requested == {path[:depth]: FULL for depth in (1, 2, 3) if depth != 2 or middle}
    (event,) = session[ToolInvoked].all()
    assert event.disclosure is not None and event.disclosure.overrides == requested
