"""A message that joins the run under way of a conversation."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.guarding.loaded import Loaded
from weakincentives import Conversation, MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter, call, tool
from weakincentives.guards import Guard
from weakincentives.prompt import Section
from weakincentives.runtime import ModelRequest


class Desk:
    """A conversation whose tool waits until it is let go."""

    def __init__(self, *sections: Section[Any], **options: Any) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

        @tool
        def look() -> str:
            """Look."""
            self.reached.set()
            assert self.go.wait(30)
            return "seen"

        section = MarkdownSection(title="Desk", key="desk", template="Answer.", tools=[look])
        template = PromptTemplate[None](ns="tests", key="desk", sections=[section, *sections], **options)
        self.chat = Conversation(Prompt(template), adapter=ScriptedAdapter(answer))


def answer(request: ModelRequest) -> Any:
    last = request.messages[-1]
    return call("look") if last.text == "one" else f"{sum(m.by_user for m in request.messages)}: {last.text}"


def test_a_message_joins_the_run_of_another_thread_and_has_the_same_answer() -> None:
    desk = Desk()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(desk.chat.send, "one")
        assert desk.reached.wait(30)
        second = threads.submit(desk.chat.send, "two", join=True)
        while not any(message.text == "two" for message in desk.chat.messages):
            pass
        desk.go.set()
        assert first.result().text == "2: two"
        assert (second.result().text, second.result().run_id) == ("2: two", first.result().run_id)
    assert [message.text for message in desk.chat.messages][1:] == ["one", "", "seen", "two", "2: two"]
    assert desk.chat.send("three", join=True).text == "3: three"


async def test_a_message_joins_the_run_of_another_task() -> None:
    desk = Desk()
    first = asyncio.create_task(desk.chat.send_async("one"))
    await asyncio.to_thread(desk.reached.wait, 30)
    second = asyncio.create_task(desk.chat.send_async("two", join=True))
    await asyncio.sleep(0)
    desk.go.set()
    assert [(await each).text for each in (first, second)] == ["2: two", "2: two"]


class Watch(Guard):
    """Records the words that it sees."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def before_run(self, text: str, **_: Any) -> None:
        self.words.append(text)


@pytest.mark.parametrize("place", ["template", "section", "loaded section"])
def test_guards_take_a_message_that_would_join_as_the_next_run(place: str) -> None:
    guard = Watch()
    if place == "template":
        desk = Desk(guards=[guard])
    elif place == "section":
        desk = Desk(MarkdownSection(key="rules", title="Rules", template="Rules.", guards=[guard]))
    else:
        desk = Desk(Loaded(guard))
    with ThreadPoolExecutor() as threads:
        first = threads.submit(desk.chat.send, "one")
        assert desk.reached.wait(30)
        second = threads.submit(desk.chat.send, "two", join=True)
        desk.go.set()
        assert [each.result().text for each in (first, second)] == ["1: seen", "2: two"]
    assert guard.words == ["one", "two"]
