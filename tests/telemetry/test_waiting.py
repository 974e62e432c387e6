"""Runs that wait for a person, as they are recorded and traced."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from weakincentives import (
    Answer,
    Approve,
    Conversation,
    Deny,
    Edit,
    MarkdownSection,
    Prompt,
    PromptEvaluationError,
    PromptTemplate,
    ScriptedAdapter,
    Session,
    ToolContext,
    call,
    delegate,
    reducer,
    run,
    tool,
)
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.runtime import CallDecided, PendingCall
from weakincentives.telemetry import RunStore, plain, record

SECRET = "sk-ant-api03-" + "a1B2" * 24


@dataclass(frozen=True)
class Paid:
    amount: int


@dataclass(frozen=True)
class Balance:
    total: int = 100

    @reducer(on=Paid)
    def pay(self, event: Paid) -> Balance:
        return replace(self, total=self.total - event.amount)


@tool(approval="effects", changes=(Filesystem, Balance))
def pay(amount: int, *, context: ToolContext) -> str:
    "Pay an amount."
    context.session.dispatch(Paid(amount))
    assert context.filesystem is not None
    context.filesystem.write("log.txt", f"paid {amount} with {SECRET}\n")
    return f"paid {amount}"


def prompt() -> Prompt[None]:
    section = MarkdownSection(key="pay", title="Pay", template="Pay bills.", tools=[pay])
    return Prompt(ns="tests", key="pay", sections=[section]).bind(resources={Filesystem: InMemoryFilesystem()})


def statuses(file: Path) -> list[str]:
    with RunStore(file) as store:
        return [each.status for each in store.list_runs(order="started")]


@pytest.mark.parametrize("decision", [Approve(), Deny("no"), Answer("later")])
def test_a_run_waits_and_then_goes_on_as_the_same_run(decision: Any, tmp_path: Path) -> None:
    file, made, session = tmp_path / "runs.db", prompt(), Session()
    adapter = ScriptedAdapter([call("pay", amount=5), "Done."])
    with record(file):
        (pending,) = run(made, adapter, session=session).pending
    assert statuses(file) == ["waiting"]
    with RunStore(file) as store:
        (waits,) = store.list_runs(status="waiting")
        assert store.pending_turn(waits.run_id) is None
        (asked,) = store.of_kinds(waits.run_id, ["PendingCall"])
        assert isinstance(asked.event, PendingCall) and asked.turn == 1
        assert "+paid 5 with [redacted]" in asked.event.text
    assert SECRET.encode() not in file.read_bytes()
    with record(file):
        response = run(made, adapter, session=session, decisions={pending.call_id: decision})
    assert (statuses(file), response.run_id) == (["ok"], waits.run_id)
    with RunStore(file) as store:
        (decided,) = store.of_kinds(waits.run_id, ["CallDecided"])
        assert isinstance(decided.event, CallDecided)
        assert (decided.event.call_id, decided.event.decision) == (pending.call_id, type(decision).__name__.lower())


def test_a_decision_that_cannot_be_taken_leaves_the_run_waiting(tmp_path: Path) -> None:
    file, made, session = tmp_path / "runs.db", prompt(), Session()
    adapter = ScriptedAdapter([call("pay", amount=5), "Done."])
    with record(file):
        (pending,) = run(made, adapter, session=session).pending
        with pytest.raises(PromptEvaluationError, match="does not fit 'pay': amount"):
            run(made, adapter, session=session, decisions={pending.call_id: Edit({"amount": "x"})})
    assert statuses(file) == ["waiting"]


def test_a_run_that_the_user_left_waiting_was_interrupted(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    adapter = ScriptedAdapter([call("pay", amount=5), "Fine.", call("pay", amount=6), "So be it."])
    with record(file):
        chat = Conversation(prompt(), adapter=adapter)
        chat.send("Pay.")
        assert chat.send("Never mind.").text == "Fine."
        (pending,) = chat.send("Pay again.").pending
        chat.send("And hello.", decisions={pending.call_id: Deny()})
    assert statuses(file) == ["interrupted", "ok", "interrupted", "ok"]


def test_a_question_is_readable_where_its_classes_are_not_known(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    with record(file):
        run(prompt(), ScriptedAdapter([call("pay", amount=5)]), session=Session())
    program = (
        "from weakincentives.runtime import PendingCall; from weakincentives.telemetry import RunStore\n"
        f"with RunStore({str(file)!r}) as store:\n"
        "    (run,) = store.list_runs(); (asked,) = store.of_kinds(run.run_id, ['PendingCall'])\n"
        "    assert isinstance(asked.event, PendingCall), asked.event\n"
        "    print(asked.event.text)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Make these changes? They were tried and taken back.\n\npay\n  amount: 5\n")
    assert "Balance\n  total: 100 -> 95\n" in done.stdout
    with RunStore(file) as store:
        (asked,) = store.of_kinds(store.list_runs()[0].run_id, ["PendingCall"])
    assert plain(asked.event)["params"] == {"amount": 5}


def test_a_span_ends_while_the_run_waits_and_the_next_one_is_linked_to_it() -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace", reason="needs OpenTelemetry")
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from weakincentives.telemetry import instrument

    exporter, provider = export.InMemorySpanExporter(), trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made, session = prompt(), Session()
    adapter = ScriptedAdapter([call("pay", amount=5), "Done."])
    with instrument(tracer_provider=provider):
        (pending,) = run(made, adapter, session=session).pending
        (waits,) = [span for span in exporter.get_finished_spans() if span.name.startswith("invoke_agent")]
        assert [event.name for event in waits.events] == ["wink.run.waiting"]
        assert waits.status.is_ok or waits.status.is_unset
        run(made, adapter, session=session, decisions={pending.call_id: Approve()})
    first, second = (span for span in exporter.get_finished_spans() if span.name.startswith("invoke_agent"))
    assert [link.context.span_id for link in second.links] == [first.context.span_id]


def test_the_open_calls_of_a_run_inside_a_call_are_those_that_still_wait(tmp_path: Path) -> None:
    file, session = tmp_path / "runs.db", Session()
    section = MarkdownSection(key="pay", title="Pay", template="Pay.", tools=[pay])
    template: PromptTemplate[None] = PromptTemplate(ns="tests", key="clerk", sections=[section])
    model = ScriptedAdapter([[call("pay", amount=5), call("pay", amount=6)], "Both done."])
    desk = MarkdownSection(
        key="desk", title="Desk", template="Ask.", tools=[delegate(template, description="A clerk.", adapter=model)]
    )
    made = Prompt(ns="tests", key="desk", sections=[desk]).bind(resources={Filesystem: InMemoryFilesystem()})
    parent = ScriptedAdapter([call("clerk"), "Done."])

    def open_ids() -> list[str]:
        with RunStore(file) as store:
            return [pending.call_id for pending in store.open_calls(response.run_id)]

    with record(file):
        response = run(made, parent, session=session)
    first, second = (each.call_id for each in response.pending)
    assert open_ids() == [first, second]
    with record(file):
        run(made, parent, session=session, decisions={second: Deny()})
    assert open_ids() == [first]
    with record(file):
        assert run(made, parent, session=session, decisions={first: Approve()}).text == "Done."
    assert open_ids() == []
