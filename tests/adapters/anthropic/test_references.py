"""The route `tool_reference`: deferred tools, revealed by the result of the call that opened their section."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.scenarios import call
from tests.adapters.sums import CLOSE, DONE, OPEN, USE, add, prompt, run
from tests.adapters.tools import SYSTEM, ask, tool
from tests.adapters.vendors import ANTHROPIC, SONNET
from tests.servers.rules import messages_problem
from tests.servers.turn import Raw, Turn
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.anthropic.codecs import CODECS
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility
from weakincentives.runtime import Conversation, Message, ToolCall, ToolInvoked, assert_prefix_kept, prefix_breaks
from weakincentives.session import Session
from weakincentives.tools.web_search import web_search_tool

READ = Message("assistant", tool_calls=(ToolCall("c1", "read_section", "{}"),))
FAILED = Message("assistant", tool_calls=(ToolCall("c0", "read_section", "{}"),))
RESULT = Message("tool", "The text.", call_id="c1", name="read_section")
ADDED = Message("tools_added", tools=("late",), section_key="docs")
FIRST, LATE = tool("read_section"), tool("late")


def encoded(*messages: Message, wire: Any = None, tools: Any = (FIRST, LATE), **fields: Any) -> dict[str, Any]:
    made = wire or AnthropicAdapter("claude-sonnet-5")._wire()
    fields = {"tools": tools, "initial_tools": 1, **fields}
    body: dict[str, Any] = json.loads(made.encode_request(ask([SYSTEM, *messages], **fields)).body())
    assert messages_problem(body) is None
    return body


def listed(body: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(each["name"], each.get("defer_loading", False)) for each in body["tools"]]


def revealed(body: dict[str, Any]) -> list[str]:
    results = [block for message in body["messages"] for block in message["content"] if isinstance(block, dict)]
    blocks = [block for each in results if each["type"] == "tool_result" for block in each["content"]]
    return [block["tool_name"] for block in blocks if block["type"] == "tool_reference"]


def test_the_result_that_opens_a_section_reveals_its_tools() -> None:
    bodies, _, session = run(SONNET, OPEN, USE, DONE)
    assert listed(bodies[0]) == [("read_section", False)]
    assert (
        listed(bodies[1]) == listed(bodies[2]) == [("read_section", False), ("add", True), ("collapse_section", True)]
    )
    (result,) = bodies[1]["messages"][-1]["content"]
    assert result["content"][1:] == [
        {"type": "tool_reference", "tool_name": "add"},
        {"type": "tool_reference", "tool_name": "collapse_section"},
    ]
    assert "Add numbers with the tool." in result["content"][0]["text"]
    assert_prefix_kept(bodies, session)


def test_a_tool_is_revealed_once_also_if_its_section_is_closed_and_opened_again() -> None:
    bodies, _, session = run(SONNET, OPEN, CLOSE, OPEN, USE, DONE)
    assert revealed(bodies[-1]) == ["add", "collapse_section"]
    assert_prefix_kept(bodies, session)


def test_the_reference_stands_in_the_last_result_that_succeeded() -> None:
    calls = Message("assistant", tool_calls=(*READ.tool_calls, ToolCall("c2", "read_section", "{}")))
    failed = Message("tool", "It failed.", call_id="c2", name="read_section", success=False)
    first, second = encoded(calls, RESULT, failed, ADDED)["messages"][-1]["content"]
    assert first["content"][-1] == {"type": "tool_reference", "tool_name": "late"}
    assert second["is_error"] and len(second["content"]) == 1


def test_a_result_without_text_can_reveal_tools() -> None:
    empty = Message("tool", "", call_id="c1", name="read_section")
    assert encoded(READ, empty, ADDED)["messages"][-1]["content"][0]["content"] == [
        {"type": "tool_reference", "tool_name": "late"}
    ]


@pytest.mark.parametrize(
    "messages",
    [(Message("user", "Hi."), ADDED), (FAILED, Message("tool", "No.", call_id="c0", success=False), ADDED)],
    ids=["the user speaks", "the call failed"],
)
def test_tools_that_no_result_can_reveal_are_listed_for_all_to_see(messages: tuple[Message, ...]) -> None:
    wire = AnthropicAdapter("claude-sonnet-5")._wire()
    assert listed(encoded(*messages, wire=wire)) == [("read_section", False), ("late", False)]
    closed, reopened = Message("tools_removed", tools=("late",)), (Message("assistant", "Yes."), READ, RESULT, ADDED)
    body = encoded(*messages, closed, *reopened, wire=wire)
    assert (listed(body)[1], revealed(body)) == (("late", False), [])


def test_after_a_compaction_revealed_tools_are_listed_and_stay_listed() -> None:
    wire, summary = AnthropicAdapter("claude-sonnet-5")._wire(), Message("user", "So far: all is well.")
    assert listed(encoded(READ, RESULT, ADDED, wire=wire))[1] == ("late", True)
    assert listed(encoded(summary, wire=wire))[1] == ("late", False)
    closed = Message("tools_removed", tools=("late",), section_key="docs")
    body = encoded(summary, closed, Message("assistant", "Ok."), READ, RESULT, ADDED, wire=wire)
    assert (listed(body)[1], revealed(body)) == (("late", False), [])


def test_references_to_tools_that_are_gone_are_left_out() -> None:
    wire = AnthropicAdapter("claude-sonnet-5")._wire()
    both = Message("tools_added", tools=("late", "later"), section_key="docs")
    assert revealed(encoded(READ, RESULT, both, wire=wire, tools=(FIRST, LATE, tool("later")))) == ["late", "later"]
    body = encoded(READ, RESULT, both, Message("user", "Go on."), wire=wire, tools=(FIRST, tool("later")))
    assert (listed(body), revealed(body)) == ([("read_section", False), ("later", True)], ["later"])


def test_without_any_other_tool_none_is_deferred() -> None:
    wire = AnthropicAdapter("claude-sonnet-5")._wire()
    encoded(READ, RESULT, ADDED, wire=wire)
    body = encoded(READ, RESULT, ADDED, Message("user", "Go on."), wire=wire, tools=(LATE,), initial_tools=0)
    assert (listed(body), revealed(body)) == ([("late", False)], [])


def test_a_hosted_tool_is_revealed_by_the_name_its_vendor_knows() -> None:
    search = web_search_tool(name="look_up")
    wire = AnthropicAdapter("claude-sonnet-5", hosted_tool_codecs=CODECS)._wire()
    added = Message("tools_added", tools=("look_up",), section_key="docs")
    fields: Any = {"tools": (FIRST,), "hosted_tools": (search,), "initial_hosted_tools": 0}
    body = encoded(READ, RESULT, added, wire=wire, **fields)
    assert (listed(body)[1], revealed(body)) == (("web_search", True), ["web_search"])


def test_a_deferred_tool_whose_section_is_read_is_revealed_without_a_search() -> None:
    for vendor in (ANTHROPIC, SONNET):
        bodies, _, session = run(vendor, OPEN, USE, DONE, tool_search=True)
        assert [event.result.value for event in session[ToolInvoked] if event.name == "add"] == [3]
        assert_prefix_kept(bodies, session)


def test_a_rule_that_opens_a_section_in_a_new_exchange_breaks_the_prefix_once() -> None:
    ruled = MarkdownSection(
        title="Sums",
        key="sums",
        template="Add.",
        summary="How to add.",
        visibility=SectionVisibility.SUMMARY,
        open_when=lambda *, text: "plus" in text,
        tools=[add],
    )
    template = PromptTemplate[None](ns="tests", key="ruled", sections=[ruled])
    with SONNET.server([Turn("Hi."), USE, DONE]) as server, SONNET.adapter(server) as adapter:
        chat = Conversation(Prompt(template), adapter=adapter)
        chat.send("Hi.")
        assert chat.send("1 plus 2?").text == "3"
    bodies = [received.json for received in server.requests]
    assert [broken.request for broken in prefix_breaks(bodies, chat.session)] == [1]
    assert listed(bodies[1]) == [("read_section", False), ("add", False)]


def test_a_changed_definition_of_a_revealed_tool_breaks_the_prefix_and_one_that_is_not_does_not() -> None:
    (before, after), _, session = run(SONNET, OPEN, DONE)
    tools = [*after["tools"], {"name": "unseen", "defer_loading": True}]
    assert prefix_breaks([before, {**after, "tools": tools}], session) == ()
    other = [{**each, "description": "Other."} if each["name"] == "add" else each for each in tools]
    (broken,) = prefix_breaks([after, {**after, "tools": other}], session)
    assert (broken.where, broken.detail) == ("tools", "tools changed: add")


@pytest.mark.parametrize(
    ("model", "message", "ends"),
    [
        ("claude-sonnet-5", "tools.1: defer_loading is not supported on this model", [False, False]),
        ("claude-opus-5", "messages.2: tool_addition is not supported on this model", [False, True]),
    ],
)
def test_a_route_that_the_vendor_rejects_is_replaced_by_the_next_best(
    model: str, message: str, ends: list[bool]
) -> None:
    refusal = Raw(400, f'{{"type":"error","error":{{"type":"invalid_request_error","message":"{message}"}}}}'.encode())
    with ANTHROPIC.server([OPEN, refusal, USE, DONE]) as server, ANTHROPIC.adapter(server, model=model) as adapter:
        assert adapter.evaluate(prompt(), session=Session()).text == "3"
    assert [deferred for _, deferred in listed(server.requests[2].json)[:2]] == ends


def test_models_that_bind_their_thinking_refuse_the_route() -> None:
    with pytest.raises(ValueError, match="binds its thinking to the list of tools, got 'tool_reference'"):
        AnthropicAdapter("claude-opus-5-5", tool_route="tool_reference")


PLAIN, DEFERRED = {"name": "a"}, {"name": "b", "defer_loading": True}


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([DEFERRED], "At least one tool must be non-deferred"),
        ([PLAIN, {**DEFERRED, "cache_control": {"type": "ephemeral"}}], "cannot use prompt caching"),
        ([PLAIN], "no corresponding deferred tool definition"),
    ],
)
def test_the_server_refuses_what_the_vendor_refuses(tools: list[Any], problem: str) -> None:
    used = {"type": "tool_use", "id": "t", "name": "a", "input": {}}
    reference = {"type": "tool_reference", "tool_name": "b"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [reference]}
    messages = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result]},
    ]
    found = messages_problem({"model": "claude-sonnet-5", "tools": tools, "messages": messages})
    assert found is not None and problem in found["error"]["message"]


def test_the_script_may_not_call_what_the_model_cannot_see() -> None:
    with pytest.raises(Exception, match="which the model cannot see"):
        run(SONNET, Turn(calls=(call("add", a=1, b=2),)), tool_search=True)
