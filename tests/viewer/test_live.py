"""A run that is watched while it happens, and one too long to be shown at once."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from scripts.viewer_runs import investigate, on_call_template
from weakincentives import Prompt, Session
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.clock import FakeClock
from weakincentives.telemetry import RunStore, record
from weakincentives.viewer import Viewer

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'weakincentives[test-full]'"
)
expect = playwright.expect


def test_a_run_is_followed_while_it_happens(open_page: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    says: Queue[Any] = Queue()
    with record(path), Viewer(path, port=0) as viewer:
        page = open_page(viewer.url)
        expect(page.locator(".empty")).to_contain_text("Nothing is recorded yet")
        agent = threading.Thread(
            target=lambda: ScriptedAdapter(lambda request: says.get(timeout=20)).evaluate(
                Prompt(on_call_template()), session=Session(clock=FakeClock())
            )
        )
        agent.start()
        page.locator(".run-row:not(.head) a").click()
        expect(page.locator(".title .pill")).to_have_text("running")
        expect(page.locator(".outcome")).to_contain_text("The model has this request")
        expect(page.locator('.piece[data-section="role"]')).to_contain_text("You are on call")
        expect(page.locator(".facts")).to_contain_text(re.compile(r"Takes\s*[1-9]\d*(\.\d)? s"))
        says.put(call("read_section", section_key="logs"))
        expect(page.locator(".call")).to_contain_text("read_section")
        says.put(call("search_logs", service="checkout", pattern="ERROR"))
        expect(page.get_by_label("Turn", exact=True)).to_have_value("2")
        expect(page.locator(".call")).to_contain_text("search_logs")
        expect(page.locator('.node[data-section="logs"]')).to_contain_text("Logs")
        says.put('{"cause": "a", "action": "b", "customer_impact": "c", "follow_up": []}')
        expect(page.locator(".title .pill")).to_have_text("answered")
        expect(page.get_by_label("Turn", exact=True)).to_have_value("3")
        expect(page.locator(".ended")).to_contain_text("Answer")
        agent.join()
        page.close()


def test_fifty_thousand_events_are_shown_a_window_at_a_time(open_page: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    investigate(path)
    run_id = prolong(path, 50_000)
    with Viewer(path, port=0) as viewer:
        page = open_page(f"{viewer.url}#/run/{run_id}/events")
        expect(page.locator(".event-row").nth(1)).to_contain_text("PromptRendered")
        assert page.locator(".event-row").count() < 120
        page.locator(".rows").evaluate("box => box.scrollTo(0, box.scrollHeight)")
        expect(page.locator(".event-row").last).to_contain_text("50000")
        page.goto(f"{viewer.url}#/run/{run_id}/turn/9000")
        expect(page.locator(".scrubber")).to_contain_text("of 12,")
        page.get_by_role("tab", name="Conversation").click()
        expect(page.locator(".message")).to_have_count(12)
        page.locator(".more.wide").click()
        expect(page.locator(".message")).to_have_count(62)
        assert page.locator(".turns .turn").count() < 400
        page.keyboard.press("3")
        expect(page.locator(".chart .stroke")).to_have_count(3)
        page.close()


def prolong(path: Path, events: int) -> str:
    """Repeat one turn of the recorded run until it has so many events."""
    with RunStore(path) as store:
        run = store.list_runs()[0]
        first = store.query("SELECT min(seq) FROM events WHERE kind = 'ModelCalled' AND turn = 2")[0][0]
    with sqlite3.connect(path) as connection:
        connection.execute(
            """
            WITH RECURSIVE number(n) AS (SELECT ? UNION ALL SELECT n + 1 FROM number WHERE n < ?)
            INSERT INTO events (run_id, seq, session_id, turn, kind, time, payload)
            SELECT run_id, n, session_id, 10 + (n - ?) / 4, kind, time, CASE kind WHEN 'ModelCalled'
                   THEN json_set(payload, '$.v.messages', 23 + (n - ?) / 4 * 2) ELSE payload END
              FROM number JOIN events ON seq = ? + (n - ?) % 4
            """,
            (run.events + 1, events, run.events + 1, run.events + 1, first, run.events + 1),
        )
        turns = connection.execute("SELECT max(turn) FROM events").fetchone()[0]
        connection.execute("UPDATE runs SET events = ?, turns = ?", (events, turns))
    connection.close()
    return run.run_id
