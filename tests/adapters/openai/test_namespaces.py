"""Closed sections as namespaces, and a search of ours that OpenAI's own tool carries."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.adapters.models import GPT, first
from tests.adapters.scenarios import call
from tests.adapters.sums import add
from tests.adapters.tools import SYSTEM, ask, tool
from tests.adapters.vendors import ANTHROPIC, OPENAI, OPENAI_CHAT, Vendor
from tests.servers.rules import responses_problem
from tests.servers.turn import Raw, Turn
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.limits import Prices
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ReadSections,
    SearchSections,
    SectionVisibility,
)
from weakincentives.runtime import (
    Conversation,
    Message,
    ModelCalled,
    SectionsOpened,
    ToolCall,
    ToolInvoked,
    assert_prefix_kept,
)
from weakincentives.runtime.messages import Namespace
from weakincentives.session import Session, Snapshot

SEARCH = call("search_sections", query="add numbers")
USE = call("add", a=1, b=2)


def closed(key: str, *tools: Any, children: Any = (), **options: Any) -> MarkdownSection[None]:
    return MarkdownSection(
        title=key.title(),
        key=key,
        template=f"The text of {key}: numbers.",
        summary=f"About {key}.",
        visibility=SectionVisibility.SUMMARY,
        tools=tools,
        children=children,
        **options,
    )


def prompt(disclosure: Any) -> Prompt[Any]:
    sections = [closed("sums", add, children=[closed("tables", tool("look_up"))]), closed("poems", tool("rhyme"))]
    return Prompt(PromptTemplate(ns="tests", key="spaces", sections=sections, disclosure=disclosure))


def run(disclosure: Any, *script: Any, vendor: Vendor = OPENAI, **options: Any) -> tuple[list[Any], Session]:
    session = Session()
    with vendor.server(script) as server, vendor.adapter(server, tool_search=True, **options) as adapter:
        adapter.evaluate(prompt(disclosure), session=session)
    return [received.json for received in server.requests], session


def outcomes(session: Session) -> list[tuple[str, bool]]:
    return [(event.name, event.success) for event in session[ToolInvoked]]


def test_every_closed_section_is_a_namespace_of_its_own() -> None:
    (body,), _ = run(ReadSections(), Turn("Hi."))
    spaces = {each["name"]: each for each in body["tools"] if each["type"] == "namespace"}
    assert {name: (each["description"], [one["name"] for one in each["tools"]]) for name, each in spaces.items()} == {
        "sums": ("Sums. About sums.", ["add"]),
        "sums__tables": ("Tables. About tables.", ["look_up"]),
        "poems": ("Poems. About poems.", ["rhyme"]),
    }
    assert all(one["defer_loading"] for each in spaces.values() for one in each["tools"])


def test_a_call_is_routed_by_its_namespace_and_sent_back_with_it() -> None:
    bodies, session = run(ReadSections(), Turn(calls=(USE,)), Turn("3"))
    assert outcomes(session) == [("add", True)]
    assert bodies[1]["input"][1]["namespace"] == "sums"
    assert [event.section_keys for event in session[SectionsOpened]] == [("sums",)]
    assert_prefix_kept(bodies, session)


def test_a_call_in_another_namespace_is_refused() -> None:
    item = {"type": "function_call", "id": "f", "call_id": "c", "name": "rhyme", "namespace": "sums", "arguments": "{}"}
    _, session = run(ReadSections(), Turn(items=({**item, "name": "nothing", "namespace": "poems"},)), Turn("Hm."))
    assert outcomes(session) == [("poems:nothing", False)]
    adapter = OpenAIAdapter(tool_search=True)
    reply = adapter._wire().parse_reply(json.dumps({"output": [item]}).encode())
    assert reply.tool_calls == (ToolCall("c", "sums:rhyme", "{}"),)


def test_a_streamed_call_has_the_name_of_the_tool() -> None:
    with OPENAI.server([Turn(calls=(USE,)), Turn("3")]) as server:
        adapter = OPENAI.adapter(server, tool_search=True)
        events = list(adapter.stream(prompt(ReadSections()), session=Session()))
    assert {event.name for event in events if hasattr(event, "name")} == {"add"}


def test_calls_of_another_provider_name_the_namespace_too() -> None:
    called = Message("assistant", tool_calls=(ToolCall("c", "late", "{}"),), provider="anthropic")
    request = ask([SYSTEM, called, Message("tool", "4", call_id="c")], tools=(tool("read_section"), tool("late")))
    request = replace(request, deferred={"late": Namespace("a.b", "About.")})
    body = json.loads(OpenAIAdapter(tool_search=True)._wire().encode_request(request).body())
    assert body["input"][1]["namespace"] == "a__b"
    assert responses_problem(body, {}) is None


def test_a_server_without_namespaces_gets_the_tools_one_by_one() -> None:
    refusal = Raw(400, b'{"error":{"message":"Unknown tool type: namespace","code":"invalid_value"}}')
    bodies, session = run(ReadSections(), refusal, Turn(calls=(USE,)), Turn("3"))
    assert [each.get("name") for each in bodies[1]["tools"]] == ["read_section", "add", "look_up", "rhyme", None]
    assert outcomes(session) == [("add", True)]


@pytest.mark.parametrize("model", [first(GPT, tool_search=False, prices=Prices(0.20, 1.25, 0.02)), "gpt-5.2"])
def test_models_without_tool_search_are_refused(model: str) -> None:
    with pytest.raises(ValueError, match=f"tool_search needs .*{model}"):
        OpenAIAdapter(model, tool_search=True)


def test_a_search_of_sections_is_carried_by_the_tool_of_the_provider() -> None:
    bodies, session = run(SearchSections(menu="none"), Turn(calls=(SEARCH,)), Turn(calls=(USE,)), Turn("3"))
    read, search = bodies[0]["tools"]
    assert (read["name"], search["type"], search["execution"]) == ("read_section", "tool_search", "client")
    assert search["parameters"]["required"][0] == "query"
    asked, found, text = bodies[1]["input"][-3:]
    assert (asked["type"], found["type"], found["call_id"]) == (
        "tool_search_call",
        "tool_search_output",
        asked["call_id"],
    )
    assert [(each["name"], [one["name"] for one in each["tools"]]) for each in found["tools"]] == [
        ("sums", ["add"]),
        ("sums__tables", ["look_up"]),
        ("poems", ["rhyme"]),
    ]
    assert not any("defer_loading" in one for each in found["tools"] for one in each["tools"])
    assert "About sums." in text["content"] or "numbers" in text["content"]
    assert outcomes(session) == [("search_sections", True), ("add", True)]
    assert [(event.section_keys, event.decided_by) for event in session[SectionsOpened]] == [(("sums",), "provider")]
    assert "The text of sums: numbers." in str(bodies[2])
    assert_prefix_kept(bodies, session)


def test_tools_that_a_search_has_brought_are_not_sent_again() -> None:
    read = call("read_section", section_key="sums")
    bodies, session = run(
        SearchSections(menu="none"), Turn(calls=(SEARCH,)), Turn(calls=(SEARCH,)), Turn(calls=(read,)), Turn("3")
    )
    outputs = [item for item in bodies[-1]["input"] if item.get("type") == "tool_search_output"]
    assert [len(output["tools"]) for output in outputs] == [3, 0]
    assert not any(item.get("type") == "additional_tools" for item in bodies[-1]["input"])
    assert session[ModelCalled].all()[-1].tools == ("read_section", "search_sections", "add")
    assert_prefix_kept(bodies, session)


def test_a_search_that_finds_nothing_or_fails_is_answered() -> None:
    nothing, wrong = call("search_sections", query="zzz"), call("search_sections", query="")
    bodies, session = run(SearchSections(menu="none"), Turn(calls=(nothing, wrong)), Turn("Sorry."))
    outputs = [item for item in bodies[1]["input"] if item.get("type") == "tool_search_output"]
    assert [output["tools"] for output in outputs] == [[], []]
    assert sorted(outcomes(session)) == [("search_sections", False), ("search_sections", True)]


def test_a_run_with_a_carried_search_is_taken_up_from_json_with_the_same_request() -> None:
    session, later = Session(), Session()
    script = [Turn(calls=(SEARCH,)), Turn(calls=(USE,)), Raw(400, b"{}"), Turn("3")]
    with OPENAI.server(script) as server, OPENAI.adapter(server, tool_search=True) as adapter:
        with pytest.raises(Exception, match="400"):
            adapter.evaluate(prompt(SearchSections()), session=session)
        later.restore(Snapshot.from_json(session.snapshot().to_json()))
        assert adapter.resume(prompt(SearchSections()), session=later).text == "3"
    assert server.requests[3].body == server.requests[2].body


@pytest.mark.parametrize("other", [ANTHROPIC, OPENAI_CHAT, OPENAI], ids=str)
def test_a_conversation_with_a_carried_search_goes_on_elsewhere_and_comes_back(other: Vendor) -> None:
    used = [Turn(calls=(SEARCH,)), Turn(calls=(USE,)), Turn("3")]
    with OPENAI.server([*used, *used]) as first, other.server(used) as second:
        carrying, plain = OPENAI.adapter(first, tool_search=True), other.adapter(second)
        chat = Conversation(prompt(SearchSections()), adapter=carrying)
        for adapter in (carrying, plain, carrying):
            chat.adapter = adapter
            assert chat.send("1 + 2?").text == "3"
    assert [event.result.value for event in chat.session[ToolInvoked] if event.name == "add"] == [3, 3, 3]


def test_a_search_without_its_items_is_written_in_the_form_of_the_provider() -> None:
    searched = Message("assistant", tool_calls=(ToolCall("c", "search_sections", '{"query":"x"}'),))
    brought = Message("tool", "Found: docs.", call_id="c", name="search_sections", tools=("late",))
    request = ask([SYSTEM, searched, brought], tools=(tool("search_sections"), tool("late")), initial_tools=1)
    request = replace(request, deferred={"late": Namespace("docs", "About.")})
    body = json.loads(OpenAIAdapter(tool_search=True)._wire().encode_request(request).body())
    assert responses_problem(body, {}) is None
    assert [item.get("type") for item in body["input"]] == [None, "tool_search_call", "tool_search_output", None]
    assert len(body["tools"]) == 1
    cut = replace(request, messages=[SYSTEM, Message("user", "So far: nothing.")])
    body = json.loads(OpenAIAdapter(tool_search=True)._wire().encode_request(cut).body())
    assert [each["type"] for each in body["tools"]] == ["tool_search", "namespace"]


@pytest.mark.parametrize("route", ["additional_tools", "append"])
def test_after_a_compaction_added_tools_stand_in_the_list(route: Any) -> None:
    wire = OpenAIAdapter(tool_route=route)._wire()
    added, tools = Message("tools_added", tools=("late",), section_key="docs"), (tool("read_section"), tool("late"))
    before = wire.encode_request(ask([SYSTEM, added], tools=tools, initial_tools=1)).body()
    assert len(json.loads(before)["tools"]) == (1 if route == "additional_tools" else 2)
    after = wire.encode_request(ask([SYSTEM, Message("user", "So far.")], tools=tools, initial_tools=1)).body()
    assert [each["name"] for each in json.loads(after)["tools"]] == ["read_section", "late"]


FUNCTION = {"type": "function", "name": "a", "defer_loading": True}
SPACE = {"type": "namespace", "name": "s", "description": "About.", "tools": [FUNCTION]}
HOSTED = {"type": "tool_search"}


@pytest.mark.parametrize(
    ("tools", "items", "problem"),
    [
        ([SPACE], [], "require tool_search"),
        ([{**SPACE, "description": ""}, HOSTED], [], "needs a description"),
        ([{**SPACE, "tools": [SPACE]}, HOSTED], [], "cannot be nested"),
        ([SPACE, HOSTED], [{"type": "function_call", "call_id": "c", "name": "a"}], "must name its namespace"),
        ([HOSTED], [{"type": "tool_search_call", "call_id": "c", "execution": "client"}], "No tool search call"),
    ],
)
def test_the_server_refuses_what_the_vendor_cannot_mean(tools: list[Any], items: list[Any], problem: str) -> None:
    found = responses_problem({"model": "gpt-5.6", "tools": tools, "input": items}, {})
    assert found is not None and problem in found["error"]["message"]
