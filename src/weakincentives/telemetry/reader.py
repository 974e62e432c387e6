"""Defines the tables and views of a run file, opens one, and reads its events back.

Times are seconds since 1970. `payload` is the event as tagged JSON (`{"$": class, "v": fields}`); texts of 512
characters or more are in `texts`, keyed by the hash that replaces them; the bytes of media are in `blobs`, by digest.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from weakincentives.content import Blob
from weakincentives.errors import WinkError
from weakincentives.serde import Upgrades, check_upgrades
from weakincentives.telemetry.payload import blob_digests, checked, is_packed, load, references, unpack
from weakincentives.telemetry.values import Unreadable

VERSION = 6
APPLICATION_ID = 0x57494E4B
BUSY_SECONDS = 5.0
# How often a recorder writes a heartbeat, and how long it may be silent before it counts as gone.
BEAT_SECONDS = 5.0
SILENT_SECONDS = 30.0
MAX_SHARED = 500
MAX_PROBLEMS = 100
_VARIABLES = 500
COLUMNS = "run_id, seq, kind, time, turn, payload"
_ROW_TYPES = {(str, int, str, number, int, str) for number in (float, int)}
# What decoding a damaged payload may raise.
_DAMAGED = (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError, RecursionError)

TABLES = """
CREATE TABLE recorders (
    id TEXT PRIMARY KEY, pid INTEGER NOT NULL, host TEXT NOT NULL, started REAL NOT NULL, beat REAL NOT NULL,
    closed INTEGER NOT NULL DEFAULT 0, dropped INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, session_id TEXT NOT NULL DEFAULT '', recorder_id TEXT NOT NULL,
    prompt TEXT NOT NULL DEFAULT '', prompt_name TEXT NOT NULL DEFAULT '',
    adapter TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL DEFAULT 'running'
        CHECK (status IN ('running', 'ok', 'waiting', 'failed', 'halted', 'interrupted')),
    started REAL NOT NULL, updated REAL NOT NULL, ended REAL,
    events INTEGER NOT NULL DEFAULT 0, turns INTEGER NOT NULL DEFAULT 0, tool_calls INTEGER NOT NULL DEFAULT 0,
    tool_failures INTEGER NOT NULL DEFAULT 0, disclosures INTEGER NOT NULL DEFAULT 0,
    restarts INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0, reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    cost REAL, error TEXT NOT NULL DEFAULT '', conversation_id TEXT NOT NULL DEFAULT '',
    question TEXT NOT NULL DEFAULT '', answer TEXT NOT NULL DEFAULT '',
    full_prompt_tokens INTEGER, opened TEXT NOT NULL DEFAULT '[]', parent_run_id TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX runs_by_start ON runs (started);
CREATE INDEX runs_by_conversation ON runs (conversation_id, started);
CREATE INDEX runs_inside ON runs (parent_run_id) WHERE parent_run_id <> '';
CREATE TABLE events (
    id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, seq INTEGER NOT NULL, session_id TEXT NOT NULL,
    turn INTEGER NOT NULL, kind TEXT NOT NULL, time REAL NOT NULL, payload TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_run ON events (run_id, seq);
CREATE INDEX events_by_kind ON events (run_id, kind, seq);
CREATE INDEX events_disclosing ON events (run_id, seq) WHERE kind = 'ToolInvoked' AND instr(payload, '"disclosure":{');
CREATE TABLE texts (hash TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT;
CREATE TABLE blobs (digest TEXT PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE run_texts (run_id TEXT NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (run_id, hash)) STRICT, WITHOUT ROWID;

CREATE VIEW disclosure AS
    SELECT run_id, seq, turn, time, payload ->> '$.v.name' AS action, key.value AS section,
           coalesce(payload ->> '$.v.result.v.disclosure.v.reason', '') AS reason,
           payload ->> '$.v.result.v.success' AS success, '' AS route, '[]' AS tools
      FROM events, json_each(payload, '$.v.result.v.disclosure.v.keys.v') AS key
      WHERE kind = 'ToolInvoked'
    UNION ALL
    SELECT run_id, seq, turn, time, 'injected', payload ->> '$.v.section_key', '', 1,
           payload ->> '$.v.route', payload -> '$.v.tool_names.v' FROM events WHERE kind = 'ToolsInjected'
    UNION ALL
    SELECT run_id, seq, turn, time, 'withdrawn', payload ->> '$.v.section_key', '', 1,
           payload ->> '$.v.route', payload -> '$.v.tool_names.v' FROM events WHERE kind = 'ToolsWithdrawn'
    UNION ALL
    SELECT run_id, seq, turn, time, 'restart', key.value, coalesce(payload ->> '$.v.reason', ''), 1, 'restart', '[]'
      FROM events, json_each(payload, '$.v.section_keys.v') AS key
      WHERE kind = 'RunEnded' AND payload ->> '$.v.status' = 'restarted'
    UNION ALL
    SELECT run_id, seq, turn, time, 'collapsed',
           (SELECT group_concat(part.value, '.') FROM json_each(payload, '$.v.path.v') AS part),
           coalesce(payload ->> '$.v.reason', ''), 1, '', '[]' FROM events WHERE kind = 'CollapseSection';

CREATE VIEW tokens AS
    SELECT run_id, seq, turn, time, payload ->> '$.v.model' AS model,
           payload ->> '$.v.usage.v.input_tokens' AS input_tokens,
           payload ->> '$.v.usage.v.cached_tokens' AS cached_tokens,
           payload ->> '$.v.usage.v.output_tokens' AS output_tokens,
           payload ->> '$.v.usage.v.reasoning_tokens' AS reasoning_tokens,
           payload ->> '$.v.latency' AS latency, payload ->> '$.v.stop_reason' AS stop_reason
      FROM events WHERE kind = 'ModelCalled';

CREATE VIEW errors AS
    SELECT events.run_id, seq, turn, time, 'tool' AS source, payload ->> '$.v.name' AS name,
           coalesce(long.text, payload ->> '$.v.result.v.message') AS message
      FROM events LEFT JOIN texts AS long ON long.hash = payload ->> '$.v.result.v.message.v'
     WHERE kind = 'ToolInvoked' AND payload ->> '$.v.result.v.success' = 0
    UNION ALL
    SELECT events.run_id, seq, turn, time, 'run', payload ->> '$.v.error',
           coalesce(long.text, payload ->> '$.v.reason')
      FROM events LEFT JOIN texts AS long ON long.hash = payload ->> '$.v.reason.v'
     WHERE kind = 'RunEnded' AND payload ->> '$.v.error' <> '';
"""

# The runs inside each run, at any depth, as rows of `root` and `id`; a damaged file may say that one is inside itself.
BELOW = """below (root, id) AS (
    SELECT parent_run_id, run_id FROM runs WHERE parent_run_id <> ''
    UNION SELECT root, run_id FROM below JOIN runs ON parent_run_id = id AND parent_run_id <> ''
)"""


class RunFileError(WinkError):
    """A run file cannot be opened or read, or is not one."""


class NoRunFileError(RunFileError, LookupError):
    """There is no run file at this path."""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the file, creating it if it does not exist. The connection may be used by one thread at a time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            # Left over from a deleted or moved file, which another process may still have open.
            for ending in ("-wal", "-shm"):
                Path(f"{path}{ending}").unlink(missing_ok=True)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise RunFileError(f"Cannot record to '{path}': {error}; pass record() a path that can be written.") from error
    try:
        connection.execute("PRAGMA journal_mode = WAL").close()
        connection.execute("PRAGMA synchronous = NORMAL").close()
        connection.execute("BEGIN IMMEDIATE")
        _create(connection, path)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        connection.close()
        raise RunFileError(f"Cannot record to '{path}': {error}; is it a run file that can be written?") from error
    except RunFileError:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open an existing file without changing it."""
    if not path.is_file():
        raise NoRunFileError(f"There is no run file at '{path}'; `wink run`, `wink chat` and record() write one.")
    # SQLite cannot create the log's shared-memory file in a read-only folder, hence the second attempt.
    for mode in ("mode=ro", "immutable=1"):
        where = f"{path.resolve().as_uri()}?{mode}"
        try:
            connection = sqlite3.connect(where, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)
        except sqlite3.Error as error:
            problem = error
            continue
        try:
            _check(connection, path)
        except sqlite3.Error as error:
            connection.close()
            problem = error
        except RunFileError:
            connection.close()
            raise
        else:
            return connection
    raise RunFileError(f"'{path}' cannot be read: {problem}.")


def _create(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        _check(connection, path)
        return
    for statement in TABLES.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if application != APPLICATION_ID:
        raise RunFileError(f"'{path}' is not a run file; record() writes one.")
    if version != VERSION:
        raise RunFileError(
            f"'{path}' was recorded in format {version} and this release reads {VERSION}; "
            "record to a new file, or use the release that wrote it."
        )


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event with its place in the run; `turn` is the number of model calls made by then."""

    run_id: str  #: the run
    seq: int  #: its number in the run
    kind: str  #: the name of its class
    time: float  #: seconds since 1970
    turn: int
    event: Any  #: the event


class EventReader:
    """A run file open for reading; it may still be written to.

    `upgrades` reads values recorded before their class changed, as in `Snapshot.from_json`; without one, such a value
    is an `UnknownType` with the recorded fields. `problems` lists what cannot be read in a damaged file; everything
    else is still read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        connection: sqlite3.Connection | None = None,
        *,
        upgrades: Upgrades = MappingProxyType({}),
    ) -> None:
        self.path = Path(path)
        self._upgrades = check_upgrades(upgrades)
        self.problems: list[str] = []
        self._lock = threading.Lock()
        self._connection = connection or open_for_reading(self.path)
        self._shared: dict[str, Any] = {}

    def close(self) -> None:
        self._connection.close()

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of your own SELECT; docs/look/observability.md describes the tables and views."""
        rows, problem = self._read(sql, values)
        if problem is not None:
            raise RunFileError(f"'{self.path}' cannot be read: {problem}.") from problem
        return rows

    def salvage(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a SELECT up to the first unreadable one."""
        rows, problem = self._read(sql, values)
        if problem is not None:
            self._note(str(problem))
        return rows

    def _salvage_each(self, sql: str, values: Sequence[Any], *before: Any) -> list[tuple[Any, ...]]:
        """`salvage` with `{}` in place of many values, in batches, since SQLite limits how many a query may have."""
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(values), _VARIABLES):
            some = values[start : start + _VARIABLES]
            rows += self.salvage(sql.format(marks(some)), (*before, *some))
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
        """Events that match a condition on the columns of `events`, oldest first; `index` names the index to use."""
        rows = self.salvage(
            f"SELECT {COLUMNS} FROM events {f'INDEXED BY {index}' if index else ''} WHERE {where} ORDER BY seq LIMIT ?",
            (*values, limit),
        )
        return tuple(self.decode_rows(rows))

    def of_kinds(
        self, run_id: str, kinds: Sequence[str], after: float = 0, before: float = float("inf"), *, limit: int = -1
    ) -> tuple[RecordedEvent, ...]:
        """Events of a run by kind, between two event numbers."""
        where = f"run_id = ? AND kind IN ({marks(kinds)}) AND seq > ? AND seq < ?"
        return self.events_where(where, (run_id, *kinds, after, before), limit=limit, index="events_by_kind")

    def numbered(self, run_id: str, seqs: Sequence[int]) -> list[RecordedEvent]:
        """Events of a run by number, oldest first."""
        sql = f"SELECT {COLUMNS} FROM events WHERE run_id = ? AND seq IN ({{}}) ORDER BY seq"
        return self.decode_rows(self._salvage_each(sql, seqs, run_id))

    def identified(self, ids: Sequence[int]) -> list[RecordedEvent]:
        """Events by their position in the file, which also orders events of different runs."""
        return self.decode_rows(self._salvage_each(f"SELECT {COLUMNS} FROM events WHERE id IN ({{}}) ORDER BY id", ids))

    def decode_rows(self, rows: Sequence[tuple[Any, ...]]) -> list[RecordedEvent]:
        """The events in rows of `events`; one that cannot be decoded is an `Unreadable`."""
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
        """The rows of `events` whose columns have the expected types."""
        sound = [row for row in rows if tuple(map(type, row)) in _ROW_TYPES]
        if len(sound) < len(rows):
            self._note(f"{len(rows) - len(sound)} rows of 'events' have columns of other types")
        return sound

    def decode(self, texts: Sequence[str]) -> list[Any]:
        """The values recorded as these payloads, with an `Unreadable` for each damaged one."""
        packed = {text: references(text) for text in texts if is_packed(text)}
        wanted = {key for keys, _ in packed.values() for key in keys}
        shared = {key: self._shared[key] for key in wanted & self._shared.keys()}
        parts = self._texts(wanted - shared.keys())
        inner = [references(part)[1] for part in parts.values()]
        found = self._texts({key for keys in (*inner, *(keys for _, keys in packed.values())) for key in keys})
        unknown: set[str] = set()
        shared |= {key: self._decoded(part, found, {}, {}, unknown) for key, part in parts.items()}
        self._keep(shared)
        blobs = self.blobs({digest for text in texts for digest in blob_digests(text)})
        return [self._decoded(text, found, shared, blobs, unknown) for text in texts]

    def blobs(self, digests: Iterable[str]) -> dict[str, Blob]:
        """Recorded media by digest."""
        rows = self._salvage_each("SELECT digest, data FROM blobs WHERE digest IN ({})", list(digests))
        return {digest: Blob(data) for digest, data in rows if isinstance(data, bytes)}

    def _keep(self, shared: Mapping[str, Any]) -> None:
        """Cache parts that many events repeat, such as the sections of a prompt."""
        if len(self._shared) > MAX_SHARED:
            self._shared = {}
        self._shared.update(shared)

    def _texts(self, keys: Iterable[str]) -> dict[str, str]:
        wanted = list(keys)
        texts = dict(self._salvage_each("SELECT hash, text FROM texts WHERE hash IN ({})", wanted))
        missing = [key for key in wanted if not isinstance(texts.get(key), str)]
        if missing:
            self._note(f"{len(missing)} texts are missing, such as {missing[0]}")
        return {key: text for key, text in texts.items() if isinstance(text, str)}

    def _decoded(
        self,
        text: str,
        texts: Mapping[str, str],
        shared: Mapping[str, Any],
        blobs: dict[str, Blob],
        unknown: set[str],
    ) -> Any:
        try:
            data = msgspec.json.decode(text)
            data = unpack(data, texts, shared) if is_packed(text) else data
            return load(data, blobs, unknown, text, self._upgrades)
        except _DAMAGED as error:
            return Unreadable("", f"{type(error).__name__}: {error}")

    def _note(self, problem: str) -> None:
        if problem not in self.problems and len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


def marks(values: Sequence[Any]) -> str:
    """One SQL placeholder per value."""
    return ", ".join("?" * len(values))
