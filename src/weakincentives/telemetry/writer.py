"""The thread that writes events to a file of runs, in batches, away from the agent's own thread."""

from __future__ import annotations

import logging
import os
import re
import socket
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weakincentives.limits import Prices, TokenUsage
from weakincentives.runtime.events import (
    EvaluationFailed,
    ModelCalled,
    PromptExecuted,
    PromptRendered,
    RunRestarted,
    ToolInvoked,
)
from weakincentives.telemetry.payload import Dumped, Packer, storable
from weakincentives.telemetry.prices import prices_for
from weakincentives.telemetry.redaction import Redactor
from weakincentives.telemetry.schema import BEAT_SECONDS, SILENT_SECONDS, open_for_writing

logger = logging.getLogger("weakincentives.telemetry")

BATCH_SECONDS = 0.08
BATCH_EVENTS = 2_000
MOST_PENDING = 200_000
RETRY_SECONDS = 0.5
CLOSING_SECONDS = 5.0

Heard = tuple[str, str, float, object]


@dataclass(slots=True)
class _Change:
    """What a batch adds to the row of one run."""

    events: int
    turns: int
    last: float = 0.0
    columns: dict[str, Any] = field(default_factory=dict)
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost: float | None = None
    counts: dict[str, int] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)

    def count(self, name: str, amount: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount


@dataclass(slots=True)
class _OpenRun:
    """A run that has not ended; `asked` is whether its last tool call asked to open something."""

    session_id: str
    asked: bool = False

    @property
    def status(self) -> str:
        """What to call it when nothing more comes: a request to open sections was handed to the caller."""
        return "halted" if self.asked else "interrupted"


class Writer:
    """Takes events from any thread and writes them within about a tenth of a second."""

    def __init__(self, path: Path, redactor: Redactor, prices: Mapping[str, Prices] | None) -> None:
        self.path = path
        self.redactor = redactor
        self._prices = prices
        self._connection: sqlite3.Connection | None = None
        self._reset()
        self._connection = open_for_writing(path)
        self._introduce()

    def _reset(self) -> None:
        self.recorder_id = os.urandom(8).hex()
        self._pending: deque[Heard] = deque()
        self._dropped = 0
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection = None
        self._packer = Packer(self.redactor)
        self._open_runs: dict[str, _OpenRun] = {}
        self._gives_up: float | None = None
        self._complained = False

    def put(self, heard: Heard) -> None:
        """Take one event; the caller's thread does nothing more than this."""
        pending = self._pending
        if len(pending) >= MOST_PENDING:
            self._dropped += 1
            return
        pending.append(heard)
        if not self._wake.is_set():
            if self._thread is None:
                self._start()
            self._wake.set()

    def tighten(self, patterns: Sequence[re.Pattern[str]]) -> None:
        """Redact these too, from now on; another recorder of the same file may ask for more, never for less."""
        if not self.redactor.patterns:
            self.redactor = self._packer.redactor = Redactor()
        self.redactor.add(patterns)

    def flush(self) -> None:
        """Wait until everything taken so far is in the file."""
        with self._writing:
            self._drain()

    def close(self) -> None:
        """Write what is left, and what has become of the runs that did not end."""
        self._stop.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._writing:
            self._gives_up = time.monotonic() + CLOSING_SECONDS
            self._drain()
            self._retrying(self._say_goodbye)
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def after_fork(self) -> None:
        """Begin anew in a child process: a thread and a connection do not survive the fork."""
        # Closing the parent's connection here would drop its locks, so it is only forgotten.
        _FORGOTTEN.append(self._connection)
        self._reset()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="wink-recorder", daemon=True)
                self._thread.start()
                if self._connection is None and "multiprocessing.util" in sys.modules:
                    # A child of multiprocessing leaves without running atexit hooks.
                    sys.modules["multiprocessing.util"].Finalize(None, self.close, exitpriority=0)

    def _work(self) -> None:
        while not self._stop.is_set():
            woken = self._wake.wait(BEAT_SECONDS if self._open_runs else None)
            if woken and len(self._pending) < BATCH_EVENTS:
                self._stop.wait(BATCH_SECONDS)
            self._wake.clear()
            with self._writing:
                self._drain(beat=not woken)

    def _drain(self, *, beat: bool = False) -> None:
        if beat:
            self._retrying(self._beat)
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(len(self._pending), BATCH_EVENTS))]
            if not self._retrying(lambda batch=batch: self._write(batch)):
                self._dropped += len(batch)

    def _retrying(self, work: Any) -> bool:
        """Do some work in a transaction, again and again while the file is busy or the disk is full."""
        while True:
            try:
                connection = self._connection
                if connection is None:
                    connection = self._connection = open_for_writing(self.path)
                    self._introduce()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    work()
                    connection.execute("COMMIT")
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                return True
            except Exception as error:
                if not self._complained:
                    self._complained = True
                    logger.warning("Recording to '%s' is held up: %s", self.path, error)
                if not isinstance(error, sqlite3.Error):
                    logger.error("Recording to '%s' lost events.", self.path, exc_info=error)
                    return False
                if self._gives_up is not None and time.monotonic() > self._gives_up:
                    logger.error("Gave up recording to '%s': %s", self.path, error)
                    return False
                if self._stop.is_set() and self._gives_up is None:
                    self._gives_up = time.monotonic() + CLOSING_SECONDS
                self._stop.wait(RETRY_SECONDS) if not self._stop.is_set() else time.sleep(0.05)

    def _introduce(self) -> None:
        assert self._connection is not None
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

    def _beat(self) -> None:
        assert self._connection is not None
        self._connection.execute(
            "UPDATE recorders SET beat = ?, dropped = ? WHERE id = ?", (time.time(), self._dropped, self.recorder_id)
        )

    def _say_goodbye(self) -> None:
        assert self._connection is not None
        self._connection.executemany(
            "UPDATE runs SET status = ?, ended = updated WHERE run_id = ? AND recorder_id = ? AND status = 'running'",
            [(run.status, run_id, self.recorder_id) for run_id, run in self._open_runs.items()],
        )
        self._beat()
        self._connection.execute("UPDATE recorders SET closed = 1 WHERE id = ?", (self.recorder_id,))

    def _write(self, batch: list[Heard]) -> None:
        assert self._connection is not None
        changes: dict[str, _Change] = {}
        rows: list[tuple[Any, ...]] = []
        texts: dict[str, str] = {}
        for run_id, session_id, at, heard in batch:
            change = changes.get(run_id)
            if change is None:
                change = changes[run_id] = self._change(run_id, session_id, at)
            event = heard.event if isinstance(heard, Dumped) else heard
            self._apply(change, run_id, session_id, at, event)
            payload = self._packer.pack(heard)
            change.events += 1
            change.last = at
            change.texts.update(self._packer.texts)
            texts.update(self._packer.texts)
            rows.append((run_id, change.events, session_id, change.turns, type(event).__name__, at, payload))
        execute = self._connection.executemany
        execute("INSERT OR IGNORE INTO texts (hash, text) VALUES (?, ?)", texts.items())
        execute(
            "INSERT OR IGNORE INTO run_texts (run_id, hash) VALUES (?, ?)",
            [(run_id, key) for run_id, change in changes.items() for key in change.texts],
        )
        execute(
            "INSERT INTO events (run_id, seq, session_id, turn, kind, time, payload) VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        for run_id, change in changes.items():
            if run_id:
                self._update_run(run_id, change)
        self._beat()

    def _change(self, run_id: str, session_id: str, at: float) -> _Change:
        assert self._connection is not None
        found = self._connection.execute("SELECT events, turns FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        if found is None:
            last = "SELECT coalesce(max(seq), 0) FROM events WHERE run_id = ?"
            found = (self._connection.execute(last, (run_id,)).fetchone()[0], 0)
            if run_id:
                self._connection.execute(
                    "INSERT INTO runs (run_id, session_id, recorder_id, started, updated) VALUES (?, ?, ?, ?, ?)",
                    (run_id, session_id, self.recorder_id, at, at),
                )
        return _Change(events=found[0], turns=found[1])

    def _apply(self, change: _Change, run_id: str, session_id: str, at: float, event: object) -> None:
        """What an event says about the run as a whole."""
        columns = change.columns
        match event:
            case PromptRendered():
                self._leave(run_id, session_id)
                columns.update(
                    prompt=f"{event.prompt_ns}/{event.prompt_key}",
                    prompt_name=event.prompt_name,
                    adapter=event.adapter,
                    model=event.model,
                )
                self._running(columns, run_id, session_id)
            case ModelCalled():
                change.turns += 1
                change.usage = change.usage + event.usage
                prices = prices_for(event.model, self._prices)
                if prices is not None:
                    change.cost = (change.cost or 0.0) + prices.cost(event.usage)
                columns.update(prompt_name=event.prompt_name, adapter=event.adapter, model=event.model)
                self._running(columns, run_id, session_id)
            case ToolInvoked():
                change.count("tool_calls")
                change.count("tool_failures", not event.success)
                change.count("disclosures", event.disclosure is not None)
                if run_id in self._open_runs:
                    self._open_runs[run_id].asked = event.disclosure is not None
            case RunRestarted():
                change.count("restarts")
                self._running(columns, run_id, session_id)
            case EvaluationFailed():
                self._ended(columns, run_id, "failed", at)
                columns["error"] = storable(self.redactor.text(f"{event.error}: {event.message}"))
            case PromptExecuted():
                self._ended(columns, run_id, "halted" if event.halted else "ok", at)

    def _running(self, columns: dict[str, Any], run_id: str, session_id: str) -> None:
        columns.update(status="running", ended=None, error="", recorder_id=self.recorder_id)
        self._open_runs.setdefault(run_id, _OpenRun(session_id))

    def _leave(self, run_id: str, session_id: str) -> None:
        """A session has one run at a time: when another begins, the one before it is over."""
        assert self._connection is not None
        for other, run in list(self._open_runs.items()):
            if run.session_id == session_id and other != run_id:
                del self._open_runs[other]
                self._connection.execute(
                    "UPDATE runs SET status = ?, ended = updated WHERE run_id = ? AND status = 'running'",
                    (run.status, other),
                )

    def _ended(self, columns: dict[str, Any], run_id: str, status: str, at: float) -> None:
        columns.update(status=status, ended=at)
        self._open_runs.pop(run_id, None)

    def _update_run(self, run_id: str, change: _Change) -> None:
        assert self._connection is not None
        usage = change.usage
        sums = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            **change.counts,
        }
        values: dict[str, Any] = {"events": change.events, "turns": change.turns, "updated": change.last}
        values |= change.columns
        assignments = [f"{name} = :{name}" for name in values] + [f"{name} = {name} + :{name}" for name in sums]
        if change.cost is not None:
            assignments.append("cost = coalesce(cost, 0) + :cost")
        self._connection.execute(
            f"UPDATE runs SET {', '.join(assignments)} WHERE run_id = :run_id",
            {**values, **sums, "cost": change.cost, "run_id": run_id},
        )


_FORGOTTEN: list[Any] = []
