"""The real CLI against a scripted server: a tool loop, its transactions and its answers."""

from __future__ import annotations

import pytest

pytest.importorskip("claude_agent_sdk", reason="needs the extra [claude]: pip install 'weakincentives[claude]'")

from tests.adapters.claude_agent_sdk.cli_runs import (
    Note,
    Notes,
    Verdict,
    adapter,
    keep_and_fail,
    prompt,
    section,
    tool,
)
from tests.helpers.endings import endings
from tests.servers.claude_cli import CliServer, call, refuse, say
from tests.servers.turn import Call, Turn
from weakincentives.adapters.claude_agent_sdk import CliRunEnded
from weakincentives.errors import OutputParseError, PromptEvaluationError
from weakincentives.limits import TokenUsage
from weakincentives.runtime import (
    ArgumentsDelta,
    Completed,
    ModelCalled,
    TextDelta,
    ToolEnded,
    ToolInvoked,
    ToolStarted,
)
from weakincentives.session import Session, Snapshot


def test_a_tool_is_called_and_its_result_reaches_the_model() -> None:
    session = Session()
    with CliServer([call("keep", text="one"), say("kept")]) as api:
        response = adapter(api).evaluate(prompt(section("task", tools=(tool("keep"),))), session=session)
    assert response.text == "kept"
    assert session[Notes].latest() == Notes(("one",))
    assert [result["content"] for result in api.results()] == [[{"type": "text", "text": "Kept one."}]]


def test_the_rendered_prompt_is_the_system_prompt() -> None:
    with CliServer([say("ok")]) as api:
        adapter(api).evaluate(prompt(section("task")), session=Session())
    assert "## 1. Task\n\nAll of task." in [block["text"] for block in api.requests[0].json["system"]]


def test_every_model_call_and_tool_call_is_an_event() -> None:
    session = Session()
    with CliServer([call("keep", text="one"), say("kept")]) as api:
        response = adapter(api).evaluate(prompt(section("task", tools=(tool("keep"),))), session=session)
    assert [event.stop_reason for event in session[ModelCalled].all()] == ["tool_calls", "end"]
    assert [(event.name, event.call_id) for event in session[ToolInvoked].all()] == [("keep", "toolu_1_0")]
    assert endings(session, "completed")[-1].usage == response.usage == TokenUsage(input_tokens=20, output_tokens=10)


def test_several_calls_of_one_turn_are_answered_each() -> None:
    session = Session()
    both = Turn("two", calls=(Call("keep", {"text": "a"}), Call("keep", {"text": "b"})))
    with CliServer([both, say("done")]) as api:
        adapter(api).evaluate(prompt(section("task", tools=(tool("keep"),))), session=session)
    assert session[Notes].latest() == Notes(("a", "b"))
    answers = [result["content"][0]["text"] for result in api.results()]
    assert answers == ["Kept a.", "Kept b."]


def test_a_failed_tool_is_rolled_back_and_the_model_reads_why() -> None:
    session = Session()
    tools = (tool("keep"), tool("spoil", keep_and_fail))
    script = [call("keep", text="one"), call("spoil", text="two"), say("sorry")]
    with CliServer(script) as api:
        adapter(api).evaluate(prompt(section("task", tools=tools)), session=session)
    assert session[Notes].latest() == Notes(("one",))
    assert [note.text for note in session[Note].all()] == ["one"]
    assert [(result["content"], result["is_error"]) for result in api.results()] == [("It went wrong.", True)]


def test_wrong_arguments_come_back_to_the_model_by_field() -> None:
    with CliServer([call("keep", txt="one"), say("ok")]) as api:
        adapter(api).evaluate(prompt(section("task", tools=(tool("keep"),))), session=Session())
    (result,) = api.results()
    assert result["is_error"] and "text" in result["content"] and "txt" in result["content"]


def test_a_large_result_reaches_the_model_whole() -> None:
    with CliServer([call("keep", text="x" * 200_000), say("ok")]) as api:
        adapter(api).evaluate(prompt(section("task", tools=(tool("keep"),))), session=Session())
    assert len(api.results()[0]["content"][0]["text"]) > 200_000


def test_structured_output_is_parsed() -> None:
    with CliServer([call("StructuredOutput", score=3, why="fine")]) as api:
        response = adapter(api).evaluate(prompt(section("task"), output=Verdict), session=Session())
    assert response.output == Verdict(3, "fine")


def test_a_list_as_output_is_parsed() -> None:
    with CliServer([call("StructuredOutput", items=[{"score": 3, "why": "fine"}])]) as api:
        response = adapter(api).evaluate(prompt(section("task"), output=list[Verdict]), session=Session())
    assert response.output == [Verdict(3, "fine")]


def test_an_answer_that_the_cli_takes_as_success_without_output_is_still_parsed() -> None:
    with CliServer([say('So: {"score": 3, "why": "fine"}')] * 2) as api:
        response = adapter(api).evaluate(prompt(section("task"), output=Verdict), session=Session())
    assert response.output == Verdict(3, "fine")


def test_an_answer_without_the_declared_output_is_an_error() -> None:
    with CliServer([say("no idea")] * 12) as api, pytest.raises((OutputParseError, PromptEvaluationError)):
        adapter(api).evaluate(prompt(section("task"), output=Verdict), session=Session())


def test_a_refused_request_names_the_status() -> None:
    refusals = CliServer([refuse(401, "authentication_error")] * 9)
    with refusals as api, pytest.raises(PromptEvaluationError, match="api_key=") as caught:
        adapter(api, max_retries=0).evaluate(prompt(section("task")), session=Session())
    assert caught.value.phase == "request"
    assert caught.value.payload["status"] == 401


def test_a_retry_of_the_cli_is_counted() -> None:
    session = Session()
    with CliServer([refuse(529, "overloaded_error"), say("ok")]) as api:
        adapter(api).evaluate(prompt(section("task")), session=session)
    assert session[ModelCalled].latest().retries == 1


def test_the_cost_by_the_clis_own_account_is_an_event() -> None:
    session = Session()
    with CliServer([say("ok")]) as api:
        adapter(api).evaluate(prompt(section("task")), session=session)
    assert session[CliRunEnded].latest().cost_usd == pytest.approx(1.75e-04)


def test_a_stream_tells_the_text_the_tools_and_the_response() -> None:
    with CliServer([call("keep", text="one"), say("all is kept")]) as api:
        stream = adapter(api).stream(prompt(section("task", tools=(tool("keep"),))), session=Session())
        events = list(stream)
    kinds = [type(event) for event in events if not isinstance(event, ArgumentsDelta)]
    assert kinds == [ToolStarted, ToolEnded, TextDelta, TextDelta, TextDelta, Completed]
    assert "".join(event.text for event in events if isinstance(event, ArgumentsDelta)) == '{"text": "one"}'
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "all is kept"


async def test_a_stream_on_an_event_loop_tells_the_same() -> None:
    with CliServer([say("all is kept")]) as api:
        stream = adapter(api).stream_async(prompt(section("task")), session=Session())
        events = [event async for event in stream]
    assert [type(event) for event in events] == [TextDelta, TextDelta, TextDelta, Completed]


def test_a_run_is_taken_up_by_another_process_from_its_snapshot() -> None:
    session, later = Session(), Session()
    question = prompt(section("task", tools=(tool("keep"),)))
    interrupted = CliServer([call("keep", text="one"), *[refuse(400)] * 3])
    with interrupted as api, pytest.raises(PromptEvaluationError):
        adapter(api, max_retries=0).evaluate(question, session=session)
    later.restore(Snapshot.from_json(session.snapshot().to_json()))
    with CliServer([say("kept")]) as api:
        response = adapter(api).resume(prompt(section("task", tools=(tool("keep"),))), session=later)
    assert response.text == "kept"
    assert [result["content"] for result in api.results()] == ["Kept one."]


async def test_the_async_way_gives_the_same() -> None:
    session = Session()
    with CliServer([call("keep", text="one"), say("kept")]) as api:
        response = await adapter(api).evaluate_async(prompt(section("task", tools=(tool("keep"),))), session=session)
    assert response.text == "kept"
    assert session[Notes].latest() == Notes(("one",))
