"""Conversations on the real CLI: it stays open between turns, and one that is gone is replaced by one that resumes."""

from __future__ import annotations

import base64
import gc
import json
import os
import select
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")

from tests.adapters.claude_agent_sdk.cli_runs import adapter, processes, prompt, section, tool
from tests.disclosure.desk import desk
from tests.pictures import png
from tests.servers.claude_cli import CliServer, call, say
from tests.servers.turn import Raw, Turn
from weakincentives.adapters.claude_agent_sdk import CliRunEnded
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.content import Document, Image
from weakincentives.errors import ContextOverflowError, PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.prompt import OpenOrRead, Prompt, Tool, ToolContext, ToolResult
from weakincentives.runtime import (
    ArgumentsDelta,
    Compaction,
    Conversation,
    Message,
    ReasoningDelta,
    ReasoningDropped,
    Settings,
    TextDelta,
    ToolStarted,
)
from weakincentives.session import Session, Snapshot

IMAGE = Image.from_bytes(png(), "image/png", name="box.png")
PDF = Document.from_bytes(b"%PDF-1.4 a small one", "application/pdf", name="terms.pdf")


def said(api: CliServer, index: int = -1) -> list[tuple[str, Any]]:
    """The conversation of a request, without what the CLI adds: as (role, text, or types of blocks)."""
    found: list[tuple[str, Any]] = []
    for message in api.requests[index].json["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] != "system":
            texts = [block.get("text", block["type"]) for block in blocks]
            found.append((message["role"], [text for text in texts if "<system-reminder>" not in text]))
    return found


def test_the_second_turn_goes_on_in_the_same_cli() -> None:
    with CliServer([say("In Lyon."), say("Tomorrow.")]) as api:
        chat = Conversation(prompt(section("task")), adapter=adapter(api))
        first = chat.send("Where is it?")
        started = processes(api)
        second = chat.send("When does it come?")
        assert (first.text, second.text) == ("In Lyon.", "Tomorrow.")
        assert started and processes(api) == started
        before, after = (request.json["messages"] for request in api.requests)
        assert json.dumps(after).startswith(json.dumps(before[:1])[:-1])
        chat.adapter.close()  # type: ignore[attr-defined]
        assert processes(api) == []
    assert said(api) == [
        ("user", ["Where is it?"]),
        ("assistant", ["In Lyon."]),
        ("user", ["When does it come?"]),
    ]
    costs = [event.cost_usd for event in chat.session[CliRunEnded]]
    assert costs[0] == pytest.approx(costs[1])


def test_an_answer_that_was_taken_back_is_given_again_by_another_cli() -> None:
    with CliServer([say("In Lyon."), say("In Paris.")]) as api:
        chat = Conversation(prompt(section("task")), adapter=adapter(api))
        chat.send("Where is it?")
        chat.session[Message].seed(chat.messages[:-1])
        assert chat.send(deadline=Deadline.after(60)).text == "In Paris."
    assert said(api) == [("user", ["Where is it?"])]


def test_the_cli_of_a_conversation_that_nobody_holds_ends() -> None:
    with CliServer([say("Hello.")]) as api:
        chat = Conversation(prompt(section("task")), adapter=adapter(api))
        chat.send("Hi.")
        watched = [os.pidfd_open(pid) for pid in processes(api)]
        del chat
        gc.collect()
        for process in watched:
            assert select.select([process], [], [], 30)[0]
            os.close(process)


def test_only_so_many_clis_stay_open() -> None:
    with CliServer([say("One."), say("Two."), say("Three.")]) as api:
        model = adapter(api, keep_open=1)
        first, second = (Conversation(prompt(section("task")), adapter=model) for _ in range(2))
        first.send("a")
        only = processes(api)
        second.send("b")
        assert not set(only) & set(processes(api))
        assert first.send("c").text == "Three."
        model.close()
    assert said(api) == [("user", ["a"]), ("assistant", ["One."]), ("user", ["c"])]


def test_a_section_that_was_opened_stays_open_with_its_tools() -> None:
    script = [call("read_section", section_key="orders"), say("Read."), call("lookup"), say("Found.")]
    with CliServer(script) as api:
        chat = Conversation(Prompt(desk()), adapter=adapter(api))
        chat.send("Look.")
        assert chat.send("Look it up.").text == "Found."
        chat.adapter.close()  # type: ignore[attr-defined]
    assert [result["content"] for result in api.results()] == [[{"type": "text", "text": "lookup done"}]]


def test_pictures_and_documents_reach_the_model() -> None:
    with CliServer([say("A box."), say("Terms.")]) as api:
        chat = Conversation(prompt(section("task")), adapter=adapter(api))
        chat.send([IMAGE, "What is it?"])
        chat.send([PDF, "And this?"])
        chat.adapter.close()  # type: ignore[attr-defined]
    kinds = [[block["type"] for block in message["content"]] for message in api.requests[-1].json["messages"][::2]]
    sent = [
        block for message in api.requests[-1].json["messages"] for block in message["content"] if type(block) is dict
    ]
    assert IMAGE.data in [decoded(block) for block in sent if block["type"] == "image"], kinds
    assert PDF.data in [decoded(block) for block in sent if block["type"] == "document"], kinds


def decoded(block: dict[str, Any]) -> bytes:
    return base64.b64decode(block["source"]["data"])


def photograph(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("Here it is:", attachments=(IMAGE,))


CAMERA = Tool[None, None](name="photograph", description="Take a photo.", handler=photograph)


def test_a_picture_in_a_result_reaches_the_model() -> None:
    with CliServer([call("photograph"), say("A box.")]) as api:
        chat = Conversation(prompt(section("task", tools=(CAMERA,))), adapter=adapter(api))
        chat.send("Look.")
        chat.adapter.close()  # type: ignore[attr-defined]
    (result,) = api.results()
    assert [block["type"] for block in result["content"][:2]] == ["text", "image"]
    assert decoded(result["content"][1]) == IMAGE.data


def test_a_document_in_a_result_is_shown_if_it_is_text_and_named_if_not() -> None:
    def fetch(params: None, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult("Here:", attachments=(PDF, Document.from_bytes(b"a,b", "text/csv")))

    fetching = Tool[None, None](name="fetch", description="Fetch.", handler=fetch)
    with CliServer([call("fetch"), say("ok")]) as api:
        adapter(api).evaluate(prompt(section("task", tools=(fetching,))), session=Session())
    assert [block["text"] for block in api.results()[0]["content"]] == [
        "Here:",
        "[document terms.pdf (application/pdf, 20 bytes)] cannot be shown in a result.",
        "a,b",
    ]


def test_stopping_in_the_text_ends_the_cli_and_the_next_turn_resumes() -> None:
    with CliServer([say("one two three"), say("Shorter.")]) as api:
        chat = Conversation(prompt(section("task")), adapter=adapter(api))
        with chat.stream("Count.") as events:
            assert next(events) == TextDelta("one ")
        assert processes(api) == []
        assert chat.send("Shorter, please.").text == "Shorter."
        chat.adapter.close()  # type: ignore[attr-defined]
    assert said(api) == [("user", ["Count."]), ("assistant", ["one "]), ("user", ["Shorter, please."])]


def test_stopping_in_a_tool_answers_its_call_and_the_next_turn_resumes() -> None:
    with CliServer([call("keep", text="x"), say("Stopped.")]) as api:
        chat = Conversation(prompt(section("task", tools=(tool("keep"),))), adapter=adapter(api))
        with chat.stream("Keep it.") as events:
            assert any(isinstance(event, ToolStarted) for event in events)
        assert chat.send("Stop that.").text == "Stopped."
        chat.adapter.close()  # type: ignore[attr-defined]
    # The CLI closes a conversation that ends with a result by words of its own.
    closed = ("assistant", ["No response requested."])
    assert [turn for turn in said(api) if turn != closed] == [
        ("user", ["Keep it."]),
        ("assistant", ["tool_use"]),
        ("user", ["tool_result"]),
        ("user", ["Stop that."]),
    ]
    assert api.results()[0]["content"] == "Not run: the run was stopped."


def test_a_saved_conversation_is_resumed_with_its_roles() -> None:
    keeping = section("task", tools=(tool("keep"),))
    with CliServer([call("keep", text="x"), say("Kept."), say("As I said.")]) as api:
        chat = Conversation(prompt(keeping), adapter=adapter(api, keep_open=0))
        chat.send([IMAGE, "Keep it."])
        session = Session()
        session.restore(Snapshot.from_json(chat.session.snapshot().to_json()))
        later = Conversation(prompt(keeping), adapter=adapter(api, keep_open=0), session=session)
        assert later.send("Did you?").text == "As I said."
    assert said(api) == [
        ("user", ["image", "Keep it."]),
        ("assistant", ["tool_use"]),
        ("user", ["tool_result"]),
        ("assistant", ["Kept."]),
        ("user", ["Did you?"]),
    ]


def test_a_restart_in_mid_conversation_keeps_it() -> None:
    opened = call("open_sections", section_keys=["orders"], reason="needed")
    with CliServer([say("Hello."), opened, call("lookup"), say("Found.")]) as api:
        chat = Conversation(Prompt(desk(disclosure=OpenOrRead())), adapter=adapter(api))
        chat.send("Hi.")
        assert chat.send("Look it up.").text == "Found."
        chat.adapter.close()  # type: ignore[attr-defined]
    assert "All of orders." in str(api.requests[-1].json["system"])
    assert said(api)[:3] == [("user", ["Hi."]), ("assistant", ["Hello."]), ("user", ["Look it up."])]


def test_what_another_model_said_is_resumed() -> None:
    session = Session()
    Conversation(prompt(section("task")), adapter=ScriptedAdapter(["In Lyon."]), session=session).send("Where is it?")
    with CliServer([say("Tomorrow.")]) as api:
        model = adapter(api, keep_open=0)
        Conversation(prompt(section("task")), adapter=model, session=session).send("When?")
    assert said(api) == [("user", ["Where is it?"]), ("assistant", ["In Lyon."]), ("user", ["When?"])]


def test_a_message_during_a_call_is_heard_after_its_result() -> None:
    def speak(params: None, *, context: ToolContext) -> ToolResult[None]:
        context.session.dispatch(Message("user", "Also the blue one."))
        return ToolResult("Asked.")

    asking = Tool[None, None](name="ask", description="Ask.", handler=speak)
    with CliServer([call("ask"), say("Both."), say("Bye.")]) as api:
        chat = Conversation(prompt(section("task", tools=(asking,))), adapter=adapter(api))
        assert [chat.send("Ask.").text, chat.send("Thanks.").text] == ["Both.", "Bye."]
        chat.adapter.close()  # type: ignore[attr-defined]
    said_meanwhile = [block["text"] for block in api.results(1)[0]["content"]]
    assert said_meanwhile == ["Asked.", "While this ran, the following was said:", "Also the blue one."]


def test_a_stream_has_reasoning_and_arguments() -> None:
    thinking = Turn(reasoning="Keep it.", calls=call("keep", text="x").calls)
    with CliServer([thinking, say("Kept.")]) as api:
        chat = Conversation(prompt(section("task", tools=(tool("keep"),))), adapter=adapter(api))
        with chat.stream("Keep x.", settings=Settings(show_reasoning=True)) as stream:
            events = list(stream)
        chat.adapter.close()  # type: ignore[attr-defined]
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "Keep it."
    assert "".join(event.text for event in events if isinstance(event, ArgumentsDelta)) == '{"text": "x"}'
    assert api.requests[0].json["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert next(message.reasoning for message in chat.messages if message.role == "assistant") == "Keep it."


@pytest.mark.parametrize(("model", "kept"), [("claude-opus-5", True), ("claude-opus-5-5", False)])
def test_reasoning_is_resumed_where_the_model_takes_it_back(model: str, kept: bool) -> None:
    with CliServer([Turn("Hello.", reasoning="Greet."), say("One.")]) as api:
        chat = Conversation(prompt(section("task")), adapter=adapter(api, model, keep_open=0))
        chat.send("Hi.")
        chat.send("a")
    assert said(api)[1] == ("assistant", ["thinking", "Hello."] if kept else ["Hello."])
    assert len(chat.session[ReasoningDropped]) == (0 if kept else 1)


def test_settings_become_options_of_the_cli() -> None:
    settings = Settings(effort="low", max_output_tokens=1234)
    with CliServer([say("ok")]) as api:
        adapter(api, settings=settings).evaluate(prompt(section("task")), session=Session())
    body = api.requests[0].json
    assert (body["output_config"]["effort"], body["max_tokens"]) == ("low", 1234)


@pytest.mark.parametrize("settings", [Settings(temperature=0.5), Settings(parallel_tool_calls=False)])
def test_a_setting_that_the_cli_has_not_is_refused_by_name(settings: Settings) -> None:
    name = "temperature" if settings.temperature else "parallel_tool_calls"
    with CliServer([]) as api, pytest.raises(PromptEvaluationError, match=f"does not accept {name}"):
        adapter(api, settings=settings).evaluate(prompt(section("task")), session=Session())
    assert api.requests == []


def test_a_full_context_is_an_overflow() -> None:
    error = {"type": "invalid_request_error", "message": "prompt is too long: 208310 tokens > 200000 maximum"}
    full = Raw(400, json.dumps({"type": "error", "error": error}).encode())
    with CliServer([full] * 9) as api, pytest.raises(ContextOverflowError):
        Conversation(prompt(section("task")), adapter=adapter(api)).send("Read all of it.")


@pytest.mark.parametrize(("used", "compacts"), [(60_000, True), (30_000, False)])
def test_the_cli_summarizes_above_the_given_share_of_the_window(used: int, compacts: bool) -> None:
    script = [Turn(f"Answer {number}.", input_tokens=used, output_tokens=500) for number in range(5)]
    with CliServer(script) as api, adapter(api) as model:
        chat = Conversation(prompt(section("task")), adapter=model, compaction=Compaction(window=100_000, at=0.5))
        for number in range(3):
            chat.send(f"Question {number}?")
        asked = [str(request.json["messages"][-1]["content"]) for request in api.requests]
    assert any("<summary>" in text for text in asked) is compacts
