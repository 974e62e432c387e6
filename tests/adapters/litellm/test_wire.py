"""The chat format on the wire."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.tools import SYSTEM, ask, tool
from weakincentives.adapters.litellm.wire import ChatWire
from weakincentives.adapters.network import TransportError
from weakincentives.limits import TokenUsage
from weakincentives.prompt.output import structured_output
from weakincentives.runtime.messages import Message, ModelReply, ModelRequest, ToolCall

FIRST, SECOND = tool("first"), tool("second")
ASKED = Message("assistant", "hm", (ToolCall("c1", "first", "{}"),), items=("{}",), provider="openai")
DONE = Message("tool", "found it", call_id="c1", name="first")


def wire(first_user_turn: bool = True) -> ChatWire:
    return ChatWire("some/model", codecs={}, first_user_turn=first_user_turn)


def body(wire: ChatWire, request: ModelRequest, **options: Any) -> dict[str, Any]:
    return json.loads(wire.encode_request(request, **options).body())


def test_a_request_is_a_chat_with_strict_tools() -> None:
    assert body(wire(first_user_turn=False), ask([SYSTEM], tools=(FIRST,))) == {
        "model": "some/model",
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "first",
                    "description": "Finds first.",
                    "parameters": FIRST.schema,
                    "strict": True,
                },
            }
        ],
        "messages": [{"role": "system", "content": "You help."}],
    }


def test_an_opening_turn_stays_where_it_was_sent() -> None:
    line, messages = wire(), [SYSTEM]
    opening = {"role": "user", "content": "Begin."}
    assert body(line, ask(messages))["messages"][1:] == [opening]
    messages += [ASKED, DONE]
    grown = body(line, ask(messages))["messages"]
    assert grown == body(wire(), ask(messages))["messages"]
    assert [message["role"] for message in grown] == ["system", "user", "assistant", "tool"]


def test_a_conversation_with_its_own_user_turn_needs_no_opening() -> None:
    assert len(body(wire(), ask([SYSTEM, Message("user", "Hi.")]))["messages"]) == 2


def test_calls_and_results_have_the_chat_form() -> None:
    assert body(wire(first_user_turn=False), ask([SYSTEM, ASKED, DONE]))["messages"][1:] == [
        {
            "role": "assistant",
            "content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "first", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "found it"},
    ]


def test_tools_that_appear_are_appended() -> None:
    request = ask([SYSTEM, Message("tools_added", tools=("second",))], tools=(FIRST, SECOND), initial_tools=1)
    assert [item["function"]["name"] for item in body(wire(), request)["tools"]] == ["first", "second"]


def test_structured_output_is_a_response_format() -> None:
    @dataclass
    class Answer:
        word: str

    output = structured_output(Answer)
    assert body(wire(), ask([SYSTEM], output=output))["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "output", "strict": True, "schema": output.wire_schema},
    }


def completion(message: dict[str, Any], finish: str = "stop") -> bytes:
    return json.dumps({"id": "x", "model": "m", "choices": [{"message": message, "finish_reason": finish}]}).encode()


def test_a_reply_echoes_its_message_without_empty_fields() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "first", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "function_call": None, "reasoning": "hm"}
    reply = wire().parse_reply(completion(message, "tool_calls"))
    assert reply == ModelReply(
        tool_calls=(ToolCall("c1", "first", "{}"),),
        usage=TokenUsage(),
        stop_reason="tool_calls",
        items=(reply.items[0],),
        response_id="x",
        model="m",
    )
    assert json.loads(reply.items[0]) == {k: v for k, v in message.items() if k != "function_call"}


def test_what_an_answer_cites_is_kept_beside_it_and_not_sent_back() -> None:
    cited = [{"type": "url_citation", "url_citation": {"url": "https://a.test"}}]
    reply = wire().parse_reply(completion({"content": "see", "annotations": cited}))
    echo, kept = (json.loads(item) for item in reply.items)
    assert (echo, kept) == ({"role": "assistant", "content": "see"}, {"type": "grounding", "annotations": cited})
    turn = Message("assistant", reply.text, items=reply.items, provider="litellm")
    assert body(wire(first_user_turn=False), ask([SYSTEM, turn]))["messages"][1] == echo


@pytest.mark.parametrize(
    ("message", "finish", "stop"),
    [
        ({"content": "x"}, "length", "length"),
        ({"content": ""}, "content_filter", "content_filter"),
        ({"content": None, "refusal": "no"}, "stop", "refusal"),
    ],
)
def test_every_end_has_its_stop_reason(message: dict[str, Any], finish: str, stop: str) -> None:
    assert wire().parse_reply(completion(message, finish)).stop_reason == stop


@pytest.mark.parametrize("data", [b'{"choices": []}', completion({"content": None})], ids=["choices", "content"])
def test_an_answer_without_anything_is_a_failure(data: bytes) -> None:
    with pytest.raises(TransportError, match="without any"):
        wire().parse_reply(data)
