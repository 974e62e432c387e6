"""A run without its texts: numbers per turn, how its prompt opened, and the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weakincentives.runtime import HistoryTurn, Ledger, LedgerTurn, Message, RunHistory, Step, ledger_of
from weakincentives.telemetry import RunStore, RunSummary, plain


def overview(store: RunStore, run: RunSummary) -> dict[str, Any]:
    """What is known of a run before any of its turns is looked at."""
    history = store.history(run.run_id)
    ledger = ledger_of(history)
    outcome = history.outcome
    calls = {turn.number: turn.seq for turn in history.turns}
    return {
        "run": summary(run),
        "turns": _turns(history, ledger),
        "steps": [_step(store, run.run_id, step, calls) for step in history.openings()],
        "lanes": _lanes(history),
        "ledger": _ledger(ledger),
        "story": story(history, ledger),
        "answer": None if outcome is None else {"kind": type(outcome).__name__, **plain(outcome)},
        "pending": store.pending_turn(run.run_id) is not None,
    }


def summary(run: RunSummary) -> dict[str, Any]:
    """One line of the list of runs."""
    return {**plain(run), "duration": run.duration, "saved": run.saved}


def story(history: RunHistory, ledger: Ledger) -> str:
    """A run in one sentence: what it read, which tools that brought, whether they were called, and what it saved."""
    sections = history.turns[-1].state.sections if history.turns else history.now.sections
    steps = history.openings()
    read = {key for step in steps if step.kind == "open" and step.success for key in step.sections}
    brought = dict.fromkeys(name for step in steps if step.kind != "withdrawn" for name in step.tools)
    uses = [use for turn in history.turns for use in turn.uses if use.disclosure is None]
    called = dict.fromkeys(use.name for use in uses)
    parts = [f"read {len(read) or 'none'} of {len(sections)} sections"] if sections else []
    if brought:
        parts.append(f"got {_names(brought)}")
    if called and called.keys() == brought.keys():
        parts.append(f"called {'it' if len(called) == 1 else 'them'}")
    elif called:
        parts.append(f"called {_names(called)}")
    if failed := sum(not use.success for use in uses):
        parts.append(f"{failed} of {len(uses)} calls failed")
    if ledger.full_prompt_tokens and len(sections) > 1:
        share = round(100 * ledger.saved / ledger.full_prompt_tokens)
        parts.append(f"sent {abs(share)}% {'less' if share >= 0 else 'more'} than with everything open")
    return ", ".join(parts)


def _names(names: Iterable[str]) -> str:
    first, others = list(names)[:3], list(names)[3:]
    return ", ".join(first) + (f" and {len(others)} more" if others else "")


# What a section shows, by where the model has its content from.
SHOWS = {"prompt": "full", "conversation": "read", "summary": "summary", "never": "hidden"}


_COLUMNS: Mapping[str, Callable[[HistoryTurn, LedgerTurn], Any]] = {
    "n": lambda turn, row: turn.number,
    "time": lambda turn, row: turn.time,
    "input": lambda turn, row: row.sent_tokens,
    "cached": lambda turn, row: row.cached_tokens,
    "output": lambda turn, row: turn.called.usage.output_tokens,
    "latency": lambda turn, row: turn.called.latency,
    "stop": lambda turn, row: turn.called.stop_reason,
    "attempt": lambda turn, row: row.attempt,
    "full": lambda turn, row: row.full_prompt_tokens,
    "lost": lambda turn, row: row.cache_lost_tokens,
    "calls": lambda turn, row: len(turn.uses),
    "failed": lambda turn, row: sum(not use.success for use in turn.uses),
    "rolled_back": lambda turn, row: sum(use.rolled_back for use in turn.uses),
    "opened": lambda turn, row: sum(use.disclosure is not None for use in turn.uses),
}


def _turns(history: RunHistory, ledger: Ledger) -> dict[str, list[Any]]:
    """Numbers per turn, column by column."""
    pairs = list(zip(history.turns, ledger.rows, strict=True))
    return {name: [value(*pair) for pair in pairs] for name, value in _COLUMNS.items()}


def _step(store: RunStore, run_id: str, step: Step, calls: Mapping[int, int]) -> dict[str, Any]:
    """A step of disclosure; where the model gave no reason, with what it said in its reply."""
    found = {**plain(step), "action": step.tool or step.kind}
    if step.tool and not step.reason and step.turn in calls:
        replies = store.of_kinds(run_id, ["Message"], calls[step.turn], limit=1)
        found["said"] = replies[0].event.text if replies and isinstance(replies[0].event, Message) else ""
    return found


def _lanes(history: RunHistory) -> list[dict[str, Any]]:
    """Each section with the turns at which its state changes: full, summary, hidden, or read (its text came back)."""
    lanes: dict[str, dict[str, Any]] = {}
    before = None
    for turn in history.turns:
        if turn.state.sections is before:
            continue
        before = turn.state.sections
        for section in before:
            lane = lanes.setdefault(section.key, {"key": section.key, "title": section.title, "states": []})
            state = SHOWS[section.seen]
            if not lane["states"] or lane["states"][-1][1:] != [state, section.decided_by]:
                lane["states"].append([turn.number, state, section.decided_by])
    return list(lanes.values())


def _ledger(ledger: Ledger) -> dict[str, Any]:
    return {
        "sent": ledger.sent_tokens,
        "full": ledger.full_prompt_tokens,
        "cached": ledger.cached_tokens,
        "saved": ledger.saved,
        "lost": ledger.cache_lost_tokens,
        "lost_by_route": ledger.cache_lost_by_route,
        "restarts": ledger.restarts,
        "sections": [{**plain(section), "saved": section.saved} for section in ledger.sections],
    }
