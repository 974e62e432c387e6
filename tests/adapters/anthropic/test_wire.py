"""Anthropic's Messages API on the wire."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.tools import SYSTEM, SearchCodec, ask, hosted, tool
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.anthropic.wire import INLINE_TOOLS, TOOL_CHANGES, MessagesWire
from weakincentives.adapters.network import TransportError
from weakincentives.limits import TokenUsage
from weakincentives.prompt.output import structured_output
from weakincentives.runtime.messages import Message, ModelReply, ModelRequest, ToolCall

FIRST, SECOND = tool("first"), tool("second")
THOUGHT = '{"type":"thinking","thinking":"hm","signature":"s"}'
USE = '{"type":"tool_use","id":"c1","name":"first","input":{"text":"a"}}'
ASKED = Message(
    "assistant", tool_calls=(ToolCall("c1", "first", '{"text":"a"}'),), items=(THOUGHT, USE), provider="anthropic"
)
DONE = Message("tool", "found it", call_id="c1", name="first")
FAILED = Message("tool", "no such thing", call_id="c2", name="first", success=False)
ADDED = Message("tools_added", tools=("second",), section_key="docs")
GONE = Message("tools_removed", tools=("second",), section_key="docs")


def wire(route: Any = "tool_addition", **parameters: Any) -> MessagesWire:
    return MessagesWire(
        "claude-opus-5", route=route, codecs={"search": SearchCodec()}, parameters=parameters, max_tokens=100
    )


def body(wire: MessagesWire, request: ModelRequest, **options: Any) -> dict[str, Any]:
    return json.loads(wire.encode_request(request, **options).body())


def test_a_first_request_has_a_cached_system_text_and_an_opening_turn() -> None:
    assert body(wire(), ask([SYSTEM], tools=(FIRST,))) == {
        "model": "claude-opus-5",
        "max_tokens": 100,
        "tools": [{"name": "first", "description": "Finds first.", "input_schema": FIRST.schema}],
        "system": [{"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "Begin."}],
        "cache_control": {"type": "ephemeral"},
    }


def test_the_users_cache_markers_replace_ours() -> None:
    hour = {"type": "ephemeral", "ttl": "1h"}
    kept = body(wire(cache_control=hour), ask([SYSTEM]))
    assert (kept["cache_control"], kept["system"][0]["cache_control"]) == (hour, hour)
    bare = body(wire(cache_control=None), ask([SYSTEM]))
    assert "cache_control" not in bare and "cache_control" not in bare["system"][0]


def test_only_the_first_system_text_is_marked_for_the_cache() -> None:
    sent = body(wire(), ask([SYSTEM, *(Message("system", f"Rule {n}.") for n in range(5))]))["system"]
    assert [("cache_control" in block, block["text"]) for block in sent[:2]] == [
        (True, "You help."),
        (False, "Rule 0."),
    ]
    assert sum("cache_control" in block for block in sent) == 1


def test_a_user_turn_of_the_conversation_needs_no_opening() -> None:
    assert body(wire(), ask([SYSTEM, Message("user", "Hi.")]))["messages"] == [{"role": "user", "content": "Hi."}]


def test_blocks_go_back_verbatim_and_results_of_a_turn_in_one_message() -> None:
    sent = wire().encode_request(ask([SYSTEM, ASKED, DONE, FAILED])).body().decode()
    assert f'{{"role":"assistant","content":[{THOUGHT},{USE}]}}' in sent
    assert json.loads(sent)["messages"][2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "found it"},
            {"type": "tool_result", "tool_use_id": "c2", "content": "no such thing", "is_error": True},
        ],
    }


def test_another_providers_turn_is_encoded_from_its_text_and_calls() -> None:
    calls = (ToolCall("c1", "first", '{"text": "a"}'), ToolCall("c2", "first", "{oops"))
    foreign = Message("assistant", "hm", calls, items=("{}",), provider="openai")
    assert body(wire(), ask([SYSTEM, foreign]))["messages"][1]["content"] == [
        {"type": "text", "text": "hm"},
        {"type": "tool_use", "id": "c1", "name": "first", "input": {"text": "a"}},
        {"type": "tool_use", "id": "c2", "name": "first", "input": {"malformed": "{oops"}},
    ]


def test_structured_output_is_a_schema() -> None:
    @dataclass
    class Answer:
        word: str

    output = structured_output(list[Answer])
    assert body(wire(output_config={"effort": "low"}), ask([SYSTEM], output=output))["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": output.wire_schema},
    }


def test_each_request_extends_the_last_byte_for_byte() -> None:
    line, messages = wire(), [SYSTEM]
    first = line.encode_request(ask(messages, tools=(FIRST,))).body()
    messages += [ASKED, DONE, ADDED]
    second = line.encode_request(ask(messages, tools=(FIRST, SECOND), initial_tools=1)).body()
    assert second.startswith(first[: first.index(b"]", first.index(b'"messages"'))])


def test_tools_that_appear_are_a_system_block_after_the_results() -> None:
    line = wire()
    request = ask([SYSTEM, ASKED, DONE, ADDED, FAILED], tools=(FIRST, SECOND), initial_tools=1)
    outgoing = line.encode_request(request)
    sent = json.loads(outgoing.body())
    definition = {"name": "second", "description": "Finds second.", "input_schema": SECOND.schema}
    assert [item["name"] for item in sent["tools"]] == ["first"]
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user", "system"]
    assert sent["messages"][-1]["content"] == [
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}
    ]
    assert outgoing.headers == {"anthropic-beta": f"{TOOL_CHANGES},{INLINE_TOOLS}"}


def test_a_tool_that_goes_and_comes_back_is_referred_to_by_name() -> None:
    request = ask([SYSTEM, ASKED, DONE, ADDED, GONE, ADDED], tools=(FIRST, SECOND), initial_tools=1)
    blocks = body(wire(), request)["messages"][-1]["content"]
    reference = {"type": "tool_reference", "name": "second"}
    assert blocks[1:] == [{"type": "tool_removal", "tool": reference}, {"type": "tool_addition", "tool": reference}]


def test_a_withdrawn_initial_tool_comes_back_without_the_inline_beta() -> None:
    back = [SYSTEM, Message("tools_removed", tools=("first",)), Message("tools_added", tools=("first",))]
    outgoing = wire().encode_request(ask(back, tools=(FIRST,)))
    assert outgoing.headers == {"anthropic-beta": TOOL_CHANGES}


def test_the_append_route_extends_the_list_of_tools_and_needs_no_beta() -> None:
    request = ask([SYSTEM, ASKED, DONE, ADDED, GONE], tools=(FIRST, SECOND), initial_tools=1)
    outgoing = wire("append").encode_request(request)
    sent = json.loads(outgoing.body())
    assert [item["name"] for item in sent["tools"]] == ["first", "second"]
    assert (sent["messages"][-1]["role"], outgoing.headers) == ("user", {})


def test_hosted_tools_bring_their_betas() -> None:
    outgoing = wire().encode_request(ask([SYSTEM], hosted_tools=(hosted(),)))
    assert json.loads(outgoing.body())["tools"] == [{"type": "search", "size": 3}]
    assert outgoing.headers == {"anthropic-beta": "search-2026"}


@pytest.mark.parametrize(
    ("model", "route"),
    [
        ("claude-opus-5", "tool_addition"),
        ("claude-opus-5-1", "tool_addition"),
        ("claude-opus-4-8", "tool_addition"),
        ("claude-sonnet-5-5", "tool_addition"),
        ("claude-sonnet-5", "tool_reference"),
        ("claude-haiku-4-5", "tool_reference"),
        ("claude-opus-4-1", "append"),
        ("gateway-model", "append"),
    ],
)
def test_the_route_follows_the_model(model: str, route: str) -> None:
    assert AnthropicAdapter(model, client=object()).tool_route == route


def answer(*content: dict[str, Any], stop: str = "end_turn", **fields: Any) -> bytes:
    return json.dumps(
        {"id": "m1", "model": "claude-opus-5", "content": content, "stop_reason": stop, **fields}
    ).encode()


def test_a_reply_has_text_calls_usage_and_its_items() -> None:
    text, use, searched = {"type": "text", "text": "hi"}, json.loads(USE), {"type": "server_tool_use", "id": "s"}
    usage = {
        "input_tokens": 2,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 1,
        "output_tokens": 4,
        "server_tool_use": {"web_search_requests": 1},
    }
    assert wire().parse_reply(answer(searched, text, use, stop="tool_use", usage=usage)) == ModelReply(
        text="hi",
        tool_calls=(ToolCall("c1", "first", '{"text": "a"}'),),
        usage=TokenUsage(8, 4, 5, 0, hosted_requests=1),
        stop_reason="tool_calls",
        items=(json.dumps(searched), json.dumps(text), json.dumps(use)),
        response_id="m1",
        model="claude-opus-5",
    )


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "overflow"),
        ("pause_turn", "pause"),
        ("refusal", "refusal"),
        ("stop_sequence", "end"),
        ("compaction", "pause"),
    ],
)
def test_every_end_has_its_stop_reason(stop: str, reason: str) -> None:
    assert wire().parse_reply(answer({"type": "text", "text": "x"}, stop=stop)).stop_reason == reason


def test_a_refusal_without_words_is_explained_by_its_details() -> None:
    reply = wire().parse_reply(answer(stop="refusal", stop_details={"explanation": "not allowed"}))
    assert (reply.stop_reason, reply.text) == ("refusal", "not allowed")


def test_an_answer_without_content_is_a_failure() -> None:
    with pytest.raises(TransportError, match="without any content"):
        wire().parse_reply(answer())


def events(*data: dict[str, Any]) -> ModelReply:
    """The reply that a stream of these events ends in."""
    parser = wire().event_parser()
    start = {"type": "message_start", "message": {"id": "m1", "model": "claude-opus-5", "usage": {"input_tokens": 9}}}
    parts = [part for one in (start, *data) for part in parser.feed(json.dumps(one).encode())]
    assert isinstance(parts[-1], ModelReply)
    return parts[-1]


def test_thinking_tokens_are_reasoning_tokens() -> None:
    usage = {"input_tokens": 2, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 7}}
    assert wire().parse_reply(answer({"type": "text", "text": "x"}, usage=usage)).usage == TokenUsage(2, 9, 0, 7)


def test_the_tokens_of_a_compaction_are_added_to_those_of_the_message() -> None:
    spent = {"input_tokens": 100, "cache_read_input_tokens": 50, "output_tokens": 20}
    usage = {
        "input_tokens": 5,
        "output_tokens": 3,
        "iterations": [{"type": "compaction", **spent}, {"type": "message", "input_tokens": 5, "output_tokens": 3}],
    }
    assert wire().parse_reply(answer({"type": "text", "text": "x"}, usage=usage)).usage == TokenUsage(155, 23, 50)


def test_a_streamed_compaction_keeps_its_summary_and_the_turn_goes_on() -> None:
    reply = events(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "compaction_delta", "content": "So far: nothing.", "encrypted_content": "xyz"},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "compaction"},
            "usage": {"output_tokens": 0, "iterations": [{"type": "compaction", "output_tokens": 40}]},
        },
        {"type": "message_stop"},
    )
    block = {"type": "compaction", "content": "So far: nothing.", "encrypted_content": "xyz"}
    assert ([json.loads(item) for item in reply.items], reply.stop_reason) == ([block], "pause")
    assert reply.usage == TokenUsage(9, 40)
    told = Message("assistant", items=reply.items, provider="anthropic", paused=True)
    assert body(wire(), ask([SYSTEM, Message("user", "go"), told]))["messages"][-1] == {
        "role": "assistant",
        "content": [block],
    }


def test_a_streamed_call_without_arguments_has_none() -> None:
    used = {"type": "tool_use", "id": "1", "name": "list_orders", "input": {}}
    reply = events(
        {"type": "content_block_start", "index": 0, "content_block": used},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": ""}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 4}},
        {"type": "message_stop"},
    )
    assert reply.tool_calls == (ToolCall("1", "list_orders", "{}"),)


def test_the_text_after_results_stays_where_it_is_if_the_user_speaks_too() -> None:
    haiku: Any = AnthropicAdapter("claude-haiku-5-5")._wire()
    messages = [SYSTEM, ASKED, DONE, Message("system", "Be brief.")]
    before = body(haiku, ask(messages))["messages"][-2]
    after = body(haiku, ask([*messages, Message("user", "Hm?")]))["messages"][-2]
    assert after["content"][:2] == before["content"] and after["content"][2]["text"] == "Hm?"
    assert before["content"][1]["text"].startswith("The tool results end here.")
