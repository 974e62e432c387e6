"""The viewer: first paint of a long run and of a long list in a real browser, and the export of a long run."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from bench.row import Row
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.limits import Budget
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, Tool, ToolResult
from weakincentives.session import Session
from weakincentives.telemetry import RunStore, record
from weakincentives.viewer import Viewer, export_run

EVENTS, EXPORTED, RUNS = 50_000, 46_000, 10_000
GOAL_SECONDS, GOAL_EXPORT = 1.0, 20.0
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        long, exported = record_long(path, EVENTS), record_long(path, EXPORTED)
        started = time.perf_counter()
        page = export_run(path, exported)
        taken = time.perf_counter() - started
        yield Row(
            f"exporting a run of {EXPORTED:,} events", taken, "s", goal=GOAL_EXPORT, note=f"{len(page) / 1e6:.1f} MB"
        )
        many = Path(folder) / "many.db"
        record_many(many, RUNS)
        if shutil.which("chromium") is None or find_spec("playwright") is None:
            return
        yield from painting(path, f"#/run/{long}", ".message, .piece", f"first paint of a run of {EVENTS:,} events")
        yield from painting(many, "#/", ".run-row:not(.head)", f"first paint of a list of {RUNS:,} runs")


def painting(path: Path, place: str, content: str, name: str) -> Iterator[Row]:
    """From asking for the address until its content is on the screen, the best of three in fresh pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver, Viewer(path, port=0) as viewer:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        taken = []
        for _ in range(3):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            started = time.perf_counter()
            page.goto(viewer.url + place)
            page.locator(content).first.wait_for()
            taken.append(time.perf_counter() - started)
            page.close()
        browser.close()
    yield Row(name, min(taken), "s", goal=GOAL_SECONDS)


def record_long(path: Path, events: int) -> str:
    """A run that reads a section and then calls a tool until it has so many events: four for each turn."""
    script = [call("read_section", section_key="guide"), *[call("look")] * (events // 4 - 3), "Done."]
    with record(path):
        unlimited = Budget(max_turns=None)
        run_id = ScriptedAdapter(script).evaluate(prompt(), session=Session(), budget=unlimited).run_id
    return str(run_id)


def record_many(path: Path, runs: int) -> None:
    """Short runs: a few recorded, and copies of them under other ids."""
    with record(path):
        for _ in range(20):
            ScriptedAdapter([call("read_section", section_key="guide"), "Done."]).evaluate(prompt(), session=Session())
    with RunStore(path) as store:
        columns = [name for _, name, *_ in store.query("PRAGMA table_info(runs)") if name != "run_id"]
        first = store.list_runs(1)[0].run_id
    with closing(sqlite3.connect(path)) as connection, connection:
        names = ", ".join(columns)
        # Each copy is a conversation of its own, or the list would fold them into one row.
        own = {
            "conversation_id": "printf('%016x', n)",
            **{name: f"{name} - n" for name in ("started", "updated", "ended")},
        }
        copied = ", ".join(own.get(name, name) for name in columns)
        connection.execute(
            f"WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?) "
            f"INSERT INTO runs (run_id, {names}) SELECT printf('%016x', n), {copied} FROM number, runs "
            "WHERE run_id = ?",
            (runs - 20, first),
        )


def prompt() -> Prompt[None]:
    look = Tool[None, None](
        name="look", description="Look again.", handler=lambda params, *, context: ToolResult("Seen.")
    )
    sections = [
        MarkdownSection(title="Task", key="task", template="Look until you are done.", tools=[look]),
        MarkdownSection(
            title="Guide",
            key="guide",
            template="How to look, in detail. " * 40,
            summary="How to look.",
            visibility=SectionVisibility.SUMMARY,
        ),
    ]
    return Prompt(PromptTemplate(ns="bench", key="viewer", sections=sections))
