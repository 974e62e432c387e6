"""Reasoning goes back to the model that wrote it, to no other, and only under the text that it is bound to."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.adapters.conversations import look_up
from tests.adapters.tools import SYSTEM, ask
from tests.adapters.vendors import ANTHROPIC, LEAN, OPENAI, VENDORS, Vendor
from tests.servers.turn import Call, Raw, Turn
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.litellm.wire import ChatWire
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, tool
from weakincentives.runtime import Conversation, Message, ReasoningDropped, ToolsInjected
from weakincentives.session import Session, Snapshot

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")

MODELS = {"openai": "gpt-5.6", "anthropic": "claude-opus-5-5", "openai chat": "scripted", "litellm": "openai/scripted"}
ASKED = Turn(reasoning="Let me look.", calls=(Call("look_up", {"word": "pets"}),))


def prompt(*tools: Any, **options: Any) -> Prompt[Any]:
    hidden = MarkdownSection(
        title="More",
        key="more",
        template="All of it.",
        summary="More.",
        visibility=SectionVisibility.SUMMARY,
        **options,
    )
    task = MarkdownSection(title="Task", key="task", template="Help.", tools=tools or (look_up,))
    return Prompt(PromptTemplate(ns="tests", key="thought", sections=[task, hidden]))


@tool(name="look_up")
def look_up_more(word: str) -> str:
    """Look up a word, in a larger book."""
    return word


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def test_tools_that_appear_leave_bound_thinking_valid() -> None:
    opening = Turn(reasoning="Open it.", calls=(Call("read_section", {"section_key": "more"}),))
    script = [opening, Turn(reasoning="Add.", calls=(Call("add", {"a": 1, "b": 2}),)), Turn("3"), Turn("Yes.")]
    with ANTHROPIC.server(script) as server, ANTHROPIC.adapter(server, model="claude-opus-5-5") as adapter:
        chat = Conversation(prompt(tools=[add]), adapter=adapter)
        assert [chat.send("Sum?").text, chat.send("Sure?").text] == ["3", "Yes."]
    assert len(chat.session[ToolsInjected]) == 1
    assert (len(server.requests), chat.session[ReasoningDropped].all()) == (4, ())


def test_a_route_that_would_break_bound_thinking_is_refused() -> None:
    with pytest.raises(ValueError, match="binds its thinking"):
        AnthropicAdapter("claude-opus-5-5", tool_route="append")


@tool
def subtract(a: int, b: int) -> int:
    """Subtract."""
    return a - b


CHANGES = {
    "a tool is redefined": (look_up_more, add),
    "a tool is removed": (add, add),
    "a tool is renamed": (look_up.renamed("look_up_word"), add),
    "a late tool is redefined": (look_up, add.with_descriptions("Add two numbers.", {})),
    "a late tool is removed": (look_up, look_up),
    "a late tool is replaced": (look_up, subtract),
}


@pytest.mark.parametrize("fresh", [False, True], ids=["the same adapter", "new adapters"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("change", CHANGES)
def test_thinking_that_changed_tools_have_made_invalid_is_dropped_before_it_is_sent(
    change: str, streamed: bool, fresh: bool
) -> None:
    opening = Turn(reasoning="Open it.", calls=(Call("read_section", {"section_key": "more"}),))
    first, late = CHANGES[change]
    before, after = prompt(look_up, tools=[add]), prompt(first, tools=[late])
    script = [opening, ASKED, Turn("Steps.", reasoning="Seen."), Turn("Yes.", reasoning="Sure."), Turn("Fine.")]
    with ANTHROPIC.server(script) as server:
        session = Session()
        adapters: list[Any] = []
        for asked, made in (("What is it?", before), ("And now?", after), ("Still?", after)):
            if fresh or not adapters:
                adapters.append(ANTHROPIC.adapter(server, model="claude-opus-5-5", max_retries=0))
            chat = Conversation(made, adapter=adapters[-1], session=session)
            list(chat.stream(asked)) if streamed else chat.send(asked)
            later = Session()
            later.restore(Snapshot.from_json(session.snapshot().to_json()))
            session = later if fresh else session
        for adapter in adapters:
            adapter.close()
    bodies = [received.body for received in server.requests]
    assert [message.text for message in session[Message] if message.role == "assistant"][-1] == "Fine."
    # An adapter that goes on still has the definition of a late tool that is gone.
    kept = not fresh and change in ("a late tool is removed", "a late tool is replaced")
    assert [b"Let me look." in body for body in bodies] == [False, False, True, kept, kept]
    assert b"Sure." in bodies[4]
    assert len(session[ReasoningDropped]) == (not kept)


def test_reasoning_that_the_provider_rejects_is_dropped_by_a_retry_that_counts() -> None:
    refusal = Raw(400, b'{"error":{"message":"messages.1.content.0: Invalid signature in thinking block."}}')
    with ANTHROPIC.server([refusal, Turn("Yes.")]) as server, ANTHROPIC.adapter(server) as adapter:
        assert adapter.channel().call(ask([SYSTEM])).retries == 1
    with (
        ANTHROPIC.server([refusal]) as server,
        ANTHROPIC.adapter(server, max_retries=0) as adapter,
        pytest.raises(PromptEvaluationError, match="a retry, if max_retries allows one, omits"),
    ):
        adapter.channel().call(ask([SYSTEM]))
    assert len(server.requests) == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_ciphertext_that_another_account_made_is_dropped_and_told(streamed: bool) -> None:
    with OPENAI.server([ASKED, Turn("Steps.")]) as first, OPENAI.adapter(first) as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        chat.send("What is it?")
    with OPENAI.server([Turn("x"), Turn("Again.")]) as second, OPENAI.adapter(second) as adapter:
        chat = Conversation(prompt(), adapter=adapter, session=chat.session)
        if streamed:
            list(chat.stream("And now?"))
        else:
            chat.send("And now?")
    assert (chat.messages[-1].text, len(second.requests)) == ("Again.", 2)
    assert b"encrypted_content" not in second.requests[1].body.replace(b"reasoning.encrypted_content", b"")
    assert len(chat.session[ReasoningDropped]) == 1


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(VENDORS, 2)), ids=str)
def test_reasoning_is_never_sent_to_another_vendor(first: Vendor, second: Vendor) -> None:
    with first.server([ASKED, Turn("Steps.")]) as server, first.adapter(server, model=MODELS[first.name]) as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        chat.send("What is it?")
    with second.server([Turn("Yes.")]) as server, second.adapter(server, model=MODELS[second.name]) as adapter:
        assert Conversation(prompt(), adapter=adapter, session=chat.session).send("Sure?").text == "Yes."
    (request,) = server.requests
    assert b"Let me look." not in request.body and b"pets means step" in request.body


def test_behind_litellm_reasoning_stays_with_its_vendor_too() -> None:
    body = {
        "choices": [
            {"message": {"content": "Hi.", "reasoning_content": "Hm.", "thinking_blocks": [{"signature": "s"}]}}
        ]
    }
    claude, gemini = (
        ChatWire(model, codecs={}, first_user_turn=True) for model in ("anthropic/claude-opus-5", "gemini/gemini-3-pro")
    )
    reply = claude.parse_reply(json.dumps(body).encode())
    told = [SYSTEM, Message("user", "Hello."), Message("assistant", "Hi.", items=reply.items, provider="litellm")]
    assert b"thinking_blocks" in claude.encode_request(ask(told)).body()
    assert b"thinking_blocks" not in gemini.encode_request(ask(told)).body()


@pytest.mark.parametrize("vendor", LEAN, ids=str)
def test_reasoning_is_recorded_with_the_turn(vendor: Vendor) -> None:
    with vendor.server([ASKED, Turn("Steps.")]) as server, vendor.adapter(server) as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        chat.send("What is it?")
    assert [message.reasoning for message in chat.messages if message.role == "assistant"] == ["Let me look.", ""]


def test_a_user_who_speaks_after_a_failed_request_comes_before_the_operator() -> None:
    opening = Turn(calls=(Call("read_section", {"section_key": "more"}),))
    with ANTHROPIC.server([opening, Raw(400, b"{}"), Turn("Fine.")]) as server, ANTHROPIC.adapter(server) as adapter:
        chat = Conversation(prompt(tools=[add]), adapter=adapter)
        with pytest.raises(Exception, match="answered 400"):
            chat.send("Open it.")
        assert chat.send("Hello?").text == "Fine."
    *_, results, operator = server.requests[2].json["messages"]
    assert [block["type"] for block in results["content"]] == ["tool_result", "text"]
    assert operator["role"] == "system" and operator["content"][0]["type"] == "tool_addition"


@pytest.mark.parametrize(
    ("model", "role"), [("claude-opus-5", "system"), ("claude-haiku-4-5", "user"), ("claude-sonnet-5", "user")]
)
def test_operator_text_is_a_reminder_where_a_model_takes_no_system_messages(model: str, role: str) -> None:
    spoken = [SYSTEM, Message("user", "Hi."), Message("system", "Be brief.")]
    body = json.loads(AnthropicAdapter(model)._wire().encode_request(ask(spoken)).body())
    last = body["messages"][-1]
    text = "Be brief." if role == "system" else "<system-reminder>\nBe brief.\n</system-reminder>"
    assert (last["role"], last["content"][-1]) == (role, {"type": "text", "text": text})
