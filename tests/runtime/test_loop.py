"""The loop: turns, limits, structured output, events, streaming, resuming."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import pytest

from tests.helpers.endings import endings
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.clock import FakeClock
from weakincentives.limits import Budget, Deadline, TokenUsage
from weakincentives.prompt import (
    MarkdownSection,
    OpenSectionsResult,
    OutputParseError,
    Prompt,
    PromptRenderError,
    PromptTemplate,
    SectionVisibility,
    ToolContext,
    tool,
)
from weakincentives.runtime import (
    ArgumentsDelta,
    BudgetExceededError,
    Channel,
    Completed,
    DeadlineExceededError,
    MainLoop,
    Message,
    ModelCalled,
    ModelReply,
    ModelRequest,
    PromptEvaluationError,
    PromptRendered,
    PromptResponse,
    ProviderAdapter,
    RunEnded,
    TextDelta,
    ToolEnded,
    ToolInvoked,
    ToolStarted,
)
from weakincentives.session import Bus, Session, Snapshot


@dataclass(frozen=True)
class Answer:
    answer: str
    score: int


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


TEMPLATE = PromptTemplate(
    ns="tests", key="loop", sections=[MarkdownSection(title="T", key="t", template="Go.", tools=[add])]
)
TYPED = PromptTemplate[Answer](ns="tests", key="typed", sections=TEMPLATE.sections)


def test_a_run_is_a_conversation_of_turns() -> None:
    session = Session()
    with ScriptedAdapter([call("add", a=1, b=2), "It is 3."]) as adapter:
        response = adapter.evaluate(Prompt(TEMPLATE), session=session)
    assert (response.text, response.output, response.turns) == ("It is 3.", None, 2)
    assert [message.role for message in session[Message].all()] == ["system", "assistant", "tool", "assistant"]


def test_requests_grow_at_their_end() -> None:
    adapter = ScriptedAdapter([call("add", a=1, b=2), call("add", a=3, b=4), "7"])
    adapter.evaluate(Prompt(TEMPLATE), session=Session())
    one, two, three = (tuple(request.messages) for request in adapter.requests)
    assert two[: len(one)] == one
    assert three[: len(two)] == two


def test_a_misspelled_option_is_the_programmers_mistake() -> None:
    with pytest.raises(TypeError, match="'budgets'; known: bus, deadline, budget"):
        ScriptedAdapter(["hi"]).evaluate(Prompt(TEMPLATE), session=Session(), budgets=None)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": PromptTemplate(ns="a", key="b")}, r"prompt must be a Prompt, got .*; write Prompt\(template\)"),
        ({"session": None}, r"session must be a Session, got None; pass session=Session\(\)"),
        ({"deadline": 5}, r"deadline must be a Deadline, got 5; pass Deadline\.after"),
        ({"budget": 5}, "budget must be a Budget, got 5"),
        ({"settings": {"temperature": 0}}, r"settings must be Settings, got \{'temperature': 0\}; pass for example S"),
    ],
)
def test_an_argument_of_the_wrong_type_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ScriptedAdapter(["hi"]).evaluate(**{"prompt": Prompt(TEMPLATE), "session": Session(), **arguments})


def test_an_adapter_is_not_made_with_settings_of_the_wrong_type() -> None:
    with pytest.raises(TypeError, match="settings must be Settings"):
        ScriptedAdapter(["hi"], settings={"temperature": 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": TEMPLATE}, r"prompt must be a Prompt, got .*; write Prompt\(template\)"),
        ({"adapter": "openai:gpt-5.6"}, r"got 'openai:gpt-5.6'; pass adapter_for\('openai:gpt-5.6'\)"),
        ({"adapter": None}, "adapter must be a ProviderAdapter, got None; pass one, such as"),
    ],
)
def test_the_main_loop_names_an_argument_of_the_wrong_type(arguments: dict[str, Any], message: str) -> None:
    given = {"prompt": Prompt(TEMPLATE), "session": Session(), "adapter": ScriptedAdapter(["hi"]), **arguments}
    with pytest.raises(TypeError, match=message):
        MainLoop().execute(**given)
    with pytest.raises(TypeError, match=message):
        asyncio.run(MainLoop().execute_async(**given))


def test_structured_output_is_parsed() -> None:
    response = ScriptedAdapter([Answer("yes", 3)]).evaluate(Prompt(TYPED), session=Session())
    assert response.output == Answer("yes", 3)


def test_a_wrong_answer_goes_back_with_the_exact_error() -> None:
    session = Session()
    with ScriptedAdapter(['{"answer": "yes", "score": "many"}', Answer("yes", 3)]) as adapter:
        response = adapter.evaluate(Prompt(TYPED), session=session)
    assert response.output == Answer("yes", 3)
    assert "$.score" in next(m.text for m in session[Message].all() if m.role == "user")


def test_after_the_retries_the_parse_error_carries_the_raw_text() -> None:
    session = Session()
    with pytest.raises(OutputParseError) as caught:
        ScriptedAdapter(["no", "still no"]).evaluate(Prompt(TYPED), session=session)
    assert caught.value.raw == "still no"
    assert endings(session, "failed")[0].phase == "parse"


@pytest.mark.parametrize("stop_reason", ["refusal", "content_filter", "length"])
def test_an_answer_that_was_stopped_is_an_error(stop_reason: Any) -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        ScriptedAdapter([ModelReply("no", stop_reason=stop_reason)]).evaluate(Prompt(TEMPLATE), session=Session())
    assert (caught.value.phase, caught.value.payload) == ("response", "no")


def test_a_paused_turn_goes_on() -> None:
    session = Session()
    with ScriptedAdapter([ModelReply("Well, ", stop_reason="pause", items=('{"x":1}',)), "done."]) as adapter:
        assert adapter.evaluate(Prompt(TEMPLATE), session=session).text == "Well, done."
    assert adapter.requests[1].messages[-1].items == ('{"x":1}',)


def test_an_error_of_the_provider_reaches_the_caller_and_the_log() -> None:
    session = Session()
    error = PromptEvaluationError("down", prompt_name="loop", phase="request")
    with pytest.raises(PromptEvaluationError, match="down"):
        ScriptedAdapter([call("add", a=1, b=2), error]).evaluate(Prompt(TEMPLATE), session=session)
    assert endings(session, "failed")[0].reason == "down"
    assert session[Message].all()[-1].text == "3"


def test_a_prompt_that_cannot_be_rendered_failed_at_rendering() -> None:
    session = Session()
    with pytest.raises(PromptRenderError):
        ScriptedAdapter().evaluate(Prompt(TEMPLATE), session=session, visibility_overrides={("x",): "full"})
    assert [event.phase for event in endings(session, "failed")] == ["render"]


def test_events_tell_what_happened_and_a_bus_hears_them_too() -> None:
    bus, heard, session = Bus(), [], Session()
    bus.subscribe(RunEnded, heard.append)
    adapter = ScriptedAdapter([ModelReply("hi", usage=TokenUsage(10, 2, 4))])
    adapter.evaluate(Prompt(TEMPLATE), session=session, bus=bus)
    (rendered,), (called,), (executed,) = (
        session[PromptRendered].all(),
        session[ModelCalled].all(),
        endings(session, "completed"),
    )
    assert (rendered.text, rendered.tools) == ("## 1. T\n\nGo.", ("add",))
    assert (called.usage, called.turn, called.messages) == (TokenUsage(10, 2, 4), 1, 1)
    assert heard == [executed]
    assert rendered.run_id == called.run_id == executed.run_id


def test_a_second_run_on_a_busy_session_is_refused() -> None:
    session = Session()

    @tool
    def again(*, context: ToolContext) -> str:
        """Run again on the same session."""
        ScriptedAdapter(["inner"]).evaluate(Prompt(TEMPLATE), session=context.session)
        return "unreachable"

    template = PromptTemplate(
        ns="t", key="k", sections=[MarkdownSection(title="T", key="t", template="x", tools=[again])]
    )
    ScriptedAdapter([call("again"), "done"]).evaluate(Prompt(template), session=session)
    assert "clone()" in session[ToolInvoked].all()[0].result.message


@pytest.mark.parametrize(
    ("budget", "limit"),
    [
        (Budget(max_turns=1), "max_turns"),
        (Budget(max_tool_calls=1), "max_tool_calls"),
        (Budget(max_input_tokens=5), "max_input_tokens"),
        (Budget(max_output_tokens=5), "max_output_tokens"),
        (Budget(max_total_tokens=9), "max_total_tokens"),
    ],
)
def test_a_used_up_budget_stops_the_run_and_keeps_its_state(budget: Budget, limit: str) -> None:
    usage, session = TokenUsage(5, 5), Session()
    calls = [
        ModelReply(tool_calls=(call("add", call_id=f"c{n}", a=n, b=n),), usage=usage, stop_reason="tool_calls")
        for n in range(3)
    ]
    with pytest.raises(BudgetExceededError) as caught:
        ScriptedAdapter(calls).evaluate(Prompt(TEMPLATE), session=session, budget=budget)
    assert (caught.value.limit, caught.value.phase) == (limit, "budget")
    assert session[Message].all()[1].role == "assistant"


def test_a_deadline_stops_between_two_steps() -> None:
    clock = FakeClock()

    @tool
    def slow() -> str:
        """Take a minute."""
        clock.advance(60)
        return "done"

    template = PromptTemplate(
        ns="t", key="k", sections=[MarkdownSection(title="T", key="t", template="x", tools=[slow])]
    )
    session = Session()
    with pytest.raises(DeadlineExceededError):
        ScriptedAdapter([call("slow"), "never"]).evaluate(
            Prompt(template), session=session, deadline=Deadline.after(30, clock)
        )
    assert [event.name for event in session[ToolInvoked].all()] == ["slow"]


def test_streaming_tells_what_happens_and_ends_with_the_response() -> None:
    adapter = ScriptedAdapter([call("add", call_id="c1", a=1, b=2), "one\ntwo"])
    events = list(adapter.stream(Prompt(TEMPLATE), session=Session()))
    assert events[:-1] == [
        ArgumentsDelta("c1", "add", '{"a": 1, "b": 2}'),
        ToolStarted("c1", "add", '{"a": 1, "b": 2}'),
        ToolEnded("c1", "add", True, "3"),
        TextDelta("one\n"),
        TextDelta("two"),
    ]
    assert isinstance(events[-1], Completed)
    assert events[-1].response.text == "one\ntwo"


def test_async_streaming_is_the_same() -> None:
    async def collect() -> list[Any]:
        adapter = ScriptedAdapter([call("add", call_id="c1", a=1, b=2), "done"])
        return [type(event) async for event in adapter.stream_async(Prompt(TEMPLATE), session=Session())]

    assert asyncio.run(collect()) == [ArgumentsDelta, ToolStarted, ToolEnded, TextDelta, Completed]


def test_a_stream_that_is_left_early_frees_the_session() -> None:
    session = Session()
    stream = ScriptedAdapter(["one\ntwo"]).stream(Prompt(TEMPLATE), session=session)
    next(stream)
    stream.close()
    assert ScriptedAdapter(["ok"]).evaluate(Prompt(TEMPLATE), session=session).text == "ok"


def snapshots_between_turns(script: list[Any]) -> tuple[list[str], ScriptedAdapter]:
    session, texts = Session(), []
    lines = iter(script)

    def play(request: Any) -> Any:
        texts.append(session.snapshot().to_json())
        return next(lines)

    adapter = ScriptedAdapter(play)
    adapter.evaluate(Prompt(TEMPLATE), session=session)
    return texts, adapter


def test_a_snapshot_between_turns_resumes_with_the_same_next_request() -> None:
    script = [call("add", call_id="c1", a=1, b=2), call("add", call_id="c2", a=3, b=4), "done"]
    texts, original = snapshots_between_turns(script)
    for turn, text in enumerate(texts):
        session = Session()
        session.restore(Snapshot.from_json(text))
        with ScriptedAdapter(script[turn:]) as adapter:
            response = adapter.resume(Prompt(TEMPLATE), session=session)
        assert (response.text, response.turns) == ("done", 3)
        first = adapter.requests[0]
        assert tuple(first.messages) == tuple(original.requests[turn].messages)
        assert first.tools == original.requests[turn].tools


ELSEWHERE = """
import sys
from dataclasses import dataclass
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, tool
from weakincentives.session import Session, Snapshot

@tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b

section = MarkdownSection(title="T", key="t", template="Go.", tools=[add])
prompt, session = Prompt(PromptTemplate(ns="tests", key="loop", sections=[section])), Session()
if text := sys.stdin.read():
    session.restore(Snapshot.from_json(text))
    print(ScriptedAdapter(lambda request: request.messages[-1].text).resume(prompt, session=session).text)
else:
    script = [call("add", a=1, b=2), lambda: print(session.snapshot().to_json())]
    ScriptedAdapter(lambda request: script.pop(0) if len(script) > 1 else script[0]()).evaluate(prompt, session=session)
"""


def test_a_run_with_tools_made_of_functions_goes_on_in_another_process() -> None:
    def process(text: str) -> str:
        done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=text, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert process(process("")) == "3"


def test_calls_left_open_by_a_budget_are_run_on_resume() -> None:
    session, calls = Session(), [call("add", call_id="c1", a=1, b=2), call("add", call_id="c2", a=3, b=4)]
    with pytest.raises(BudgetExceededError):
        ScriptedAdapter([calls]).evaluate(Prompt(TEMPLATE), session=session, budget=Budget(max_tool_calls=1))
    with ScriptedAdapter(["done"]) as adapter:
        adapter.resume(Prompt(TEMPLATE), session=session)
    assert [message.text for message in adapter.requests[0].messages if message.role == "tool"] == ["3", "7"]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_run_whose_answers_did_not_fit_is_resumed_by_asking_again(retries: int) -> None:
    template, session = PromptTemplate[Answer](ns="tests", key="total", sections=TEMPLATE.sections), Session()
    with pytest.raises(OutputParseError):
        ScriptedAdapter(["?"] * (1 + retries), output_retries=retries).evaluate(Prompt(template), session=session)
    with ScriptedAdapter([*["?"] * retries, Answer("Yes.", 3)], output_retries=retries) as adapter:
        assert adapter.resume(Prompt(template), session=session).output == Answer("Yes.", 3)


def test_resuming_another_prompt_is_refused() -> None:
    session = Session()
    with pytest.raises(PromptEvaluationError, match="the session holds no run"):
        ScriptedAdapter().resume(Prompt(TEMPLATE), session=session)
    ScriptedAdapter(["hi"]).evaluate(Prompt(TEMPLATE), session=session)
    with pytest.raises(PromptEvaluationError, match="the session holds a run of 'tests/loop'"):
        ScriptedAdapter().resume(Prompt(TYPED), session=session)


def test_the_script_must_be_used_up() -> None:
    with pytest.raises(AssertionError, match="1 of 2 scripted replies were never"), ScriptedAdapter(["a", "b"]) as two:
        two.evaluate(Prompt(TEMPLATE), session=Session())
    with pytest.raises(AssertionError, match="All 0 scripted replies are used"):
        ScriptedAdapter([]).evaluate(Prompt(TEMPLATE), session=Session())


def test_a_script_that_ends_with_a_rejected_answer_says_why_one_more_was_requested() -> None:
    with pytest.raises(AssertionError, match=r"one more because the last was rejected: The answer .*\$\.\w+: missing"):
        ScriptedAdapter(["{}"]).evaluate(Prompt(TYPED), session=Session())


def test_the_usage_of_a_script_is_that_of_each_request_alone() -> None:
    short, long = (MarkdownSection(key="a", title="A", template="word " * count) for count in (10, 2000))
    prompts = [Prompt(PromptTemplate(ns="tests", key="count", sections=[section])) for section in (short, long, short)]
    adapter = ScriptedAdapter(["1", "2", "3"])
    together = [adapter.evaluate(each, session=Session()).usage.input_tokens for each in prompts]
    alone = [ScriptedAdapter(["1"]).evaluate(each, session=Session()).usage.input_tokens for each in prompts]
    assert together == alone


def test_a_script_is_no_text() -> None:
    with pytest.raises(TypeError, match="script must be a list of replies, got the string 'hi'"):
        ScriptedAdapter("hi")


def test_a_user_may_answer_and_the_conversation_goes_on() -> None:
    session, adapter = Session(), ScriptedAdapter(["3. More?", call("add", a=3, b=4), "7"])
    adapter.evaluate(Prompt(TEMPLATE), session=session)
    session.dispatch(Message("user", "And four more?"))
    assert adapter.resume(Prompt(TEMPLATE), session=session).text == "7"
    roles = [message.role for message in adapter.requests[1].messages]
    assert roles == ["system", "assistant", "user"]


class Echo(ProviderAdapter):
    name = "echo"

    def channel(self) -> Channel:
        return EchoChannel()


class EchoChannel(Channel):
    def call(self, request: ModelRequest) -> ModelReply:
        return ModelReply(request.messages[0].text)


def test_a_channel_needs_no_more_than_a_call() -> None:
    adapter, text = Echo("echo-1"), "## 1. T\n\nGo."
    assert adapter.evaluate(Prompt(TEMPLATE), session=Session()).text == text
    assert asyncio.run(adapter.evaluate_async(Prompt(TEMPLATE), session=Session())).text == text
    *deltas, completed = adapter.stream(Prompt(TEMPLATE), session=Session())
    assert isinstance(completed, Completed)
    lines = [TextDelta(line) for line in text.splitlines(keepends=True)]
    assert (deltas, completed.response.text) == (lines, text)

    async def streamed() -> list[Any]:
        return [event async for event in adapter.stream_async(Prompt(TEMPLATE), session=Session())]

    assert asyncio.run(streamed())[:-1] == lines


@dataclass
class Sum:
    total: int


def test_an_output_that_is_required_is_there_or_the_error_says_why_not() -> None:
    typed = PromptTemplate[Sum](ns="t", key="sum", sections=TEMPLATE.sections)
    assert ScriptedAdapter([Sum(3)]).evaluate(Prompt(typed), session=Session()).require_output() == Sum(3)
    plain = ScriptedAdapter(["3"]).evaluate(Prompt(TEMPLATE), session=Session())
    halted = PromptResponse[Sum]("sum", "", halt=OpenSectionsResult({("a", "b"): SectionVisibility.FULL}))
    for response, why in ((plain, "has no output: the prompt declares none"), (halted, "halted, .* to open a.b;")):
        with pytest.raises(PromptEvaluationError, match=why) as caught:
            response.require_output()
        assert caught.value.prompt_name == response.prompt_name


def test_many_sessions_run_side_by_side() -> None:
    def one() -> None:
        answers.append(ScriptedAdapter([call("add", a=1, b=2), "3"]).evaluate(Prompt(TEMPLATE), session=Session()).text)

    answers: list[str] = []
    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["3"] * 8


def test_the_main_loop_shares_one_budget_between_restarts() -> None:
    @tool
    def use() -> str:
        """Use."""
        return "used"

    template = PromptTemplate(
        ns="t",
        key="k",
        sections=[
            MarkdownSection(
                title="D", key="d", template="Full.", summary="s", visibility=SectionVisibility.SUMMARY, tools=[use]
            )
        ],
    )
    session = Session()
    adapter = ScriptedAdapter([call("read_section", section_key="d"), "never"], supports_dynamic_tools=False)
    with pytest.raises(BudgetExceededError):
        MainLoop(budget=Budget(max_turns=1)).execute(Prompt(template), session=session, adapter=adapter)
    assert [event.section_keys for event in endings(session, "restarted")] == [("d",)]


def test_an_execution_may_have_limits_of_its_own() -> None:
    loop, adapter = MainLoop(budget=Budget(max_turns=9)), ScriptedAdapter([call("add", a=1, b=2), "3"])
    with pytest.raises(BudgetExceededError):
        loop.execute(Prompt(TEMPLATE), session=Session(), adapter=adapter, budget=Budget(max_turns=1))
    clock = FakeClock()
    late = Deadline.after(5, clock)
    clock.advance(6)
    with pytest.raises(DeadlineExceededError):
        asyncio.run(loop.execute_async(Prompt(TEMPLATE), session=Session(), adapter=adapter, deadline=late))
    assert loop.execute(Prompt(TEMPLATE), session=Session(), adapter=adapter).text == "3"


def test_a_path_is_no_recorder() -> None:
    with pytest.raises(TypeError, match=r"recorder must be a context manager, got 'runs.db'; write record\(path\)"):
        MainLoop(recorder="runs.db")  # type: ignore[arg-type]


def test_the_main_loop_gives_up_after_max_expansions() -> None:
    keys = ["a", "b", "c"]
    template = PromptTemplate(
        ns="t",
        key="k",
        sections=[
            MarkdownSection(
                title=key, key=key, template="x", summary="s", visibility=SectionVisibility.SUMMARY, tools=[named(key)]
            )
            for key in keys
        ],
    )
    adapter = ScriptedAdapter([call("read_section", section_key=key) for key in keys], supports_dynamic_tools=False)
    with pytest.raises(PromptEvaluationError, match="more than 2 times"):
        MainLoop(max_expansions=2).execute(Prompt(template), session=Session(), adapter=adapter)


def named(key: str) -> Any:
    @tool(name=f"use_{key}")
    def use() -> str:
        """Use."""
        return key

    return use


def test_a_session_is_freed_with_its_last_reference_although_its_prompt_is_kept() -> None:
    prompt, session = Prompt(TEMPLATE), Session()
    ScriptedAdapter(["Hello."]).evaluate(prompt, session=session)
    freed = weakref.ref(session)
    gc.collect()
    gc.disable()
    try:
        del session
        assert freed() is None
    finally:
        gc.enable()
