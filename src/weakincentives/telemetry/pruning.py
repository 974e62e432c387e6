"""Deleting recorded runs, with the texts that no other run has."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weakincentives.telemetry.schema import SILENT_SECONDS, RunFileError, open_for_writing


def prune(
    path: str | os.PathLike[str],
    *,
    older_than_days: float | None = None,
    keep: int | None = None,
    run_ids: Sequence[str] = (),
) -> tuple[str, ...]:
    """Delete runs and give back their ids: those named, those older than so many days, all but the newest few.

    Runs that are still going on stay. The space is given back to the disk.
    """
    file = Path(path)
    if not file.is_file():
        raise RunFileError(f"There is no file of runs at '{file}'.")
    now = time.time()
    silent = "recorder_id IN (SELECT id FROM recorders WHERE beat < ?)"
    conditions: list[str] = [f"(status <> 'running' OR {silent})"]
    values: list[Any] = [now - SILENT_SECONDS]
    if run_ids:
        conditions.append(f"run_id IN ({', '.join('?' * len(run_ids))})")
        values += list(run_ids)
    if older_than_days is not None:
        conditions.append("updated < ?")
        values.append(now - older_than_days * 86_400)
    if keep is not None:
        conditions.append("run_id NOT IN (SELECT run_id FROM runs ORDER BY started DESC, run_id LIMIT ?)")
        values.append(keep)
    if len(conditions) == 1:
        return ()
    connection = open_for_writing(file)
    try:
        connection.execute("BEGIN IMMEDIATE")
        where = " AND ".join(conditions)
        gone = tuple(row[0] for row in connection.execute(f"SELECT run_id FROM runs WHERE {where}", values))
        for table in ("runs", "events", "run_texts"):
            connection.executemany(f"DELETE FROM {table} WHERE run_id = ?", [(run_id,) for run_id in gone])
        if older_than_days is not None:
            # What happened in sessions before their first run has no run to go with.
            connection.execute("DELETE FROM events WHERE run_id = '' AND time < ?", (now - older_than_days * 86_400,))
            connection.execute(
                "DELETE FROM run_texts WHERE run_id = '' AND NOT EXISTS (SELECT 1 FROM events WHERE run_id = '')"
            )
        connection.execute("DELETE FROM texts WHERE hash NOT IN (SELECT hash FROM run_texts)")
        connection.execute(
            "DELETE FROM recorders WHERE beat < ? AND id NOT IN (SELECT recorder_id FROM runs)", (now - SILENT_SECONDS,)
        )
        connection.execute("COMMIT")
        if gone:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    finally:
        connection.close()
    return gone
