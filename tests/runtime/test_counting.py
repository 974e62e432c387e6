"""What `adapter.count` counts is what the loop would send."""

from __future__ import annotations

from typing import Any

import pytest

from tests.disclosure.desk import desk, section
from weakincentives.adapters.openai_chat import OpenAIChatAdapter
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.content import Image
from weakincentives.prompt import MarkdownSection, OpenOrRead, Prompt, PromptTemplate, ReadSections, tool
from weakincentives.runtime import Conversation, Message, ModelRequest, ToolCall
from weakincentives.session import Session

READ = call("read_section", section_key="orders")


def comparable(request: ModelRequest) -> tuple[Any, ...]:
    names = tuple(tool.name for tool in request.tools)
    return tuple(request.messages), names, request.initial_tools, request.revoked, request.output


def typed(output: Any) -> PromptTemplate[Any]:
    sections = [MarkdownSection(title="Task", key="task", template="Say."), section("docs")]
    return PromptTemplate(ns="t", key="k", sections=sections, output_type=output)


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("strategy", [ReadSections(), OpenOrRead()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("script", [["a", "b", "c"], [READ, "a", "b", "c"], ["a", READ, "b", "c"]], ids=len)
def test_the_next_request_of_a_conversation_is_the_one_that_is_sent(script: Any, strategy: Any, dynamic: bool) -> None:
    adapter = ScriptedAdapter(script, supports_dynamic_tools=dynamic)
    chat = Conversation(Prompt(desk(disclosure=strategy)), adapter=adapter)
    for words in ("One.", "Two.", "Three."):
        before = chat.session.snapshot()
        expected = comparable(adapter.next_request(chat.prompt, chat.session))
        assert chat.session.snapshot() == before
        chat.send(words)
        sent = next(each for each in adapter.requests if each.messages[-1] == Message("user", words))
        messages, *tools = comparable(sent)
        assert ((*expected[0], Message("user", words)), *expected[1:]) == (messages, *tools)


@pytest.mark.parametrize("output", [None, str, dict[str, int]])
def test_the_first_request_asks_for_the_declared_output_as_the_loop_does(output: Any) -> None:
    adapter, prompt = ScriptedAdapter(['{"a": 1}']), Prompt(typed(output))
    expected = adapter.next_request(prompt)
    adapter.evaluate(prompt, session=Session())
    assert comparable(expected) == comparable(adapter.requests[0])
    assert adapter.count(prompt) > 10


WORDS = "some more words than before " * 100
PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000400000004000802000000")


def called(arguments: str, result: str) -> list[Message]:
    call = ToolCall("call_1", "note", arguments)
    return [Message("assistant", tool_calls=(call,)), Message("tool", result, call_id=call.id, name=call.name)]


ADDED = {
    "text": [Message("user", WORDS)],
    "answer": [Message("assistant", WORDS)],
    "arguments": called(f'{{"text": "{WORDS}"}}', "Noted."),
    "result": called("{}", WORDS),
    "image": [Message("user", "Look.", parts=(Image.from_bytes(PIXEL, "image/png"),))],
}
ADAPTERS = [ScriptedAdapter(), OpenAIChatAdapter("m", base_url="http://localhost/v1", api_key="k")]


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
def test_each_part_of_a_conversation_is_counted(added: list[Message], adapter: Any) -> None:
    session, prompt = Session(), Prompt(typed(None))
    for message in (Message("user", "Hello."), Message("assistant", "Hello.")):
        session.dispatch(message)
    before = adapter.count(prompt, session)
    for message in added:
        session.dispatch(message)
    tokens = sum(map(adapter.count_message, added))
    assert tokens > 100
    assert adapter.count(prompt, session) == before + tokens


def test_each_tool_is_counted() -> None:
    @tool
    def note(text: str) -> str:
        "Write a note."
        return text

    adapter, plain = ScriptedAdapter(), MarkdownSection(key="task", title="Task", template="Say.")
    offering = MarkdownSection(key="task", title="Task", template="Say.", tools=[note])
    before, after = (adapter.count(Prompt(ns="t", key="k", sections=[each])) for each in (plain, offering))
    assert after == before + adapter.count_tools([note])
