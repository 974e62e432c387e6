"""The thread that writes events to a run file in batches, away from the agent's own thread."""

from __future__ import annotations

import logging
import re
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from weakincentives.limits import Prices
from weakincentives.redaction import Redactor
from weakincentives.telemetry.frozen import FrozenEvent
from weakincentives.telemetry.payload import Packer
from weakincentives.telemetry.runfile import Packed, RunFile
from weakincentives.telemetry.schema import BEAT_SECONDS, RunFileError

logger = logging.getLogger("weakincentives.telemetry")

BATCH_SECONDS = 0.08
BATCH_EVENTS = 1_000
MAX_PENDING = 200_000
RETRY_SECONDS = 0.1
CLOSING_SECONDS = 5.0

# The run, the session, the time, and the event as it was then.
QueuedEvent = tuple[str, str, float, object]


class Writer:
    """Takes events from any thread and writes them within about a tenth of a second.

    What cannot be written now (the file is busy, the disk is full) waits; what exceeds the queue is dropped, counted
    and logged. The agent notices none of it.
    """

    def __init__(self, path: Path, redactor: Redactor, prices: Mapping[str, Prices] | None) -> None:
        self.path = path
        self.redactor = redactor
        self._prices = prices
        self._file: RunFile | None = None
        self._reset()
        self._file = self._opened()

    def put(self, queued: QueuedEvent) -> None:
        """Queue one event: all that happens in the caller's thread."""
        pending = self._pending
        if len(pending) >= MAX_PENDING:
            self._dropped += 1
            return
        pending.append(queued)
        if not self._wake.is_set():
            if self._thread is None:
                self._start()
            self._wake.set()

    def add_patterns(self, patterns: Sequence[re.Pattern[str]]) -> None:
        """Redact these too, from now on: a second recorder of the file may ask for more redaction, never for less."""
        if not self.redactor.enabled:
            self.redactor = self._packer.redactor = Redactor()
        self.redactor.add(patterns)

    def flush(self) -> None:
        """Wait until everything queued so far is in the file."""
        with self._writing:
            self._drain()

    def close(self) -> None:
        """Write what is left, and the status of the runs that did not end."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        with self._writing:
            self._drain()
            self._retrying(lambda file: file.leave(self._dropped))
            if self._file is not None:
                self._file.close()
                self._file = None
        if self._dropped:
            logger.error("%d events are missing in '%s'.", self._dropped, self.path)

    def after_fork(self) -> None:
        """Start afresh in a child process: neither the thread nor the connection survives a fork."""
        # Closing the parent's connection here would drop its locks, so it is kept open and unused.
        _ABANDONED.append(self._file)
        self._reset()

    def _reset(self) -> None:
        self._pending: deque[QueuedEvent] = deque()
        self._dropped = 0
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._file = None
        self._packer = Packer(self.redactor)
        self._gives_up_at: float | None = None
        self._warned = False

    def _opened(self) -> RunFile:
        return RunFile(self.path, lambda text: self.redactor.text(text), self._prices)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="wink-recorder", daemon=True)
                self._thread.start()
                if self._file is None and "multiprocessing.util" in sys.modules:
                    # A child process of multiprocessing exits without running atexit hooks.
                    sys.modules["multiprocessing.util"].Finalize(None, self.close, exitpriority=0)

    def _work(self) -> None:
        while not self._stop.is_set():
            has_open_runs = self._file is not None and self._file.open_runs
            woken = self._wake.wait(BEAT_SECONDS if has_open_runs else None)
            if woken and len(self._pending) < BATCH_EVENTS:
                self._stop.wait(BATCH_SECONDS)
            self._wake.clear()
            with self._writing:
                if not woken:
                    self._retrying(lambda file: file.beat(self._dropped))
                self._drain()

    def _drain(self) -> None:
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(len(self._pending), BATCH_EVENTS))]
            self._write([self._pack(*queued) for queued in batch])

    def _pack(self, run_id: str, session_id: str, at: float, frozen: object) -> Packed:
        payload = self._packer.pack(frozen)
        event = frozen.event if isinstance(frozen, FrozenEvent) else frozen
        return Packed(run_id, session_id, at, event, payload, self._packer.texts, self._packer.blobs)

    def _write(self, batch: list[Packed]) -> None:
        def work(file: RunFile) -> None:
            file.write(batch)
            file.beat(self._dropped)

        if not self._retrying(work):
            self._dropped += len(batch)

    def _retrying(self, work: Callable[[RunFile], None]) -> bool:
        """Work on the file in a transaction, retrying while that fails; False once it was given up."""
        while True:
            try:
                self._file = self._file or self._opened()
                self._file.transact(work)
                return True
            except (sqlite3.Error, RunFileError) as error:
                if not self._warned:
                    self._warned = True
                    logger.warning("Recording to '%s' is held up: %s", self.path, error)
                if not self._waited():
                    logger.error("Gave up recording to '%s': %s", self.path, error)
                    return False
            except Exception:
                logger.exception("Events could not be recorded to '%s'.", self.path)
                return False

    def _waited(self) -> bool:
        """Wait a little; False once the recorder was told to stop and has waited long enough."""
        if not self._stop.wait(RETRY_SECONDS):
            return True
        now = time.monotonic()
        self._gives_up_at = self._gives_up_at or now + CLOSING_SECONDS
        time.sleep(RETRY_SECONDS)
        return now < self._gives_up_at


_ABANDONED: list[RunFile | None] = []
