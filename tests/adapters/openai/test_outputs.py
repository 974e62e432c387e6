"""Typed answers in mid-conversation: on gpt-6 the conversation says so, and the beginning of a request stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.sums import CLOSE, OPEN, USE, prompt
from tests.adapters.vendors import ANTHROPIC, OPENAI
from tests.servers.loopback import Received
from tests.servers.rules import output_form
from tests.servers.turn import Raw, Turn
from weakincentives.prompt import Prompt
from weakincentives.runtime import Compaction, Conversation, assert_prefix_kept, prefix_breaks
from weakincentives.session import Session, Snapshot


@dataclass(frozen=True)
class Verdict:
    good: bool


WORDS, TYPED = Turn("Fine."), Turn('{"good": true}')


def bodies(server: Any) -> list[dict[str, Any]]:
    return [received.json for received in server.requests if "compact" not in received.target]


def forms(server: Any) -> list[str]:
    return [output_form(body)["type"] for body in bodies(server)]


def updates(body: dict[str, Any]) -> list[str]:
    return [item["text"]["format"]["type"] for item in body["input"] if item.get("type") == "configuration_update"]


@pytest.mark.parametrize("form", ["sync", "async", "stream"])
def test_the_type_of_an_answer_changes_without_a_change_of_the_beginning(form: str) -> None:
    with OPENAI.server([WORDS, OPEN, TYPED, WORDS]) as server, OPENAI.adapter(server, model="gpt-6-sol") as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        chat.send("How is it?")
        if form == "sync":
            answer = chat.send("Your verdict?", output=Verdict)
        elif form == "async":
            answer = asyncio.run(chat.send_async("Your verdict?", output=Verdict))
        else:
            with chat.stream("Your verdict?", output=Verdict) as events:
                answer = [*events][-1].response
        assert answer.output == Verdict(True)
        assert chat.send("And now?").output is None
    assert forms(server) == ["text", "json_schema", "json_schema", "text"]
    assert [updates(body) for body in bodies(server)] == [
        [],
        ["json_schema"],
        ["json_schema"],
        ["json_schema", "text"],
    ]
    assert_prefix_kept(bodies(server), chat.session)


def test_a_prompt_with_a_type_may_be_asked_in_words() -> None:
    typed = Prompt(prompt().template.with_(output=Verdict))
    with OPENAI.server([TYPED, WORDS, TYPED]) as server, OPENAI.adapter(server, model="gpt-6-sol") as adapter:
        chat = Conversation(typed, adapter=adapter)
        answers = [chat.send("Well?").output, chat.send("Why?", output=None).output, chat.send("Sure?").output]
    assert answers == [Verdict(True), None, Verdict(True)]
    assert forms(server) == ["json_schema", "text", "json_schema"]
    assert_prefix_kept(bodies(server), chat.session)


@pytest.mark.parametrize(("vendor", "model"), [(OPENAI, "gpt-5.6"), (ANTHROPIC, "claude-opus-5")])
def test_other_models_get_the_type_in_the_request(vendor: Any, model: str) -> None:
    with vendor.server([WORDS, TYPED]) as server, vendor.adapter(server, model=model) as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        chat.send("How is it?")
        assert chat.send("Your verdict?", output=Verdict).output == Verdict(True)
    assert "configuration_update" not in str(server.requests[1].json)
    assert [broken.where for broken in prefix_breaks(bodies(server), chat.session)] == [
        "text" if vendor is OPENAI else "output_config"
    ]


def test_a_server_that_rejects_the_item_gets_the_type_in_the_request() -> None:
    refusal = Raw(400, b'{"error":{"message":"Invalid value: \'configuration_update\'."}}')
    with OPENAI.server([WORDS, refusal, TYPED]) as server, OPENAI.adapter(server, model="gpt-6-sol") as adapter:
        chat = Conversation(prompt(), adapter=adapter)
        chat.send("How is it?")
        assert chat.send("Your verdict?", output=Verdict).output == Verdict(True)
    assert [updates(body) for body in bodies(server)] == [[], ["json_schema"], []]
    assert output_form(server.requests[2].json)["type"] == "json_schema"


def restored(chat: Conversation[Any]) -> Conversation[Any]:
    session = Session()
    session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
    return Conversation(prompt(), adapter=chat.adapter, session=session)


def rewound(chat: Conversation[Any]) -> Conversation[Any]:
    chat.rewind(chat.checkpoints()[-1])
    return chat


@pytest.mark.parametrize("meanwhile", [restored, rewound, Conversation.fork], ids=["another process", "rewind", "fork"])
def test_whatever_happens_to_a_conversation_the_type_that_applies_is_the_one_asked_for(
    meanwhile: Callable[[Any], Any],
) -> None:
    script = [WORDS, TYPED, OPEN, USE, WORDS, CLOSE, TYPED, WORDS]
    with OPENAI.server(script) as server, OPENAI.adapter(server, model="gpt-6-sol") as adapter:
        chat: Any = Conversation(prompt(), adapter=adapter)
        for output in (None, Verdict, None, Verdict, None):
            chat.send("Next.", **({"output": output} if output else {}))
            chat = meanwhile(chat)
    asked = ["text", "json_schema", "text", "text", "text", "json_schema", "json_schema", "text"]
    assert forms(server) == asked
    if meanwhile is not rewound:
        assert_prefix_kept(bodies(server), chat.session)


def test_a_compaction_drops_updates_with_what_it_stands_for() -> None:
    def answering(received: Received) -> Turn:
        typed = "compact" not in received.target and output_form(received.json)["type"] == "json_schema"
        return Turn('{"good": true}' if typed else "Fine. " * 400, input_tokens=len(received.body) // 4)

    with OPENAI.server(answering) as server, OPENAI.adapter(server, model="gpt-6-sol") as adapter:
        chat = Conversation(prompt(), adapter=adapter, compaction=Compaction(window=4_000))
        for number in range(24):
            output = {"output": Verdict} if number % 3 else {}
            answer: Any = chat.send("Next. " * 50, **output)
            assert answer.output == (Verdict(True) if output else None)
    assert server.refused == 0 and any("compact" in received.target for received in server.requests)
