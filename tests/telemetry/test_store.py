from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.disclosure.desk import LookUp, changing, desk
from tests.telemetry.agents import FAIL, SCRIPT, prompt, run
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.errors import BudgetExceededError
from weakincentives.limits import Budget
from weakincentives.prompt import (
    CollapseSection,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    SetVisibilityOverride,
)
from weakincentives.runtime import ModelReply, ledger, run_history
from weakincentives.session import Session, Snapshot
from weakincentives.telemetry import RunNotFoundError, RunStore, Turn, record

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
GUIDE = desk().sections[3:]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def turns(path: Path, run_id: str) -> list[Turn]:
    with RunStore(path) as store:
        return [store.turn(run_id, n) for n in range(1, store.run(run_id).turns + 1)]


def test_every_request_can_be_put_together_again(path: Path) -> None:
    adapter = ScriptedAdapter(SCRIPT)
    with record(path):
        response = adapter.evaluate(prompt(), session=Session())
    for turn, request in zip(turns(path, response.run_id), adapter.requests, strict=True):
        assert turn.messages == tuple(request.messages)[: turn.called.messages] and turn.complete
        assert turn.tools == tuple(tool.name for tool in request.tools)
        assert turn.definitions == {tool.name: tool.definition for tool in request.tools}


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_restart_keeps_the_conversation(path: Path, dynamic: bool) -> None:
    response = run(*SCRIPT[1:], supports_dynamic_tools=dynamic, recorder=record(path))
    assert [turn.attempt for turn in turns(path, response.run_id)] == ([1, 1, 1] if dynamic else [1, 2, 2])
    assert [len(turn.messages) for turn in turns(path, response.run_id)] == ([1, 4, 6] if dynamic else [1, 3, 5])


def test_the_spans_of_a_turn_belong_to_its_first_message(path: Path) -> None:
    response = run("Hi.", recorder=record(path))
    (turn,) = turns(path, response.run_id)
    parts = {span.path[0]: turn.messages[0].text[span.start : span.end] for span in turn.spans}
    assert parts["intro"] == "## 1. Intro\n\nBe brief." and parts["guide"].startswith("## 2. Guide\n\nA guide.")


def test_the_tree_of_each_turn_shows_what_was_read_and_opened(path: Path) -> None:
    response = run(recorder=record(path))
    shown = [
        [(section.key, section.visibility, section.read, section.tools_offered) for section in turn.sections[1:]]
        for turn in turns(path, response.run_id)
    ]
    assert shown == [
        [("guide", SUMMARY, False, ()), ("sums", SUMMARY, False, ())],
        [("guide", SUMMARY, True, ()), ("sums", SUMMARY, False, ())],
        [("guide", SUMMARY, True, ()), ("sums", FULL, True, ("add",))],
        [("guide", SUMMARY, True, ()), ("sums", FULL, True, ("add",))],
    ]


def test_tokens_move_from_hidden_to_shown(path: Path) -> None:
    response = run(recorder=record(path))
    first, *_, last = turns(path, response.run_id)
    before, after = first.sections[2], last.sections[2]
    assert before.hidden_tokens == before.full_tokens == after.full_tokens and after.hidden_tokens == 0
    assert after.shown_tokens == before.shown_tokens + after.read_tokens + after.tool_tokens


def test_who_decided_and_why_is_told(path: Path) -> None:
    response = run(recorder=record(path))
    first, *_, last = turns(path, response.run_id)
    assert [section.decided_by for section in first.sections] == ["declared", "declared", "declared"]
    assert [section.decided_by for section in last.sections] == ["declared", "declared", "session"]


def test_a_section_that_was_closed_again_is_summarized_and_its_tools_are_gone(path: Path) -> None:
    template = PromptTemplate(ns="t", key="c", sections=prompt().template.sections, allow_collapse=True)
    script = (SCRIPT[1], call("collapse_section", section_key="sums"), "Done.")
    response = run(*script, bound=Prompt(template), recorder=record(path))
    _, opened, closed = (turn.sections[2] for turn in turns(path, response.run_id))
    assert (opened.visibility, opened.tools_offered) == (FULL, ("add",))
    # Its text still stands in the conversation.
    assert (closed.visibility, closed.read, closed.tools_offered) == (SUMMARY, True, ())


def test_a_section_inside_a_closed_one_is_hidden_until_it_opens(path: Path) -> None:
    child = MarkdownSection(title="Child", key="child", template="Inside.")
    parent = MarkdownSection(
        title="Parent", key="parent", template="Outside.", summary="Both.", visibility=SUMMARY, children=[child]
    )
    bound = Prompt(PromptTemplate(ns="t", key="n", sections=[parent]))
    response = run("Done.", bound=bound, recorder=record(path))
    (turn,) = turns(path, response.run_id)
    assert [(section.key, section.visibility) for section in turn.sections] == [
        ("parent", SUMMARY),
        ("parent.child", SectionVisibility.HIDDEN),
    ]


def test_a_turn_has_its_reply_and_what_its_tools_did(path: Path) -> None:
    response = run(recorder=record(path))
    third = turns(path, response.run_id)[2]
    assert third.reply is not None and [made.name for made in third.reply.tool_calls] == ["add"]
    assert [(invoked.name, invoked.success) for invoked in third.tool_calls] == [("add", True)]


def test_the_ledger_of_a_recorded_run_is_that_of_its_session(path: Path) -> None:
    for dynamic in (True, False):
        session = Session()
        response = run(*SCRIPT[1:], session=session, supports_dynamic_tools=dynamic, recorder=record(path))
        with RunStore(path) as store:
            assert store.ledger(response.run_id) == ledger(session)


def test_the_ledger_is_that_of_the_session_even_if_call_ids_repeat(path: Path) -> None:
    session = Session()
    first = ScriptedAdapter([call("read_section", call_id="c1", section_key="guide")])
    with record(path), pytest.raises(BudgetExceededError):
        first.evaluate(prompt(FAIL), session=session, budget=Budget(max_turns=1))
    resumed = Session()
    resumed.restore(Snapshot.from_json(session.snapshot().to_json()))
    with record(path):
        run_id = ScriptedAdapter([call("fail", call_id="c1"), "Done."]).resume(prompt(FAIL), session=resumed).run_id
    with RunStore(path) as store:
        recorded = store.ledger(run_id)
    assert recorded == ledger(resumed)
    assert [row.full_prompt_tokens is None for row in recorded.rows] == [True, False, False]
    assert [section.sent_tokens > 500 for section in recorded.sections] == [False, True, False]


@pytest.mark.parametrize("dynamic", [True, False])
def test_the_history_of_a_recorded_run_is_that_of_its_session(path: Path, dynamic: bool) -> None:
    session = Session()
    response = run(session=session, supports_dynamic_tools=dynamic, recorder=record(path))
    with RunStore(path) as store:
        recorded, live = store.history(response.run_id), run_history(session)
    for one, other in zip(recorded.turns, live.turns, strict=True):
        assert (one.called, one.state, one.injected) == (other.called, other.state, other.injected)
        assert [(use.name, use.disclosure) for use in one.uses] == [(use.name, use.disclosure) for use in other.uses]
    assert [(step.kind, step.turn, step.sections) for step in recorded.steps] == [
        (step.kind, step.turn, step.sections) for step in live.steps
    ]
    assert (recorded.renders, recorded.now, recorded.outcome) == (live.renders, live.now, live.outcome)


def test_a_strategy_of_ones_own_is_recorded_as_disclosure(path: Path) -> None:
    script = (call("look_up", words="All of orders"), call("lookup"), "Done.")
    response = run(*script, bound=Prompt(desk(disclosure=LookUp())), recorder=record(path))
    with RunStore(path) as store:
        assert store.run(response.run_id).disclosures == 1
        assert [section.opened for section in store.ledger(response.run_id).sections] == [0, 0, 1, 0, 0, 0, 0]
        assert store.query("SELECT action, section FROM disclosure ORDER BY seq LIMIT 1") == [("look_up", "orders")]
        assert [section.key for section in store.turn(response.run_id, 2).sections if section.read] == ["orders"]


def test_opening_a_child_of_a_closed_parent_shows_both(path: Path) -> None:
    opened = SetVisibilityOverride(("guide", "tone"), FULL)
    bound = Prompt(PromptTemplate(ns="t", key="t", sections=[changing(CollapseSection(("guide",)), opened), *GUIDE]))
    response = run(call("change"), "Done.", bound=bound, recorder=record(path))
    shown = {section.key: section.visibility for section in turns(path, response.run_id)[-1].sections}
    assert shown == {"task": FULL, "guide": FULL, "guide.style": FULL, "guide.tone": FULL}


def test_a_run_taken_up_from_a_snapshot_does_not_say_its_messages_twice(path: Path) -> None:
    session = Session()
    taken: list[Any] = []

    def stop(request: Any) -> Any:
        if len(request.messages) == 3:
            raise ConnectionError("gone")
        if not taken:
            taken.append(session.snapshot())
        return SCRIPT[0]

    with record(path):
        with pytest.raises(ConnectionError):
            ScriptedAdapter(stop).evaluate(prompt(), session=session)
        again = Session()
        again.restore(taken[0])
        adapter = ScriptedAdapter([SCRIPT[0], "Done."])
        response = adapter.resume(prompt(), session=again)
    last = turns(path, response.run_id)[-1]
    assert last.messages == tuple(adapter.requests[-1].messages)[:3] and last.complete


def test_events_are_read_page_by_page(path: Path) -> None:
    response = run(recorder=record(path))
    with RunStore(path) as store:
        every = list(store.all_events(response.run_id))
        assert [recorded.seq for recorded in every] == list(range(1, len(every) + 1))
        assert store.events(response.run_id, 3, 2) == tuple(every[3:5])
        assert [recorded.kind for recorded in store.events(response.run_id, kinds=["PromptRendered"])] == [
            "PromptRendered"
        ]


def test_runs_are_found_by_their_prompt_and_counted(path: Path) -> None:
    for _ in range(3):
        run("Hi.", recorder=record(path))
    with RunStore(path) as store:
        assert (store.count_runs(), store.count_runs(prompt="tests/sums"), store.count_runs(prompt="x/y")) == (3, 3, 0)
        assert len(store.list_runs(2)) == 2 and len(store.list_runs(2, 2)) == 1


def test_a_search_takes_wildcards_literally(path: Path) -> None:
    run("100% sure", recorder=record(path))
    with RunStore(path) as store:
        assert [store.count_runs(words) for words in ("100%", "1%e", "100_")] == [1, 0, 0]


def test_a_run_can_be_named_by_the_beginning_of_its_id(path: Path) -> None:
    response = run("Hi.", recorder=record(path))
    with RunStore(path) as store:
        assert store.run(response.run_id[:6]).run_id == response.run_id
        with pytest.raises(RunNotFoundError, match="no run 'zz'"):
            store.run("zz")
        with pytest.raises(RunNotFoundError, match="there is no turn 2"):
            store.turn(response.run_id, 2)


def test_a_run_that_is_under_way_can_be_read(path: Path) -> None:
    seen: list[Any] = []

    def look(request: Any) -> Any:
        recorder.flush()
        with RunStore(path) as store:
            seen.extend((summary.status, summary.turns) for summary in store.list_runs())
        return ModelReply(text="Hi.")

    with record(path) as recorder:
        ScriptedAdapter(look).evaluate(prompt(), session=Session())
    assert seen == [("running", 0)]


def test_a_file_that_may_only_be_read_can_be_read(path: Path) -> None:
    response = run(recorder=record(path))
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with RunStore(path) as store:
            assert store.turn(response.run_id, 4).complete
    finally:
        path.parent.chmod(0o755)
