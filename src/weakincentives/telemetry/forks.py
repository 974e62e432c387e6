"""A session as it was at a turn of a recorded run, so that its conversation can go on from there."""

from __future__ import annotations

from dataclasses import is_dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from weakincentives.filesystem import FileChange, InMemoryFilesystem
from weakincentives.prompt import SetVisibilityOverride
from weakincentives.runtime import FilesChanged, Message, ParamsBound, Rewound
from weakincentives.session import Session
from weakincentives.telemetry.reader import RecordedEvent, marks
from weakincentives.telemetry.store import RunNotFoundError, RunStore
from weakincentives.telemetry.turns import continued_runs
from weakincentives.telemetry.values import EVENTS, UnknownType, Unreadable, Unserialisable

_LOGGED = tuple(kind.__name__ for kind in EVENTS if kind not in (FilesChanged, ParamsBound))


class RecordedState(NamedTuple):
    """A new session in an earlier state, the params bound then, and the kinds of events that could not be read."""

    session: Session
    params: tuple[Any, ...]
    missing: tuple[str, ...]


def session_at(store: RunStore, run_id: str, n: int) -> RecordedState:
    """The state in which the request of the n-th turn was sent.

    The session has the messages of that request, the sections that were open, in-memory files, and the state that
    reducers make of the program's own events; what a program wrote to slices without events was not recorded.
    """
    run = store.run(run_id)
    if not 1 <= n <= run.turns:
        raise RunNotFoundError(f"Run '{run.run_id}' has {run.turns} turns, so there is no turn {n}")
    turn, session, missing = store.turn(run.run_id, n), Session(), list[str]()
    params: tuple[Any, ...] = ()
    ((called,),) = store.query("SELECT id FROM events WHERE run_id = ? AND seq = ?", (run.run_id, turn.events[0].seq))
    for recorded in _before(store, run.run_id, called):
        event: Any = recorded.event
        if isinstance(event, FilesChanged):
            _repeat(event.changes, session.workspace)
        elif isinstance(event, ParamsBound):
            params = event.params if not event.parent_run_id else params
        elif isinstance(event, UnknownType | Unreadable | Unserialisable) or not is_dataclass(event):
            missing.append(recorded.kind)
        else:
            session.dispatch(event)
    for path, visibility in (turn.called.overrides if turn.called is not None else {}).items():
        session.dispatch(SetVisibilityOverride(path, visibility))
    session[Message].seed(turn.messages)
    return RecordedState(session, params, tuple(missing))


def _repeat(changes: tuple[FileChange, ...], files: InMemoryFilesystem) -> None:
    for change in changes:
        if change.after is None and files.exists(change.path):
            files.delete(change.path, recursive=True)
        elif change.after is not None and change.kind == "directory":
            files.mkdir(change.path, parents=True, exist_ok=True)
        elif change.after is not None and change.kind == "file":
            files.write(change.path, change.after)


def _before(store: RunStore, run_id: str, until: int) -> list[RecordedEvent]:
    """The events of the program before an event, without those of turns that were undone by then."""
    runs = continued_runs(store, run_id)
    whose = f"session_id IN (SELECT session_id FROM events WHERE run_id IN ({marks(runs)}))"
    undone: dict[str, tuple[float, float]] = {}
    rewinds = store.events_where(f"{whose} AND id < ? AND kind = 'Rewound'", (*runs, until))
    for each in sorted(rewinds, key=attrgetter("time")):
        if isinstance(each.event, Rewound):
            undone[each.event.point] = (each.event.since, each.time) if each.event.back else (0.0, 0.0)
    mine = store.events_where(f"{whose} AND id < ? AND kind NOT IN ({marks(_LOGGED)})", (*runs, until, *_LOGGED))
    kept = (each for each in mine if not any(since < each.time < end for since, end in undone.values()))
    return sorted(kept, key=attrgetter("time"))
