"""Reading events back from a run file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from weakincentives.telemetry.payload import is_packed, load, references, unpack
from weakincentives.telemetry.schema import open_for_reading

_VARIABLES = 500
MAX_SHARED = 500


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
    """A run file open for reading; it may still be written to."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._connection = open_for_reading(self.path)
        self._shared: dict[str, Any] = {}

    def close(self) -> None:
        self._connection.close()

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of your own SELECT; docs/observability.md describes the tables and views."""
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
        packed = {payload: references(payload) for payload in payloads if is_packed(payload)}
        wanted = {key for keys, _ in packed.values() for key in keys}
        shared = {key: self._shared[key] for key in wanted & self._shared.keys()}
        parts = self._texts(wanted - shared.keys())
        inner = [references(part)[1] for part in parts.values()]
        texts = self._texts({key for keys in (*inner, *(keys for _, keys in packed.values())) for key in keys})
        shared |= {key: load(unpack(msgspec.json.decode(part), texts, {})) for key, part in parts.items()}
        self._keep(shared)
        return [
            load(unpack(data, texts, shared) if payload in packed else data)
            for payload, data in zip(payloads, map(msgspec.json.decode, payloads), strict=True)
        ]

    def _keep(self, shared: Mapping[str, Any]) -> None:
        """Remember parts that many events repeat, such as the sections of a prompt."""
        if len(self._shared) > MAX_SHARED:
            self._shared = {}
        self._shared.update(shared)

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
