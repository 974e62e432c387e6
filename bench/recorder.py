"""The recorder: what it costs the agent's own thread, how large a run file is, and how long reading takes."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import cpu
from bench.row import Row
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.limits import Budget
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, Tool, ToolResult
from weakincentives.redaction import NoRedaction
from weakincentives.runtime import Message, ToolInvoked
from weakincentives.session import Session
from weakincentives.telemetry import Redactor, RunStore, record
from weakincentives.telemetry.payload import Packer
from weakincentives.telemetry.runfile import Packed, RunFile

SECTIONS, TURNS, RUNS = 40, 20, 50
LONG_TURNS = 5_000
GOAL_MICROSECONDS = 30.0
GOAL_REDACTING = 3_000.0
GOAL_LONG_MS, GOAL_TURN_MS = 250.0, 10.0
GOAL_WRITING_MS = 3.0


@dataclass(frozen=True, slots=True)
class Query:
    text: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    titles: tuple[str, ...] = ()
    total: int = 0


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        plain = min(running(nullcontext())[0] for _ in range(5))
        recorded, events = min(running(record(path)) for _ in range(5))
        each = (recorded - plain) / events * 1e6
        yield Row(
            "recording a run, per event in the agent's thread",
            each,
            "µs",
            goal=GOAL_MICROSECONDS,
            note=f"{events} events",
        )
        for name, event in (
            ("a message", Message(role="user", text="What is the weather in Lisbon? " * 20)),
            ("a tool call with a mutable result", called({"titles": ["a", "b", "c"] * 10, "total": 30})),
            ("a tool call with a frozen result", called(Found(("a", "b", "c") * 10, 30))),
        ):
            yield Row(
                f"recording {name}, in the agent's thread", hearing(path, event) * 1e6, "µs", goal=GOAL_MICROSECONDS
            )
        yield from redacting()
        weighed = Path(folder) / "weighed.db"
        text = sum(len(prompt(number).render().text) for number in range(RUNS))
        for number in range(RUNS):
            with record(weighed):
                ScriptedAdapter(["Done."]).evaluate(prompt(number), session=Session())
        size = weighed.stat().st_size
        yield Row(
            f"{RUNS} renders of {SECTIONS} sections in the file",
            size / 1024,
            "KiB",
            ratio=size / text,
            ratio_goal=0.3,
            baseline="their texts",
        )
        with RunStore(path) as store:
            run = store.list_runs(1, status="ok")[0]
            yield Row(f"reading turn {run.turns} back", cpu(lambda: store.turn(run.run_id, run.turns)) * 1e3, "ms")
        yield from reading(Path(folder) / "long.db")


def redacting() -> Iterator[Row]:
    """What the writer's thread spends on finding secrets."""
    redactor = Redactor(variables={})
    page = (Path(__file__).parent.parent / "docs" / "look" / "observability.md").read_text(encoding="utf-8")
    session, events = Session(), list[Any]()
    session.observe(events.append)
    script = [call("search", text=f"number {turn}") for turn in range(TURNS)]
    ScriptedAdapter([*script, "Done."]).evaluate(prompt(1), session=session)

    def pack() -> None:
        packer = Packer(Redactor(variables={}))
        for event in events:
            packer.pack(event)

    each = cpu(pack, rounds=3) / len(events)
    yield Row("redacting and encoding an event, in the writer's thread", each * 1e6, "µs", note=f"{len(events)} events")
    yield Row("writing the whole run, in the writer's thread", writing(events) * 1e3, "ms", goal=GOAL_WRITING_MS)
    hostile = "curl -u " * 12_500
    for name, text in (("a page of documentation", page), ("100 KB that look like secrets", hostile)):
        per_kilobyte = cpu(lambda text=text: redactor.text(text), rounds=3) / (len(text) / 1000)  # type: ignore[misc]
        yield Row(f"redacting {name}, per KB", per_kilobyte * 1e6, "µs", goal=GOAL_REDACTING)


def writing(events: Sequence[Any]) -> float:
    """CPU seconds of a transaction with the encoded events of a run, and its figures."""
    packer, numbers = Packer(NoRedaction()), itertools.count()
    encoded = [(event, packer.pack(event), packer.texts) for event in events]
    with tempfile.TemporaryDirectory() as folder:
        file = RunFile(Path(folder) / "runs.db", str, None)

        def write() -> None:
            run_id = f"run-{next(numbers)}"
            file.transact(lambda file: file.write(Packed(run_id, "s", 0.0, *each, {}) for each in encoded))

        spent = cpu(write, rounds=3)
        file.close()
    return spent


def reading(path: Path) -> Iterator[Row]:
    """What reading a run costs that has called the model thousands of times."""
    script = [call("search", text="again")] * (LONG_TURNS - 2)
    adapter = ScriptedAdapter([call("read_section", section_key="s0"), *script, "Done."])
    with record(path):
        run_id = adapter.evaluate(prompt(0), session=Session(), budget=Budget(max_turns=None)).run_id
    with RunStore(path) as store:
        events = f"{store.run(run_id).events:,} events"
        history = cpu(lambda: store.history(run_id), rounds=3)
        turn = cpu(lambda: store.turn(run_id, LONG_TURNS, with_messages=False), rounds=3)
    yield Row("reading the history of a long run", history * 1e3, "ms", goal=GOAL_LONG_MS, note=events)
    yield Row(f"reading turn {LONG_TURNS:,} of it, without messages", turn * 1e3, "ms", goal=GOAL_TURN_MS)


def running(recorder: AbstractContextManager[Any]) -> tuple[float, int]:
    """CPU seconds of this thread for a run, and its number of events."""
    session, heard = Session(), [0]
    script = [call("search", text=f"number {turn}") for turn in range(TURNS - 1)]
    adapter = ScriptedAdapter([call("read_section", section_key="s0"), *script, "Done."])
    bound = prompt(0)
    with recorder:
        start = time.thread_time()
        adapter.evaluate(bound, session=session)
        spent = time.thread_time() - start
    session.observe(lambda event: heard.__setitem__(0, heard[0] + 1))
    adapter = ScriptedAdapter([call("read_section", section_key="s0"), *script, "Done."])
    adapter.evaluate(prompt(0), session=session)
    return spent, heard[0]


def hearing(path: Path, event: object) -> float:
    """CPU seconds that the recorder adds to one dispatch in the agent's thread."""
    session = Session()
    plain = cpu(lambda: session.dispatch(event), clock=time.thread_time)
    with record(path):
        return cpu(lambda: session.dispatch(event), clock=time.thread_time) - plain


def called(value: object) -> ToolInvoked:
    return ToolInvoked("search", Query("weather"), ToolResult("Found some.", value), "call_1", run_id="bench")


def prompt(closed: int) -> Prompt[None]:
    """A prompt of forty sections, one of which is summarized."""

    def search(params: Query, *, context: Any) -> ToolResult[Found]:
        return ToolResult("Found some.", Found(("one", "two"), 2))

    sections = [
        MarkdownSection(
            title=f"Section {number}",
            key=f"s{number}",
            template=f"What there is to know about {number}. " * 50,
            summary=f"About {number}.",
            visibility=SectionVisibility.SUMMARY if number == closed % SECTIONS else SectionVisibility.FULL,
            tools=[Tool[Query, Found](name="search", description="Search.", handler=search)] if number == 0 else (),
        )
        for number in range(SECTIONS)
    ]
    return Prompt(PromptTemplate(ns="bench", key="recorder", sections=sections))
