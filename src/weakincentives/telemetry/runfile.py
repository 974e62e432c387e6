"""One recorder's hold on a file of runs: what is written, in which statements."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakincentives.limits import Prices
from weakincentives.runtime.events import PromptRendered
from weakincentives.telemetry.payload import storable
from weakincentives.telemetry.schema import SILENT_SECONDS, open_for_writing
from weakincentives.telemetry.tally import OpenRun, Tally


@dataclass(frozen=True, slots=True)
class Packed:
    """An event ready to be written, with the texts that its payload refers to."""

    run_id: str
    session_id: str
    time: float
    event: object
    payload: str
    texts: Mapping[str, str]


class RunFile:
    """A file of runs that this process writes to; `open_runs` are those of it that have not ended."""

    def __init__(self, path: Path, clean: Callable[[str], str], prices: Mapping[str, Prices] | None) -> None:
        self.recorder_id = os.urandom(8).hex()
        self.open_runs: dict[str, OpenRun] = {}
        self._clean = clean
        self._prices = prices
        self._connection = open_for_writing(path)
        self.transact(RunFile._introduce)

    def transact(self, work: Callable[[RunFile], None]) -> None:
        """Do some work on this file as a whole or not at all."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            work(self)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def beat(self, dropped: int) -> None:
        """Say that this recorder is alive."""
        self._connection.execute(
            "UPDATE recorders SET beat = ?, dropped = ? WHERE id = ?", (time.time(), dropped, self.recorder_id)
        )

    def write(self, batch: Iterable[Packed]) -> None:
        tallies: dict[str, Tally] = {}
        rows: list[tuple[Any, ...]] = []
        texts: dict[str, str] = {}
        for packed in batch:
            tally = tallies.get(packed.run_id)
            if tally is None:
                tally = tallies[packed.run_id] = self._tally(packed)
            if isinstance(packed.event, PromptRendered):
                self._leave_others(packed, tallies)
            tally.count(packed.event, packed.time, self.open_runs, self._prices)
            tally.texts.update(packed.texts)
            texts.update(packed.texts)
            kind = type(packed.event).__name__
            rows.append(
                (packed.run_id, tally.events, packed.session_id, tally.turns, kind, packed.time, packed.payload)
            )
        insert = self._connection.executemany
        insert("INSERT OR IGNORE INTO texts (hash, text) VALUES (?, ?)", texts.items())
        insert(
            "INSERT OR IGNORE INTO run_texts (run_id, hash) VALUES (?, ?)",
            [(run_id, key) for run_id, tally in tallies.items() for key in tally.texts],
        )
        insert(
            "INSERT INTO events (run_id, seq, session_id, turn, kind, time, payload) VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        for tally in tallies.values():
            if tally.run_id:
                self._update(tally)

    def leave(self, dropped: int) -> None:
        """Say what has become of the runs that did not end, and that nothing more comes."""
        self._connection.executemany(
            "UPDATE runs SET status = ?, ended = updated WHERE run_id = ? AND recorder_id = ? AND status = 'running'",
            [(run.status, run_id, self.recorder_id) for run_id, run in self.open_runs.items()],
        )
        self.beat(dropped)
        self._connection.execute("UPDATE recorders SET closed = 1 WHERE id = ?", (self.recorder_id,))

    def close(self) -> None:
        self._connection.close()

    def _introduce(self) -> None:
        now = time.time()
        self._connection.execute(
            "INSERT INTO recorders (id, pid, host, started, beat) VALUES (?, ?, ?, ?, ?)",
            (self.recorder_id, os.getpid(), socket.gethostname(), now, now),
        )
        self._connection.execute(
            "UPDATE runs SET status = 'interrupted', ended = updated WHERE status = 'running' AND recorder_id IN "
            "(SELECT id FROM recorders WHERE beat < ?)",
            (now - SILENT_SECONDS,),
        )

    def _tally(self, packed: Packed) -> Tally:
        """An account that goes on where the row of the run stands, whoever wrote it."""
        one = self._connection.execute
        found = one("SELECT events, turns FROM runs WHERE run_id = ?", (packed.run_id,)).fetchone()
        if found is None:
            found = one("SELECT coalesce(max(seq), 0), 0 FROM events WHERE run_id = ?", (packed.run_id,)).fetchone()
            if packed.run_id:
                one(
                    "INSERT INTO runs (run_id, session_id, recorder_id, started, updated) VALUES (?, ?, ?, ?, ?)",
                    (packed.run_id, packed.session_id, self.recorder_id, packed.time, packed.time),
                )
        return Tally(packed.run_id, packed.session_id, events=found[0], turns=found[1])

    def _leave_others(self, packed: Packed, tallies: dict[str, Tally]) -> None:
        """A session has one run at a time: when another begins, the one before it is over."""
        for run_id, run in list(self.open_runs.items()):
            if run.session_id == packed.session_id and run_id != packed.run_id:
                tally = tallies.get(run_id)
                if tally is not None:
                    tally.end(run.status, tally.updated, self.open_runs)
                    continue
                del self.open_runs[run_id]
                self._connection.execute(
                    "UPDATE runs SET status = ?, ended = updated WHERE run_id = ? AND status = 'running'",
                    (run.status, run_id),
                )

    def _update(self, tally: Tally) -> None:
        values = {"events": tally.events, "turns": tally.turns, "updated": tally.updated, **tally.columns}
        if values.get("status") == "running":
            values["recorder_id"] = self.recorder_id
        for name in ("error", "prompt", "prompt_name"):
            if name in values:
                values[name] = storable(self._clean(values[name]))
        assignments = [f"{name} = :{name}" for name in values]
        assignments += [f"{name} = coalesce({name}, 0) + :{name}" for name in tally.sums]
        self._connection.execute(
            f"UPDATE runs SET {', '.join(assignments)} WHERE run_id = :run_id",
            {**values, **tally.sums, "run_id": tally.run_id},
        )
