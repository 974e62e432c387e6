"""What the CLI streams, as our messages."""

from __future__ import annotations

import json
from typing import Any

from tests.servers.claude_cli import CliServer
from tests.servers.loopback import Received
from tests.servers.turn import Call, Turn as Scripted
from weakincentives.adapters.anthropic.reply import parse_usage
from weakincentives.adapters.claude_agent_sdk.wire import PROVIDER, Turn, system_text, turns, unreported_usage
from weakincentives.limits import TokenUsage
from weakincentives.runtime import ArgumentsDelta, Message, TextDelta, ToolCall


def events(text: str, *calls: Call) -> list[Any]:
    """What the service streams for such a message."""
    body = {"model": "claude-opus-5", "stream": True, "messages": [{"role": "user", "content": "Go."}]}
    asked = Received("POST", "/v1/messages", {}, json.dumps(body).encode())
    rendered = CliServer().render(Scripted(text, calls), asked).events or ()
    return [json.loads(event.partition(b"data: ")[2]) for event in rendered]


def turn_of(text: str, *calls: Call) -> Turn:
    turn = Turn()
    for event in events(text, *calls):
        turn.feed(event)
    return turn


def test_a_text_message_becomes_a_reply() -> None:
    reply = turn_of("hello big world").reply()
    assert (reply.text, reply.stop_reason, reply.response_id) == ("hello big world", "end", "msg_0")
    assert reply.items == (json.dumps({"type": "text", "text": "hello big world"}),)


def test_only_calls_of_our_tools_are_calls_for_us() -> None:
    turn = turn_of("two", Call("add", {"a": 1}), Call("Read", {"file_path": "x"}))
    assert turn.reply().tool_calls == (ToolCall("toolu_0_0", "add", '{"a": 1}'),)
    assert len(turn.cli_calls) == 1


def test_arguments_are_kept_as_the_model_wrote_them_also_when_they_are_cut_off() -> None:
    streamed = events("", Call("add", {"text": "long"}))
    cut = [event for event in streamed if event.get("index") != 0 or "delta" not in event][:2]
    turn = Turn()
    delta = {"type": "input_json_delta", "partial_json": '{"te'}
    for event in (*cut, {"type": "content_block_delta", "index": 0, "delta": delta}):
        turn.feed(event)
    assert turn.tool_calls == (ToolCall("toolu_0_0", "add", '{"te'),)


def test_a_structured_answer_is_not_work_of_the_cli() -> None:
    turn = turn_of("", Call("StructuredOutput", {"n": 1}))
    assert turn.structured_answer == '{"n": 1}'
    assert turn.cli_calls == ()


def test_text_and_structured_answers_are_streamed() -> None:
    turn = Turn()
    streamed = events("a b", Call("StructuredOutput", {"n": 1}), Call("add", {"a": 1}))
    deltas = [delta for event in streamed if (delta := turn.feed(event)) is not None]
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == 'a b{"n": 1}'
    calls = [delta for delta in deltas if isinstance(delta, ArgumentsDelta)]
    assert {(delta.call_id, delta.name) for delta in calls} == {("toolu_0_1", "add")}
    assert "".join(delta.text for delta in calls) == '{"a": 1}'


def test_cached_input_counts_as_input() -> None:
    raw = {"input_tokens": 10, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2, "output_tokens": 5}
    assert parse_usage(raw) == TokenUsage(input_tokens=15, output_tokens=5, cached_tokens=3)


def test_what_the_cli_spent_beyond_its_messages_is_the_difference() -> None:
    total = {
        "claude-sonnet-5": {"inputTokens": 10, "outputTokens": 5},
        "claude-haiku-5": {"inputTokens": 7, "outputTokens": 1},
    }
    assert unreported_usage(total, TokenUsage(input_tokens=10, output_tokens=5)) == TokenUsage(
        input_tokens=7, output_tokens=1
    )


def test_a_conversation_is_resumed_in_its_roles() -> None:
    thinking = json.dumps({"type": "thinking", "thinking": "Add.", "signature": "s"})
    use = json.dumps({"type": "tool_use", "id": "1", "name": "mcp__wink__add", "input": {"a": 1}})
    messages = [
        Message("system", "You add."),
        Message("user", "One?"),
        Message("assistant", items=(thinking, use), tool_calls=(ToolCall("1", "add", "{}"),), provider=PROVIDER),
        Message("tool", "1", call_id="1", name="add"),
        Message("assistant", "It is 1.", provider="openai", items=("{}",)),
        Message("system", "Be brief."),
    ]
    assert system_text(messages) == "You add."
    assert turns(messages, thinking=False) == [
        {"role": "user", "content": [{"type": "text", "text": "One?"}]},
        {"role": "assistant", "content": [json.loads(use)]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "1"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "It is 1."}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "<system-reminder>\nBe brief.\n</system-reminder>"}],
        },
    ]


def test_a_call_of_the_clis_own_that_was_cut_off_is_not_resumed() -> None:
    done, cut = ({"type": "tool_use", "id": name, "name": "Read", "input": {}} for name in ("r1", "r2"))
    result = {"type": "tool_result", "tool_use_id": "r1", "content": "x", "is_error": False}
    messages = [
        Message("user", "Read both."),
        Message("assistant", provider=PROVIDER, items=(json.dumps(done),), paused=True),
        Message("assistant", provider=PROVIDER, items=(json.dumps(result), json.dumps(cut)), paused=True),
    ]
    assert turns(messages, thinking=True)[1:] == [
        {"role": "assistant", "content": [done]},
        {"role": "user", "content": [result]},
    ]
