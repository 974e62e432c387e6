"""Providers' own search over the tools of closed sections, in the vendors' formats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.models import UNSEARCHED
from tests.adapters.scenarios import call
from tests.adapters.sums import CLOSE, OPEN, add, prompt, run
from tests.adapters.vendors import ANTHROPIC, OPENAI, VENDORS, Vendor
from tests.servers.turn import Raw, Turn
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility
from weakincentives.runtime import Conversation, Message, SectionsOpened, ToolInvoked, assert_prefix_kept, run_history
from weakincentives.session import Session, Snapshot

# The items as the vendors' SDKs type them: ResponseToolSearchCall, ResponseToolSearchOutputItem, ServerToolUseBlock and
# ToolSearchToolResultBlock.
FOUND: dict[str, tuple[dict[str, Any], ...]] = {
    "openai": (
        {
            "type": "tool_search_call",
            "id": "tsc_1",
            "call_id": None,
            "execution": "server",
            "status": "completed",
            "arguments": {"paths": ["add"]},
        },
        {
            "type": "tool_search_output",
            "id": "tso_1",
            "call_id": None,
            "execution": "server",
            "status": "completed",
            "tools": [
                {
                    "type": "namespace",
                    "name": "sums",
                    "description": "Sums. How to add.",
                    "tools": [
                        {"type": "function", "name": "add", "defer_loading": True, "parameters": {}, "strict": True}
                    ],
                }
            ],
        },
    ),
    "anthropic": (
        {"type": "server_tool_use", "id": "srv_1", "name": "tool_search_tool_bm25", "input": {"query": "add numbers"}},
        {
            "type": "tool_search_tool_result",
            "tool_use_id": "srv_1",
            "content": {
                "type": "tool_search_tool_search_result",
                "tool_references": [{"type": "tool_reference", "tool_name": "add"}],
            },
        },
    ),
}
SEARCH_TOOLS = {
    "openai": {"type": "tool_search"},
    "anthropic": {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
}
USE = call("add", a=1, b=2)
both = pytest.mark.parametrize("vendor", [OPENAI, ANTHROPIC], ids=str)


def found(vendor: Vendor, *calls: Any) -> Turn:
    return Turn(items=FOUND[vendor.name], calls=calls)


@both
def test_tools_of_closed_sections_are_sent_deferred_beside_the_search_tool(vendor: Vendor) -> None:
    bodies, _, _ = run(vendor, Turn("Hi."), tool_search=True)
    first, hidden, search = bodies[0]["tools"]
    assert first["name"] == "read_section" and "defer_loading" not in first
    if vendor is OPENAI:
        about = {"type": "namespace", "name": "sums", "description": "Sums. How to add."}
        assert {name: hidden[name] for name in about} == about
        (hidden,) = hidden["tools"]
    assert (hidden["name"], hidden["defer_loading"]) == ("add", True)
    assert search == SEARCH_TOOLS[vendor.name]


@both
def test_what_the_provider_finds_is_an_opening_of_the_section(vendor: Vendor) -> None:
    bodies, _, session = run(vendor, found(vendor, USE), Turn("3"), tool_search=True)
    assert [(event.name, event.result.value) for event in session[ToolInvoked]] == [("add", 3)]
    assert [(event.section_keys, event.decided_by) for event in session[SectionsOpened]] == [(("sums",), "provider")]
    assert "Add numbers with the tool." in str(bodies[1])
    history = run_history(session)
    assert [(step.kind, step.sections, step.route) for step in history.steps if step.sections] == [
        ("open", ("sums",), "provider"),
        ("injected", ("sums",), "tool_search"),
    ]
    assert {section.key: section.seen for section in history.now.sections}["sums"] == "conversation"
    assert_prefix_kept(bodies, session)


@both
def test_a_tool_that_was_found_and_not_called_opens_its_section_too(vendor: Vendor) -> None:
    _, _, session = run(vendor, found(vendor), tool_search=True)
    assert [event.section_keys for event in session[SectionsOpened]] == [("sums",)]


@both
def test_a_search_that_failed_opens_nothing(vendor: Vendor) -> None:
    failed = {
        "openai": {**FOUND["openai"][1], "status": "incomplete", "tools": []},
        "anthropic": {
            **FOUND["anthropic"][1],
            "content": {"type": "tool_search_tool_result_error", "error_code": "unavailable"},
        },
    }[vendor.name]
    _, _, session = run(vendor, Turn("Sorry.", items=(FOUND[vendor.name][0], failed)), tool_search=True)
    assert len(session[SectionsOpened]) == 0


@both
def test_a_run_goes_on_elsewhere_with_the_same_tools(vendor: Vendor) -> None:
    session, again = Session(), Session()
    script = [found(vendor, USE), Raw(status=400, body=b"{}"), Turn("3")]
    with vendor.server(script) as server, vendor.adapter(server, tool_search=True) as adapter:
        with pytest.raises(PromptEvaluationError):
            adapter.evaluate(prompt(), session=session)
        again.restore(Snapshot.from_json(session.snapshot().to_json()))
        assert adapter.resume(prompt(), session=again).text == "3"
    names = [[tool.get("name") for tool in received.json["tools"]] for received in server.requests]
    assert names == [names[0]] * 3


@pytest.mark.parametrize(("adapter", "model"), [(OpenAIAdapter, UNSEARCHED), (AnthropicAdapter, "claude-3-haiku")])
def test_a_model_without_search_is_refused(adapter: Any, model: str) -> None:
    with pytest.raises(ValueError, match=f"tool_search needs .*{re.escape(model)}"):
        adapter(model, tool_search=True)


def results(session: Session) -> list[tuple[bool, str]]:
    return [(message.success, message.text) for message in session[Message] if message.role == "tool"]


@both
@pytest.mark.parametrize("way", ["searched", "read"])
def test_a_tool_whose_section_was_closed_again_is_refused_until_it_is_reopened(vendor: Vendor, way: str) -> None:
    opening, use = found(vendor, USE) if way == "searched" else OPEN, Turn(calls=(USE,))
    bodies, _, session = run(vendor, opening, CLOSE, use, OPEN, use, Turn("3"), tool_search=True)
    _, closed, refused, _, used = results(session)
    assert closed == (True, "Section 'sums' is closed; its tools are no longer available.")
    assert refused[1] == "Tool 'add' is not available: section 'sums' is closed. Open the section again to use it."
    assert used == (True, "3")
    assert_prefix_kept(bodies, session)


@dataclass(frozen=True)
class Role:
    sums: bool


@both
def test_a_tool_of_a_section_that_no_longer_applies_can_be_neither_found_nor_called(vendor: Vendor) -> None:
    hidden = MarkdownSection[Role](
        title="Sums",
        key="sums",
        template="Add.",
        summary="How to add.",
        visibility=SectionVisibility.SUMMARY,
        enabled=lambda role: role.sums,
        tools=[add],
    )
    template = PromptTemplate[None](ns="tests", key="roles", sections=[hidden])
    with vendor.server([Turn("Hi."), found(vendor, USE), Turn("No."), found(vendor, USE), Turn("3")]) as server:
        chat = Conversation(Prompt(template).bind(Role(True)), adapter=vendor.adapter(server, tool_search=True))
        chat.send("Hi.")
        for sums in (False, True):
            chat.bind(Role(sums))
            chat.send("1 + 2?")
    assert results(chat.session) == [
        (False, "Tool 'add' is not available: section 'sums' no longer applies."),
        (True, "3"),
    ]
    assert [event.section_keys for event in chat.session[SectionsOpened]] == [("sums",)]
    assert_prefix_kept([received.json for received in server.requests], chat.session)


@pytest.mark.parametrize("after", VENDORS, ids=str)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_conversation_that_goes_on_without_the_search_offers_the_tools_of_open_sections(after: Vendor) -> None:
    use = Turn(calls=(USE,))
    with OPENAI.server([Turn("Hi.")]) as first, after.server([use, OPEN, use, Turn("3")]) as second:
        chat = Conversation(prompt(), adapter=OPENAI.adapter(first, tool_search=True))
        chat.send("Hi.")
        chat.adapter = after.adapter(second)
        assert chat.send("1 + 2?").text == "3"
    sent = second.requests[0].json["tools"]
    assert [tool.get("name") or tool["function"]["name"] for tool in sent] == ["read_section"]
    refused, _, sum_of_both = results(chat.session)
    assert refused == (False, "Unknown tool 'add'. Available tools: read_section.")
    assert sum_of_both == (True, "3")
