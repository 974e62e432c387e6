"""What every kind of chat server can be asked for, in every way, whatever its quirks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.scenarios import Verdict, prompt
from tests.adapters.tools import SYSTEM, ask
from tests.servers.chat_quirks import BARE, DEEPSEEK, SERVERS, Quirks, QuirkyServer
from tests.servers.turn import Call, Turn
from weakincentives.adapters.openai_chat import OpenAIChatAdapter
from weakincentives.content import Image
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import Conversation, Message, ModelCalled, ReasoningDelta, ToolInvoked
from weakincentives.session import Session


def called(adapter: Any, asked: Prompt[Any], session: Session) -> Any:
    return adapter.evaluate(asked, session=session)


def streamed(adapter: Any, asked: Prompt[Any], session: Session) -> Any:
    *_, last = adapter.stream(asked, session=session)
    return last.response


def called_async(adapter: Any, asked: Prompt[Any], session: Session) -> Any:
    return asyncio.run(adapter.evaluate_async(asked, session=session))


def streamed_async(adapter: Any, asked: Prompt[Any], session: Session) -> Any:
    async def collect() -> Any:
        return [event async for event in adapter.stream_async(asked, session=session)]

    return asyncio.run(collect())[-1].response


WAYS = [called, streamed, called_async, streamed_async]
Way = Callable[[Any, Prompt[Any], Session], Any]
THOUGHT = "Let me look."
CALLS = (Call("look_up", {"word": "pets"}), Call("look_up", {"word": "star"}))
LOOKED = Turn(reasoning=THOUGHT, calls=CALLS)
VERDICT = Turn('{"score": 7, "why": "good"}')


def plain(output: Any = None) -> Prompt[Any]:
    """A prompt without tools."""
    made: Any = PromptTemplate if output is None else PromptTemplate[output]
    return Prompt(made(ns="tests", key="plain", sections=[MarkdownSection(title="T", key="t", template="Judge it.")]))


def adapter_on(server: QuirkyServer, **options: Any) -> OpenAIChatAdapter:
    return OpenAIChatAdapter("some-model", base_url=f"{server.url}/v1", api_key="k-0123456789", **options)


def run(quirks: Quirks, way: Way, asked: Prompt[Any], *turns: Turn) -> tuple[Any, Session, QuirkyServer]:
    session = Session()
    with QuirkyServer(quirks, turns) as server, adapter_on(server, max_retries=5) as adapter:
        return way(adapter, asked, session), session, server


def matrix(test: Any) -> Any:
    ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
    return pytest.mark.parametrize("quirks", SERVERS, ids=str)(ways(test))


@matrix
def test_text_arrives_with_its_reasoning(quirks: Quirks, way: Way) -> None:
    response, session, _ = run(quirks, way, plain(), Turn("One two three.", reasoning=THOUGHT))
    assert (response.text, response.turns) == ("One two three.", 1)
    called = session[ModelCalled].latest()
    assert called is not None and called.usage.total_tokens == (0 if quirks.usage == "none" else 15)


@matrix
def test_calls_run_and_their_results_are_accepted(quirks: Quirks, way: Way) -> None:
    response, session, server = run(quirks, way, prompt(), LOOKED, LOOKED, Turn("Done."))
    assert response.text == "Done."
    expected = ["pets means step"] if quirks.one_call else ["pets means step", "star means rats"]
    invoked = session[ToolInvoked].all()
    assert sorted(event.result.message for event in invoked) == sorted(expected * 2)
    ids = [event.call_id for event in invoked]
    assert all(ids) and len(set(ids)) == len(ids)
    assert [message["role"] for message in server.requests[-1].json["messages"]].count("tool") == len(ids)


@matrix
def test_typed_answers_fit(quirks: Quirks, way: Way) -> None:
    response, _, _ = run(quirks, way, plain(Verdict), VERDICT)
    assert response.output == Verdict(7, "good")


@matrix
def test_typed_answers_come_after_calls(quirks: Quirks, way: Way) -> None:
    response, session, _ = run(quirks, way, prompt(Verdict), LOOKED, VERDICT)
    assert (response.output, response.turns) == (Verdict(7, "good"), 2)
    assert {event.name for event in session[ToolInvoked].all()} == {"look_up"}


@pytest.mark.parametrize("quirks", SERVERS, ids=str)
def test_reasoning_is_shown_and_goes_back_where_it_is_accepted(quirks: Quirks) -> None:
    with QuirkyServer(quirks, [LOOKED, Turn("Steps.")]) as server, adapter_on(server, max_retries=5) as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        with chat.stream("What is it?") as events:
            shown = [event.text for event in events if isinstance(event, ReasoningDelta)]
    assert "".join(shown) == THOUGHT
    assert [message.reasoning for message in chat.messages if message.tool_calls] == [THOUGHT]
    (asked,) = [message for message in server.requests[-1].json["messages"] if message.get("tool_calls")]
    returned = {field for field in ("reasoning", "reasoning_content", "reasoning_details") if field in asked}
    assert returned == (set() if quirks is BARE else set(quirks.reasoning))


def test_what_a_server_refuses_is_left_out_from_then_on() -> None:
    turns = [VERDICT] * 3
    with QuirkyServer(BARE, turns) as server, adapter_on(server, max_retries=5) as adapter:
        for _ in turns:
            assert adapter.evaluate(plain(Verdict), session=Session()).output == Verdict(7, "good")
    assert server.refused == 3  # The field `strict`, a schema, and JSON without one.
    assert "response_format" not in server.requests[-1].json


def test_a_server_without_schemas_is_asked_for_json_and_told_the_schema() -> None:
    _, _, server = run(DEEPSEEK, called, plain(Verdict), VERDICT)
    body = server.requests[-1].json
    assert body["response_format"] == {"type": "json_object"}
    assert '"score"' in body["messages"][0]["content"] and "JSON" in body["messages"][0]["content"]


def test_what_another_wire_has_learned_holds_for_sessions_that_already_run() -> None:
    turns = [VERDICT] * 4
    with QuirkyServer(DEEPSEEK, turns) as server, adapter_on(server) as adapter:
        chats = [Conversation(plain(Verdict), adapter=adapter) for _ in range(2)]
        for chat in (*chats, *chats):
            assert chat.send("Judge it.").output == Verdict(7, "good")
    assert server.refused == 1


def test_calls_without_reasoning_are_marked_where_a_server_wants_some() -> None:
    bare = Turn(calls=CALLS)
    response, _, server = run(DEEPSEEK, called, prompt(), bare, LOOKED, Turn("Done."))
    assert (response.text, server.refused) == ("Done.", 1)
    asked = [message for message in server.requests[-1].json["messages"] if message.get("tool_calls")]
    assert [message["reasoning_content"] for message in asked] == ["", THOUGHT]


def test_the_schema_also_stands_beside_pictures_in_a_prompt_without_system_text() -> None:
    section = MarkdownSection(title="T", key="t", template="Judge it.", role="user")
    asked: Prompt[Any] = Prompt(PromptTemplate[Verdict](ns="tests", key="user", sections=[section]))
    with QuirkyServer(DEEPSEEK, [VERDICT]) as server, adapter_on(server) as adapter:
        chat = Conversation(asked, adapter=adapter)
        assert chat.send([Image.from_url("https://x.example/a.png"), "This."]).output == Verdict(7, "good")
    assert "JSON Schema" in str(server.requests[-1].json["messages"])


def test_later_system_text_is_a_reminder_from_the_user() -> None:
    wire = OpenAIChatAdapter("m", base_url="http://127.0.0.1:1/v1")._wire()
    spoken = [SYSTEM, Message("user", "Hi."), Message("system", "Be brief.")]
    messages = json.loads(wire.encode_request(ask(spoken)).body())["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "user"]
    assert messages[-1]["content"] == "<system-reminder>\nBe brief.\n</system-reminder>"


def test_one_request_is_sent_if_no_retry_is_allowed() -> None:
    error = pytest.raises(PromptEvaluationError, match="a retry, if max_retries allows one, is written without it")
    with QuirkyServer(DEEPSEEK, [VERDICT]) as server, adapter_on(server, max_retries=0) as adapter, error:
        adapter.evaluate(plain(Verdict), session=Session())
    assert len(server.requests) == 1
