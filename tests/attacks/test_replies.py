"""What a model may say: replies that are not whole run nothing, and no text makes a conversation unusable."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.adapters.vendors import OPENAI_CHAT, VENDORS, Vendor
from tests.servers.loopback import event
from tests.servers.turn import Call, Raw, Turn
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import BudgetExceededError, PromptEvaluationError
from weakincentives.limits import Budget
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolResult, tool
from weakincentives.runtime import Message, ModelCalled, ModelReply, ToolCall, ToolInvoked
from weakincentives.session import Session, Snapshot

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@tool
def purge(folder: str = "/") -> ToolResult[None]:
    """Delete a folder."""
    return ToolResult(f"Deleted {folder}.")


@tool
def broken_text() -> ToolResult[None]:
    """Return a text that is not Unicode."""
    return ToolResult("half of a pair: \ud83d")


@tool(read_only=True)
def look() -> ToolResult[None]:
    """Look around."""
    return ToolResult("Nothing.")


def prompt() -> Prompt[Any]:
    section = MarkdownSection(key="task", title="Task", template="Tidy up.", tools=[purge, broken_text, look])
    return Prompt(PromptTemplate(ns="attacks", key="replies", sections=[section]))


def finished(adapter: Any, session: Session, *, streamed: bool) -> None:
    if streamed:
        for _ in adapter.stream(prompt(), session=session):
            pass
    else:
        adapter.evaluate(prompt(), session=session)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("stop", ["length", "refusal", "content_filter"])
@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_reply_that_is_not_whole_runs_none_of_its_tools(vendor: Vendor, stop: Any, streamed: bool) -> None:
    said = "" if stop == "length" else "No."
    script = [Turn(said, calls=(Call("purge", "{}"),), stop=stop), Turn("Fine.")]
    session = Session()
    with vendor.server(script) as server, vendor.adapter(server) as adapter:
        with pytest.raises(PromptEvaluationError) as caught:
            finished(adapter, session, streamed=streamed)
        assert (caught.value.phase, session[ToolInvoked].all()) == ("response", ())
        assert adapter.resume(prompt(), session=session).text == "Fine."
    assert session[ToolInvoked].all() == ()
    assert session[ModelCalled].all()[0].stop_reason in (stop, "refusal")


@pytest.mark.parametrize("stop", ["length", "refusal", "content_filter"])
def test_empty_arguments_mean_none_only_if_the_reply_is_whole(stop: Any) -> None:
    asked = (ToolCall("c1", "purge", ""),)
    session = Session()
    with pytest.raises(PromptEvaluationError):
        ScriptedAdapter([ModelReply(tool_calls=asked, stop_reason=stop)]).evaluate(prompt(), session=session)
    assert session[ToolInvoked].all() == ()
    whole = [ModelReply(tool_calls=asked, stop_reason="tool_calls"), "Done."]
    assert ScriptedAdapter(whole).evaluate(prompt(), session=Session()).text == "Done."


def streamed_message(*events: dict[str, Any]) -> Raw:
    return Raw(200, b"".join(event(one["type"], one) for one in events), {"content-type": "text/event-stream"})


def test_arguments_that_are_cut_off_in_a_stream_are_not_asked_for_again() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "purge", "input": {}}
    cut = streamed_message(
        {"type": "message_start", "message": {"id": "m", "model": "claude-opus-5", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": '{"folder": "/ho'},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
        {"type": "message_stop"},
    )
    vendor = VENDORS[1]
    with (
        vendor.server([cut]) as server,
        vendor.adapter(server) as adapter,
        pytest.raises(PromptEvaluationError, match="cut off at its length limit"),
    ):
        finished(adapter, Session(), streamed=True)
    assert len(server.requests) == 1


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_tool_result_that_is_not_unicode_leaves_the_conversation_usable(vendor: Vendor) -> None:
    session = Session()
    script = [Turn(calls=(Call("broken_text"),)), Raw(400, b"{}"), Turn("Done.")]
    with vendor.server(script) as server, vendor.adapter(server) as adapter:
        with pytest.raises(PromptEvaluationError, match="400"):
            adapter.evaluate(prompt(), session=session)
        later = Session()
        later.restore(Snapshot.from_json(session.snapshot().to_json()))
        assert adapter.resume(prompt(), session=later).text == "Done."
    assert "half of a pair: \ufffd" in json.dumps(server.requests[1].json, ensure_ascii=False)


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
def test_a_prompt_that_is_not_unicode_is_sent_with_a_replacement(vendor: Vendor) -> None:
    section = MarkdownSection(key="task", title="Task", template="Read this: \udfff.")
    with vendor.server([Turn("Done.")]) as server, vendor.adapter(server) as adapter:
        made = Prompt(PromptTemplate(ns="attacks", key="odd", sections=[section]))
        assert adapter.evaluate(made, session=Session()).text == "Done."
    assert "Read this: \ufffd." in json.dumps(server.requests[0].json, ensure_ascii=False)


def test_a_call_made_by_a_script_still_runs() -> None:
    session = Session()
    ScriptedAdapter([call("purge", folder="tmp"), "Done."]).evaluate(prompt(), session=session)
    assert [message.text for message in session[Message].all() if message.role == "tool"] == ["Deleted tmp."]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_a_reply_with_very_many_calls_takes_no_more_time_than_its_length(streamed: bool) -> None:
    vendor = OPENAI_CHAT
    calls = tuple(Call("look", "{}") for _ in range(10_000))
    session = Session()
    with vendor.server([Turn(calls=calls)]) as server, vendor.adapter(server) as adapter:
        run = adapter.stream if streamed else adapter.evaluate
        begun = time.process_time()
        with pytest.raises(BudgetExceededError, match="max_tool_calls=0"):
            for _ in run(prompt(), session=session, budget=Budget(max_tool_calls=0)):
                pass
    assert len(session[ModelCalled].all()) == 1
    # Two seconds of the processor, but many if each call were compared with all others.
    assert time.process_time() - begun < 8
