"""Recorded events read back from a file of runs."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from weakincentives.telemetry.payload import load, references, unpack
from weakincentives.telemetry.schema import open_for_reading

_SHARED, _TEXTS = frozenset({"json"}), frozenset({"text", "texts"})
# Most events refer to nothing, and need not be searched for it.
_REFERENCE = re.compile(r'"\$":"(?:text|texts|json|rows)"')
_VARIABLES = 500


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event with its place in the run; `turn` is how many times the model had been called by then."""

    run_id: str
    seq: int
    kind: str
    time: float
    turn: int
    event: Any


class EventReader:
    """A file of runs, open for reading; it may still be written to."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._connection = open_for_reading(self.path)

    def close(self) -> None:
        self._connection.close()

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a SELECT of your own; docs/observability.md has the tables and views."""
        with self._lock:
            return self._connection.execute(sql, tuple(values)).fetchall()

    def events_where(
        self, where: str, values: Sequence[Any], *, limit: int = -1, index: str = ""
    ) -> tuple[RecordedEvent, ...]:
        """Events by a condition on the columns of `events`, oldest first; `index` is the one to search by."""
        rows = self.query(
            f"SELECT run_id, seq, kind, time, turn, payload FROM events {f'INDEXED BY {index}' if index else ''} "
            f"WHERE {where} ORDER BY seq LIMIT ?",
            (*values, limit),
        )
        events = self.decode([payload for *_, payload in rows])
        return tuple(
            RecordedEvent(run_id, seq, kind, time, turn, event)
            for (run_id, seq, kind, time, turn, _), event in zip(rows, events, strict=True)
        )

    def of_kinds(
        self, run_id: str, kinds: Sequence[str], after: float = 0, before: float = float("inf"), *, limit: int = -1
    ) -> tuple[RecordedEvent, ...]:
        """Events of a run by their kinds, between two others."""
        where = f"run_id = ? AND kind IN ({marks(kinds)}) AND seq > ? AND seq < ?"
        return self.events_where(where, (run_id, *kinds, after, before), limit=limit, index="events_by_kind")

    def decode(self, payloads: Sequence[str]) -> list[Any]:
        """The values that were recorded as these payloads."""
        decoded = [msgspec.json.decode(payload) for payload in payloads]
        referring = [_REFERENCE.search(payload) is not None for payload in payloads]
        packed = [data for data, refers in zip(decoded, referring, strict=True) if refers]
        texts = self._texts({key for data in packed for key in references(data, _SHARED)})
        packed += [msgspec.json.decode(text) for text in texts.values()]
        texts |= self._texts({key for data in packed for key in references(data, _TEXTS)})
        return [load(unpack(data, texts) if refers else data) for data, refers in zip(decoded, referring, strict=True)]

    def numbered(self, run_id: str, seqs: Sequence[int]) -> list[RecordedEvent]:
        """Events of a run by their numbers, oldest first."""
        found: list[RecordedEvent] = []
        for start in range(0, len(seqs), _VARIABLES):
            some = seqs[start : start + _VARIABLES]
            found += self.events_where(f"run_id = ? AND seq IN ({marks(some)})", (run_id, *some))
        return found

    def _texts(self, keys: Iterable[str]) -> dict[str, str]:
        wanted = list(keys)
        texts: dict[str, str] = {}
        for start in range(0, len(wanted), _VARIABLES):
            some = wanted[start : start + _VARIABLES]
            texts.update(self.query(f"SELECT hash, text FROM texts WHERE hash IN ({marks(some)})", some))
        return texts


def marks(values: Sequence[Any]) -> str:
    """The placeholders for so many values."""
    return ", ".join("?" * len(values))
