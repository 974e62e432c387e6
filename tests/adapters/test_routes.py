"""Tools that appear and go in mid-conversation, as they look on the wire."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.scenarios import call
from tests.adapters.sums import CLOSE, DONE, OPEN, USE, prompt, run
from tests.adapters.tools import SYSTEM, ask
from tests.adapters.vendors import ANTHROPIC, OPENAI, OPENAI_CHAT, ROUTED, VENDORS, Vendor
from tests.servers.turn import Raw, Turn
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, tool
from weakincentives.runtime import Conversation, Message, ToolInvoked, ToolsInjected, assert_prefix_kept, prefix_breaks
from weakincentives.session import Session, Snapshot


@pytest.mark.parametrize("vendor", ROUTED, ids=str)
def test_on_the_best_route_every_request_extends_the_last(vendor: Vendor) -> None:
    bodies, _, session = run(vendor, OPEN, USE, CLOSE, OPEN, USE, DONE)
    assert_prefix_kept(bodies, session)
    assert [event.result.value for event in session[ToolInvoked].all() if event.name == "add"] == [3, 3]


@pytest.mark.parametrize(("vendor", "field"), [(OPENAI, b'"input":['), (ANTHROPIC, b'"messages":[')], ids=str)
def test_the_conversation_is_the_same_bytes_every_time(vendor: Vendor, field: bytes) -> None:
    _, sent, _ = run(vendor, OPEN, USE, DONE)
    for before, after in itertools.pairwise(sent):
        shared = before[: before.rindex(b"],")]
        assert field in shared and after.startswith(shared)


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_the_append_route_breaks_the_prefix_where_the_section_opened(vendor: Vendor) -> None:
    options = {"tool_route": "append"} if vendor in ROUTED else {}
    bodies, _, session = run(vendor, OPEN, USE, DONE, **options)
    (broken,) = prefix_breaks(bodies, session)
    assert (broken.where, broken.section_key) == ("tools", "sums")
    assert session[ToolsInjected].latest().route == "append"


def test_added_tools_are_appended_to_a_chat_whose_messages_stay() -> None:
    bodies, sent, _ = run(OPENAI_CHAT, OPEN, USE, CLOSE, OPEN, USE, DONE)
    conversations = [body[body.index(b'"messages":[') :].rstrip(b"]}") for body in sent]
    assert all(after.startswith(before) for before, after in itertools.pairwise(conversations))
    offered = [[tool["function"]["name"] for tool in body["tools"]] for body in bodies]
    assert all(after[: len(before)] == before for before, after in itertools.pairwise(offered))


def test_openai_is_told_what_may_still_be_called() -> None:
    bodies, _, session = run(OPENAI, OPEN, CLOSE, USE, DONE)
    allowed = bodies[2]["tool_choice"]
    assert (allowed["type"], allowed["mode"]) == ("allowed_tools", "auto")
    assert [item["name"] for item in allowed["tools"]] == ["read_section", "collapse_section"]
    assert "is closed" in session[ToolInvoked].latest().result.message


def test_anthropic_is_told_which_tool_is_gone() -> None:
    bodies, _, session = run(ANTHROPIC, OPEN, CLOSE, USE, DONE)
    reference = {"type": "tool_reference", "name": "add"}
    assert bodies[2]["messages"][-1] == {"role": "system", "content": [{"type": "tool_removal", "tool": reference}]}
    assert "is closed" in session[ToolInvoked].latest().result.message


@pytest.mark.parametrize("vendor", ROUTED, ids=str)
@pytest.mark.parametrize("route", ["best", "append"])
def test_a_run_taken_up_from_json_sends_the_same_next_request(vendor: Vendor, route: str) -> None:
    options = {} if route == "best" else {"tool_route": "append"}
    with vendor.server([OPEN, USE, Raw(400, b"{}"), DONE]) as server, vendor.adapter(server, **options) as adapter:
        session, later = Session(), Session()
        with pytest.raises(PromptEvaluationError):
            adapter.evaluate(prompt(), session=session)
        later.restore(Snapshot.from_json(session.snapshot().to_json()))
        assert adapter.resume(prompt(), session=later).text == "3"
    assert server.requests[3].body == server.requests[2].body


def test_a_paused_turn_goes_back_and_the_run_goes_on() -> None:
    searched = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    with (
        ANTHROPIC.server([Turn(items=(searched,), stop="pause"), DONE]) as server,
        ANTHROPIC.adapter(server) as adapter,
    ):
        assert adapter.evaluate(prompt(), session=Session()).text == "3"
    assert server.requests[1].json["messages"][-1] == {"role": "assistant", "content": [searched]}


@pytest.mark.parametrize("adapter", [OpenAIAdapter("gpt-5.6"), AnthropicAdapter("claude-opus-5")])
def test_a_conversation_that_was_begun_anew_is_encoded_anew(adapter: Any) -> None:
    wire, spoken = adapter._wire(), Message("user", "Hi.")
    wire.encode_request(ask([SYSTEM, spoken]))
    body = wire.encode_request(ask([Message("system", "Be brief."), spoken])).body()
    assert b"Be brief." in body and SYSTEM.text.encode() not in body


def test_the_route_is_the_users_to_force() -> None:
    assert OpenAIAdapter("my-deployment").tool_route == "append"
    assert OpenAIAdapter("my-deployment", tool_route="additional_tools").tool_route == "additional_tools"
    assert AnthropicAdapter("claude-sonnet-5", tool_route="tool_addition").tool_route == "tool_addition"


@pytest.mark.parametrize("vendor", ROUTED, ids=str)
def test_reasoning_goes_back_as_it_came(vendor: Vendor) -> None:
    thought = {
        "openai": {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x/+="},
        "anthropic": {"type": "thinking", "thinking": "hm", "signature": "x/+="},
    }[vendor.name]
    opened = Turn(items=(thought,), calls=OPEN.calls)
    _, sent, _ = run(vendor, opened, DONE)
    assert json.dumps(thought).encode() in sent[1]


@dataclass(frozen=True)
class Customer:
    tier: str


@pytest.mark.parametrize("vendor", ROUTED, ids=str)
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_a_name_that_goes_to_another_section_is_sent_once(vendor: Vendor, closed: bool, same: bool) -> None:
    def variant(tier: str) -> MarkdownSection[Customer]:
        @tool(name="refund", description="Pay back." if same else f"Pay back to {tier}.")
        def refund(cents: int) -> str:
            return f"{tier} {cents}"

        visibility = SectionVisibility.SUMMARY if closed else SectionVisibility.FULL
        return MarkdownSection[Customer](
            title=tier,
            key=tier,
            template="Refund.",
            summary="Refunds.",
            visibility=visibility,
            enabled=lambda customer: customer.tier == tier,
            tools=[refund],
        )

    tiers = ("basic", "gold")
    template = PromptTemplate[None](ns="tests", key="tiers", sections=[variant(tier) for tier in tiers])
    script = []
    for tier in tiers:
        script += [Turn(calls=(call("read_section", section_key=tier),))] if closed else []
        script += [Turn(calls=(call("refund", cents=5),)), Turn("Done.")]
    with vendor.server(script) as server, vendor.adapter(server) as adapter:
        chat = Conversation(Prompt(template).bind(Customer("basic")), adapter=adapter)
        for tier in tiers:
            chat.bind(Customer(tier))
            chat.send("Refund, please.")
    bodies = [received.json for received in server.requests]
    assert [event.result.value for event in chat.session[ToolInvoked] if event.name == "refund"] == [
        "basic 5",
        "gold 5",
    ]
    assert str(bodies[-1]).count("'Pay back" if same else "'Pay back to gold.") == 1
    assert "Pay back to basic" not in str(bodies[-1])
    assert len(prefix_breaks(bodies, chat.session)) == (0 if same else 1)


@pytest.mark.parametrize("model", ["claude-haiku-5-5", "claude-sonnet-5-5"])
def test_haiku_gets_a_text_between_tool_results_and_a_system_message(model: str) -> None:
    bodies, _, session = run(ANTHROPIC, OPEN, CLOSE, OPEN, USE, DONE, model=model)
    closed = [
        [block["type"] for block in before["content"]]
        for before, after in itertools.pairwise(bodies[-1]["messages"])
        if after["role"] == "system"
    ]
    text = ["text"] if "haiku" in model else []
    assert closed == [["tool_result", *text]] * 3
    assert_prefix_kept(bodies, session)
