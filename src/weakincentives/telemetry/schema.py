"""The tables and views of a run file, and how to open one.

Times are seconds since 1970. `payload` is the event as tagged JSON (`{"$": class, "v": fields}`); texts of 512
characters or more are in `texts`, under the hash that replaces them; the bytes of media are in `blobs`, by digest.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from weakincentives.errors import WinkError

VERSION = 3
APPLICATION_ID = 0x57494E4B
BUSY_SECONDS = 5.0
# How often a recorder notes that it is alive, and for how long it may be silent before it counts as gone.
BEAT_SECONDS = 5.0
SILENT_SECONDS = 30.0

TABLES = """
CREATE TABLE recorders (
    id TEXT PRIMARY KEY, pid INTEGER NOT NULL, host TEXT NOT NULL, started REAL NOT NULL, beat REAL NOT NULL,
    closed INTEGER NOT NULL DEFAULT 0, dropped INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, session_id TEXT NOT NULL DEFAULT '', recorder_id TEXT NOT NULL,
    prompt TEXT NOT NULL DEFAULT '', prompt_name TEXT NOT NULL DEFAULT '',
    adapter TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'ok', 'failed', 'halted', 'interrupted')),
    started REAL NOT NULL, updated REAL NOT NULL, ended REAL,
    events INTEGER NOT NULL DEFAULT 0, turns INTEGER NOT NULL DEFAULT 0, tool_calls INTEGER NOT NULL DEFAULT 0,
    tool_failures INTEGER NOT NULL DEFAULT 0, disclosures INTEGER NOT NULL DEFAULT 0,
    restarts INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0, reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    cost REAL, error TEXT NOT NULL DEFAULT '', conversation_id TEXT NOT NULL DEFAULT '',
    question TEXT NOT NULL DEFAULT '', answer TEXT NOT NULL DEFAULT '',
    full_prompt_tokens INTEGER, opened TEXT NOT NULL DEFAULT '[]'
) STRICT;
CREATE INDEX runs_by_start ON runs (started);
CREATE INDEX runs_by_conversation ON runs (conversation_id, started);
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
      FROM events, json_each(payload, '$.v.result.v.disclosure.v.requested_sections.v') AS key
      WHERE kind = 'ToolInvoked'
    UNION ALL
    SELECT run_id, seq, turn, time, 'injected', payload ->> '$.v.section_key', '', 1,
           payload ->> '$.v.route', payload -> '$.v.tool_names.v' FROM events WHERE kind = 'ToolsInjected'
    UNION ALL
    SELECT run_id, seq, turn, time, 'withdrawn', payload ->> '$.v.section_key', '', 1,
           payload ->> '$.v.route', payload -> '$.v.tool_names.v' FROM events WHERE kind = 'ToolsWithdrawn'
    UNION ALL
    SELECT run_id, seq, turn, time, 'restart', key.value, coalesce(payload ->> '$.v.reason', ''), 1, 'restart', '[]'
      FROM events, json_each(payload, '$.v.section_keys.v') AS key WHERE kind = 'RunRestarted'
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
           coalesce(long.text, payload ->> '$.v.message')
      FROM events LEFT JOIN texts AS long ON long.hash = payload ->> '$.v.message.v'
     WHERE kind = 'EvaluationFailed';
"""


class RunFileError(WinkError):
    """A run file cannot be opened or read, or is not one."""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the file, creating it if it does not exist. The connection may be used by one thread at a time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
        raise RunFileError(f"There is no run file at '{path}'; record one with record('{path}') or --record.")
    # SQLite cannot create the shared memory of the log in a folder that is read-only, hence the second attempt.
    for mode in ("mode=ro", "immutable=1"):
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=BUSY_SECONDS, check_same_thread=False
        )
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
