"""Streams that are closed early."""

from __future__ import annotations

import threading

from tests.disclosure.desk import section
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.prompt import Prompt, PromptTemplate
from weakincentives.runtime import Conversation, ModelReply, ModelRequest


def test_a_stream_that_is_closed_before_its_first_event_just_ends() -> None:
    asked, closed, seen = threading.Event(), threading.Event(), list[object]()

    def slow(request: ModelRequest) -> ModelReply:
        asked.set()
        closed.wait(10)
        return ModelReply("Late.")

    template: PromptTemplate[None] = PromptTemplate(ns="t", key="k", sections=[section("task")])
    events = Conversation(Prompt(template), adapter=ScriptedAdapter(slow)).stream("Go.")
    reader = threading.Thread(target=lambda: seen.extend(events))
    reader.start()
    asked.wait(10)
    events.close()
    closed.set()
    reader.join(10)
    assert seen == []
