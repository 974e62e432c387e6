"""OpenAI's Responses API on the wire."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.adapters.models import ALWAYS, PLAIN, UNNAMED
from tests.adapters.tools import SYSTEM, SearchCodec, ask, hosted, tool
from weakincentives.adapters.network import TransportError
from weakincentives.adapters.openai.models import facts
from weakincentives.adapters.openai.wire import ResponsesWire
from weakincentives.limits import TokenUsage
from weakincentives.prompt.output import structured_output
from weakincentives.runtime.messages import Message, ModelReply, ModelRequest, ToolCall

FIRST, SECOND = tool("first"), tool("second")
CALL = '{"type":"function_call","call_id":"c1","name":"first","arguments":"{}","id":"fc_1"}'
THOUGHT = '{"type":"reasoning","id":"rs_1","encrypted_content":"xyz","summary":[]}'
ASKED = Message("assistant", tool_calls=(ToolCall("c1", "first", "{}"),), items=(THOUGHT, CALL), provider="openai")
DONE = Message("tool", "found it", call_id="c1", name="first")
ADDED = Message("tools_added", tools=("second", "web"), section_key="docs")


def wire(model: str = "gpt-5.6", route: Any = "additional_tools", **parameters: Any) -> ResponsesWire:
    return ResponsesWire(model, route=route, codecs={"search": SearchCodec()}, parameters=parameters)


def body(wire: ResponsesWire, request: ModelRequest, **options: Any) -> dict[str, Any]:
    return json.loads(wire.encode_request(request, **options).body())


def test_the_system_text_is_a_developer_message_and_nothing_is_stored() -> None:
    assert body(wire(), ask([SYSTEM])) == {
        "model": "gpt-5.6",
        "store": False,
        "input": [{"role": "developer", "content": "You help."}],
        "include": ["reasoning.encrypted_content"],
    }


def test_what_the_user_includes_comes_before_ours() -> None:
    sent = wire(include=["message.output_text.logprobs"]).encode_request(ask([SYSTEM])).body()
    assert json.loads(sent)["include"] == ["message.output_text.logprobs", "reasoning.encrypted_content"]
    assert sent.count(b'"include"') == 1


def test_a_model_that_does_not_reason_is_not_asked_for_reasoning() -> None:
    assert "include" not in body(wire(PLAIN), ask([SYSTEM]))


def test_tools_are_strict_functions() -> None:
    assert body(wire(), ask([SYSTEM], tools=(FIRST,)))["tools"] == [
        {
            "type": "function",
            "name": "first",
            "description": "Finds first.",
            "parameters": FIRST.schema,
            "strict": True,
        }
    ]


def test_output_items_go_back_verbatim() -> None:
    sent = wire().encode_request(ask([SYSTEM, ASKED, DONE], tools=(FIRST,))).body().decode()
    result = '{"type":"function_call_output","call_id":"c1","output":"found it"}'
    assert f"{THOUGHT},{CALL},{result}]" in sent


def test_another_providers_turn_is_encoded_from_its_text_and_calls() -> None:
    foreign = Message("assistant", "hm", ASKED.tool_calls, items=("{}",), provider="anthropic")
    assert body(wire(), ask([SYSTEM, foreign, Message("user", "go")]))["input"][1:] == [
        {"role": "assistant", "content": "hm"},
        {"type": "function_call", "call_id": "c1", "name": "first", "arguments": "{}"},
        {"role": "user", "content": "go"},
    ]


def test_structured_output_is_a_strict_schema_and_keeps_other_text_settings() -> None:
    @dataclass
    class Answer:
        word: str

    output = structured_output(Answer)
    assert body(wire(text={"verbosity": "low"}), ask([SYSTEM], output=output))["text"] == {
        "verbosity": "low",
        "format": {"type": "json_schema", "name": "output", "strict": True, "schema": output.wire_schema},
    }


def test_each_request_extends_the_last_byte_for_byte() -> None:
    line, messages = wire(), [SYSTEM]
    first = line.encode_request(ask(messages, tools=(FIRST,))).body()
    messages += [ASKED, DONE, ADDED]
    later = ask(messages, tools=(FIRST, SECOND), initial_tools=1)
    second = line.encode_request(later).body()
    assert second.startswith(first[: first.index(b"]", first.index(b'"input"'))])


def test_tools_that_appear_are_an_item_of_the_conversation() -> None:
    request = ask(
        [SYSTEM, ASKED, DONE, ADDED],
        tools=(FIRST, SECOND),
        hosted_tools=(hosted(),),
        initial_tools=1,
        initial_hosted_tools=0,
    )
    sent = body(wire(), request)
    assert [item["name"] for item in sent["tools"]] == ["first"]
    assert sent["input"][-1]["type"] == "additional_tools"
    assert [item.get("name", item["type"]) for item in sent["input"][-1]["tools"]] == ["second", "search"]
    assert sent["include"] == ["reasoning.encrypted_content", "search_call.sources"]


def test_the_append_route_extends_the_list_of_tools() -> None:
    request = ask([SYSTEM, ASKED, DONE, ADDED], tools=(FIRST, SECOND), initial_tools=1)
    sent = body(wire(route="append"), request)
    assert [item["name"] for item in sent["tools"]] == ["first", "second"]
    assert sent["input"][-1]["type"] == "function_call_output"


def test_revoked_tools_are_left_out_of_what_may_be_called() -> None:
    request = ask([SYSTEM], tools=(FIRST, SECOND), hosted_tools=(hosted(),), revoked=frozenset({"first"}))
    assert body(wire(), request)["tool_choice"] == {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "second"}, {"type": "search"}],
    }


def test_with_nothing_left_to_call_no_tool_may_be_called() -> None:
    assert body(wire(), ask([SYSTEM], tools=(FIRST,), revoked=frozenset({"first"})))["tool_choice"] == "none"


def test_an_older_model_is_not_told_of_added_tools_by_name() -> None:
    request = ask([SYSTEM, ADDED], tools=(FIRST, SECOND), initial_tools=1, revoked=frozenset({"first"}))
    assert "tool_choice" not in body(wire(UNNAMED), request)
    assert "tool_choice" in body(wire("gpt-5.6-mini"), request)


def test_a_tool_that_comes_back_is_not_declared_twice() -> None:
    gone = Message("tools_removed", tools=("second",), section_key="docs")
    request = ask([SYSTEM, ADDED, gone, ADDED], tools=(FIRST, SECOND), initial_tools=1)
    assert [item.get("type") for item in body(wire(), request)["input"]] == [None, "additional_tools"]


def test_a_conversation_that_is_not_the_one_before_is_encoded_anew() -> None:
    line = wire()
    body(line, ask([SYSTEM, ASKED, DONE]))
    assert body(line, ask([Message("system", "Other.")]))["input"] == [{"role": "developer", "content": "Other."}]


@pytest.mark.parametrize(
    ("model", "route"),
    [
        ("gpt-5.6", "additional_tools"),
        (PLAIN, "additional_tools"),
        (f"ft:{PLAIN}:acme", "additional_tools"),
        (ALWAYS, "additional_tools"),
        ("my-deployment", "append"),
    ],
)
def test_the_route_follows_the_model(model: str, route: str) -> None:
    assert facts(model).route == route


def response(*output: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"id": "r1", "model": "gpt-5.6", "status": "completed", "output": output, **fields}).encode()


def message(**part: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [part]}


def test_a_reply_has_text_calls_usage_and_its_items() -> None:
    spoken, call = message(type="output_text", text="hi"), json.loads(CALL)
    usage = {
        "input_tokens": 9,
        "output_tokens": 4,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    searched = {"type": "web_search_call", "id": "ws", "action": {}}
    assert wire().parse_reply(response(searched, spoken, call, usage=usage)) == ModelReply(
        text="hi",
        tool_calls=(ToolCall("c1", "first", "{}"),),
        usage=TokenUsage(9, 4, 3, 2, hosted_requests=1),
        stop_reason="tool_calls",
        items=(json.dumps(searched), json.dumps(spoken), json.dumps(call)),
        response_id="r1",
        model="gpt-5.6",
    )


@pytest.mark.parametrize(
    ("data", "stop", "text"),
    [
        (response(message(type="refusal", refusal="no")), "refusal", "no"),
        (
            response(
                message(type="output_text", text="ha"),
                status="incomplete",
                incomplete_details={"reason": "max_output_tokens"},
            ),
            "length",
            "ha",
        ),
        (response(status="incomplete", incomplete_details={"reason": "content_filter"}), "content_filter", ""),
    ],
)
def test_every_end_has_its_stop_reason(data: bytes, stop: str, text: str) -> None:
    reply = wire().parse_reply(data)
    assert (reply.stop_reason, reply.text) == (stop, text)


def test_an_answer_without_output_is_a_failure() -> None:
    with pytest.raises(TransportError, match="without any output") as caught:
        wire().parse_reply(response())
    assert (caught.value.phase, caught.value.retryable) == ("response", False)


def test_a_failed_response_is_asked_for_again_when_the_server_failed() -> None:
    error = {"code": "server_error", "message": "oops"}
    with pytest.raises(TransportError, match="oops") as caught:
        wire().parse_reply(response(status="failed", error=error))
    assert (caught.value.retryable, caught.value.payload) == (True, error)


def test_a_body_of_another_shape_cannot_be_read() -> None:
    with pytest.raises(msgspec.ValidationError):
        wire().parse_reply(b'{"output": 3}')


ERRORS = [
    ({"code": "server_error", "message": "oops"}, True),
    ({"error": {"type": "server_error", "code": None, "message": "oops", "param": None}}, True),
    ({"error": {"type": "tokens", "code": "rate_limit_exceeded", "message": "oops"}}, True),
    ({"error": {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "oops"}}, False),
    ({"code": "invalid_prompt", "message": "oops"}, False),
]


@pytest.mark.parametrize(("fields", "retryable"), ERRORS)
def test_an_error_in_a_stream_is_read_in_both_its_forms(fields: dict[str, Any], retryable: bool) -> None:
    event = {"type": "error", "sequence_number": 2, **fields}
    with pytest.raises(TransportError, match="reported an error in the stream: oops") as caught:
        wire().event_parser().feed(json.dumps(event).encode())
    assert (caught.value.retryable, caught.value.payload, caught.value.phase) == (retryable, event, "response")


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress", "queued"])
def test_a_response_that_did_not_complete_is_a_failure(status: str) -> None:
    with pytest.raises(TransportError, match=f"could not answer: {status}"):
        wire().parse_reply(response(message(type="output_text", text="half"), status=status))
