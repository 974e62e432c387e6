"""Runs inside runs, as histories, ledgers, recordings, commands and traces show them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.delegation.agents import pay, spend, template, tree
from weakincentives import (
    Approve,
    Conversation,
    MarkdownSection,
    Prompt,
    PromptEvaluationError,
    PromptTemplate,
    ScriptedAdapter,
    SectionVisibility,
    Session,
    Snapshot,
    call,
    delegate,
    run,
    tool,
)
from weakincentives.adapters import FallbackAdapter
from weakincentives.cli import main
from weakincentives.limits import Budget, TokenUsage
from weakincentives.runtime import ModelCalled, PossibleMiss, ToolInvoked, ledger, run_history
from weakincentives.telemetry import RunStore, advise, instrument, prune, record


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_each_run_counts_its_own_requests_and_says_what_its_children_used(depth: int, tmp_path: Path) -> None:
    session = Session()
    prompt, adapter = tree(depth)
    with record(tmp_path / "runs.db"):
        response = run(prompt, adapter, session=session)
    spent = {call.run_id: TokenUsage() for call in session[ModelCalled]}
    for called in session[ModelCalled]:
        spent[called.run_id] += called.usage
    ids = [f"{response.run_id}{'/call_1' * level}" for level in range(depth + 1)]
    assert response.usage == sum(spent.values(), TokenUsage())
    assert [called.turn for called in session[ModelCalled]] == [*[1] * (depth + 1), *[2] * (depth + 1)]
    assert run_history(session).run_id == response.run_id
    with RunStore(tmp_path / "runs.db") as store:
        assert [each.run_id for each in store.list_runs()] == [response.run_id]
        assert store.list_runs()[0].total_usage == response.usage
        assert store.groups()[0]["input_tokens"] == response.usage.input_tokens
        assert store.groups()[0]["runs"] == store.count_runs() == 1
        for level, run_id in enumerate(ids):
            below = ids[level + 1 :]
            inside = {below[0]: sum((spent[each] for each in below), TokenUsage())} if below else {}
            for history in (run_history(session, run_id), store.history(run_id)):
                assert [len(turn.uses) for turn in history.turns] == [1, 0]
                assert [turn.called.run_id for turn in history.turns] == [run_id] * 2
                assert history.children == inside
            assert ledger(session, run_id).sent_tokens == store.run(run_id).usage.input_tokens
            assert ledger(session, run_id).sent_tokens == spent[run_id].input_tokens
            assert store.ledger(run_id).children == inside
            assert [each.run_id for each in store.children(run_id)] == below[:1]
            assert store.run(run_id).parent_run_id == (ids[level - 1] if level else "")
            assert store.run(run_id).children.runs == len(below)
            assert store.run(run_id[: -1 if level else 8]).run_id == run_id


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A run file with two levels below one run, beside another run; and the id of the first."""
    file = tmp_path / "runs.db"
    with record(file):
        run(Prompt(template("other", spend)), ScriptedAdapter(["Nothing."]))
        response = run(*tree(2), session=Session())
    yield str(file), response.run_id


def lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(list(words)) == 0
    return capsys.readouterr().out.splitlines()


def test_commands_list_runs_and_show_those_inside_at_their_calls(
    recorded: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    file, run_id = recorded
    listed = json.loads("".join(lines(capsys, "runs", "list", file, "--json")))
    assert [(each["run_id"] == run_id, each["children"]["runs"]) for each in listed] == [(True, 2), (False, 0)]
    story = lines(capsys, "runs", "show", file, run_id[:6])
    at = story.index("tool    level1({}) -> Level 1 is done.")
    assert [line for line in story[at:] if "done" in line or "spend" in line] == [
        "tool    level1({}) -> Level 1 is done.",
        "  tool    level0({}) -> Level 0 is done.",
        '    tool    spend({"amount": 5}) -> spent 5',
        "    answer  Level 0 is done.",
        "  answer  Level 1 is done.",
        "answer  Level 2 is done.",
    ]
    assert story[-1].strip().endswith("tokens in 2 runs inside it")
    child = f"{run_id}/call_1"
    assert lines(capsys, "runs", "show", file, child)[0].startswith(f"{child}  ok")
    assert lines(capsys, "runs", "show", file, f"{child}/")[0].startswith(f"{child}/call_1  ok")
    shown = json.loads("".join(lines(capsys, "runs", "show", file, run_id, "--json")))
    assert [each["run_id"] for each in shown["child_list"]] == [child]
    exported = {json.loads(line)["run_id"] for line in lines(capsys, "runs", "export", file, run_id)}
    assert exported == {run_id, child, f"{child}/call_1"}


@pytest.mark.parametrize(("options", "left"), [({"keep": 1}, 3), ({"keep": 0}, 0), ({"older_than_days": -1}, 0)])
def test_a_run_is_pruned_with_those_inside_it(recorded: tuple[str, str], options: Any, left: int) -> None:
    prune(recorded[0], **options)
    with RunStore(recorded[0]) as store:
        assert len(store.list_runs(parent=None)) == left


def test_a_named_child_is_pruned_alone(recorded: tuple[str, str]) -> None:
    file, run_id = recorded
    assert set(prune(file, run_ids=[f"{run_id}/call_1"])) == {f"{run_id}/call_1", f"{run_id}/call_1/call_1"}
    with RunStore(file) as store:
        assert store.run(run_id).children.runs == 0


def test_a_search_finds_a_run_by_what_is_inside_it(recorded: tuple[str, str]) -> None:
    with RunStore(recorded[0]) as store:
        assert [each.run_id for each in store.list_runs(search="spent 5")] == [recorded[1]]
        assert store.count_runs("spent 5") == 1 and store.count_runs("spent 5", parent=None) == 1
        assert {prompt.prompt for prompt in advise(store).prompts} == {
            f"tests/{key}" for key in ("other", "level0", "level1", "level2")
        }


@pytest.mark.parametrize("turns", [0, 2])
def test_the_requests_of_a_fork_are_those_it_sent(turns: int, tmp_path: Path) -> None:
    forked = delegate(template("aside"), description="Think aside.", fork=True)
    before = [call("spend", amount=n) for n in range(turns)]
    adapter = ScriptedAdapter([*before, call("aside"), "An aside.", call("spend", amount=9), "Done."])
    with record(tmp_path / "runs.db"):
        response = run(Prompt(template("top", spend, forked)), adapter)
    with RunStore(tmp_path / "runs.db") as store:
        (child,) = store.children(response.run_id)
        sent = adapter.requests[turns + 1].messages
        assert [(m.role, m.text) for m in store.turn(child.run_id, 1).messages] == [(m.role, m.text) for m in sent]
        assert store.turn(child.run_id, 1).complete
        last = adapter.requests[-1].messages
        assert [m.text for m in store.turn(response.run_id, turns + 3).messages] == [m.text for m in last]
        assert len(store.message_ids(child.run_id, own=False)) == 2 * turns + 2


@pytest.mark.parametrize("depth", [1, 2])
def test_a_call_that_waits_below_is_recorded_once_and_closed_when_it_is_decided(depth: int, tmp_path: Path) -> None:
    session = Session()
    prompt, adapter = tree(depth, leaf=pay)
    with record(tmp_path / "runs.db") as recorder:
        response = run(prompt, adapter, session=session)
        recorder.flush()
        (waiting,) = response.pending
        with RunStore(tmp_path / "runs.db") as store:
            assert {each.status for each in store.list_runs(parent=None)} == {"waiting"}
            assert [call.call_id for call in store.open_calls(response.run_id)] == [waiting.call_id]
            deepest = f"{response.run_id}{'/call_1' * depth}"
            assert store.continuation(deepest) == store.continuation(response.run_id) != ""
        run(prompt, adapter, session=session, decisions={waiting.call_id: Approve()})
    with RunStore(tmp_path / "runs.db") as store:
        assert {each.status for each in store.list_runs(parent=None)} == {"ok"}
        assert store.open_calls(response.run_id) == []
        assert [each.turns for each in store.list_runs(parent=None)] == [2] * (depth + 1)


def spans_of(*, waits: bool) -> dict[str, Any]:
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    session = Session()
    prompt, adapter = tree(1, leaf=pay if waits else spend)
    with instrument(tracer_provider=tracers):
        response = run(prompt, adapter, session=session)
        if waits:
            exporter.clear()
            run(prompt, adapter, session=session, decisions={response.pending[0].call_id: Approve()})
    found = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in found}
    return {span.name: names.get(span.parent.span_id) if span.parent else None for span in found}


def test_the_span_of_a_child_is_below_that_of_its_call() -> None:
    assert spans_of(waits=False) == {
        "invoke_agent level1": None,
        "execute_tool level0": "invoke_agent level1",
        "invoke_agent level0": "execute_tool level0",
        "execute_tool spend": "invoke_agent level0",
        "chat scripted": "invoke_agent level1",
    }


def test_the_spans_of_a_child_that_goes_on_are_below_those_of_its_parent() -> None:
    assert spans_of(waits=True) == {
        "invoke_agent level1": None,
        "execute_tool level0": "invoke_agent level1",
        "invoke_agent level0": "execute_tool level0",
        "execute_tool pay": "invoke_agent level0",
        "chat scripted": "invoke_agent level1",
    }


def test_the_next_adapter_goes_on_after_a_child() -> None:
    prompt, _ = tree(1)
    broken = PromptEvaluationError("overloaded", prompt_name="x", phase="request")
    adapter = FallbackAdapter(ScriptedAdapter([call("level0"), broken]), second := ScriptedAdapter(["Done."]))
    session = Session()
    assert run(prompt, adapter, session=session).text == "Done."
    assert [m.role for m in second.requests[0].messages][-2:] == ["assistant", "tool"]
    assert len(session[ToolInvoked].where(lambda event: event.name == "level0")) == 1


@tool
def missing(amount: int) -> str:
    "Fail."
    raise ValueError("no such account")


def test_a_failed_call_before_a_child_is_still_known_at_the_end() -> None:
    """The calls of a child come in between, and do not hide it."""
    summary = "Accounts and how such an account is found."
    options: dict[str, Any] = {"summary": summary, "visibility": SectionVisibility.SUMMARY}
    closed = MarkdownSection(key="accounts", title="Accounts", template="Open an account.", **options)
    inner = ScriptedAdapter([call("spend", amount=1), "ok"])
    child = delegate(template("inner", spend), description="Go.", adapter=inner)
    section = MarkdownSection(key="task", title="Task", template="Help.", tools=[missing, child])
    template_ = PromptTemplate(ns="tests", key="top", sections=[section, closed])
    session = Session()
    run(Prompt(template_), ScriptedAdapter([call("missing", amount=1), call("inner"), "Done."]), session=session)
    assert [(miss.section_key, miss.reason) for miss in session[PossibleMiss]] == [
        ("accounts", "'missing' failed: Tool 'missing' failed: ValueError: no such account")
    ]


def test_a_child_that_failed_does_not_pass_for_its_parent() -> None:
    """A run that is stopped in a call after a child has failed: whether the call had an effect is not known."""
    broken = PromptEvaluationError("overloaded", prompt_name="x", phase="request")
    child = delegate(template("inner"), description="Go.", adapter=ScriptedAdapter([broken]))

    @tool
    def leave() -> str:
        "Leave."
        saved.append(session.snapshot().to_json())
        return "left"

    saved: list[str] = []
    session = Session()
    prompt = Prompt(template("top", child, leave))
    run(prompt, ScriptedAdapter([[call("inner"), call("leave", call_id="c2")], "Done."]), session=session)
    again = Session()
    again.restore(Snapshot.from_json(saved[0]))
    adapter = ScriptedAdapter(["Going on."])
    Conversation(prompt, adapter=adapter, session=again).send("Go on.")
    results = {m.call_id: m.text for m in adapter.requests[0].messages if m.role == "tool"}
    assert "not known" in results["c2"]


def test_the_usage_and_budget_of_a_conversation_include_children() -> None:
    prompt, adapter = tree(1)
    with Conversation(prompt, adapter=adapter, total=Budget(max_turns=4)) as chat:
        response = chat.send()
        assert chat.usage == response.usage
        with pytest.raises(PromptEvaluationError, match="max_turns"):
            chat.send("More.")
