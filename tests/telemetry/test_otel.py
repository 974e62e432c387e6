from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.telemetry.agents import FAIL, SCRIPT, prompt, run
from weakincentives import Conversation
from weakincentives.adapters import FallbackAdapter
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import (
    MarkdownSection,
    OpenAndHalt,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    VisibilityExpansionRequired,
    tool,
)
from weakincentives.runtime import (
    MainLoop,
    ModelReply,
    ModelRequest,
    PromptResponse,
    ProviderAdapter,
    RunEnded,
    ToolCall,
)
from weakincentives.session import Session
from weakincentives.telemetry import instrument


class Collector:
    """The SDK's own exporters that keep things in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def instrument(self, **options: Any) -> Any:
        return instrument(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: (span.start_time or 0, span.name))

    def span(self, name: str) -> ReadableSpan:
        return next(span for span in self.spans() if span.name == name)

    def metric(self, name: str) -> dict[tuple[Any, ...], Any]:
        """Points of a metric by their attributes: a counter's value, a histogram's sum."""
        data = self.reader.get_metrics_data()
        found = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        key = tuple(sorted((point.attributes or {}).items()))
                        found[key] = getattr(point, "value", None) or getattr(point, "sum", None)
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


def test_a_run_is_one_span_with_its_calls_inside(collector: Collector) -> None:
    with collector.instrument():
        run()
    spans = collector.spans()
    agent = collector.span("invoke_agent sums")
    assert sorted(span.name for span in spans) == [
        *["chat scripted"] * 4,
        "execute_tool add",
        *["execute_tool read_section"] * 2,
        "invoke_agent sums",
    ]
    inside = [span.parent.span_id for span in spans if span.parent is not None]
    assert inside == [agent.context.span_id] * 7
    assert {span.kind for span in spans if span.name == "chat scripted"} == {SpanKind.CLIENT}
    assert all(span.status.status_code is StatusCode.UNSET for span in spans)


def test_a_call_of_the_model_has_the_attributes_of_the_conventions(collector: Collector) -> None:
    session = Session()
    reply = ModelReply(text="Hi.", usage=TokenUsage(120, 7, 100), response_id="r1", model="scripted-2")
    with collector.instrument():
        run(reply, session=session)
    assert dict(collector.span("chat scripted").attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted-2",
        "gen_ai.response.id": "r1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "gen_ai.conversation.id": session.session_id,
    }


def test_nothing_that_was_said_is_reported_unless_asked_for(collector: Collector) -> None:
    with collector.instrument():
        run()
    reported = str([dict(span.attributes or {}) for span in collector.spans()])
    assert not [words for words in ("Be brief.", "A guide.", "Three.", "Added.", '"a"') if words in reported]


@pytest.mark.parametrize("value", ["true", "SPAN_ONLY", "span_and_event"])
def test_the_environment_may_ask_for_content(collector: Collector, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
    with collector.instrument():
        run()
    last = [span for span in collector.spans() if span.name == "chat scripted"][-1].attributes or {}
    assert json.loads(str(last["gen_ai.output.messages"])) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Three."}]}
    ]
    assert "Be brief." in json.loads(str(last["gen_ai.system_instructions"]))[0]["content"]
    assert json.loads(str(last["gen_ai.input.messages"]))[-1]["parts"][0]["response"] == "Added.\n\n3"
    offered = json.loads(str(last["gen_ai.tool.definitions"]))
    assert [(tool["name"], tool["description"]) for tool in offered][1:] == [("add", "Add two numbers.")]
    tool = collector.span("execute_tool add").attributes or {}
    assert (tool["gen_ai.tool.call.arguments"], tool["gen_ai.tool.call.result"]) == ('{"a": 1, "b": 2}', "Added.\n\n3")


@pytest.mark.parametrize("value", ["", "false", "NO_CONTENT", "event_only"])
def test_other_values_ask_for_none(collector: Collector, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
    with collector.instrument():
        run()
    assert "gen_ai.input.messages" not in (collector.span("chat scripted").attributes or {})


def test_injected_tools_are_counted(collector: Collector) -> None:
    with collector.instrument():
        run()
    where = (("wink.route", "append"), ("wink.section.key", "sums"))
    assert collector.metric("wink.tools.injected") == {where: 1}
    assert collector.metric("wink.disclosure.dynamic") == {where: 1}
    assert collector.metric("wink.disclosure.restarts") == {}
    assert [event.name for event in collector.span("invoke_agent sums").events] == ["wink.tools.injected"]


def test_a_reading_that_brings_tools_of_two_sections_is_counted_once(collector: Collector) -> None:
    child = MarkdownSection(
        key="child", title="Child", template="More.", tools=[tool(name="second", description="Two.")(lambda: "2")]
    )
    parent = MarkdownSection(
        key="parent",
        title="Parent",
        template="Text.",
        summary="Tools.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="first", description="One.")(lambda: "1")],
        children=[child],
    )
    script = [call("read_section", section_key="parent"), "Done."]
    with collector.instrument():
        ScriptedAdapter(script).evaluate(Prompt(ns="n", key="k", sections=[parent]), session=Session())
    assert sum(collector.metric("wink.tools.injected").values()) == 2
    assert sum(collector.metric("wink.disclosure.dynamic").values()) == 1


def test_a_restart_is_counted_and_stays_within_the_run(collector: Collector) -> None:
    with collector.instrument():
        run(*SCRIPT[1:], supports_dynamic_tools=False)
    assert collector.metric("wink.disclosure.restarts") == {(): 1}
    agents = [span for span in collector.spans() if span.name == "invoke_agent sums"]
    assert [(span.status.status_code, [event.name for event in span.events]) for span in agents] == [
        (StatusCode.UNSET, ["wink.disclosure.restarts"])
    ]


def test_a_restart_by_the_caller_s_own_loop_is_counted(collector: Collector) -> None:
    adapter, session = ScriptedAdapter([SCRIPT[1], "Done."], supports_dynamic_tools=False), Session()
    with collector.instrument():
        with pytest.raises(VisibilityExpansionRequired) as asked:
            adapter.evaluate(prompt(), session=session)
        adapter.evaluate(prompt(), session=session, visibility_overrides=asked.value.requested_overrides)
    assert collector.metric("wink.disclosure.restarts") == {(): 1}


def test_a_restart_of_an_adapter_that_evaluates_by_itself_is_counted(collector: Collector) -> None:
    class Own(ProviderAdapter[Any]):
        def evaluate(self, prompt: Any, *, session: Session) -> Any:  # type: ignore[override]
            if not session[RunEnded].all():
                raise VisibilityExpansionRequired(requested_overrides={}, section_keys=("sums",))
            return PromptResponse(prompt_name=prompt.name, text="Done.", output=None)

    with collector.instrument():
        MainLoop().execute(prompt(), session=Session(), adapter=Own("own"))
    assert collector.metric("wink.disclosure.restarts") == {(): 1}


def test_a_halted_evaluation_that_goes_on_is_one_span(collector: Collector) -> None:
    template = PromptTemplate(ns="t", key="h", sections=prompt().template.sections, disclosure=OpenAndHalt())
    with collector.instrument():
        run(call("open_sections", section_keys=["guide"], reason="to know"), "Done.", bound=Prompt(template))
    assert len([span for span in collector.spans() if span.name.startswith("invoke_agent")]) == 1


def test_a_run_taken_up_from_a_snapshot_has_a_span_too(collector: Collector) -> None:
    first, session = Session(), Session()
    with pytest.raises(ConnectionError):
        ScriptedAdapter([SCRIPT[0], ConnectionError("gone")]).evaluate(prompt(), session=first)
    session.restore(first.snapshot())
    with collector.instrument():
        ScriptedAdapter(["Done."]).resume(prompt(), session=session)
    assert (collector.span("invoke_agent sums").attributes or {})["gen_ai.prompt.name"] == "tests/sums"
    assert collector.span("chat scripted").parent is not None


def test_a_signal_to_the_caller_does_not_mark_the_span_as_failed(collector: Collector) -> None:
    adapter = ScriptedAdapter([SCRIPT[1]], supports_dynamic_tools=False)
    with collector.instrument(), pytest.raises(VisibilityExpansionRequired):
        adapter.evaluate(prompt(), session=Session())
    assert collector.span("invoke_agent sums").status.status_code is StatusCode.UNSET


def test_the_span_of_a_run_that_its_session_forgot_is_ended(collector: Collector) -> None:
    adapter = ScriptedAdapter([SCRIPT[1]], supports_dynamic_tools=False)
    with collector.instrument():
        with pytest.raises(VisibilityExpansionRequired):
            adapter.evaluate(prompt(), session=Session())
        gc.collect()
        assert collector.span("invoke_agent sums").end_time is not None


def test_a_failed_run_and_a_failed_tool_are_marked(collector: Collector) -> None:
    with collector.instrument(), pytest.raises(PromptEvaluationError):
        run(call("fail"), PromptEvaluationError("no answer", phase="request"), bound=prompt(FAIL))
    agent, tool = collector.span("invoke_agent sums"), collector.span("execute_tool fail")
    assert (agent.status.status_code, (agent.attributes or {})["error.type"]) == (
        StatusCode.ERROR,
        "PromptEvaluationError",
    )
    assert (tool.status.status_code, (tool.attributes or {})["wink.tool.rolled_back"]) == (StatusCode.ERROR, True)


def test_a_failed_call_of_the_model_is_a_failed_span(collector: Collector) -> None:
    with collector.instrument(), pytest.raises(PromptEvaluationError):
        run(PromptEvaluationError("no answer", phase="request"))
    chat = collector.span("chat scripted")
    assert (chat.status.status_code, (chat.attributes or {})["error.type"]) == (
        StatusCode.ERROR,
        "PromptEvaluationError",
    )
    assert chat.parent is not None and chat.parent.span_id == collector.span("invoke_agent sums").context.span_id


def test_a_run_that_falls_back_and_succeeds_is_not_marked_as_failed(collector: Collector) -> None:
    down, up = ScriptedAdapter([PromptEvaluationError("down", phase="request")]), ScriptedAdapter(["Up."])
    down.model, up.model = "first", "second"
    with collector.instrument():
        FallbackAdapter(down, up).evaluate(prompt(), session=Session())
    assert {span.name: span.status.status_code for span in collector.spans()} == {
        "invoke_agent sums": StatusCode.UNSET,
        "chat first": StatusCode.ERROR,
        "chat second": StatusCode.UNSET,
    }


def test_a_stream_that_is_closed_early_ends_its_span_as_cancelled(collector: Collector) -> None:
    with collector.instrument():
        with ScriptedAdapter(["One.\nTwo."]).stream(prompt(), session=Session()) as events:
            next(events)
        agent = collector.span("invoke_agent sums")
    assert (agent.status.status_code, (agent.attributes or {})["error.type"]) == (StatusCode.UNSET, "cancelled")


def test_tokens_and_durations_are_measured(collector: Collector) -> None:
    with collector.instrument():
        run(ModelReply(text="Hi.", usage=TokenUsage(120, 7)))
    tokens = {
        dict(key)["gen_ai.token.type"]: value for key, value in collector.metric("gen_ai.client.token.usage").items()
    }
    assert tokens == {"input": 120, "output": 7}
    operations = [dict(key)["gen_ai.operation.name"] for key in collector.metric("gen_ai.client.operation.duration")]
    assert sorted(operations) == ["chat", "invoke_agent"]


def test_runs_nest_in_the_callers_own_span(collector: Collector) -> None:
    tracer = collector.tracers.get_tracer("app")
    with collector.instrument(), tracer.start_as_current_span("request") as outer:
        run("Hi.")
    parent = collector.span("invoke_agent sums").parent
    assert parent is not None and parent.span_id == outer.get_span_context().span_id


def secret(kind: str) -> tuple[str, str]:
    """A text with a secret in it, and the secret."""
    random = Random(kind)
    word = "".join(random.choices("abcdefghABCDEFGH0123456789", k=48))
    known = f"kN0wn-{word[:20]}"
    return {
        "known": (known, known),
        "openai": (f"sk-proj-{word}", f"sk-proj-{word}"),
        "github": (f"ghp_{word[:36]}", f"ghp_{word[:36]}"),
        "url": (f"postgres://bob:{word[:16]}@db/x", word[:16]),
        "bearer": (f"Authorization: Bearer {word}", word),
        "assigned": (f'password = "{word[:16]}"', word[:16]),
    }[kind]


def leaking(text: str) -> list[list[Any]]:
    """Scripts of runs that say a text in every place that a trace may report."""
    return [
        [call("leak", text=text), "Done."],
        [call("fail", text=text), "Done."],
        [call("nothing", text=text), "Done."],
        [ToolCall("1", text, "{}"), "Done."],
        [ToolCall("1", "leak", json.dumps({"text": {"password": text}})), "Done."],
        [text],
        [ModelReply(text="Done.", model=text, response_id=text)],
        [call("pay", text=text)],
    ]


@pytest.mark.parametrize("kind", ["known", "openai", "github", "url", "bearer", "assigned"])
@pytest.mark.parametrize("capture", [True, False])
def test_no_secret_reaches_a_trace(
    collector: Collector, kind: str, capture: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, value = secret(kind)
    if kind == "known":
        monkeypatch.setenv("SHOP_API_KEY", value)

    @tool
    def leak(text: str) -> str:
        "Leak."
        return f"result {text}"

    @tool
    def fail(text: str) -> str:
        "Fail."
        raise RuntimeError(text)

    @tool(approval="call")
    def pay(text: str) -> str:
        "Pay."
        return "paid"

    def fails(request: ModelRequest) -> Any:
        raise PromptEvaluationError(text, prompt_name="leak", phase="request")

    section = MarkdownSection(key="task", title="Task", template=f"Do not tell {text}.", tools=[leak, fail, pay])
    template = PromptTemplate(ns="tests", key="leak", name=f"leak {text}", sections=[section])
    with collector.instrument(capture_content=capture):
        for script in [*leaking(text), fails]:
            with suppress(PromptEvaluationError):
                Conversation(Prompt(template), adapter=ScriptedAdapter(script)).send(text)
    assert len(collector.spans()) > 20
    reported = [span.to_json() for span in collector.spans()]
    assert [each for each in reported if value in each] == []
    assert value not in str(collector.reader.get_metrics_data())
