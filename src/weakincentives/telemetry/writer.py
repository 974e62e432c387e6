"""The thread that writes events to a file of runs, in batches, away from the agent's own thread."""

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
from weakincentives.telemetry.frozen import FrozenEvent
from weakincentives.telemetry.payload import Packer
from weakincentives.telemetry.redaction import Redactor
from weakincentives.telemetry.runfile import Packed, RunFile
from weakincentives.telemetry.schema import BEAT_SECONDS, RunFileError

logger = logging.getLogger("weakincentives.telemetry")

BATCH_SECONDS = 0.08
BATCH_EVENTS = 1_000
MAX_PENDING = 200_000
RETRY_SECONDS = 0.1
CLOSING_SECONDS = 5.0

QueuedEvent = tuple[str, str, float, object]


class Writer:
    """Takes events from any thread and writes them within about a tenth of a second.

    What cannot be written now (the file is busy, the disk is full) waits; what is too much to keep is dropped, counted
    and logged. Nothing of that reaches the agent.
    """

    def __init__(self, path: Path, redactor: Redactor, prices: Mapping[str, Prices] | None) -> None:
        self.path = path
        self.redactor = redactor
        self._prices = prices
        self._file: RunFile | None = None
        self._reset()
        self._file = self._opened()

    def put(self, heard: QueuedEvent) -> None:
        """Take one event; the caller's thread does nothing more than this."""
        pending = self._pending
        if len(pending) >= MAX_PENDING:
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
        """Begin anew in a child process: a thread and a connection do not survive the fork."""
        # Closing the parent's connection here would drop its locks, so it is only forgotten.
        _FORGOTTEN.append(self._file)
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
        self._gives_up: float | None = None
        self._complained = False

    def _opened(self) -> RunFile:
        return RunFile(self.path, lambda text: self.redactor.text(text), self._prices)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="wink-recorder", daemon=True)
                self._thread.start()
                if self._file is None and "multiprocessing.util" in sys.modules:
                    # A child of multiprocessing leaves without running atexit hooks.
                    sys.modules["multiprocessing.util"].Finalize(None, self.close, exitpriority=0)

    def _work(self) -> None:
        while not self._stop.is_set():
            awaited = self._file is not None and self._file.open_runs
            woken = self._wake.wait(BEAT_SECONDS if awaited else None)
            if woken and len(self._pending) < BATCH_EVENTS:
                self._stop.wait(BATCH_SECONDS)
            self._wake.clear()
            with self._writing:
                if not woken:
                    self._retrying(lambda file: file.beat(self._dropped))
                self._drain()

    def _drain(self) -> None:
        while self._pending:
            heard = [self._pending.popleft() for _ in range(min(len(self._pending), BATCH_EVENTS))]
            self._write([self._pack(*one) for one in heard])

    def _pack(self, run_id: str, session_id: str, at: float, heard: object) -> Packed:
        payload = self._packer.pack(heard)
        event = heard.event if isinstance(heard, FrozenEvent) else heard
        return Packed(run_id, session_id, at, event, payload, self._packer.texts)

    def _write(self, batch: list[Packed]) -> None:
        def work(file: RunFile) -> None:
            file.write(batch)
            file.beat(self._dropped)

        if not self._retrying(work):
            self._dropped += len(batch)

    def _retrying(self, work: Callable[[RunFile], None]) -> bool:
        """Do some work on the file in a transaction, again and again while that fails; False when it was given up."""
        while True:
            try:
                self._file = self._file or self._opened()
                self._file.transact(work)
                return True
            except (sqlite3.Error, RunFileError) as error:
                if not self._complained:
                    self._complained = True
                    logger.warning("Recording to '%s' is held up: %s", self.path, error)
                if not self._waited():
                    logger.error("Gave up recording to '%s': %s", self.path, error)
                    return False
            except Exception:
                logger.exception("Events could not be recorded to '%s'.", self.path)
                return False

    def _waited(self) -> bool:
        """Wait a little; False when the recorder was told to stop and has waited long enough."""
        if not self._stop.wait(RETRY_SECONDS):
            return True
        now = time.monotonic()
        self._gives_up = self._gives_up or now + CLOSING_SECONDS
        time.sleep(RETRY_SECONDS)
        return now < self._gives_up


_FORGOTTEN: list[RunFile | None] = []
