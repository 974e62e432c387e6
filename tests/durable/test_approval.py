"""A tool call that waits for a person holds no thread and no process, and continues in any worker."""

import gc
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.durable.answers import approve, question_id
from tests.durable.desk import Refund, Refunded, desk, model, prepared
from tests.waiting import PATIENCE, until
from weakincentives import (
    Budget,
    FallbackAdapter,
    MainLoop,
    MarkdownSection,
    Prompt,
    PromptEvaluationError,
    PromptTemplate,
    ScriptedAdapter,
    Session,
    ToolContext,
    tool,
)
from weakincentives.adapters.scripted import call
from weakincentives.cli import main
from weakincentives.durable import DurableClient, DurableError, DurableMainLoop, NoSuchWorkError, ask_approval
from weakincentives.errors import DeadlineExceededError
from weakincentives.runtime import RunEnded
from weakincentives.session import observing
from weakincentives.telemetry import RunStore, instrument, read_run, record


def paying(request: Any) -> Any:
    last = request.messages[-1]
    return last.text if last.role == "tool" else call("pay", call_id="c1")


def wait_for_question(loop: DurableMainLoop[Refund, None]) -> None:
    until(lambda: loop.status("r").status == "waiting", "the question")


def test_a_call_waits_without_a_process_and_goes_on_after_approval(database_url: str) -> None:
    with desk(database_url, budget=Budget(max_tool_calls=1)) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        assert [(q.call_id, q.text) for q in loop.questions("r")] == [("c1", "Refund 5?")]
        assert loop.drain(PATIENCE)
    with desk(database_url) as elsewhere:
        approve(elsewhere, "r", "c1", by="Ann")
    with desk(database_url, budget=Budget(max_tool_calls=1)) as loop:
        loop.start()
        assert loop.result("r").text == "Refunded 5, says Ann (desk/r:3:c1)."
        assert [step.name for step in loop.store.steps("desk/r")] == ["begin", "model", "refund", "refund", "model"]
        assert loop.status("r").attempts == 1


def test_the_time_that_a_person_takes_does_not_count_in_the_timeout_of_a_tool(tmp_path: Path) -> None:
    @tool(timeout=30)
    def pay(*, context: ToolContext) -> str:
        """Pay."""
        assert context.deadline is not None and not context.deadline.expired
        return f"paid, says {ask_approval(context, 'Pay?').by}"

    task = MarkdownSection(title="Task", key="task", template="Pay.", tools=[pay])
    template = PromptTemplate[None](ns="t", key="pay", sections=[task])
    with DurableMainLoop("pay", lambda _: Prompt(template), ScriptedAdapter(paying), str(tmp_path / "d.db")) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        approve(loop, "r", "c1", by="Ann")
        assert loop.result("r").text == "paid, says Ann"


def test_a_run_that_fell_back_stays_with_its_adapter_after_the_answer(tmp_path: Path) -> None:
    down = ScriptedAdapter([PromptEvaluationError("down", phase="request")])
    adapter = FallbackAdapter(down, ScriptedAdapter(model))
    with DurableMainLoop("desk", prepared(), adapter, str(tmp_path / "d.db")) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        approve(loop, "r", "c1", by="Ann")
        assert loop.result("r").text == "Refunded 5, says Ann (desk/r:4:c1)."


def test_a_run_that_waits_elsewhere_does_not_count_as_stopped(tmp_path: Path) -> None:
    heard: list[str] = []
    with (
        observing(lambda session, event: heard.append(getattr(event, "status", type(event).__name__))),
        desk(str(tmp_path / "d.db")) as loop,
    ):
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        assert loop.drain(PATIENCE)
        gc.collect()
    assert "ModelCalled" in heard and "suspended" in heard and "stopped" not in heard


def test_the_end_of_a_run_that_waits_says_which_prompt_ran_and_what_it_has_used(tmp_path: Path) -> None:
    ended: list[RunEnded] = []

    def observe(session: Session, event: object) -> None:
        if isinstance(event, RunEnded):
            ended.append(event)

    with observing(observe), desk(str(tmp_path / "d.db")) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        assert loop.drain(PATIENCE)
    (left,) = ended
    assert (left.status, left.prompt_ns, left.prompt_key, left.adapter) == ("suspended", "t", "desk", "scripted")
    assert (left.turns, left.usage.input_tokens > 0) == (1, True)


def test_a_run_that_waited_is_two_linked_traces_that_count_each_call_once(tmp_path: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with instrument(tracer_provider=provider), desk(str(tmp_path / "d.db")) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        approve(loop, "r", "c1", by="Ann")
        spent = loop.result("r").usage.input_tokens
    provider.shutdown()
    spans = exporter.get_finished_spans()
    agents = [span for span in spans if span.name == "invoke_agent desk"]
    assert [span.name for span in spans if span not in agents] == [
        "chat scripted",
        "execute_tool refund",
        "chat scripted",
    ]
    assert [[link.context for link in span.links] for span in agents] == [[], [agents[0].context]]
    assert sum((span.attributes or {})["gen_ai.usage.input_tokens"] for span in agents) == spent


def test_the_recording_of_a_run_that_waits_says_that_it_was_left(tmp_path: Path) -> None:
    statuses = []
    for approves in (False, True):
        with record(tmp_path / "runs.db"), desk(str(tmp_path / "d.db")) as loop:
            loop.start()
            loop.submit(Refund(5), key="r")
            wait_for_question(loop)
            if approves:
                approve(loop, "r", "c1")
                loop.result("r")
        with RunStore(tmp_path / "runs.db") as store:
            left = [e.reason for e in read_run(store.path, "desk/r") if isinstance(e, RunEnded) and e.reason]
            statuses.append((store.run("desk/r").status, left))
    waiting = "waiting for an answer to c1"
    assert statuses == [("interrupted", [waiting]), ("ok", [waiting])]


def test_an_answer_is_for_one_call_even_if_a_later_one_has_its_id(tmp_path: Path) -> None:
    def insistent(request: Any) -> Any:
        answered = [message.text for message in request.messages if message.role == "tool"]
        return call("refund", call_id="c1", amount=5) if len(answered) < 2 else " ".join(answered)

    with DurableMainLoop("desk", prepared(), ScriptedAdapter(insistent), str(tmp_path / "d.db")) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        approve(loop, "r", "c1", by="Ann")
        until(lambda: [question.step for question in loop.questions("r")] == [6], "the second question")
        (question,) = loop.questions("r")
        assert question.call_id != "c1"
        loop.approve("r", question.id, approved=False, note="Not twice.")
        assert loop.result("r").text == "Refunded 5, says Ann (desk/r:3:c1). Not twice."


def test_each_question_of_a_call_is_asked_and_answered(database_url: str) -> None:
    @tool
    def pay(context: ToolContext) -> str:
        """Pay."""
        return " ".join(str(ask_approval(context, text).approved) for text in ("First?", "Row?", "Row?"))

    section = MarkdownSection(title="Desk", key="desk", template="Pay.", tools=[pay])
    prompt = Prompt(PromptTemplate[None](ns="t", key="desk", sections=[section]))
    asked = []
    with DurableMainLoop("desk", lambda _: prompt, ScriptedAdapter(paying), database_url) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        for call_id, approved in (("c1", True), ("c1#2", False), ("c1#3", True)):
            until(lambda expected=call_id: [q.call_id for q in loop.questions("r")] == [expected], call_id)
            asked += [question.text for question in loop.questions("r")]
            approve(loop, "r", call_id, approved=approved)
        assert loop.result("r").text == "True False True"
    assert asked == ["First?", "Row?", "Row?"]


def test_an_answer_is_for_the_text_that_was_shown(tmp_path: Path) -> None:
    amounts = iter((5, 500, 500))

    @tool
    def pay(context: ToolContext) -> str:
        """Pay."""
        amount = next(amounts)
        return f"{amount}: {ask_approval(context, f'Pay {amount}?').by}"

    section = MarkdownSection(title="Desk", key="desk", template="Pay.", tools=[pay])
    prompt = Prompt(PromptTemplate[None](ns="t", key="desk", sections=[section]))
    with DurableMainLoop("desk", lambda _: prompt, ScriptedAdapter(paying), str(tmp_path / "d.db")) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        approve(loop, "r", "c1", by="Ann")
        until(lambda: [q.text for q in loop.questions("r")] == ["Pay 500?"], "the second question")
        approve(loop, "r", "c1#2", by="Bob")
        assert loop.result("r").text == "500: Bob"


def test_a_refusal_reaches_the_tool(tmp_path: Path) -> None:
    with desk(str(tmp_path / "d.db")) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        approve(loop, "r", "c1", approved=False, note="Too much.")
        assert loop.result("r").text == "Too much."


def test_an_answer_outlives_a_failure_before_it_was_used(tmp_path: Path) -> None:
    broken = iter([False, True, False])

    def prepare(request: Refund) -> Prompt[None]:
        if next(broken):
            raise RuntimeError("a bad deploy")
        return prepared()(request)

    with DurableMainLoop("desk", prepare, ScriptedAdapter(model), str(tmp_path / "d.db")) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        approve(loop, "r", "c1", by="Ann")
        with pytest.raises(RuntimeError, match="a bad deploy"):
            loop.result("r")
        loop.retry("r")
        assert loop.result("r", timeout=PATIENCE).text == "Refunded 5, says Ann (desk/r:3:c1)."


def test_the_command_line_shows_questions_and_answers_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = str(tmp_path / "d.db")
    with desk(database) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        assert main(["work", "show", "desk/r", "--database-url", database]) == 0
        assert re.search(r"waits for c1:[0-9a-f]{8}\n          Refund 5\?\n", capsys.readouterr().out)
        assert (
            main(["work", "approve", "desk/r", question_id(loop, "r", "c1"), "--by", "Bob", "--database-url", database])
            == 0
        )
        assert loop.result("r").text == "Refunded 5, says Bob (desk/r:3:c1)."
        assert main(["work", "show", "desk/r", "--database-url", database]) == 0
        assert re.search(r"approved  c1:[0-9a-f]{8} \(by Bob\)\n          Refund 5\?\n", capsys.readouterr().out)


def test_a_question_nobody_answers_in_time_is_answered_with_no(tmp_path: Path) -> None:
    with desk(str(tmp_path / "d.db"), within=0.2) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        assert loop.result("r").text == "Nobody answered in time."
        with pytest.raises(DurableError, match=r"Question 'c1:[0-9a-f]*' of 'desk/r' expired, so the answer is no"):
            approve(loop, "r", "c1")


def test_a_question_that_expired_while_no_worker_ran_is_closed(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with desk(database_url, within=3.0) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        until(lambda: loop.questions("r"), "the question")
        assert loop.drain(PATIENCE)
    with DurableClient[Refund, None]("desk", database_url) as client:
        until(lambda: not client.questions("r"), "the question to expire")
        with pytest.raises(DurableError, match="expired, so the answer is no"):
            approve(client, "r", "c1")
        assert client.status("r").status == "waiting"
        assert main(["work", "show", "desk/r", "--database-url", database_url]) == 0
        printed = capsys.readouterr().out
        assert re.search(r"expired   c1:[0-9a-f]{8} \(Nobody answered in time.\)\n          Refund 5\?\n", printed)


def test_the_deadline_of_a_run_ends_its_questions(database_url: str) -> None:
    with desk(database_url, deadline_seconds=2.0) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        with pytest.raises(DeadlineExceededError):
            loop.result("r", timeout=PATIENCE)
        assert loop.questions() == ()
    with desk(database_url, deadline_seconds=3600) as loop:
        loop.start()
        loop.retry("r")
        wait_for_question(loop)
        approve(loop, "r", "c1", by="Ann")
        assert loop.result("r").text == "Refunded 5, says Ann (desk/r:3:c1)."


def test_only_an_open_question_can_be_answered(tmp_path: Path) -> None:
    with desk(str(tmp_path / "d.db")) as loop:
        loop.start()
        loop.submit(Refund(5), key="r")
        wait_for_question(loop)
        with pytest.raises(NoSuchWorkError, match="'desk/r' has no question 'c9'; waiting: 'c1:"):
            approve(loop, "r", "c9")
        loop.cancel("r")
        assert loop.status("r").status == "cancelled"


def test_asking_outside_a_durable_run_is_the_programmers_mistake_and_ends_the_run() -> None:
    session, adapter = Session(), ScriptedAdapter([call("refund", amount=5), "Cannot."])
    with pytest.raises(DurableError, match="needs a run of DurableMainLoop"):
        MainLoop().execute(prepared()(Refund(5)), session=session, adapter=adapter)
    assert (len(adapter.requests), session[Refunded].all()) == (1, ())
