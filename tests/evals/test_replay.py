from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.evals.shop import CALLS, CASES, Asked, Refunded, adapter, shop
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.demo.desk import template
from weakincentives.demo.questions import cases as demo_cases
from weakincentives.evals import (
    Case,
    CaseError,
    Evaluation,
    FinishedRun,
    Recording,
    cases_from_runs,
    contains,
    evaluate,
    load_cases,
    opened,
    write_cases,
)
from weakincentives.prompt import (
    JsonPromptOverridesStore,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    tool,
)
from weakincentives.runtime import Conversation, Deny, ModelRequest, ToolInvoked, delegate, run
from weakincentives.session import Session
from weakincentives.telemetry import record


class NoNetwork(socket.socket):
    def __init__(self, *_: Any, **__: Any) -> None:
        raise AssertionError("a socket was opened")


@contextmanager
def no_sockets() -> Iterator[None]:
    before = socket.socket
    socket.socket = NoNetwork  # type: ignore[misc]
    try:
        yield
    finally:
        socket.socket = before  # type: ignore[misc]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def recorded(file: Path) -> tuple[Case, ...]:
    evaluate(CASES, shop(), adapter(), [contains()], file=file, limit=1)
    return cases_from_runs(file)


def changes_hold(finished: FinishedRun) -> bool:
    """The session's event and the file of the recorded call are there."""
    (event,) = finished.session[Refunded]
    assert finished.filesystem is not None
    return str(finished.filesystem.read(f"{event.order}.txt")).count("refunded 5") == 1


def verdicts(found: Evaluation) -> list[tuple[str, str]]:
    return [(result.verdict, result.reason) for result in found.results]


def test_a_case_of_a_run_has_its_params_sections_and_recording(recorded: tuple[Case, ...]) -> None:
    assert [case.params for case in recorded] == [{"Asked": {"text": f"Please refund order-{n}"}} for n in (1, 2, 3)]
    assert recorded[0].metadata["sections"] == ["refunds"]
    recording = Recording.of(recorded[0])
    assert [(each.tool, each.arguments, each.turn, each.section) for each in recording.calls] == [
        ("refund", '{"amount": 5, "order": "order-1"}', 2, "refunds")
    ]
    assert recording.answer == "Refunded order-1 in three days."


def test_replayed_tools_do_not_run_and_their_changes_are_made_again(recorded: tuple[Case, ...], tmp_path: Path) -> None:
    write_cases(tmp_path / "cases.jsonl", recorded)
    cases, before = load_cases(tmp_path / "cases.jsonl"), CALLS.live
    found = evaluate(cases, shop(), "recorded", [contains("three days"), opened(), changes_hold], tools="recorded")
    assert verdicts(found) == [("passed", "")] * 3
    assert CALLS.live == before


def test_tokens_of_a_replay_are_those_of_the_recording(recorded: tuple[Case, ...], file: Path) -> None:
    found = evaluate(recorded, shop(), "recorded", [contains("three days")], tools="recorded")
    live = evaluate(CASES, shop(), adapter(), [contains()], file=file)
    assert [each.usage for each in found.results] == [each.usage for each in live.results]


def test_a_changed_section_is_named_as_the_divergence(recorded: tuple[Case, ...]) -> None:
    found = evaluate(recorded, shop("Refunds take four days."), "recorded", [contains("days")], tools="recorded")
    reason = "turn 2: section 'refunds' has another text than in the recording"
    assert verdicts(found) == [("diverged", reason)] * 3
    assert found.mean is None


def test_a_changed_summary_is_named_as_the_divergence(recorded: tuple[Case, ...], tmp_path: Path) -> None:
    store = JsonPromptOverridesStore(tmp_path)
    descriptor = shop().descriptor
    changed = descriptor.new_override("other")
    store.upsert(changed.with_summary(("refunds",), descriptor.override_summary(("refunds",), "Money back.")))
    prompt = Prompt(shop(), overrides_store=store, overrides_tag="other")
    found = evaluate(recorded[:1], prompt, "recorded", [contains("days")], tools="recorded")
    assert verdicts(found) == [("diverged", "turn 1: section 'refunds' has another summary than in the recording")]


def test_a_call_with_other_arguments_is_named_as_the_divergence(recorded: tuple[Case, ...]) -> None:
    script = [call("read_section", section_key="refunds"), call("refund", order="order-1", amount=9), "Done."]
    found = evaluate(recorded[:1], shop(), ScriptedAdapter(script), [contains("Done")], tools="recorded")
    reason = """turn 2, section 'refunds': refund(amount=9, order="order-1") has no recording; recorded with amount=5"""
    assert verdicts(found) == [("diverged", reason)]


def test_a_default_that_is_written_out_is_the_same_call(recorded: tuple[Case, ...]) -> None:
    script = [call("read_section", section_key="refunds"), call("refund", amount=5, order="order-1"), "Done."]
    found = evaluate(recorded[:1], shop(), ScriptedAdapter(script), [contains("Done"), changes_hold], tools="recorded")
    assert verdicts(found) == [("passed", "")]


def test_a_call_that_writes_once_more_than_recorded_diverges(recorded: tuple[Case, ...]) -> None:
    again = call("refund", order="order-1")
    script = [call("read_section", section_key="refunds"), again, again, "Done."]
    found = evaluate(recorded[:1], shop(), ScriptedAdapter(script), [contains("Done")], tools="recorded")
    assert "it was recorded 1 times, and this call is one more" in found.results[0].reason


def test_a_read_only_call_without_a_recording_may_run_live(recorded: tuple[Case, ...]) -> None:
    def script() -> ScriptedAdapter:
        return ScriptedAdapter([call("read_section", section_key="refunds"), call("look_up", order="x"), "Done."])

    strict = evaluate(recorded[:1], shop(), script(), [contains("Done")], tools="recorded")
    assert strict.results[0].verdict == "diverged"
    before = CALLS.live
    loose = evaluate(recorded[:1], shop(), script(), [contains("Done")], tools="recorded-or-read-only")
    assert verdicts(loose) == [("passed", "ran live: look_up")]
    assert CALLS.live == before + 1


def test_a_recording_of_another_format_is_refused_with_the_way_out(recorded: tuple[Case, ...]) -> None:
    case = replace(recorded[0], recording={**(recorded[0].recording or {}), "version": 2})
    refused = r"case '.*' has format 2 and this release reads 1; make the case again, or use the release that wrote it"
    with pytest.raises(CaseError, match=refused):
        evaluate([case], shop(), "recorded", [contains()], tools="recorded")


def test_another_file_in_the_way_diverges(recorded: tuple[Case, ...]) -> None:
    script = [
        call("write", path="order-1.txt", content="mine"),
        call("read_section", section_key="refunds"),
        call("refund", order="order-1"),
        "Done.",
    ]
    (case,) = recorded[:1]
    data = Recording.of(case)
    write = replace(
        data.calls[0], tool="write", arguments='{"content": "mine", "mode": "create", "path": "order-1.txt"}'
    )
    files: Any = {
        **write.files,
        "v": [{**write.files["v"][0], "v": {**write.files["v"][0]["v"], "after": {"$": "bytes", "v": "bWluZQ=="}}}],
    }
    data.calls.append(replace(write, files=files, events=[]))
    found = evaluate(
        [replace(case, recording=data.as_json())], shop(), ScriptedAdapter(script), [contains("Done")], tools="recorded"
    )
    assert found.results[0].verdict == "diverged"
    assert "the files that refund changed are not as they were" in found.results[0].reason


def test_failed_calls_fail_again(file: Path) -> None:
    @tool
    def fail(why: str) -> str:
        """Fail."""
        raise RuntimeError(why)

    section = MarkdownSection(key="a", title="A", template="x", tools=[fail])
    prompt = PromptTemplate(ns="t", key="fails", sections=[section])
    with record(file):
        run(Prompt(prompt), ScriptedAdapter([call("fail", why="broken"), "It failed."], tool_errors="tell"))
    (case,) = cases_from_runs(file)

    def failed(finished: FinishedRun) -> bool:
        (event,) = finished.session[ToolInvoked]
        return not event.success and event.text == "Tool 'fail' failed: RuntimeError: broken"

    assert verdicts(evaluate([case], prompt, "recorded", [failed], tools="recorded")) == [("passed", "")]


def test_a_file_of_more_than_a_megabyte_is_not_recorded(file: Path) -> None:
    @tool
    def build(*, context: ToolContext) -> str:
        """Build."""
        assert context.filesystem is not None
        context.filesystem.write("small.txt", "small")
        context.filesystem.write("large.txt", "x" * 1_000_001)
        return "built"

    section = MarkdownSection(key="a", title="A", template="x", tools=[build])
    prompt = PromptTemplate(ns="t", key="builds", sections=[section, VfsToolsSection()])
    with record(file):
        run(Prompt(prompt), ScriptedAdapter([call("build"), "Built."]))
    (case,) = cases_from_runs(file)
    (recorded,) = Recording.of(case).calls
    assert [change["v"]["path"] for change in recorded.files["v"]] == ["small.txt"]


def test_a_conversation_is_one_case_with_its_messages(file: Path) -> None:
    section = MarkdownSection(key="a", title="A", template="x")
    prompt = PromptTemplate(ns="t", key="chat", sections=[section])
    with record(file), Conversation(Prompt(prompt), adapter=ScriptedAdapter(["one", "two"])) as chat:
        chat.send("first")
        chat.send("second")
    (case,) = cases_from_runs(file)
    assert case.messages == ("first", "second")
    found = evaluate([case], prompt, "recorded", [lambda run: run.text == "two"], tools="recorded")
    assert verdicts(found) == [("passed", "")]


def test_runs_on_one_session_that_are_no_exchanges_are_cases_of_their_own(file: Path) -> None:
    session = Session()
    with record(file):
        for order in ("order-1", "order-2"):
            prompt = Prompt(shop()).bind(Asked(f"Please refund {order}"))
            run(prompt, adapter(), session=session)
    cases = cases_from_runs(file)
    assert [case.question for case in cases] == ["Please refund order-1", "Please refund order-2"]
    found = evaluate(cases[:1], shop(), "recorded", [contains("order-1"), changes_hold], tools="recorded")
    assert verdicts(found) == [("passed", "")]


def test_runs_of_evaluations_are_left_out_if_there_are_others(recorded: tuple[Case, ...], file: Path) -> None:
    with record(file):
        run(Prompt(shop()).bind(Asked("Please refund order-9")), adapter(), session=Session())
    assert [case.question for case in cases_from_runs(file)] == ["Please refund order-9"]
    assert [case.id for case in cases_from_runs(file, {"evaluation": "tests/shop"})] == [case.id for case in recorded]
    assert len(cases_from_runs(file, lambda summary: True)) == len(recorded) + 1


@dataclass(frozen=True, slots=True)
class Job:
    word: str


def test_runs_inside_calls_are_replayed_with_their_tools(file: Path) -> None:
    before = CALLS.live
    from tests.evals.shop import look_up

    inner = PromptTemplate(
        ns="t", key="inner", sections=[MarkdownSection[Job](key="a", title="A", template="${word}", tools=[look_up])]
    )
    helper = delegate(inner, name="helper", description="Help.")
    outer = PromptTemplate(
        ns="t", key="outer", sections=[MarkdownSection(key="a", title="A", template="x", tools=[helper])]
    )

    def script(request: ModelRequest) -> Any:
        turn = sum(message.role == "assistant" for message in request.messages)
        if request.prompt_name == "inner":
            return [call("look_up", order="7"), "It is there."][turn]
        return [call("helper", word="w"), "Done."][turn]

    with record(file):
        run(Prompt(outer), ScriptedAdapter(script))
    (case,) = cases_from_runs(file)
    assert CALLS.live == before + 1
    found = evaluate([case], outer, "recorded", [contains("Done")], tools="recorded")
    assert verdicts(found) == [("passed", "")]
    assert CALLS.live == before + 1


def test_recorded_decisions_are_made_again(file: Path) -> None:
    pay: Tool[None, None] = Tool(
        name="pay", description="Pay.", handler=lambda params, *, context: ToolResult("paid"), approval="call"
    )
    prompt = PromptTemplate(
        ns="t", key="pays", sections=[MarkdownSection(key="a", title="A", template="x", tools=[pay])]
    )
    scripted = ScriptedAdapter([call("pay"), "As you wish."])
    with record(file):
        session = Session()
        waiting = run(Prompt(prompt), scripted, session=session)
        run(Prompt(prompt), scripted, session=session, decisions={waiting.pending[0].call_id: Deny("too dear")})
    (case,) = cases_from_runs(file)
    found = evaluate([case], prompt, "recorded", [contains("As you wish")], tools="recorded")
    assert verdicts(found) == [("passed", "")]


def desk_plays(request: ModelRequest) -> Any:
    """Open the section that a question needs, look the order up if it has one, and quote the section."""
    turn = sum(message.role == "assistant" for message in request.messages)
    asked = next(message.text for message in request.messages if message.role == "user")
    (case,) = [case for case in demo_cases() if case.question in asked]
    key = case.metadata["sections"][0][0]
    if turn == 0:
        return call("read_section", section_key=key)
    if turn == 1 and case.metadata.get("tool") == "lookup_order":
        return call("lookup_order", order_number="FH-20417")
    return next(message.text for message in reversed(request.messages) if message.role == "tool")


@pytest.mark.slow
def test_the_demos_questions_replay_twice_without_a_socket_and_name_what_changed(file: Path) -> None:
    live = evaluate(demo_cases(), template(), ScriptedAdapter(desk_plays), [contains(), opened()], file=file, limit=2)
    by_run = {case.id: case.recording for case in cases_from_runs(file)}
    runs = {result.case_id: result.run_id for result in live.results}
    cases = [replace(case, recording=by_run[runs[case.id]]) for case in demo_cases()]

    def again(prompt: Any) -> Evaluation:
        with no_sockets():
            return evaluate(cases, prompt, "recorded", [contains(), opened()], tools="recorded", limit=2)

    first, second = again(template()), again(template())
    assert len(first.results) == 40
    assert [(r.verdict, r.reason) for r in first.results] == [(r.verdict, r.reason) for r in second.results]
    assert [r.verdict for r in first.results] == [r.verdict for r in live.results]
    changed = again(Prompt(_with_other_text("refunds")))
    named = {r.case_id: r.reason for r in changed.results if r.verdict == "diverged"}
    reason = "turn 2: section 'refunds' has another text than in the recording"
    assert named == dict.fromkeys(("refunds-1", "refunds-2"), reason)


def _with_other_text(key: str) -> PromptTemplate[None]:
    from weakincentives.prompt import TextSection

    before = template()
    sections = [
        TextSection(
            title=node.section.title,
            key=node.key,
            text=f"{node.section.text} More." if node.key == key else node.section.text,
            summary=node.section.summary,
            visibility=SectionVisibility.SUMMARY,
            tools=node.section.tools(),
        )
        if isinstance(node.section, TextSection)
        else node.section
        for node in before.outline.nodes
    ]
    return PromptTemplate(ns=before.ns, key=before.key, name=before.name, sections=sections, resources=before.resources)


def test_a_recording_is_read_without_the_programs_classes(file: Path, tmp_path: Path) -> None:
    evaluate(CASES[:1], shop(), adapter(), [contains()], file=file)
    target = tmp_path / "cases.jsonl"
    command = [sys.executable, "-m", "weakincentives.cli", "eval", "cases", str(file), "-o", str(target)]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    found = evaluate(load_cases(target), shop(), "recorded", [contains("three days"), changes_hold], tools="recorded")
    assert verdicts(found) == [("passed", "")]
