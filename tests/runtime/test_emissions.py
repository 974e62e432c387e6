"""Data that tools send to the stream of their run while they work."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from tests.waiting import until_async
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import SerdeError
from weakincentives.prompt import Prompt, PromptTemplate, TextSection, ToolContext, tool
from weakincentives.runtime import Conversation, ToolEmitted, ToolEnded, ToolInvoked, ToolStarted


@dataclass(frozen=True)
class Progress:
    done: int
    total: int


@tool
def copy(*, context: ToolContext) -> str:
    """Copy files."""
    context.emit(Progress(1, 2))
    context.emit({"file": "a.txt"})
    return "Copied."


def chatting(*lines: Any, tools: Any = (copy,)) -> Conversation[None]:
    section = TextSection(key="a", title="A", text="Go.", tools=tools)
    prompt: Prompt[None] = Prompt(PromptTemplate(ns="t", key="emit", sections=[section]))
    return Conversation(prompt, adapter=ScriptedAdapter([*lines]))


EMITTED = [ToolEmitted("1", "copy", {"done": 1, "total": 2}), ToolEmitted("1", "copy", {"file": "a.txt"})]


def test_a_sync_stream_shows_what_was_emitted_before_the_end_of_the_call() -> None:
    with chatting(call("copy", call_id="1"), "Done.").stream("Go.") as events:
        shown = [event for event in events if isinstance(event, ToolStarted | ToolEmitted | ToolEnded)]
    assert shown == [ToolStarted("1", "copy", "{}"), *EMITTED, ToolEnded("1", "copy", True, "Copied.")]


async def test_an_async_stream_shows_what_was_emitted_before_the_end_of_the_call() -> None:
    async with chatting(call("copy", call_id="1"), "Done.").stream_async("Go.") as events:
        shown = [event async for event in events if isinstance(event, ToolStarted | ToolEmitted | ToolEnded)]
    assert shown == [ToolStarted("1", "copy", "{}"), *EMITTED, ToolEnded("1", "copy", True, "Copied.")]


def waiting(kind: str) -> tuple[Any, threading.Event]:
    """A tool that goes on only when what it has emitted was seen."""
    seen = threading.Event()

    @tool
    def blocking(*, context: ToolContext) -> str:
        """Work."""
        context.emit("half")
        assert seen.wait(10)
        return "Done."

    @tool(name="blocking")
    async def awaiting(*, context: ToolContext) -> str:
        """Work."""
        context.emit("half")
        await until_async(lambda: seen.is_set())
        return "Done."

    return (blocking if kind == "blocking" else awaiting), seen


@pytest.mark.parametrize("kind", ["blocking", "async"])
async def test_an_async_stream_shows_it_while_the_call_is_running(kind: str) -> None:
    work, seen = waiting(kind)
    async with chatting(call("blocking"), "Here.", tools=[work]).stream_async("Go.") as events:
        async for event in events:
            if isinstance(event, ToolEmitted):
                assert event.data == "half"
                seen.set()
    assert seen.is_set()


@pytest.mark.parametrize("kind", ["blocking", "async"])
@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_a_stream_that_is_left_at_emitted_data_ends_the_call(kind: str, how: str) -> None:
    work, seen = waiting(kind)
    chat = chatting(call("blocking"), "Here.", tools=[work])

    async def read() -> None:
        async with chat.stream_async("Go.") as events:
            async for event in events:
                if isinstance(event, ToolEmitted) and how == "close":
                    break
                if isinstance(event, ToolEmitted):
                    reached.set()

    reached = asyncio.Event()
    reader = asyncio.ensure_future(read())
    if how == "cancel":
        await reached.wait()
        reader.cancel()
    await asyncio.wait([reader])
    seen.set()
    (told,) = [message.text for message in chat.messages if message.role == "tool"]
    assert told.startswith("Not finished: the run was stopped.")
    assert (await chat.send_async("And?")).text == "Here."


def test_what_cannot_be_written_as_json_is_the_tools_own_error() -> None:
    caught: list[Exception] = []

    @tool
    def bad(*, context: ToolContext) -> str:
        """Emit nonsense."""
        try:
            context.emit(object())
        except SerdeError as error:
            caught.append(error)
        return "Done."

    with chatting(call("bad"), "Done.", tools=[bad]).stream("Go.") as events:
        assert not [event for event in events if isinstance(event, ToolEmitted)]
    assert "cannot be written as JSON" in str(caught[0])


def test_nothing_happens_if_nobody_streams_and_the_model_does_not_see_it() -> None:
    chat = chatting(call("copy"), "Done.")
    assert chat.send("Go.").text == "Done."
    assert [event.text for event in chat.session[ToolInvoked]] == ["Copied."]
    assert not [message for message in chat.messages if "a.txt" in message.text]
