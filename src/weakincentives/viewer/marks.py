"""Marks on a run's time line besides its turns, and the events that no longer count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weakincentives.runtime import CallDecided, Compacted, Message, PendingCall, Rewound, RunHistory
from weakincentives.session import LogEntry
from weakincentives.telemetry import RecordedEvent, RunStore, RunSummary

_KINDS = ("Compacted", "Rewound", "PendingCall", "CallDecided")


def marks(store: RunStore, history: RunHistory) -> list[dict[str, Any]]:
    """Compactions, rewinds, questions to a person, their answers, and runs inside calls, in order of their turns."""
    run_id = history.run_id
    found: list[dict[str, Any]] = [
        {"kind": "inside", "turn": turn.number, "seq": use.seq, "text": f"{use.name} made a run of its own"}
        for turn in (history.turns if history.children else ())
        for use in turn.uses
        if f"{run_id}/{use.call_id}" in history.children
    ]
    asked: dict[str, str] = {}
    for recorded in store.of_kinds(run_id, _KINDS):
        match event := recorded.event:
            case Compacted():
                kind, text = "compacted", str(event)
            case Rewound():
                kind, text = ("rewound" if event.back else "restored"), _rewound(event)
            case PendingCall():
                asked[event.call_id] = event.tool
                kind, text = "asked", f"Asked a person about {event.tool}"
            case CallDecided():
                by = f" by {event.by}" if event.by else ""
                kind, text = "decided", f"{_DECISIONS.get(event.decision, event.decision)}{by}"
                text = f"{asked.get(event.call_id, 'The call')}: {text}"
            case _:
                continue
        found.append({"kind": kind, "turn": recorded.turn, "seq": recorded.seq, "text": text})
    return sorted(found, key=lambda mark: mark["seq"])


def shortened_before(store: RunStore, run: RunSummary) -> str:
    """The last compaction in the exchanges of a conversation before this one."""
    if not run.conversation_id:
        return ""
    rows = store.salvage(
        "SELECT events.run_id, events.seq FROM runs JOIN events ON events.run_id = runs.run_id AND kind = 'Compacted' "
        "WHERE runs.conversation_id = ? AND runs.run_id <> ? AND runs.parent_run_id = '' AND runs.started < ? "
        "ORDER BY events.id DESC LIMIT 1",
        (run.conversation_id, run.run_id, run.started),
    )
    found = [each.event for run_id, seq in rows for each in store.numbered(run_id, [seq])]
    return "".join(str(event) for event in found if isinstance(event, Compacted))


_DECISIONS = {"approve": "approved", "deny": "denied", "edit": "edited", "answer": "answered", "undecided": "left open"}


def _rewound(event: Rewound) -> str:
    where = f"turn {event.turn}" if event.turn else "its message"
    if event.back:
        return f"The conversation went back to before {where}"
    return f"Going back to before {where} was undone"


def undone_events(store: RunStore, run_id: str) -> Callable[[RecordedEvent], str]:
    """Says of an event why it no longer counts, "" if it does: its call was rolled back, or the turn was undone."""
    spans: list[tuple[int, int]] = []
    for (seq,) in store.salvage(
        "SELECT seq FROM events INDEXED BY events_by_kind WHERE run_id = ? AND kind = 'ToolInvoked' "
        "AND instr(payload, '\"rolled_back\":true') ORDER BY seq",
        (run_id,),
    ):
        ((start,),) = store.salvage(
            "SELECT coalesce(max(seq), 0) FROM events WHERE run_id = ? AND seq < ? "
            "AND kind IN ('ToolInvoked', 'ModelCalled', 'PromptRendered')",
            (run_id, seq),
        ) or [(0,)]
        spans.append((start, seq))
    back = [each.event for each in store.of_kinds(run_id, ["Rewound"]) if isinstance(each.event, Rewound)]
    turns: list[int] = []
    for event in back:
        turns = [*turns, event.turn] if event.back else turns[:-1]
    undone_from = min(turns, default=None)

    def reason(recorded: RecordedEvent) -> str:
        state = not isinstance(recorded.event, LogEntry | Message)
        if state and any(start < recorded.seq < end for start, end in spans):
            return "its call was rolled back"
        if undone_from is not None and recorded.turn >= undone_from and recorded.kind != "Rewound":
            return "the conversation went back to before it"
        return ""

    return reason
