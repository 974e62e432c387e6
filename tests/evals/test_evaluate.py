from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.evals.shop import CASES, Asked, Refunded, adapter, play, shop
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.evals import (
    Case,
    CaseError,
    EvaluationBusyError,
    FinishedRun,
    Judge,
    Judgement,
    Score,
    Scorer,
    UnknownPriceError,
    Unscored,
    called,
    contains,
    equals,
    evaluate,
    list_evaluations,
    load_evaluation,
    max_calls,
    max_cost,
    max_tokens,
    not_opened,
    opened,
)
from weakincentives.limits import Budget, Prices
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import ModelRequest, ProviderAdapter, Settings
from weakincentives.telemetry import RunFileError, RunStore


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def verdicts(found: Any) -> list[tuple[str, str]]:
    return [(result.case_id, result.verdict) for result in found.results]


def test_a_case_passes_if_every_score_is_one() -> None:
    found = evaluate(CASES, shop(), adapter(), [contains(), opened("refunds")])
    assert verdicts(found) == [("a", "passed"), ("b", "passed"), ("c", "failed")]
    assert found.results[2].scores == {"contains": 0.0, "opened(refunds)": 1.0}
    assert found.results[2].reason == "contains: missing: order-4"
    assert found.mean == pytest.approx(2.5 / 3)
    assert found.pass_rate == pytest.approx(2 / 3)


def test_scorers_see_text_calls_sections_session_and_files() -> None:
    def by_hand(run: FinishedRun) -> bool:
        (event,) = run.session[Refunded]
        assert run.filesystem is not None
        return (
            str(run.filesystem.read(f"{event.order}.txt")).count("refunded 5") == 1
            and run.history.turns[-1].number == 3
        )

    scorers = [
        called("refund"),
        not_opened("task"),
        opened(),
        not_opened(),
        max_calls(1),
        max_tokens(100_000),
        by_hand,
        equals("Refunded order-1 in three days."),
    ]
    case = Case("a", "Please refund order-1", metadata={"sections": ["refunds"]})
    (result,) = evaluate([case], shop(), adapter(), scorers).results
    assert (result.verdict, result.reason) == ("passed", "")
    assert result.opened == ("refunds",)


def test_what_cannot_be_told_is_unscored_and_outside_the_mean() -> None:
    def cannot(run: FinishedRun) -> bool:
        raise Unscored("no idea")

    found = evaluate(CASES[:1], shop(), adapter(), [contains(), cannot, max_cost(1)])
    assert verdicts(found) == [("a", "unscored")]
    assert found.mean is None
    assert "cannot: no idea; max_cost(1): the price of the model is unknown" in found.results[0].reason


@pytest.mark.parametrize("nothing", ["", [], {}])
def test_an_empty_expectation_is_unscored_since_every_answer_contains_it(nothing: Any) -> None:
    (result,) = evaluate(
        [Case("a", "Please refund order-1", expected=nothing)], shop(), adapter(), [contains()]
    ).results
    assert (result.verdict, result.reason) == (
        "unscored",
        "contains: what case 'a' expects is empty, and every answer contains that",
    )


def test_equals_says_how_the_text_differs() -> None:
    (result,) = evaluate(CASES[:1], shop(), adapter(), [equals("5")]).results
    assert result.reason == "equals(5): expected 5, got Refunded order-1 in three days."


def test_an_error_of_a_run_or_a_scorer_is_unscored() -> None:
    def broken(run: FinishedRun) -> Any:
        return "yes"

    assert verdicts(evaluate(CASES[:1], shop(), ScriptedAdapter([ValueError("down")]), [contains()])) == [
        ("a", "unscored")
    ]
    (result,) = evaluate(CASES[:1], shop(), adapter(), [broken]).results
    assert result.verdict == "unscored"
    assert "must return a bool" in result.reason


def test_an_answer_that_does_not_fit_the_output_is_wrong() -> None:
    template = PromptTemplate[Asked](ns="t", key="typed", sections=[MarkdownSection(key="a", title="A", template="x")])
    found = evaluate([Case("a", "go")], template, ScriptedAdapter(lambda request: "no json"), [contains("x")])
    assert verdicts(found) == [("a", "failed")]
    assert found.mean == 0.0


def test_typed_outputs_are_compared_as_data() -> None:
    template = PromptTemplate[Asked](ns="t", key="typed", sections=[MarkdownSection(key="a", title="A", template="x")])
    cases = [Case("same", "go", expected={"text": "hi"}), Case("other", "go", expected={"text": "no"})]
    found = evaluate(cases, template, ScriptedAdapter(lambda request: Asked("hi")), [equals()])
    assert verdicts(found) == [("same", "passed"), ("other", "failed")]


def test_messages_are_exchanges_and_scorers_see_the_last() -> None:
    template = PromptTemplate(ns="t", key="chat", sections=[MarkdownSection(key="a", title="A", template="x")])
    echo = ScriptedAdapter(lambda request: f"You said {request.messages[-1].text}")
    case = Case("a", messages=("one", "two"), expected="You said two")
    (result,) = evaluate([case], template, echo, [equals(), lambda run: run.usage.input_tokens > 0]).results
    assert result.verdict == "passed"


def test_prices_give_the_cost_and_total_stops_new_cases(file: Path) -> None:
    prices = {"scripted": Prices(1_000, 1_000)}
    cases = [Case(f"c{n}", f"Please refund order-{n}", expected="order") for n in range(6)]
    options: Any = {"prices": prices, "file": file, "limit": 1}
    found = evaluate(cases, shop(), adapter(), [contains(), max_cost(1000)], total=Budget(max_cost=0.001), **options)
    assert verdicts(found) == [("c0", "passed")]
    assert not found.finished
    assert found.cost is not None
    found = evaluate(cases, shop(), adapter(), [contains(), max_cost(1000)], **options)
    assert len(found.results) == 6


def test_the_same_evaluation_goes_on_and_a_finished_one_runs_only_again(file: Path) -> None:
    paid: Counter[str] = Counter()

    def counted(request: ModelRequest) -> Any:
        line = play(request)
        if isinstance(line, str):
            paid[line] += 1
        return line

    def go(**options: Any) -> Any:
        return evaluate(CASES, shop(), ScriptedAdapter(counted), [contains()], name="n", file=file, **options)

    first, second = go(), go()
    assert first.results == second.results
    assert set(paid.values()) == {1}
    assert len(go(repeats=2).results) == 6
    assert set(paid.values()) == {2}
    go(again=True)
    assert set(paid.values()) == {3}
    assert load_evaluation(file, "n").id == first.id
    with RunStore(file) as store:
        assert store.run(first.results[0].run_id).tags["case"] == "a"


def test_a_changed_case_runs_again_alone(file: Path) -> None:
    first = evaluate(CASES, shop(), adapter(), [contains()], file=file)
    changed = (*CASES[:2], Case("c", Asked("Please refund order-3"), expected="order-3"))
    second = evaluate(changed, shop(), adapter(), [contains()], file=file)
    assert second.id == first.id
    assert verdicts(second)[2] == ("c", "passed")
    assert second.results[:2] == first.results[:2]


def test_a_changed_prompt_model_or_scorer_is_another_evaluation(file: Path) -> None:
    class Other(ScriptedAdapter):
        name = "other"

    made = [
        evaluate(CASES[:1], shop(), adapter(), [contains()], name="n", file=file),
        evaluate(CASES[:1], shop("Refunds take long."), adapter(), [contains()], name="n", file=file),
        evaluate(CASES[:1], shop(), Other(play), [contains()], name="n", file=file),
        evaluate(CASES[:1], shop(), adapter(), [contains(), max_calls(3)], name="n", file=file),
    ]
    assert len({each.id for each in made}) == 4
    assert len(list_evaluations(file)) == 4


def test_another_judge_other_settings_or_bound_params_are_another_evaluation(file: Path) -> None:
    def judge(model: str) -> Judge:
        return Judge(ScriptedAdapter(lambda request: Judgement("r", True), model=model), "It is true.")

    settled = ScriptedAdapter(play, settings=Settings(temperature=0))
    made = [
        evaluate(CASES[:1], shop(), adapter(), [judge("one")], file=file),
        evaluate(CASES[:1], shop(), adapter(), [judge("two")], file=file),
        evaluate(CASES[:1], shop(), settled, [judge("one")], file=file),
        evaluate(CASES[:1], Prompt(shop()).bind(Asked("Hello")), adapter(), [judge("one")], file=file),
    ]
    assert len({each.id for each in made}) == 4


def test_a_judge_can_be_used_after_the_evaluation(file: Path) -> None:
    judge = Judge(ScriptedAdapter(lambda request: Judgement("r", True)), "It is true.")
    evaluate(CASES[:1], shop(), adapter(), [judge], file=file)
    assert judge.judge("Is it?", "It is.").passed


def test_unscored_cases_can_be_tried_again(file: Path) -> None:
    down = True

    def sometimes(request: ModelRequest) -> Any:
        if down:
            raise ConnectionError("no network")
        return play(request)

    def go(**options: Any) -> Any:
        return evaluate(CASES[:2], shop(), ScriptedAdapter(sometimes), [contains()], file=file, **options)

    assert verdicts(go()) == [("a", "unscored"), ("b", "unscored")]
    down = False
    assert verdicts(go()) == [("a", "unscored"), ("b", "unscored")]
    assert verdicts(go(again="unscored")) == [("a", "passed"), ("b", "passed")]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cases": []}, "at least one case"),
        ({"scorers": []}, "at least one scorer"),
        ({"repeats": 0}, "repeats must be a whole number, at least 1"),
        ({"tools": "mine"}, "tools must be"),
        ({"cases": [Case("a", "x"), Case("a", "y")]}, "ids must be unique, and these are not: 'a'"),
        ({"scorers": [contains(), contains()]}, "two scorers have the name 'contains'"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(options: Any, problem: str) -> None:
    given = {"cases": CASES, "scorers": [contains()], **options}
    with pytest.raises((ValueError, CaseError), match=problem):
        evaluate(given.pop("cases"), shop(), adapter(), given.pop("scorers"), **given)


def test_recorded_tools_need_recordings() -> None:
    with pytest.raises(Exception, match="has no recording"):
        evaluate(CASES, shop(), adapter(), [contains()], tools="recorded")


def test_a_call_that_waits_for_a_person_leaves_the_case_unscored() -> None:
    from weakincentives.prompt import Tool, ToolResult

    pay: Tool[None, None] = Tool(
        name="pay", description="Pay.", handler=lambda params, *, context: ToolResult("ok"), approval="call"
    )
    template = PromptTemplate(
        ns="t", key="waits", sections=[MarkdownSection(key="a", title="A", template="x", tools=[pay])]
    )
    (result,) = evaluate(
        [Case("a", "go")], template, ScriptedAdapter([call("pay"), "done"]), [contains("done")]
    ).results
    assert (result.verdict, "wait for a person's decision: pay" in result.reason) == ("unscored", True)


def test_cases_run_side_by_side_up_to_the_limit() -> None:
    import threading

    together = threading.Barrier(3, timeout=30)

    def meet(request: ModelRequest) -> str:
        together.wait()
        return "met"

    template = PromptTemplate(ns="t", key="meet", sections=[MarkdownSection(key="a", title="A", template="x")])
    cases = [Case(str(n), "go") for n in range(6)]
    found = evaluate(cases, template, ScriptedAdapter(meet), [contains("met")], limit=3)
    assert found.count("passed") == 6


KILLED = """
import sys
from tests.evals.shop import shop, play
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.evals import Case, contains, evaluate
cases = [Case(f"c{n}", f"Please refund order-{n}", expected="order") for n in range(200)]
paid = open(sys.argv[2], "a", buffering=1)
def counted(request):
    line = play(request)
    if isinstance(line, str):
        paid.write(line + chr(10))
    return line
evaluate(cases, shop(), ScriptedAdapter(counted), [contains()], file=sys.argv[1], name="killed", limit=4)
"""


@pytest.mark.slow
def test_after_kill_9_each_finished_case_is_paid_once(file: Path, tmp_path: Path) -> None:
    paid = tmp_path / "paid.txt"
    command = [sys.executable, "-c", KILLED, str(file), str(paid)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    give_up = time.monotonic() + 40
    while not (paid.exists() and paid.read_text().count("\n") >= 60):
        assert process.poll() is None
        assert time.monotonic() < give_up
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = load_evaluation(file, "killed")
    assert 50 <= len(kept.results) < 200
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)
    counts = Counter(paid.read_text().splitlines())
    again = {line for line, times in counts.items() if times > 1}
    assert len(counts) == 200
    assert max(counts.values()) <= 2
    assert len(again) <= 4
    finished = load_evaluation(file, "killed")
    assert finished.finished
    assert finished.count("passed") == 200
    assert finished.results[: len(kept.results)][0] == kept.results[0]


def test_an_adapter_is_checked() -> None:
    nobody: Any = "gpt"
    with pytest.raises(TypeError, match="adapter must be a ProviderAdapter"):
        evaluate(CASES, shop(), nobody, [contains()])
    assert issubclass(ScriptedAdapter, ProviderAdapter)


class Priced(ScriptedAdapter):
    name = "judge"


PRICES = {"scripted": Prices(1, 1), "judge-model": Prices(1_000, 1_000)}


def judge(**options: Any) -> Judge:
    return Judge(Priced(lambda request: Judgement("fine", True), model="judge-model"), "It is fine.", **options)


def test_judges_are_part_of_the_cost_and_a_kept_verdict_costs_nothing(file: Path) -> None:
    def go(**options: Any) -> Any:
        return evaluate(CASES, shop(), adapter(), [judge(name="fine")], file=file, prices=PRICES, **options)

    first = go()
    for result in first.results:
        assert result.judge_usage.total_tokens > 0
        assert result.judge_cost == pytest.approx(result.judge_usage.total_tokens / 1_000)
        assert result.cost == pytest.approx(result.judge_cost + result.run_tokens / 1_000_000)
        assert result.run_cost == pytest.approx(result.run_tokens / 1_000_000)
    assert first.cost == pytest.approx(sum(result.cost for result in first.results))
    assert f"cost ${first.cost:.4f} (judges ${first.judge_cost:.4f})" in str(first)
    assert load_evaluation(file).results == first.results
    again = go(again=True)
    assert (again.judge_cost, [result.judge_usage.total_tokens for result in again.results]) == (0.0, [0, 0, 0])


def test_a_judge_that_fails_or_is_asked_by_a_function_is_paid_for() -> None:
    def asks(run: FinishedRun) -> bool:
        return inner.judge("q", run.text).passed

    inner = judge()
    babbling = Judge(Priced(lambda request: "dunno", model="judge-model", output_retries=0), "It is true.")
    for scorer in (asks, babbling):
        (result,) = evaluate(CASES[:1], shop(), adapter(), [scorer], prices=PRICES).results
        assert result.judge_cost
        assert result.cost > result.judge_cost > 0.01


def test_a_limit_on_cost_counts_judges_and_needs_every_price(file: Path) -> None:
    options: Any = {"limit": 1, "total": Budget(max_cost=0.1)}
    found = evaluate(CASES, shop(), adapter(), [judge()], prices=PRICES, file=file, **options)
    assert (len(found.results), found.finished) == (1, False)
    with pytest.raises(UnknownPriceError, match="needs the prices of model 'judge-model', which are not listed"):
        evaluate(CASES, shop(), adapter(), [judge()], prices={"scripted": Prices(1, 1)}, **options)
    with pytest.raises(UnknownPriceError, match="needs the prices of model 'scripted'"):
        evaluate(CASES, shop(), adapter(), [contains()], **options)


def test_all_cases_that_do_not_fit_are_named_before_one_is_paid() -> None:
    asked = adapter()
    cases = [Case("a", {"text": 3}), Case("b", {"nope": 1}), Case("ok", "Please refund order-1"), Case("none")]
    with pytest.raises(CaseError) as raised:
        evaluate(cases, shop(), asked, [contains("x")])
    assert str(raised.value).splitlines() == [
        "3 of 4 cases do not fit the prompt:",
        "the params of case 'a' do not fit the prompt: $.text: expected str, got int 3",
        "case 'b': 'nope' belongs to no field of the prompt's params; there are Asked.text",
        "case 'none': No Asked was bound and it has required fields (text); give it params",
    ]
    assert not asked.requests


def test_an_imported_mapping_of_one_text_is_the_message_of_a_prompt_without_params() -> None:
    template = PromptTemplate(ns="t", key="chat", sections=[MarkdownSection(key="a", title="A", template="x")])
    echo = ScriptedAdapter(lambda request: f"You said {request.messages[-1].text}")
    case = Case("a", {"question": "one"}, expected={"answer": "said one"})
    assert evaluate([case], template, echo, [contains()]).mean == 1.0


class Hanging:
    """Never returns, until the test ends."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def __call__(self, run: FinishedRun) -> bool:
        return self.over.wait(60)


def test_a_scorer_that_hangs_leaves_the_case_unscored_when_its_time_is_over() -> None:
    hanging = Hanging()
    (result,) = evaluate(CASES[:1], shop(), adapter(), [contains(), hanging], timeout=1).results
    hanging.over.set()
    assert result.verdict == "unscored"
    assert result.reason == "Hanging: it did not end within the time that the case may take"
    assert result.scores == {"contains": 1.0}


@pytest.mark.parametrize(
    "returned", [float("nan"), float("inf"), -1, 2, None, "yes", (1, 2, 3), Score(float("nan")), Score(7)], ids=repr
)
def test_a_score_must_be_from_0_to_1(returned: Any, file: Path) -> None:
    (result,) = evaluate(CASES[:1], shop(), adapter(), [Scorer("odd", lambda run: returned)], file=file).results
    assert (result.verdict, result.score) == ("unscored", None)
    assert "must return a bool, a number from 0 to 1" in result.reason
    assert load_evaluation(file).mean is None


def test_a_scorer_may_exit_or_return_an_array_number() -> None:
    class Number:
        def item(self) -> bool:
            return True

    def exits(run: FinishedRun) -> bool:
        sys.exit(3)

    (result,) = evaluate(CASES[:1], shop(), adapter(), [exits, Scorer("number", lambda run: Number())]).results
    assert (result.scores, result.reason) == ({"number": 1.0}, "exits: SystemExit: 3")


def test_an_evaluation_that_is_running_is_not_run_twice(file: Path) -> None:
    refused: list[str] = []

    def nested(run: FinishedRun) -> bool:
        with pytest.raises(EvaluationBusyError) as raised:
            evaluate(CASES[:1], shop(), adapter(), [Scorer("nested", nested)], name="n", file=file)
        refused.append(str(raised.value))
        evaluate(CASES[:1], shop(), adapter(), [contains()], name="other", file=file)
        return True

    assert evaluate(CASES[:1], shop(), adapter(), [Scorer("nested", nested)], name="n", file=file).mean == 1.0
    assert refused == ["Evaluation 'n' is running already; wait for it, or give this one another name."]
    assert [path.name for path in file.parent.iterdir() if not path.name.startswith("runs.db-")] == ["runs.db"]


def test_results_that_cannot_be_written_stop_the_evaluation(file: Path) -> None:
    asked = adapter()

    def breaks(run: FinishedRun) -> bool:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("DROP TABLE case_results")
        return True

    with pytest.raises(RunFileError, match="Cannot write results"):
        evaluate(CASES, shop(), asked, [breaks], file=file, limit=1)
    assert len(asked.requests) == 3


def test_ids_of_any_text_are_kept_and_shown_on_one_line(file: Path) -> None:
    ids = ["a/b/../c", "\x1b[31mred\0", "日本語", " ", "two\nlines", "x" * 5_000]
    found = evaluate(
        [Case(each, "Please refund order-1") for each in ids], shop(), adapter(), [contains("order")], file=file
    )
    assert [result.case_id for result in load_evaluation(file).results] == ids == list(found.cases)
    with pytest.raises(CaseError, match="can be written as UTF-8"):
        Case("\ud800")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"repeats": 1.5}, "repeats must be a whole number, at least 1, got 1.5"),
        ({"limit": "4"}, "limit must be a whole number, at least 1, got '4'"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, got 0"),
        ({"again": "failed"}, 'again must be True, False or "unscored"'),
        ({"total": 3}, "total must be a Budget, got 3"),
        ({"name": 3}, "name must be a text, got 3"),
    ],
)
def test_options_are_checked_first(options: Any, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(problem)):
        evaluate(CASES, shop(), adapter(), [contains()], **options)
