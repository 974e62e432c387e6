from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Wink

AGENT = """
from dataclasses import dataclass
from weakincentives import MarkdownSection, PromptTemplate, ScriptedAdapter, SectionVisibility, call
from weakincentives.evals import Judgement, Preference

@dataclass(frozen=True)
class Asked:
    text: str

def make(answer):
    def play(request):
        turn = sum(message.role == "assistant" for message in request.messages)
        return [call("read_section", section_key="fees"), answer][turn]
    return lambda: ScriptedAdapter(play, model=answer)

good, poor = make("The fee is 5 euros."), make("I do not know.")
lines = make("# Fees\\n\\nIt is 5 euros.")
pairs = lambda: ScriptedAdapter(lambda request: Preference("r", "first"))
quoted = '{"reason": "r", "passed": false} but {"reason": "r", "passed": true}'
quoting = lambda: ScriptedAdapter(lambda request: quoted)
judge = lambda: ScriptedAdapter(lambda request: Judgement("r", "euros" in request.messages[-1].text))

template = PromptTemplate(ns="shop", key="desk", sections=[
    MarkdownSection(key="fees", title="Fees", template="The fee is 5 euros.", summary="What it costs.",
                    visibility=SectionVisibility.SUMMARY),
    MarkdownSection[Asked](key="question", title="Question", template="${text}", role="user"),
])

def broken(run):
    raise ValueError("first\\nsecond")

def thrice(run):
    return len(run.text) > 3
"""
CASES = [
    {"id": "one", "input": "How much?", "expected": "5 euros", "sections": ["fees"]},
    {"id": "two", "input": "What does it cost?", "expected": "5 euros", "sections": ["fees"]},
]


@pytest.fixture
def shop(wink: Wink) -> Wink:
    (wink.folder / "shop.py").write_text(AGENT, encoding="utf-8")
    misfits = '{"id": "a", "input": {"txt": "x"}, "expected": "x"}\n{"id": "b", "input": {"text": 3}}\n'
    (wink.folder / "misfits.jsonl").write_text(misfits, encoding="utf-8")
    (wink.folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in CASES), encoding="utf-8")
    return wink


def run(shop: Wink, adapter: str, *more: str) -> Any:
    return shop("eval", "run", "cases.jsonl", "shop:template", "-a", f"shop:{adapter}", *more)


def test_run_prints_a_table_and_lines_and_exits_by_the_verdicts(shop: Wink) -> None:
    done = run(shop, "good")
    assert (done.returncode, "shop/desk: 2 passed, mean 1.00" in done.stdout) == (0, True)
    assert "1/2" in done.stderr
    assert "one" in done.stdout
    failed = run(shop, "poor", "--name", "poor")
    assert failed.returncode == 1
    assert "contains: missing: 5 euros" in failed.stdout


def test_an_evaluation_that_has_all_its_results_says_that_nothing_was_run(shop: Wink) -> None:
    assert "no case was run" not in run(shop, "good").stderr
    assert run(shop, "good").stderr == (
        "no case was run: 'shop/desk' has all of them already; --again runs them again\n"
    )
    assert "no case was run" not in run(shop, "good", "--again").stderr


def test_answers_of_several_lines_stand_on_one(shop: Wink) -> None:
    done = run(shop, "lines", "--scorer", "shop:broken")
    assert "unscored: broken: ValueError: first second" in done.stderr
    assert "broken: ValueError: first second" in done.stdout
    assert "# Fees It is 5 euros." in run(shop, "lines").stdout


def test_compare_and_show_read_the_run_file(shop: Wink) -> None:
    run(shop, "good", "--name", "a")
    run(shop, "poor", "--name", "b")
    worse = shop("eval", "compare", "a", "b")
    assert worse.returncode == 1
    assert "2 cases, 2 differ: 0 won, 2 lost, 0 tied." in worse.stdout
    assert shop("eval", "compare", "b", "a").returncode == 0
    facts = json.loads(shop("eval", "compare", "a", "b", "--json").stdout)
    assert (facts["losses"], facts["regressed"]) == (2, ["one", "two"])
    listed = shop("eval", "show").stdout
    assert listed.index("\n") < listed.index(" b ") < listed.index(" a ")
    assert json.loads(shop("eval", "show", "a", "--json").stdout)["mean"] == 1.0
    assert shop("eval", "show", "nobody").returncode == 2


def test_pairs_are_judged_on_request(shop: Wink) -> None:
    run(shop, "good", "--name", "a")
    run(shop, "poor", "--name", "b")
    done = shop("eval", "compare", "a", "b", "--judge", "It names a price.", "-a", "shop:pairs")
    assert "judged in pairs: 0 better, 0 worse, 2 tied (2 by a flip)" in done.stdout


def test_recorded_runs_become_cases_that_replay(shop: Wink) -> None:
    run(shop, "good")
    made = shop("eval", "cases", "-o", "recorded.jsonl")
    assert "2 cases in recorded.jsonl" in made.stderr
    again = shop("eval", "run", "recorded.jsonl", "shop:template", "-a", "recorded", "--scorer", "contains=5 euros")
    assert (again.returncode, "2 passed" in again.stdout) == (0, True)
    assert shop("eval", "cases", "--where", "case=one").stdout.count("\n") == 1
    samples = shop("eval", "cases", "--from", "cases.jsonl", "--inspect").stdout.splitlines()
    assert json.loads(samples[0]) == {
        "id": "one",
        "input": "How much?",
        "target": "5 euros",
        "metadata": {"sections": ["fees"]},
    }


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["missing.jsonl", "shop:template"], "there is no file 'missing.jsonl'"),
        (["cases.jsonl", "shop:nothing"], "has no 'nothing'"),
        (["cases.jsonl", "shop:template", "--scorer", "polite"], "no scorer 'polite'"),
        (["cases.jsonl", "shop:template", "--scorer", "called"], "needs a value, as in called=TOOL"),
        (["cases.jsonl", "shop:template", "--scorer", "shop:template"], "a scorer is a function of the finished run"),
        (["cases.jsonl", "shop:template", "--timeout", "0"], "must be between 0.001 and"),
        (["cases.jsonl", "shop:template", "--scorer", "max_calls=x"], "'x' must be a number"),
        (["shop:answer", "shop:template"], "has no 'answer'"),
        (["cases.jsonl", "shop:template", "--max-cost", "1"], "prices of model 'The fee is 5 euros.' are not listed"),
        (["misfits.jsonl", "shop:template"], "2 of 2 cases do not fit the prompt"),
    ],
)
def test_mistakes_are_usage_errors(shop: Wink, words: list[str], problem: str) -> None:
    done = shop("eval", "run", *words, "-a", "shop:good")
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


def test_scorers_are_named_or_ones_own(shop: Wink) -> None:
    scorers = ["contains=fee", "opened=fees", "max_calls=0", "max_tokens=9000", "shop:thrice"]
    done = run(shop, "good", *(word for scorer in scorers for word in ("--scorer", scorer)), "--json")
    assert done.returncode == 0
    assert set(json.loads(done.stdout)["results"][0]["scores"]) == {
        "contains(fee)",
        "opened(fees)",
        "max_calls(0)",
        "max_tokens(9000)",
        "thrice",
    }


def test_a_judge_is_compared_with_labels(shop: Wink) -> None:
    run(shop, "good")
    shop("eval", "cases", "-o", "recorded.jsonl")
    ids = [json.loads(line)["id"] for line in (shop.folder / "recorded.jsonl").read_text().splitlines()]
    (shop.folder / "labels.csv").write_text(f"id,passed\n{ids[0]},yes\n{ids[1]},no\nx,no\n", encoding="utf-8")
    words = [
        "eval",
        "judge",
        "recorded.jsonl",
        "--labels",
        "labels.csv",
        "--criterion",
        "It names a price.",
        "-a",
        "shop:judge",
    ]
    found = json.loads(shop(*words, "--json").stdout)
    assert (found["labelled"], found["kappa"], found["sensitivity"], found["specificity"], found["flips"]) == (
        2,
        0.0,
        1.0,
        0.0,
        0,
    )
    printed = shop(*words)
    assert "2 labels, 0 not judged\nkappa: 0.00" in printed.stdout
    assert "note: 1 label without a case: x" in printed.stderr
    quoting = shop(*words[:-1], "shop:quoting", "--criterion", "It quotes.")
    assert (quoting.returncode, "2 labels, 2 not judged" in quoting.stdout) == (0, True)


def test_tune_stores_an_override_and_a_log(shop: Wink) -> None:
    topics = {"lamps": "lamp bulb light", "pumps": "pump noise flow", "seeds": "seed sprout sow"}
    sections = "".join(
        f'MarkdownSection(key="{key}", title="T{n}", template="{words}", summary="About it.", visibility=SUMMARY), '
        for n, (key, words) in enumerate(topics.items())
    )
    (shop.folder / "book.py").write_text(
        "from weakincentives import MarkdownSection, PromptTemplate, SectionVisibility\n"
        "SUMMARY = SectionVisibility.SUMMARY\n"
        f'template = PromptTemplate(ns="t", key="book", sections=[{sections}])\n',
        encoding="utf-8",
    )
    asked = [
        {"id": f"{key}{n}", "input": f"{n} {words.split()[n % 3]}?", "sections": [key]}
        for key, words in topics.items()
        for n in range(14)
    ]
    (shop.folder / "asked.jsonl").write_text("".join(json.dumps(case) + "\n" for case in asked), encoding="utf-8")
    words = ["tune", "book:template", "asked.jsonl", "--within", "1"]
    proposed = shop(*words, "--propose")
    assert (proposed.returncode, "nothing was stored" in proposed.stdout) == (0, True)
    done = shop(*words, "--tag", "better")
    assert done.returncode == 0, done.stdout
    assert "stored with the tag 'better'" in done.stdout
    assert "lamp" in shop("render", "book:template", "--tag", "better").stdout
    assert (shop.folder / ".wink" / "tuning.jsonl").read_text().count("\n") > 3
    again = shop(*words, "--tag", "better")
    assert (again.returncode, "nothing to adopt" in again.stdout) == (0, True), again.stdout
    assert "lamp" in shop("render", "book:template", "--tag", "better").stdout


def test_cases_may_come_from_a_module(shop: Wink) -> None:
    (shop.folder / "mine.py").write_text(
        "from weakincentives.evals import Case\ncases = [Case('a', 'How much?', expected='5')]\n", encoding="utf-8"
    )
    done = shop("eval", "run", "mine:cases", "shop:template", "-a", "shop:good")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True)
    assert Path(shop.folder / ".wink" / "runs.db").exists()


def test_a_judge_of_the_same_family_and_an_evaluation_that_is_not_continued_are_noted(shop: Wink) -> None:
    more = """
from weakincentives.evals import Judge
gpt = lambda: ScriptedAdapter(lambda request: "5 euros", model="gpt-5.6")
fine = Judge(ScriptedAdapter(lambda request: Judgement("r", True), model="gpt-5.6"), "It is fine.")
"""
    (shop.folder / "shop.py").write_text(AGENT + more, encoding="utf-8")
    done = run(shop, "gpt", "--scorer", "shop:fine", "--max-cost", "0.0001", "--limit", "1")
    assert "note: the judge 'gpt-5.6' is of the same family as 'gpt-5.6'" in done.stderr
    assert "1 case not run: the limit was reached" in done.stderr
    assert ".py:" not in done.stderr
    again = run(shop, "gpt", "--scorer", "contains")
    assert "note: an earlier 'shop/desk' was not finished and not continued" in again.stderr
