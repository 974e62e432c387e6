"""A run without its texts: numbers per turn, how its prompt opened, and the ledger."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from weakincentives.prompt.disclosure.strategy import RESERVED_NAMES
from weakincentives.runtime.ledger import Ledger
from weakincentives.telemetry import RecordedEvent, RunStore, RunSummary
from weakincentives.telemetry.plain import plain
from weakincentives.viewer import timeline
from weakincentives.viewer.pending import pending_turn


def overview(store: RunStore, run: RunSummary) -> dict[str, Any]:
    """What is known of a run before any of its turns is looked at."""
    events = _disclosure(store, run.run_id)
    book = store.ledger(run.run_id)
    steps = timeline.steps(events)
    _add_words(store, run.run_id, steps)
    return {
        "run": summary(run),
        "turns": _turns(store, run.run_id, book),
        "steps": steps,
        "lanes": timeline.lanes(events),
        "ledger": _ledger(book),
        "answer": _answer(store, run.run_id),
        "pending": pending_turn(store, run) is not None,
    }


def summary(run: RunSummary) -> dict[str, Any]:
    """One line of the list of runs."""
    return {**plain(run), "duration": run.duration}


def _disclosure(store: RunStore, run_id: str) -> list[RecordedEvent]:
    """What changed the tree, and after each change the call of the model that first had it."""
    changes = timeline.changes(store, run_id)
    calls: list[int] = []
    for change in changes:
        if not calls or calls[-1] < change.seq:
            ((seq,),) = store.query(
                "SELECT min(seq) FROM events WHERE run_id = ? AND kind = 'ModelCalled' AND seq > ?",
                (run_id, change.seq),
            )
            if seq is None:
                break
            calls.append(seq)
    marks = ", ".join(map(str, calls))
    called = store.events_where(f"run_id = ? AND seq IN ({marks})", (run_id,))
    return sorted([*changes, *called], key=attrgetter("seq"))


def _add_words(store: RunStore, run_id: str, steps: list[dict[str, Any]]) -> None:
    """What the model said when it opened something, where it gave no reason."""
    for step in steps:
        if not step["reason"] and step["action"] in RESERVED_NAMES:
            found = store.events_where(
                "run_id = ? AND seq = (SELECT min(seq) FROM events WHERE run_id = ? AND kind = 'Message' AND seq > "
                "(SELECT max(seq) FROM events WHERE run_id = ? AND kind = 'ModelCalled' AND seq < ?))",
                (run_id, run_id, run_id, step["seq"]),
            )
            step["said"] = found[0].event.text if found else ""


def _turns(store: RunStore, run_id: str, book: Ledger) -> dict[str, list[Any]]:
    """Numbers per turn, column by column."""
    rows = store.query(
        "SELECT turn, time, input_tokens, cached_tokens, output_tokens, latency, stop_reason FROM tokens "
        "WHERE run_id = ? ORDER BY seq",
        (run_id,),
    )
    # Of a run that goes on, the ledger and the rows may have been read at different moments.
    rows = rows[: len(book.rows)]
    names = ("n", "time", "input", "cached", "output", "latency", "stop")
    columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
    columns["attempt"] = [row.attempt for row in book.rows]
    columns["full"] = [row.full_prompt_tokens for row in book.rows]
    columns["lost"] = [row.cache_lost_tokens for row in book.rows]
    counts = {
        turn: values
        for turn, *values in store.query(
            "SELECT turn, count(*), sum(payload ->> '$.v.result.v.success' = 0), "
            "sum(payload ->> '$.v.rolled_back'), sum(payload -> '$.v.result.v.disclosure' <> 'null') "
            "FROM events WHERE run_id = ? AND kind = 'ToolInvoked' GROUP BY turn",
            (run_id,),
        )
    }
    for index, name in enumerate(("calls", "failed", "rolled_back", "opened")):
        columns[name] = [counts.get(n, (0, 0, 0, 0))[index] or 0 for n in columns["n"]]
    return columns


def _answer(store: RunStore, run_id: str) -> dict[str, Any] | None:
    kinds = ("PromptExecuted", "EvaluationFailed")
    found = list(store.all_events(run_id, kinds=kinds))[-1:]
    return {"kind": found[0].kind, **plain(found[0].event)} if found else None


def _ledger(book: Ledger) -> dict[str, Any]:
    return {
        "sent": book.sent_tokens,
        "full": book.full_prompt_tokens,
        "cached": book.cached_tokens,
        "saved": book.saved,
        "lost": book.cache_lost_tokens,
        "lost_by_route": book.cache_lost_by_route,
        "restarts": book.restarts,
        "sections": [{**plain(section), "saved": section.saved} for section in book.sections],
    }
