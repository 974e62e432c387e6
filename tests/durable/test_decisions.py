"""Calls of tools that declare `approval=` wait in the durable loop, and happen as a person has decided."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.durable.answers import approve, question_id
from tests.durable.payer import LOG, Balance, Bill, Paid, Payer
from tests.waiting import PATIENCE, until
from weakincentives import (
    Answer,
    Approve,
    Budget,
    Deny,
    Edit,
    FallbackAdapter,
    MarkdownSection,
    Prompt,
    PromptEvaluationError,
    PromptTemplate,
    ScriptedAdapter,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    call,
    tool,
)
from weakincentives.cli import main
from weakincentives.durable import DurableClient, DurableError, DurableMainLoop, DurableQuestion, ask_approval
from weakincentives.errors import DeadlineExceededError
from weakincentives.guards import Guard, Outcome, Refuse
from weakincentives.prompt import OpenAndHalt
from weakincentives.runtime import CallDecided, ModelRequest, ToolInvoked
from weakincentives.telemetry import RunStore, instrument, read_run, record

Asked: TypeAlias = DurableMainLoop[Bill, None]

DECISIONS = {
    "approve": Approve("Ann"),
    "deny": Deny("Too much.", "Ann"),
    "edit": Edit({"amount": 50}),
    "answer": Answer("Later."),
}
BEFORE = (1000, (), {"log.txt": LOG})


def waiting(loop: DurableMainLoop[Bill, None], *call_ids: str) -> tuple[DurableQuestion, ...]:
    """The questions, once these calls wait."""
    until(lambda: tuple(question.call_id for question in loop.questions("bill")) == call_ids, str(call_ids))
    return loop.questions("bill")


def after(*amounts: int) -> tuple[int, tuple[Paid, ...], dict[str, str]]:
    log = LOG + "".join(f"paid {amount}\n" for amount in amounts)
    return 1000 - sum(amounts), tuple(map(Paid, amounts)), {"log.txt": log}


@pytest.mark.parametrize("kind", DECISIONS)
@pytest.mark.parametrize("needs", ["call", "effects"])
@pytest.mark.parametrize("amounts", [(5,), (5, 7)], ids=["one", "two"])
def test_a_call_waits_and_then_happens_as_it_was_decided(
    tmp_path: Path, kind: str, needs: str, amounts: tuple[int, ...]
) -> None:
    payer, decision = Payer(tmp_path), DECISIONS[kind]
    with payer.loop() as loop:
        loop.start()
        loop.submit(Bill(needs, amounts, outside=needs == "call"), key="bill")
        names = [f"c{number}" for number in range(1, len(amounts) + 1)]
        asked = waiting(loop, *names)
        assert payer.state() == BEFORE
        assert [(q.tool, q.arguments, q.needs) for q in asked] == [
            ("pay", json.dumps({"amount": amount}), needs) for amount in amounts
        ]
        for question, amount in zip(asked, amounts, strict=True):
            assert f"\n\npay\n  amount: {amount}" in question.text
            assert (f"+paid {amount}" in question.text) == (needs == "effects")
        assert payer.handled == ([] if needs == "call" else list(amounts))
        for name in names:
            approve(loop, "bill", name, decision)
        until(lambda: answer_rest(loop, Approve()), "the end")
        found = json.loads(loop.result("bill", timeout=PATIENCE).text)
    done = {"approve": amounts, "edit": tuple(50 for _ in amounts)}.get(kind, ())
    total, paid, written = after(*done)
    assert found["state"] == [total, [each.amount for each in paid], written]
    assert [call_id for call_id, _, _ in found["results"]] == names
    assert {success for _, success, _ in found["results"]} == {kind != "deny"}
    expected = {"approve": "paid 5", "deny": "A person denied this call: Too much.", "answer": "Later."}
    assert found["results"][0][2] == expected.get(kind, found["results"][0][2])
    if kind == "edit":
        assert found["results"][0][2].startswith('A person changed the arguments of this call to {"amount": 50}.')
    assert list(payer.service.charged().values()) == (list(done) if needs == "call" else [])
    assert len({key for _, key, _ in payer.service.entries()}) <= len(amounts)


def answer_rest(loop: DurableMainLoop[Bill, None], decision: Any) -> bool:
    """Decide what is asked again; True if the work has ended."""
    for question in loop.questions("bill"):
        loop.approve("bill", question.id, decision)
    return loop.status("bill").status == "done"


def test_a_call_waits_without_a_process_and_no_handler_runs_twice(database_url: str, tmp_path: Path) -> None:
    payer = Payer(tmp_path)
    budget = Budget(max_tool_calls=3)
    with payer.loop(database_url=database_url, budget=budget) as loop:
        loop.start()
        loop.submit(Bill("effects", (5, 7)), key="bill")
        waiting(loop, "c1", "c2")
        assert loop.drain(PATIENCE)
    with DurableClient[Bill, None]("payer", database_url) as client:
        approve(client, "bill", "c2", Deny("No."))
    with payer.loop(database_url=database_url, budget=budget) as loop:
        loop.start()
        (question,) = waiting(loop, "c1")
        assert loop.drain(PATIENCE)
        assert "+paid 5" in question.text
    with payer.loop(database_url=database_url, budget=budget) as loop:
        approve(loop, "bill", "c1")
        loop.start()
        found = json.loads(loop.result("bill", timeout=PATIENCE).text)
        steps = [step.name for step in loop.store.steps("payer/bill")]
        assert loop.status("bill").attempts == 1
    assert found["state"] == [995, [5], {"log.txt": f"{LOG}paid 5\n"}]
    assert payer.handled == [5, 7]
    assert steps == ["begin", "model", "pay", "pay", "pay", "pay", "pay", "model", "report", "model"]


def test_effects_on_a_base_that_changed_are_asked_about_again(tmp_path: Path) -> None:
    payer = Payer(tmp_path)
    with payer.loop() as loop:
        loop.start()
        loop.submit(Bill("effects", (5, 7)), key="bill")
        _, second = waiting(loop, "c1", "c2")
        assert "total: 995 -> 988" in second.text and " paid 5\n+paid 7" in second.text
        approve(loop, "bill", "c1", Deny())
        waiting(loop, "c2")
        approve(loop, "bill", "c2")
        (again,) = waiting(loop, "c2#2")
        assert "total: 1000 -> 993" in again.text and " begin\n+paid 7" in again.text
        with pytest.raises(DurableError, match=r"call 'c2' of 'payer/bill' has changed; look again. Waiting: 'c2:"):
            approve(loop, "bill", "c2")
        approve(loop, "bill", "c2#2")
        found = json.loads(loop.result("bill", timeout=PATIENCE).text)
    assert found["state"] == [993, [7], {"log.txt": f"{LOG}paid 7\n"}]


@pytest.mark.parametrize(
    ("decision", "problem"),
    [
        (Edit({"amount": "x"}), "The edit of call 'c1' does not fit 'pay': amount: "),
        (Edit({"sum": 5}), "The edit of call 'c1' does not fit 'pay': "),
        (Edit({"amount": object()}), "The edit of call 'c1' does not fit 'pay': it is not JSON"),
        (Edit("{}"), "Edit takes the arguments as a mapping, got '{}'"),  # type: ignore[arg-type]
        (True, r"The decision about 'c1' must be Approve\(\), Deny\(reason\), Edit\(arguments\) or Answer\(text\)"),
        ("approve", r"The decision about 'c1' must be Approve\(\)"),
    ],
)
def test_a_wrong_decision_is_an_error_and_the_call_stays_open(asked: Asked, decision: Any, problem: str) -> None:
    with pytest.raises((DurableError, TypeError), match=problem):
        approve(asked, "bill", "c1", decision)
    assert [question.answer for question in asked.questions("bill")] == [None]


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    """A loop on which one call waits."""
    with Payer(tmp_path).loop() as loop:
        loop.start()
        loop.submit(Bill("effects", (5,)), key="bill")
        waiting(loop, "c1")
        yield loop


def test_short_answers_decide_too_and_a_note_comes_with_a_denial_only(asked: Asked) -> None:
    with pytest.raises(TypeError, match="approved must be True or False, got 'false'"):
        approve(asked, "bill", "c1", approved="false")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a decision or approved=, note=, by=, not both"):
        approve(asked, "bill", "c1", Deny(), by="Ann")
    with pytest.raises(DurableError, match=r"Call 'c1' is approved without a note; decide it with Approve\(\)"):
        approve(asked, "bill", "c1", note="Fine.")
    approve(asked, "bill", "c1", approved=False, note="Too much.", by="Ann")
    (result,) = json.loads(asked.result("bill", timeout=PATIENCE).text)["results"]
    assert result == ["c1", False, "A person denied this call: Too much."]


def test_a_cancelled_call_can_still_be_decided_after_a_retry(asked: Asked) -> None:
    asked.cancel("bill")
    assert asked.questions("bill") == ()
    asked.retry("bill")
    waiting(asked, "c1")
    approve(asked, "bill", "c1")
    assert json.loads(asked.result("bill", timeout=PATIENCE).text)["state"][0] == 995


def test_the_deadline_of_a_run_ends_the_wait_and_a_later_one_opens_it_again(tmp_path: Path) -> None:
    payer = Payer(tmp_path)
    with payer.loop(deadline_seconds=1.0) as loop:
        loop.start()
        loop.submit(Bill("effects", (5,)), key="bill")
        with pytest.raises(DeadlineExceededError, match="passed before a person decided about its calls"):
            loop.result("bill", timeout=PATIENCE)
        assert loop.questions() == ()
    with payer.loop(deadline_seconds=3600) as loop:
        loop.start()
        loop.retry("bill")
        waiting(loop, "c1")
        approve(loop, "bill", "c1")
        assert json.loads(loop.result("bill", timeout=PATIENCE).text)["state"][0] == 995
    assert payer.handled == [5]


@dataclass(frozen=True, slots=True)
class Even:
    amount: int

    def __post_init__(self) -> None:
        if self.amount % 2:
            raise ValueError("must be even")


def loop_with(path: Path, *tools: Tool[Any, Any], calls: Any = None) -> DurableMainLoop[Bill, None]:
    """A loop that makes these calls, and answers with the results; it restarts to open the section `more`."""
    section = MarkdownSection(title="Desk", key="desk", template="Work.", tools=tools)
    more = MarkdownSection(
        title="More", key="more", template="More.", summary="More.", visibility=SectionVisibility.SUMMARY
    )

    def model(request: ModelRequest) -> Any:
        results = [message.text for message in request.messages if message.role == "tool"]
        return "; ".join(results) if results else calls or call(tools[0].name, call_id="c1", amount=4)

    template = PromptTemplate[None](ns="tests", key="desk", sections=[section, more], disclosure=OpenAndHalt())
    return DurableMainLoop("desk", lambda _: Prompt(template), ScriptedAdapter(model), str(path / "d.db"))


def test_an_edit_that_only_the_worker_can_check_is_asked_about_again_with_the_reason(tmp_path: Path) -> None:
    def halve(params: Even, *, context: ToolContext) -> ToolResult[int]:
        return ToolResult(str(params.amount // 2))

    halving = Tool[Even, int](name="halve", description="Halve it.", handler=halve, approval="call")
    with loop_with(tmp_path, halving) as loop:
        loop.start()
        loop.submit(Bill("call", ()), key="bill")
        waiting(loop, "c1")
        approve(loop, "bill", "c1", Edit({"amount": 5}))
        (again,) = waiting(loop, "c1#2")
        assert again.text.splitlines() == [
            "The edit of call 'c1' does not fit 'halve': $: Even rejected it: must be even",
            *("", "Allow this call? It has not run yet.", "", "halve", "  amount: 4"),
        ]
        approve(loop, "bill", "c1#2", Edit({"amount": 6}))
        assert loop.result("bill", timeout=PATIENCE).text.endswith("3")


def test_a_handler_may_ask_too_and_all_questions_are_one_list(tmp_path: Path) -> None:
    @tool(approval="call")
    def pay(amount: int, *, context: ToolContext) -> str:
        """Pay."""
        return f"{amount}, {ask_approval(context, f'Really {amount}?').by}"

    with loop_with(tmp_path, pay) as loop:
        loop.start()
        loop.submit(Bill("call", ()), key="bill")
        assert [q.needs for q in waiting(loop, "c1")] == ["call"]
        approve(loop, "bill", "c1", Edit({"amount": 6}, by="Ann"))
        (own,) = waiting(loop, "c1#2")
        assert (own.text, own.needs) == ("Really 6?", None)
        with pytest.raises(DurableError, match=r"Call 'c1#2' was asked by its handler; decide it with Approve\(\) or"):
            approve(loop, "bill", "c1#2", Answer("Yes."))
        approve(loop, "bill", "c1#2", Approve("Bob"))
        assert loop.result("bill", timeout=PATIENCE).text.endswith("6, Bob")


def test_a_tool_without_a_handler_waits_for_the_answer_of_a_person(tmp_path: Path) -> None:
    choose = Tool[Even, str](name="choose", description="Choose.", handler=None)
    with loop_with(tmp_path, choose) as loop:
        loop.start()
        loop.submit(Bill("call", ()), key="bill")
        waiting(loop, "c1")
        for wrong in (Approve(), Edit({"amount": 2})):
            with pytest.raises(DurableError, match=r"Call 'c1' of 'choose' has no handler; decide it with Answer"):
                approve(loop, "bill", "c1", wrong)
        approve(loop, "bill", "c1", Answer("The red one."))
        assert loop.result("bill", timeout=PATIENCE).text == "The red one."


def test_read_only_calls_that_run_side_by_side_wait_together(tmp_path: Path) -> None:
    @tool(approval="call", read_only=True)
    def look(amount: int) -> str:
        """Look."""
        return f"saw {amount}"

    calls = [call("look", call_id=f"c{number}", amount=number) for number in (1, 2, 3)]
    with loop_with(tmp_path, look, calls=calls) as loop:
        loop.start()
        loop.submit(Bill("call", ()), key="bill")
        waiting(loop, "c1", "c2", "c3")
        approve(loop, "bill", "c2", Deny("No."))
        waiting(loop, "c1", "c3")
        approve(loop, "bill", "c3")
        approve(loop, "bill", "c1")
        text = loop.result("bill", timeout=PATIENCE).text
        assert sorted(text.split("; ")) == ["A person denied this call: No.", "saw 1", "saw 3"]


def test_a_call_that_waits_outlives_a_restart_of_its_run(tmp_path: Path) -> None:
    @tool(approval="call")
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    opening = call("open_sections", call_id="o1", section_keys=["more"], reason="More.")
    with loop_with(tmp_path, pay, calls=[call("pay", call_id="c1", amount=5), opening]) as loop:
        loop.start()
        loop.submit(Bill("call", ()), key="bill")
        waiting(loop, "c1")
        approve(loop, "bill", "c1")
        text = loop.result("bill", timeout=PATIENCE).text
    assert text.startswith("paid 5; Expansion requested: more.")


def test_a_run_that_fell_back_decides_on_its_second_adapter(tmp_path: Path) -> None:
    payer = Payer(tmp_path)
    adapter = FallbackAdapter(
        ScriptedAdapter([call("pay", call_id="c1", amount=5), PromptEvaluationError("down", phase="request")]),
        ScriptedAdapter(payer.model),
    )
    with DurableMainLoop("payer", payer.prepare, adapter, payer.database, new_session=payer.new_session) as loop:
        loop.start()
        loop.submit(Bill("effects", (5,)), key="bill")
        waiting(loop, "c1")
        approve(loop, "bill", "c1")
        assert json.loads(loop.result("bill", timeout=PATIENCE).text)["state"][0] == 995


SECRET = "sk-ant-api03-" + "a1B2c3D4" * 11 + "-AAAAAAAA"


def test_secrets_are_replaced_in_what_is_shown_and_kept_in_what_happens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @tool(approval="effects", changes=(Balance,))
    def save(key: str, *, context: ToolContext) -> str:
        """Save a key."""
        context.session.dispatch(Paid(len(key)))
        return f"saved {len(key)}"

    with loop_with(tmp_path, save, calls=[call("save", call_id="c1", key=SECRET)]) as loop:
        loop.start()
        loop.submit(Bill("call", ()), key="bill")
        (question,) = waiting(loop, "c1")
        assert SECRET not in question.text and "[redacted]" in question.text
        for words in (["show", "desk/bill"], ["questions"], ["questions", "--json"], ["show", "desk/bill", "--json"]):
            assert main(["work", *words, "--database-url", str(tmp_path / "d.db")]) == 0
        shown = capsys.readouterr().out
        assert SECRET not in shown and "[redacted]" in shown
        approve(loop, "bill", "c1")
        assert loop.result("bill", timeout=PATIENCE).text == f"saved {len(SECRET)}"


@pytest.mark.parametrize(
    ("words", "shown", "result"),
    [
        (["--by", "Ann"], "approved  c1 (by Ann)", "paid 5"),
        (["--deny", "--note", "No."], "denied    c1 (No.)", "A person denied this call: No."),
        (["--answer", "Later."], "answered  c1 (Later.)", "Later."),
        (["--edit", '{"amount": 6}'], 'edited    c1 ({"amount": 6})', None),
    ],
    ids=["approve", "deny", "answer", "edit"],
)
def test_the_command_line_shows_the_effects_and_takes_each_decision(
    asked: Asked, capsys: pytest.CaptureFixture[str], words: list[str], shown: str, result: str | None
) -> None:
    where = ["--database-url", str(asked.database_url)]
    assert main(["work", "questions", *where]) == 0
    listed = capsys.readouterr().out
    assert re.match(r"payer/bill c1:[0-9a-f]{8}  asked ", listed)
    assert "\n    +paid 5\n" in listed
    assert main(["work", "questions", "payer/bill", "--json", *where]) == 0
    (facts,) = json.loads(capsys.readouterr().out)
    assert (facts["id"], facts["call_id"], facts["needs"], facts["arguments"], facts["answer"]) == (
        *("payer/bill", "c1", "effects"),
        '{"amount": 5}',
        None,
    )
    assert main(["work", "approve", "payer/bill", question_id(asked, "bill", "c1"), *words, *where]) == 0
    if result is None:
        waiting(asked, "c1#2")
        assert main(["work", "approve", "payer/bill", question_id(asked, "bill", "c1#2"), *where]) == 0
    found = json.loads(asked.result("bill", timeout=PATIENCE).text)["results"][0][2]
    assert found == result or (result is None and found.endswith("paid 6"))
    capsys.readouterr()
    assert main(["work", "show", "payer/bill", *where]) == 0
    out = capsys.readouterr().out
    assert f"{shown}\n" in re.sub(r"c1:[0-9a-f]{8}", "c1", out)
    assert "\n          +paid 5\n" in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--edit", "5"], "arguments must be a JSON object, got 5"),
        (["--edit", "{amount: 5}"], "arguments must be JSON such as"),
        (["--edit", "{}", "--answer", "x"], "not allowed with argument"),
        (["--answer", "x", "--note", "y"], "--note goes with --deny"),
        (["--edit", '{"amount": "x"}'], "does not fit 'pay': amount"),
    ],
)
def test_the_command_line_refuses_what_is_no_decision(
    asked: Asked, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    assert (
        main(
            [
                "work",
                "approve",
                "payer/bill",
                question_id(asked, "bill", "c1"),
                *words,
                "--database-url",
                str(asked.database_url),
            ]
        )
        != 0
    )
    assert problem in capsys.readouterr().err
    assert len(asked.questions("bill")) == 1


def test_the_recording_says_that_the_run_waits_and_what_was_decided(tmp_path: Path) -> None:
    statuses, payer = [], Payer(tmp_path)
    for approves in (False, True):
        with record(tmp_path / "runs.db"), payer.loop() as loop:
            loop.start()
            loop.submit(Bill("effects", (5,)), key="bill")
            until(lambda: loop.status("bill").status == "waiting", "the question")
            if approves:
                approve(loop, "bill", "c1", by="Ann")
                loop.result("bill", timeout=PATIENCE)
        with RunStore(tmp_path / "runs.db") as store:
            events = list(read_run(store.path, "payer/bill"))
            decided = [(event.decision, event.by) for event in events if isinstance(event, CallDecided)]
            made = [event.call_id for event in events if isinstance(event, ToolInvoked)]
            statuses.append((store.run("payer/bill").status, decided, made))
    assert statuses == [("waiting", [], []), ("ok", [("approve", "Ann")], ["c1", "report"])]


def test_a_run_that_waited_is_two_linked_traces_that_count_each_call_once(tmp_path: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    payer = Payer(tmp_path)
    with instrument(tracer_provider=provider), payer.loop() as loop:
        loop.start()
        loop.submit(Bill("effects", (5,)), key="bill")
        waiting(loop, "c1")
        approve(loop, "bill", "c1", by="Ann")
        spent = loop.result("bill", timeout=PATIENCE).usage.input_tokens
    provider.shutdown()
    spans = exporter.get_finished_spans()
    agents = [span for span in spans if span.name == "invoke_agent payer"]
    assert [span.name for span in spans if span not in agents] == [
        "chat scripted",
        "execute_tool pay",
        "chat scripted",
        "execute_tool report",
        "chat scripted",
    ]
    assert [[link.context for link in span.links] for span in agents] == [[], [agents[0].context]]
    assert sum((span.attributes or {})["gen_ai.usage.input_tokens"] for span in agents) == spent


def test_a_durable_run_asks_again_after_a_refused_decision(tmp_path: Path) -> None:
    paid: list[str] = []

    class NoCards(Guard):
        def before_run(self, words: str, *, context: Any) -> Outcome | None:
            return Refuse("No cards.") if "4111" in words else None

    @tool(approval="call")
    def pay(note: str) -> str:
        """Pay."""
        paid.append(note)
        return "paid"

    section = MarkdownSection(title="Bills", key="bills", template="Pay.", tools=[pay])
    template: PromptTemplate[Any] = PromptTemplate(ns="t", key="bills", sections=[section], guards=[NoCards()])

    def prepare(words: str) -> Prompt[Any]:
        return Prompt(template)

    model = ScriptedAdapter(
        lambda request: "Done." if request.messages[-1].role == "tool" else call("pay", note="rent", call_id="c1")
    )
    with DurableMainLoop("pay", prepare, model, str(tmp_path / "d.db")) as loop:
        loop.start()
        loop.submit("Pay.", key="r")
        (question,) = question_of(loop)
        loop.approve("r", question.id, Deny("Use 4111."))
        (question,) = question_of(loop, after=question.call_id)
        assert "NoCards refused the user's words of 'bills': No cards." in question.text
        loop.approve("r", question.id, Approve())
        assert loop.result("r").text == "Done."
    assert paid == ["rent"]


def question_of(loop: DurableMainLoop[Any, Any], after: str = "") -> Any:
    def is_asked() -> bool:
        return any(question.call_id != after for question in loop.questions("r"))

    until(is_asked, "the question")
    return loop.questions("r")
