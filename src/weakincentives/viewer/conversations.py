"""Conversations as JSON documents: where a run stands in its conversation, and the conversation as a chat."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from weakincentives.runtime import Compacted, Rewound, RunEnded
from weakincentives.telemetry import RunStore, RunSummary, plain

PAGE = 50
# Runs of their own in a conversation, oldest first; those inside a call are no exchanges.
_EXCHANGES = "FROM runs WHERE conversation_id = ? AND parent_run_id = '' ORDER BY started, run_id"


def place(store: RunStore, run: RunSummary) -> dict[str, Any] | None:
    """The place of a run in its conversation, with its neighbours; None for a run of its own."""
    if not run.conversation_id or run.parent_run_id:
        return None
    runs = [run_id for (run_id,) in store.salvage(f"SELECT run_id {_EXCHANGES}", (run.conversation_id,))]
    if len(runs) < 2 and (not runs or origin(store, run.conversation_id) is None):
        return None
    at = runs.index(run.run_id)
    return {
        "id": run.conversation_id,
        "at": at + 1,
        "of": len(runs),
        "previous": runs[at - 1] if at else "",
        "next": runs[at + 1] if at + 1 < len(runs) else "",
    }


def exchange_counts(store: RunStore, names: Collection[str]) -> dict[str, dict[str, int]]:
    """How many exchanges conversations have, and how many of them failed, for those with more than one."""
    rows = store.salvage(
        f"SELECT conversation_id, count(*), sum(status = 'failed') FROM runs WHERE conversation_id IN "
        f"({', '.join('?' * len(names))}) AND parent_run_id = '' GROUP BY conversation_id HAVING count(*) > 1",
        list(names),
    )
    return {name: {"of": many, "failed": failed} for name, many, failed in rows}


def user_messages(store: RunStore, runs: Sequence[str]) -> list[int]:
    """The positions in the file of what users said in these runs."""
    rows = store.salvage(
        f"SELECT id FROM events INDEXED BY events_by_kind WHERE run_id IN ({', '.join('?' * len(runs))}) "
        "AND kind = 'Message' AND json_valid(payload) AND payload ->> '$.v.role' = 'user' "
        "AND coalesce(payload ->> '$.v.kind', '') = '' ORDER BY id",
        list(runs),
    )
    return [number for (number,) in rows]


def exchange_facts(store: RunStore, runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each run its answer, what shortened the conversation, and from which turn on it was undone."""
    found: dict[str, dict[str, Any]] = {
        run_id: {"answer": "", "output": None, "compacted": [], "undone_from": None} for run_id in runs
    }
    undone: dict[str, list[int]] = {run_id: [] for run_id in runs}
    kinds = ("RunEnded", "Compacted", "Rewound")
    where = f"run_id IN ({', '.join('?' * len(runs))}) AND kind IN (?, ?, ?)"
    for recorded in store.events_where(where, (*runs, *kinds), index="events_by_kind"):
        event, about = recorded.event, found[recorded.run_id]
        if isinstance(event, RunEnded):
            about |= {"answer": event.text, "output": plain(event.output)}
        elif isinstance(event, Compacted):
            about["compacted"].append({"turn": recorded.turn, "text": str(event)})
        elif isinstance(event, Rewound):
            undone[recorded.run_id] += [event.turn] if event.back else []
            if not event.back:
                del undone[recorded.run_id][-1:]
    for run_id, turns in undone.items():
        found[run_id]["undone_from"] = min(turns, default=None)
    return found


def origin(store: RunStore, name: str) -> dict[str, Any] | None:
    """The exchange of another conversation from which this one was forked."""
    rows = store.salvage(
        "SELECT earlier.conversation_id, earlier.run_id, earlier.question FROM events JOIN runs AS earlier "
        "ON earlier.run_id = payload ->> '$.v.continues' "
        f"WHERE events.run_id = (SELECT run_id {_EXCHANGES} LIMIT 1) AND kind = 'PromptRendered' "
        "AND json_valid(payload) AND earlier.conversation_id <> ? LIMIT 1",
        (name, name),
    )
    return dict(zip(("conversation_id", "run_id", "question"), rows[0], strict=True)) if rows else None


def forks(store: RunStore, name: str, runs: Sequence[str]) -> list[dict[str, Any]]:
    """The conversations that go on from one of these runs."""
    rows = store.salvage(
        "SELECT r.conversation_id, payload ->> '$.v.continues' AS after, min(r.question) FROM runs AS r "
        "JOIN events ON events.run_id = r.run_id AND kind = 'PromptRendered' AND json_valid(payload) "
        f"WHERE r.conversation_id <> ? AND r.parent_run_id = '' AND after IN ({', '.join('?' * len(runs))}) "
        "GROUP BY r.conversation_id, after ORDER BY min(r.started)",
        (name, *runs),
    )
    return [{"conversation_id": other, "after": after, "question": question} for other, after, question in rows]
