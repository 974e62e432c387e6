"""Reading events back from a run file."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from weakincentives.content import Blob
from weakincentives.telemetry.payload import blob_digests, checked, is_packed, load, references, unpack
from weakincentives.telemetry.schema import RunFileError, open_for_reading
from weakincentives.telemetry.values import Unreadable

_VARIABLES = 500
_ROW_TYPES = {(str, int, str, number, int, str) for number in (float, int)}
MAX_SHARED = 500
MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event with its place in the run; `turn` is how many times the model had been called by then."""

    run_id: str
    seq: int
    kind: str
    time: float
    turn: int
    event: Any


# What decoding a damaged payload may raise.
_DAMAGED = (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError, RecursionError)


class EventReader:
    """A run file open for reading; it may still be written to.

    `problems` names what cannot be read in a damaged file; the rest is read all the same.
    """

    def __init__(self, path: str | os.PathLike[str], connection: sqlite3.Connection | None = None) -> None:
        self.path = Path(path)
        self.problems: list[str] = []
        self._lock = threading.Lock()
        self._connection = connection or open_for_reading(self.path)
        self._shared: dict[str, Any] = {}

    def close(self) -> None:
        self._connection.close()

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of your own SELECT; docs/observability.md describes the tables and views."""
        rows, problem = self._read(sql, values)
        if problem is not None:
            raise RunFileError(f"'{self.path}' cannot be read: {problem}.") from problem
        return rows

    def salvage(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a SELECT up to the first that cannot be read."""
        rows, problem = self._read(sql, values)
        if problem is not None:
            self._note(str(problem))
        return rows

    def _read(self, sql: str, values: Sequence[Any]) -> tuple[list[tuple[Any, ...]], Exception | None]:
        rows: list[tuple[Any, ...]] = []
        try:
            with self._lock:
                rows.extend(self._connection.execute(sql, tuple(values)))
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            if self._connection.text_factory is str and "decode to UTF-8" in str(error):
                self._connection.text_factory = lambda data: data.decode(errors="replace")
                return self._read(sql, values)
            return rows, error
        return rows, None

    def events_where(
        self, where: str, values: Sequence[Any], *, limit: int = -1, index: str = ""
    ) -> tuple[RecordedEvent, ...]:
        """Events by a condition on the columns of `events`, oldest first; `index` is the one to search by."""
        rows = self.salvage(
            f"SELECT run_id, seq, kind, time, turn, payload FROM events {f'INDEXED BY {index}' if index else ''} "
            f"WHERE {where} ORDER BY seq LIMIT ?",
            (*values, limit),
        )
        return tuple(self.decode_rows(rows))

    def of_kinds(
        self, run_id: str, kinds: Sequence[str], after: float = 0, before: float = float("inf"), *, limit: int = -1
    ) -> tuple[RecordedEvent, ...]:
        """Events of a run by their kinds, between two others."""
        where = f"run_id = ? AND kind IN ({marks(kinds)}) AND seq > ? AND seq < ?"
        return self.events_where(where, (run_id, *kinds, after, before), limit=limit, index="events_by_kind")

    def numbered(self, run_id: str, seqs: Sequence[int]) -> list[RecordedEvent]:
        """Events of a run by their numbers, oldest first."""
        found: list[RecordedEvent] = []
        for start in range(0, len(seqs), _VARIABLES):
            some = seqs[start : start + _VARIABLES]
            found += self.events_where(f"run_id = ? AND seq IN ({marks(some)})", (run_id, *some))
        return found

    def identified(self, ids: Sequence[int]) -> list[RecordedEvent]:
        """Events by their place in the file, which orders those of several runs."""
        found: list[RecordedEvent] = []
        for start in range(0, len(ids), _VARIABLES):
            some = ids[start : start + _VARIABLES]
            columns = "run_id, seq, kind, time, turn, payload"
            found += self.decode_rows(
                self.salvage(f"SELECT {columns} FROM events WHERE id IN ({marks(some)}) ORDER BY id", some)
            )
        return found

    def decode_rows(self, rows: Sequence[tuple[Any, ...]]) -> list[RecordedEvent]:
        """Events by their rows in `events`; one that cannot be decoded is `Unreadable`."""
        found: list[RecordedEvent] = []
        sound = self.sound_rows(rows)
        values = self.decode([row[5] for row in sound])
        for (run_id, seq, kind, time, turn, _), value in zip(sound, values, strict=True):
            event = Unreadable(kind, value.problem) if isinstance(value, Unreadable) else checked(kind, value)
            if isinstance(event, Unreadable):
                self._note(f"event {seq} of run {run_id}: {event.problem}")
            found.append(RecordedEvent(run_id, seq, kind, time, turn, event))
        return found

    def sound_rows(self, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The rows of `events` whose columns have the types they should."""
        sound = [row for row in rows if tuple(map(type, row)) in _ROW_TYPES]
        if len(sound) < len(rows):
            self._note(f"{len(rows) - len(sound)} rows of 'events' have columns of other types")
        return sound

    def decode(self, texts: Sequence[str]) -> list[Any]:
        """The values that were recorded as these payloads; `Unreadable` for one that is damaged."""
        packed = {text: references(text) for text in texts if is_packed(text)}
        wanted = {key for keys, _ in packed.values() for key in keys}
        shared = {key: self._shared[key] for key in wanted & self._shared.keys()}
        parts = self._texts(wanted - shared.keys())
        inner = [references(part)[1] for part in parts.values()]
        found = self._texts({key for keys in (*inner, *(keys for _, keys in packed.values())) for key in keys})
        unknown: set[str] = set()
        shared |= {key: _decoded(part, found, {}, {}, unknown) for key, part in parts.items()}
        self._keep(shared)
        blobs = self.blobs({digest for text in texts for digest in blob_digests(text)})
        return [_decoded(text, found, shared, blobs, unknown) for text in texts]

    def blobs(self, digests: Iterable[str]) -> dict[str, Blob]:
        """Recorded media by digest."""
        wanted = list(digests)
        if not wanted:
            return {}
        rows = self.salvage(f"SELECT digest, data FROM blobs WHERE digest IN ({marks(wanted)})", wanted)
        return {digest: Blob(data) for digest, data in rows if isinstance(data, bytes)}

    def _keep(self, shared: Mapping[str, Any]) -> None:
        """Remember parts that many events repeat, such as the sections of a prompt."""
        if len(self._shared) > MAX_SHARED:
            self._shared = {}
        self._shared.update(shared)

    def _texts(self, keys: Iterable[str]) -> dict[str, str]:
        wanted = list(keys)
        texts: dict[str, str] = {}
        for start in range(0, len(wanted), _VARIABLES):
            some = wanted[start : start + _VARIABLES]
            texts.update(self.salvage(f"SELECT hash, text FROM texts WHERE hash IN ({marks(some)})", some))
        missing = [key for key in wanted if not isinstance(texts.get(key), str)]
        if missing:
            self._note(f"{len(missing)} texts are missing, such as {missing[0]}")
        return {key: text for key, text in texts.items() if isinstance(text, str)}

    def _note(self, problem: str) -> None:
        if problem not in self.problems and len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


def _decoded(
    text: str, texts: Mapping[str, str], shared: Mapping[str, Any], blobs: dict[str, Blob], unknown: set[str]
) -> Any:
    try:
        data = msgspec.json.decode(text)
        return load(unpack(data, texts, shared) if is_packed(text) else data, blobs, unknown, text)
    except _DAMAGED as error:
        return Unreadable("", f"{type(error).__name__}: {error}")


def marks(values: Sequence[Any]) -> str:
    """The placeholders for so many values."""
    return ", ".join("?" * len(values))
