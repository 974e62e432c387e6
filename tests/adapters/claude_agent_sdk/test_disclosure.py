"""Tools that appear while the CLI runs; the server's log says which tools each request carried."""

from __future__ import annotations

import pytest

pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")

from tests.adapters.claude_agent_sdk.cli_runs import Notes, adapter, prompt, section, tool
from tests.helpers.endings import endings
from tests.servers.claude_cli import CliServer, call, say
from tests.servers.turn import Call, Turn
from weakincentives.prompt import (
    SectionVisibility,
    Tool,
    ToolResult,
    VisibilityExpansionRequired,
    VisibilityOverrides,
    portable_name,
)
from weakincentives.runtime import MainLoop, PromptRendered, ToolInvoked, ToolsInjected
from weakincentives.session import Session

READ, KEEP = "read_section", "keep"


def read(*keys: str) -> Turn:
    return Turn(calls=tuple(Call(READ, {"section_key": key}) for key in keys))


def test_a_tool_appears_in_the_same_turn_as_its_section() -> None:
    session = Session()
    with CliServer([read("notes"), call(KEEP, text="one"), say("kept")]) as api:
        summarized = section("notes", summarized=True, tools=(tool("keep"),))
        response = adapter(api).evaluate(prompt(section("task"), summarized), session=session)
    assert response.text == "kept"
    assert api.offers == [{READ}, {READ, KEEP}, {READ, KEEP}]
    assert session[Notes].latest() == Notes(("one",))
    assert [event.tool_names for event in session[ToolsInjected].all()] == [("keep",)]
    assert len(session[PromptRendered].all()) == 1
    assert session[VisibilityOverrides].latest().overrides == {("notes",): SectionVisibility.FULL}


def test_a_model_that_takes_tools_by_mid_conversation_message_gets_them_too() -> None:
    with CliServer([read("notes"), call(KEEP, text="one"), say("kept")]) as api:
        summarized = section("notes", summarized=True, tools=(tool("keep"),))
        run = adapter(api, model="claude-opus-5")
        run.evaluate(prompt(summarized), session=Session())
    assert api.offers == [{READ}, {READ, KEEP}, {READ, KEEP}]


def test_a_cli_that_speaks_the_older_protocol_takes_up_new_tools_too() -> None:
    with CliServer([read("notes"), call(KEEP, text="one"), say("kept")]) as api:
        summarized = section("notes", summarized=True, tools=(tool("keep"),))
        run = adapter(api, env={"MCP_PROTOCOL_NEGOTIATION": "legacy"})
        run.evaluate(prompt(summarized), session=Session())
    assert api.offers == [{READ}, {READ, KEEP}, {READ, KEEP}]


def test_several_sections_open_in_one_turn() -> None:
    session = Session()
    sections = [section(key, summarized=True, tools=(tool(f"keep_{key}"),)) for key in ("a", "b")]
    with CliServer([read("a", "b"), call("keep_b", text="two"), say("ok")]) as api:
        adapter(api).evaluate(prompt(*sections), session=session)
    assert api.offers[1] == {READ, "keep_a", "keep_b"}
    assert session[Notes].latest() == Notes(("two",))


def test_a_section_inside_a_section_opens_after_it() -> None:
    inner = section("inner", summarized=True, tools=(tool("keep_inner"),))
    outer = section("outer", summarized=True, tools=(tool("keep_outer"),), children=[inner])
    with CliServer([read("outer"), read("outer.inner"), call("keep_inner", text="x"), say("ok")]) as api:
        adapter(api).evaluate(prompt(outer), session=Session())
    assert [len(names) for names in api.offers] == [1, 2, 3, 3]


def test_reading_a_section_without_tools_changes_no_list() -> None:
    with CliServer([read("notes"), say("ok")]) as api:
        adapter(api).evaluate(prompt(section("notes", summarized=True)), session=Session())
    assert api.offers == [{READ}, {READ}]
    assert "All of notes." in str(api.results()[0]["content"])


def test_the_tools_of_a_closed_section_are_refused_though_the_cli_still_lists_them() -> None:
    session = Session()
    script = [
        read("notes"),
        call("collapse_section", section_key="notes"),
        call(KEEP, text="one"),
        say("ok"),
    ]
    with CliServer(script) as api:
        summarized = section("notes", summarized=True, tools=(tool("keep"),))
        adapter(api).evaluate(prompt(summarized, allow_collapse=True), session=session)
    assert KEEP in api.offers[-1]
    assert not session[ToolInvoked].latest().success
    assert "closed" in api.results()[0]["content"]


def test_without_dynamic_tools_the_caller_is_asked_to_start_again() -> None:
    with CliServer([read("notes")]) as api:
        summarized = section("notes", summarized=True, tools=(tool("keep"),))
        run = adapter(api, dynamic_tools=False)
        with pytest.raises(VisibilityExpansionRequired) as caught:
            run.evaluate(prompt(summarized), session=Session())
    assert not run.supports_dynamic_tools
    assert caught.value.requested_overrides == {("notes",): SectionVisibility.FULL}


def test_the_main_loop_starts_again_with_the_section_open() -> None:
    session = Session()
    with CliServer([read("notes"), call(KEEP, text="one"), say("kept")]) as api:
        summarized = section("notes", summarized=True, tools=(tool("keep"),))
        run = adapter(api, dynamic_tools=False)
        response = MainLoop().execute(prompt(summarized), session=session, adapter=run)
    assert response.text == "kept"
    assert api.offers == [{READ}, {KEEP}, {KEEP}]
    assert len(endings(session, "restarted")) == 1


def test_a_tool_of_others_keeps_its_name_description_and_schema() -> None:
    session = Session()
    schema = {"type": "object", "properties": {"x": {"oneOf": [{"const": 1}, {"type": "string"}]}}}
    foreign = Tool.from_schema(
        name="repo.list",
        description="List. " * 500,
        schema=schema,
        handler=lambda params, *, context: ToolResult(f"Got {params}."),
    )
    with CliServer([call(portable_name("repo.list"), x="a"), say("listed")]) as api:
        adapter(api).evaluate(prompt(section("task", tools=(foreign,))), session=session)
    (sent,) = (each for each in api.requests[-1].json["tools"] if portable_name("repo.list") in each["name"])
    assert (sent["description"], sent["input_schema"]["properties"]) == (foreign.description, schema["properties"])
    assert [(event.name, event.result.message) for event in session[ToolInvoked].all()] == [
        ("repo.list", "Got {'x': 'a'}.")
    ]
