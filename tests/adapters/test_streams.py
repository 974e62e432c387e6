"""What a stream shows of a reply while it is written, on every vendor's wire."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.conversations import look_up
from tests.adapters.vendors import LEAN, LITELLM, OPENAI, VENDORS, Vendor
from tests.servers.hostile import Connection, HostileServer
from tests.servers.turn import Call, Turn
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import (
    ArgumentsDelta,
    Completed,
    Conversation,
    PartialOutput,
    ReasoningDelta,
    TextDelta,
    ToolEnded,
    ToolStarted,
)
from weakincentives.session import Session

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")

ARGUMENTS = '{"word": "pets"}'


@dataclass(frozen=True)
class Plan:
    title: str
    days: int


def prompt(output: Any = None) -> Prompt[Any]:
    made: Any = PromptTemplate if output is None else PromptTemplate[output]
    task = MarkdownSection(title="Task", key="task", template="Help.", tools=[look_up])
    return Prompt(made(ns="tests", key="stream", sections=[task]))


def joined(events: list[Any]) -> list[Any]:
    """The events, with neighbouring deltas of a kind as one."""
    found: list[Any] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, TextDelta | ReasoningDelta) and type(last) is type(event):
            found[-1] = type(event)(last.text + event.text)
        elif isinstance(event, ArgumentsDelta) and isinstance(last, ArgumentsDelta):
            found[-1] = ArgumentsDelta(event.call_id, event.name, last.text + event.text)
        else:
            found.append(event)
    return found


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_reasoning_arguments_and_text_come_as_they_are_written(vendor: Vendor, is_async: bool) -> None:
    asked = Turn(reasoning="Let me look.", calls=(Call("look_up", ARGUMENTS, id="c1"),))

    async def collect(chat: Conversation[Any]) -> list[Any]:
        async with chat.stream_async("What is it?") as events:
            return [event async for event in events]

    with vendor.server([asked, Turn("Steps, of course.")]) as server, vendor.adapter(server) as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        events = asyncio.run(collect(chat)) if is_async else list(chat.stream("What is it?"))
    assert joined(events)[:-1] == [
        ReasoningDelta("Let me look."),
        ArgumentsDelta("c1", "look_up", ARGUMENTS),
        ToolStarted("c1", "look_up", ARGUMENTS),
        ToolEnded("c1", "look_up", True, "pets means step"),
        TextDelta("Steps, of course."),
    ]
    assert isinstance(events[-1], Completed)


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_typed_answer_is_shown_while_it_is_written(vendor: Vendor) -> None:
    pytest.importorskip("jiter")
    text = '{"days": 12 , "title": "Move the whole house to Lyon"}'
    with vendor.server([Turn(text)]) as server, vendor.adapter(server) as adapter:
        events = list(adapter.stream(prompt(Plan), session=Session()))
    shown = [event.value for event in events if isinstance(event, PartialOutput)]
    assert len(shown) > 2 and shown[-1] == {"days": 12, "title": "Move the whole house to Lyon"}
    assert all(value.get("days", 12) == 12 for value in shown)


@pytest.mark.parametrize("vendor", LEAN, ids=str)
@pytest.mark.parametrize("turn", [Turn("one two three", cut_after=4), Turn("x", reasoning="Let me look.", cut_after=4)])
def test_a_stream_that_breaks_after_something_was_shown_is_not_asked_again(vendor: Vendor, turn: Turn) -> None:
    with vendor.server([turn, Turn("again"), Turn("Hello.")]) as server, vendor.adapter(server) as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        with pytest.raises(PromptEvaluationError, match="after part of the answer had been streamed") as caught:
            list(chat.stream("Go."))
        assert (caught.value.phase, len(server.requests)) == ("response", 1)
        assert chat.send("Once more.").text == "again"


def test_leaving_a_stream_of_litellm_closes_its_connection() -> None:
    with LITELLM.server([Turn("word " * 50_000)]) as server, LITELLM.adapter(server) as adapter:
        with Conversation(prompt(), adapter=adapter).stream("Go.") as events:
            assert isinstance(next(events), TextDelta)
        assert server.wait_for_connections(0)


def test_closing_a_stream_that_waits_for_a_silent_server_ends_it_at_once() -> None:
    left = threading.Event()

    def serve(connection: Connection) -> None:
        connection.receive()
        delta = b'data: {"type":"response.output_text.delta","delta":"One"}\n\n'
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + delta)
        try:
            connection.wait_for_the_client_to_leave()
        finally:
            left.set()

    with HostileServer(serve) as server, OPENAI.adapter(server) as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        events, seen = chat.stream("Go."), []
        shown = threading.Event()

        def read() -> None:
            for event in events:
                seen.append(event)
                shown.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert shown.wait(10)
        events.close()
        reader.join(10)
        assert (reader.is_alive(), left.wait(10), seen) == (False, True, [TextDelta("One")])
    assert [(message.role, message.text) for message in chat.messages][1:] == [("user", "Go."), ("assistant", "One")]
