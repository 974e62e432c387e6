"""`record("runs.db")` writes to one file every event that this process's sessions dispatch.

A thread writes the events in batches, away from the agent's own threads.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from weakincentives.limits import Prices
from weakincentives.redaction import NoRedaction, Redactor, compile_patterns
from weakincentives.runtime.spi import RunState
from weakincentives.session import Session, observing
from weakincentives.telemetry.payload import Packer
from weakincentives.telemetry.reader import BEAT_SECONDS, RunFileError
from weakincentives.telemetry.runfile import Packed, RunFile
from weakincentives.telemetry.values import FrozenEvent, freeze

logger = logging.getLogger("weakincentives.telemetry")

BATCH_SECONDS = 0.08
BATCH_EVENTS = 1_000
MAX_PENDING = 200_000
RETRY_SECONDS = 0.1
CLOSING_SECONDS = 5.0

# The run id, the session id, the time, and the event as it was then.
QueuedEvent = tuple[str, str, float, object]


class Recorder:
    """The result of `record`.

    It can be entered repeatedly and in several threads at once. Recorders of the same file share one writer, so no
    event is written twice.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        redact: Iterable[str | re.Pattern[str]] | None = (),
        prices: Mapping[str, Prices] | None = None,
    ) -> None:
        self.path = Path(path)
        self._patterns = None if redact is None else compile_patterns(redact)
        self._prices = prices
        self._entered: list[_Writer] = []

    def __enter__(self) -> Recorder:
        key = os.path.realpath(self.path)
        with _LOCK:
            writer = _CURRENT.get(key)
            if writer is None:
                redactor = NoRedaction() if self._patterns is None else Redactor(self._patterns)
                writer = _CURRENT[key] = _Writer(Path(key), redactor, self._prices)
            elif self._patterns is not None:
                writer.add_patterns(self._patterns)
            writer.users += 1
        self._entered.append(writer)
        return self

    def __exit__(self, *_: object) -> None:
        writer = self._entered.pop()
        with _LOCK:
            writer.users -= 1
            if writer.users:
                return
            for key in [key for key, other in _CURRENT.items() if other is writer]:
                del _CURRENT[key]
        writer.close()

    def flush(self) -> None:
        """Wait until every event so far is in the file."""
        for writer in self._entered[-1:]:
            writer.flush()


def record(
    path: str | os.PathLike[str],  #: the file, created if there is none
    *,
    redact: Iterable[str | re.Pattern[str]] | None = (),
    prices: Mapping[str, Prices] | None = None,  #: prices by model, before the listed ones
) -> Recorder:
    """Record every run of this process to a SQLite file, as a context manager or as `MainLoop(recorder=...)`.

        with record("runs.db"):
            MainLoop().execute(prompt, session=Session(), adapter=adapter)

    API keys, tokens and passwords are redacted before anything is written; `redact` adds your own patterns, and
    `redact=None` turns redaction off. `prices` adds to the known prices by model, which determine the cost of runs.
    """
    return Recorder(path, redact=redact, prices=prices)


class _Writer:
    """Accepts events from any thread and writes them within about a tenth of a second.

    Events that cannot be written yet (the file is busy, the disk is full) wait; those that exceed the queue are
    dropped, counted and logged. The agent is not affected. `users` counts the file's recorders that are entered.
    """

    def __init__(self, path: Path, redactor: Redactor, prices: Mapping[str, Prices] | None) -> None:
        self.path = path
        self.redactor = redactor
        self._prices = prices
        self._file: RunFile | None = None
        self._reset()
        self._file = self._opened()
        self.users = 0
        self._stack = ExitStack()
        self._stack.enter_context(observing(self._observe))
        _ALL.add(self)

    def _observe(self, session: Session, event: Any) -> None:
        """Queue one event; nothing else happens in the caller's thread."""
        run_id = getattr(event, "run_id", None)
        if not run_id or type(run_id) is not str:
            run = session[RunState].latest()
            run_id = "" if run is None else run.run_id
        pending = self._pending
        if len(pending) >= MAX_PENDING:
            self._dropped += 1
            return
        pending.append((run_id, session.session_id, time.time(), freeze(event)))
        if not self._wake.is_set():
            if self._thread is None:
                self._start()
            self._wake.set()

    def add_patterns(self, patterns: Sequence[re.Pattern[str]]) -> None:
        """Redact these too from now on: a second recorder of the file may add redaction but never remove it."""
        if not self.redactor.enabled:
            self.redactor = self._packer.redactor = Redactor()
        self.redactor.add(patterns)

    def flush(self) -> None:
        """Wait until everything queued so far is in the file."""
        with self._writing:
            self._drain()

    def close(self) -> None:
        """Write the remaining events, and the status of runs that did not end."""
        self._stack.close()
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
            if self._file is not None and self._file.is_gone:
                logger.warning("'%s' was deleted, moved or replaced; recording goes on in a new file.", self.path)
                with suppress(sqlite3.Error):
                    self._file.checkpoint()
                self._file.close()
                self._file = None
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
        """Work on the file in a transaction, retrying on failure; False if it gave up."""
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
        """Wait briefly; False once the recorder was told to stop and has waited long enough."""
        if not self._stop.wait(RETRY_SECONDS):
            return True
        now = time.monotonic()
        self._gives_up_at = self._gives_up_at or now + CLOSING_SECONDS
        time.sleep(RETRY_SECONDS)
        return now < self._gives_up_at


_LOCK = threading.Lock()
_CURRENT: dict[str, _Writer] = {}
_ABANDONED: list[RunFile | None] = []
_ALL: weakref.WeakSet[_Writer] = weakref.WeakSet()


def _after_fork() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    for writer in _ALL:
        writer.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
