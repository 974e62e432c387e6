from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.demo.desk import template
from weakincentives.demo.questions import cases
from weakincentives.evals import Case, CaseError, ModelProposer, tune
from weakincentives.evals.proposer import Proposals
from weakincentives.evals.tuning import copied_words, half_of
from weakincentives.prompt import (
    Experiment,
    JsonPromptOverridesStore,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    SearchSections,
    SectionVisibility,
    default_tokenizer,
)
from weakincentives.runtime import run
from weakincentives.session import Session
from weakincentives.telemetry import RunStore, record

# Each section with its good summary, its text, and what people ask about it.
TOPICS = {
    "shipping": ("Delivery times, carriers and parcel costs.", "parcel courier delivery postage doorstep"),
    "refunds": ("Money back, credit and how long it takes.", "money repayment reimbursed credited bank"),
    "lamps": ("Light height, brightness and electricity.", "lamp brightness light bulb electricity"),
    "pumps": ("Noise, flow and cleaning of the pump.", "pump noise gurgling flow clogged"),
    "seeds": ("Sowing, germination and how long it takes.", "seeds sprout germinate sowing seedling"),
    "account": ("Password, sign-in and lost phones.", "password login signin phone locked"),
    "gifts": ("Vouchers and gift cards, their amounts and validity.", "voucher gift card present validity"),
    "privacy": ("Personal data, recordings and deletion.", "data privacy recording delete personal"),
}


def handbook(bad: bool = False, **options: Any) -> PromptTemplate[None]:
    sections = [
        MarkdownSection(
            key=key,
            title=f"Chapter {place}",
            template=f"{summary} This chapter is about {', '.join(words.split())}.",
            summary="About it." if bad else f"{summary} {' '.join(words.split())}",
            visibility=SectionVisibility.SUMMARY,
        )
        for place, (key, (summary, words)) in enumerate(TOPICS.items())
    ]
    return PromptTemplate(ns="tests", key="handbook", sections=sections, **options)


def questions(each: int = 12) -> list[Case]:
    found = []
    for key, (_, words) in TOPICS.items():
        known = words.split()
        for n in range(each):
            text = f"Question {n}: {known[n % 5]} and {known[(n + 2) % 5]} please?"
            found.append(Case(f"{key}-{n}", text, metadata={"sections": [key]}))
    return found


def test_bad_summaries_are_replaced_and_tested_on_cases_that_were_not_looked_at() -> None:
    found = tune(handbook(bad=True), questions(), within=2)
    assert found.adopted
    assert found.before < 0.5 < found.after
    assert found.p < 0.1
    assert found.override is not None
    assert found.override.tag == "tuned"
    assert {".".join(path) for path in found.override.summaries} == set(found.summaries)
    count = default_tokenizer().count
    assert all(count(text) <= 40 for text in found.summaries.values())
    assert found.tokens == sum(count(text) - count("About it.") for text in found.summaries.values())


def test_good_summaries_are_left_alone() -> None:
    found = tune(handbook(), questions(), within=2)
    assert (found.adopted, dict(found.summaries)) == (False, {})
    assert found.before == found.after == 1.0


def test_what_was_adopted_is_left_alone_when_tuned_again(tmp_path: Path) -> None:
    store = JsonPromptOverridesStore(tmp_path)
    prompt = Prompt(handbook(bad=True), overrides_store=store, overrides_tag="tuned")
    first = tune(prompt, questions(), within=2)
    assert first.override is not None
    store.upsert(first.override)
    again = tune(prompt, questions(), within=2)
    assert (again.adopted, dict(again.summaries), again.override) == (False, {}, None)
    assert again.before == first.after
    assert again.text.startswith("nothing to adopt: no other summary finds more")


def test_tuning_an_override_leaves_no_more_room_and_keeps_the_rest_of_it(tmp_path: Path) -> None:
    store, template = JsonPromptOverridesStore(tmp_path), handbook(bad=True)
    path, descriptor = ("lamps",), template.descriptor
    store.upsert(descriptor.new_override("mine").with_summary(path, descriptor.override_summary(path, "Lamps. " * 30)))
    prompt = Prompt(template, overrides_store=store, overrides_tag="mine")
    limits = set()

    def spy(evidence: Any) -> dict[str, str]:
        limits.add(evidence.limit)
        return {}

    found = tune(prompt, questions(), within=2, propose=spy)
    assert limits == {40}
    assert found.override is not None
    assert path in found.override.summaries
    assert found.override.tag == "tuned"


def test_a_proposer_is_asked_once_for_each_section() -> None:
    asked: list[str] = []

    def spy(evidence: Any) -> dict[str, str]:
        asked.append(evidence.section.key)
        return {}

    tune(handbook(bad=True), questions(), within=2, propose=spy)
    assert asked
    assert len(asked) == len(set(asked))


def test_the_demos_handbook_is_left_alone() -> None:
    found = tune(template(), cases())
    assert not found.adopted
    assert found.before > 0.9


def test_what_does_not_hold_on_the_held_half_is_not_adopted() -> None:
    # Which section a question needs has nothing to do with its words: of ten such sets, at most two seem to improve.
    keys, adopted = list(TOPICS), 0
    for seed in range(10):
        drawn = random.Random(seed)
        noise = [Case(case.id, case.params, metadata={"sections": [drawn.choice(keys)]}) for case in questions()]
        adopted += tune(handbook(), noise, within=1).adopted
    assert adopted <= 2


def test_few_cases_propose_without_adopting() -> None:
    found = tune(handbook(bad=True), questions(2), within=2)
    assert not found.adopted
    assert found.summaries
    assert "16 cases are too few to test on; 30 are the least" in found.reason


def test_the_outcome_counts_few_cases_and_gives_the_share_of_many() -> None:
    few, many = (tune(handbook(bad=True), questions(each), within=2).text for each in (2, 12))
    assert re.search(r"half kept for the test, \d of \d cases find the sections that they need, and \d of \d with", few)
    assert re.search(r"half kept for the test, \d+\.\d% of \d\d cases find", many)
    found = tune(handbook(), questions(1), within=8)
    assert found.text == "nothing to adopt: no other summary finds more\n8 of 8 cases find the sections that they need"


def test_sections_that_no_case_needs_or_that_have_no_summary_are_named() -> None:
    with pytest.raises(CaseError, match=r"none of 1 cases needs a section that has a summary \(they name lampz\)"):
        tune(handbook(), [Case("a", "x", metadata={"sections": ["lampz"]})])
    found = tune(handbook(), [*questions(), Case("a", "x", metadata={"sections": [["lampz", "lamps"]]})], within=2)
    assert found.unknown == ("lampz",)
    assert "the cases name sections that have no summary: lampz" in found.text


def test_the_log_keeps_what_lost() -> None:
    found = tune(handbook(bad=True), questions(), within=2)
    kept = {(each.section, each.text) for each in found.log if each.kept}
    assert kept >= set(found.summaries.items())
    assert any(not each.kept for each in found.log)


def test_held_cases_reach_no_proposer() -> None:
    seen: list[str] = []

    def spy(evidence: Any) -> dict[str, str]:
        seen.extend([*evidence.asked, *evidence.missed, *evidence.others])
        return {}

    asked = questions()
    tune(handbook(bad=True), asked, within=2, propose=spy)
    known = {case.question for case in asked if half_of(case.id) != "held"}
    assert set(seen) <= known < {case.question for case in asked}


def test_cases_of_one_group_and_equal_questions_are_in_one_half() -> None:
    def held(**given: Any) -> int:
        asked = [
            Case(str(n), **{"params": f"lamp {n}", "metadata": {"sections": ["lamps"]}, **given}) for n in range(20)
        ]
        return tune(handbook(bad=True), asked).held

    assert held(group="g") in (0, 20)
    assert held(params="Which lamp?") in (0, 20)
    assert 0 < held() < 20


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Pays the money back to the bank account of whoever asks. " * 5, "tokens; 40 are the most"),
        ("When lamp and electricity please question 2 comes up", ""),
        ("You must open this section first.", "gives orders to the model"),
        ("# Money", "headings and placeholders"),
    ],
)
def test_candidates_that_break_a_rule_are_rejected_by_name(text: str, reason: str) -> None:
    found = tune(handbook(bad=True), questions(), within=2, propose=lambda evidence: {"mine": text})
    tried = [each for each in found.log if each.by == "mine"]
    assert tried
    assert all((reason in each.reason) and (reason == "" or each.score is None) for each in tried)


def test_words_copied_from_a_case_are_rejected() -> None:
    assert (
        copied_words("It says where is my blue parcel now", ["Where is my blue parcel?"]) == "where is my blue parcel"
    )
    assert copied_words("where is my blue parcel", ["Where is my blue parcel?"], own="Where is my blue parcel") == ""
    assert copied_words("parcel, courier, delivery", ["parcel and courier and delivery"]) == ""


def test_a_search_prompt_is_ranked_as_it_searches() -> None:
    # The texts of the sections have the words, so that nothing is missed whatever the summaries say.
    found = tune(handbook(bad=True, disclosure=SearchSections()), questions(), within=2)
    assert found.before > 0.9
    assert not found.adopted


def test_a_model_adds_candidates_and_one_that_fails_adds_none() -> None:
    good = ModelProposer(ScriptedAdapter(lambda request: Proposals([_topic_of(request)] * 3)))
    found = tune(handbook(bad=True), questions(), within=2, propose=good)
    assert any(each.by == "model 1" for each in found.log)
    broken = ModelProposer(ScriptedAdapter(lambda request: "no idea", output_retries=0))
    assert tune(handbook(bad=True), questions(), within=2, propose=broken).adopted
    assert broken.failures
    for text, reason in (("", "it is empty"), ("About it.", "it is the summary that the section has")):
        same = ModelProposer(ScriptedAdapter(lambda request, text=text: Proposals([text])))
        log = tune(handbook(bad=True), questions(), within=2, propose=same).log
        assert {each.reason for each in log if each.by == "model 1"} == {reason}


def _topic_of(request: Any) -> str:
    text = request.messages[-1].text
    return next(f"{summary} {words}" for summary, words in TOPICS.values() if summary in text)


def test_a_tuned_override_applies_and_is_pinned(tmp_path: Path) -> None:
    found = tune(handbook(bad=True), questions(), within=2)
    assert found.override is not None
    store = JsonPromptOverridesStore(tmp_path)
    store.upsert(found.override)
    shown = Prompt(handbook(bad=True), overrides_store=store, overrides_tag="tuned").render().text
    assert all(text in shown for text in found.summaries.values())
    assert "About it." in Prompt(handbook(bad=True), overrides_store=store, overrides_tag="latest").render().text


def test_an_experiment_assigns_a_stable_share(tmp_path: Path) -> None:
    experiment = Experiment("summaries", 0.2, "tuned")
    assigned = {key: experiment.assign(key) for key in map(str, range(5000))}
    assert 0.18 < sum(tag == "tuned" for tag in assigned.values()) / 5000 < 0.22
    assert assigned == {key: experiment.assign(key) for key in assigned}
    other = Experiment("other", 0.2, "tuned")
    both = sum(assigned[key] == other.assign(key) == "tuned" for key in assigned)
    assert both < 300


def test_an_experiment_chooses_the_override_and_is_recorded(tmp_path: Path) -> None:
    made, store = handbook(bad=True), JsonPromptOverridesStore(tmp_path / "store")
    descriptor = made.descriptor
    changed = descriptor.override_summary(("refunds",), "Money back.")
    store.upsert(descriptor.new_override("tuned").with_summary(("refunds",), changed))
    experiment = Experiment("summaries", 0.5, "tuned")
    with record(tmp_path / "runs.db"):
        for key in map(str, range(8)):
            prompt = Prompt(made, overrides_store=store, experiment=experiment, experiment_key=key)
            assert ("Money back." in prompt.render().text) == (experiment.assign(key) == "tuned")
            run(prompt, ScriptedAdapter(["ok"]), session=Session(tags={"key": key}))
    with RunStore(tmp_path / "runs.db") as runs:
        tuned = {each.tags["key"] for each in runs.list_runs(tags={"experiment": "summaries:tuned"})}
        control = {each.tags["key"] for each in runs.list_runs(tags={"experiment": "summaries:control"})}
    assert tuned == {key for key in map(str, range(8)) if experiment.assign(key)}
    assert tuned | control == set(map(str, range(8)))


def test_an_experiment_needs_a_store_a_key_and_a_share() -> None:
    with pytest.raises(PromptValidationError, match="needs overrides_store= and experiment_key="):
        Prompt(handbook(), experiment=Experiment("a", 0.5, "t"))
    with pytest.raises(PromptValidationError, match="share from 0 to 1"):
        Experiment("a", 20, "t")
