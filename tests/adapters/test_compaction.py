"""Compaction against servers that refuse what the vendors refuse, more than the window included."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.long_conversations import CODE, DEPOT, ORDER, TEMPLATE, LongModel, last_request, long_conversation
from tests.adapters.vendors import ANTHROPIC, LEAN, OPENAI, ROUTED, Vendor
from tests.servers.loopback import Received
from tests.servers.turn import Raw, Turn
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.prompt import Prompt
from weakincentives.runtime import Compacted, Compaction, Conversation, ReasoningDropped
from weakincentives.session import Session, Snapshot

WINDOW, EXCHANGES = 6_000, 16
TALK: dict[str, Any] = {"window": WINDOW, "rest": "As far as I can see, all of it is in order. " * 20}
"""Long answers, so that shorter results are not enough."""


@pytest.mark.parametrize("vendor", LEAN, ids=str)
@pytest.mark.parametrize("known", [True, False], ids=["window known", "window found"])
def test_a_long_conversation_stays_within_the_window(vendor: Vendor, known: bool) -> None:
    compaction = Compaction(window=WINDOW if known else None, keep=2)
    with long_conversation(vendor, compaction, **TALK, exchanges=EXCHANGES) as (chat, server):
        assert server.refused == (0 if known else 1)
        steps = {event.by for event in chat.session[Compacted]}
        assert ("model" if vendor not in ROUTED else "provider") in steps
        request = last_request(server)
        assert ORDER in request and DEPOT in request
        assert len([each for each in chat.messages if each.by_user]) == EXCHANGES
        assert any(CODE in each.text for each in chat.messages) and CODE not in request


def test_thinking_that_is_bound_to_its_prefix_survives_the_provider_s_own_compaction() -> None:
    compaction = Compaction(window=WINDOW, keep=2)
    with long_conversation(ANTHROPIC, compaction, **TALK, exchanges=14, model="claude-opus-5-5") as found:
        chat, server = found
        assert {event.by for event in chat.session[Compacted]} == {"provider"} and server.refused == 0
        assert not chat.session[ReasoningDropped].all()
        (block,) = server.requests[-1].json["messages"][0]["content"]
        assert block["type"] == "compaction" and "tool_changes" in block
        thoughts = [part for each in server.requests[-1].json["messages"][1:] for part in each["content"]]
        assert any(isinstance(part, dict) and part["type"] == "thinking" for part in thoughts)


def test_an_openai_compaction_is_the_next_window_and_the_system_text_goes_beside_it() -> None:
    with long_conversation(OPENAI, Compaction(window=WINDOW, keep=2), **TALK, exchanges=14) as (_, server):
        asked = [each for each in server.requests if each.target.endswith("/compact")]
        assert all("Help the customer." in each.json["instructions"] for each in asked)
        kinds = {(item.get("role"), item.get("type")) for each in asked for item in each.json["input"]}
        assert not kinds & {("developer", None), ("developer", "additional_tools")}
        last = server.requests[-1].json
        first = next(at for at, item in enumerate(last["input"]) if item.get("type") == "compaction")
        assert all(item["role"] == "user" for item in last["input"][:first])
        assert last["instructions"] == asked[0].json["instructions"]
        declared = [item for item in last["input"] if item.get("type") == "additional_tools"]
        assert [tool["name"] for item in declared for tool in item["tools"]] == ["depot", "recall"]


class Refusing(LongModel):
    """A server without the vendor's compaction, or one that makes none."""

    def __init__(self, answer: Turn | Raw, rest: str) -> None:
        super().__init__(rest)
        self.answer = answer

    def __call__(self, received: Received) -> Any:
        asked = received.target.endswith("/compact") or "compaction" in received.json
        return self.answer if asked else super().__call__(received)


@pytest.mark.parametrize("vendor", ROUTED, ids=str)
@pytest.mark.parametrize("answer", [Turn(stop="empty"), Raw(404, b"{}")], ids=["empty", "not there"])
def test_where_the_provider_makes_no_compaction_the_model_is_asked(vendor: Vendor, answer: Turn | Raw) -> None:
    model = Refusing(answer, TALK["rest"])
    with vendor.server(model, window=WINDOW) as server:
        model.server = server
        chat = Conversation(
            Prompt(TEMPLATE),
            adapter=vendor.adapter(server, max_retries=0),
            compaction=Compaction(window=WINDOW, keep=2),
        )
        for number in range(1, 12):
            assert chat.send(f"Question {number}?").text.startswith(f"Answer {number}.")
        assert {event.by for event in chat.session[Compacted]} == {"model"}


PARAMETERS = {
    "stop_sequences": ["END"],
    "context_management": {"edits": [{"type": "compact_20260112"}]},
    "fallbacks": [{"model": "claude-opus-4-8", "output_config": {"format": {"type": "json_schema"}}}],
}


def test_fields_that_anthropic_refuses_with_a_compaction_are_left_out_of_it() -> None:
    options = {"parameters": PARAMETERS, "max_tokens": 1_000}
    with long_conversation(ANTHROPIC, Compaction(window=WINDOW, keep=2), **TALK, exchanges=12, **options) as found:
        chat, server = found
        assert server.refused == 0 and {event.by for event in chat.session[Compacted]} == {"provider"}
        asked = next(each for each in server.requests if "compaction" in each.json)
        assert asked.json["fallbacks"] == [{"model": "claude-opus-4-8"}]
        assert server.requests[-1].json["stop_sequences"] == ["END"]
        assert server.requests[-1].json["context_management"] == {"edits": []}


def test_the_request_for_a_compaction_reads_anthropic_s_cache() -> None:
    with long_conversation(ANTHROPIC, Compaction(window=WINDOW, keep=2), **TALK, exchanges=12) as (_, server):
        at = next(at for at, each in enumerate(server.requests) if "compaction" in each.json)
        before, asked = server.requests[at - 1].json, server.requests[at].json
        assert (asked["system"], asked["tools"]) == (before["system"], before["tools"])
        assert asked["messages"] == before["messages"][: len(asked["messages"])]


@pytest.mark.parametrize("vendor", ROUTED, ids=str)
def test_another_adapter_sends_the_history_that_it_cannot_read_compacted(vendor: Vendor) -> None:
    with long_conversation(vendor, Compaction(window=WINDOW, keep=2), **TALK, exchanges=12) as (chat, _):
        session = Session()
        session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
    other = ScriptedAdapter(["Here."])
    Conversation(Prompt(TEMPLATE), adapter=other, session=session).send("Are you there?")
    said = json.dumps([message.text for message in other.requests[0].messages])
    assert all(f"Question {number}?" in said for number in range(1, 13))


@pytest.mark.parametrize("vendor", ROUTED, ids=str)
def test_a_restored_conversation_sends_the_same_bytes(vendor: Vendor) -> None:
    with long_conversation(vendor, Compaction(window=WINDOW, keep=2), **TALK, exchanges=12) as (chat, server):
        session = Session()
        session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
        again = Conversation(Prompt(TEMPLATE), adapter=vendor.adapter(server), session=session)
        first = len(server.requests)
        chat.send("Question 13?")
        second = len(server.requests)
        again.send("Question 13?")
        assert server.requests[second].body == server.requests[first].body
