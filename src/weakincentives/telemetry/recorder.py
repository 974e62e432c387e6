"""`record("runs.db")`: write everything that the sessions of this process dispatch to one file."""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from weakincentives.limits import Prices
from weakincentives.redaction import NoRedaction, Redactor
from weakincentives.runtime import Run
from weakincentives.session import Session, observing
from weakincentives.telemetry.frozen import freeze
from weakincentives.telemetry.writer import Writer


class Recorder:
    """Records while it is entered, which may happen many times and in several threads at once.

    Recorders of the same file share one writer, so no event is written twice.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        redact: Iterable[str | re.Pattern[str]] | None = (),
        prices: Mapping[str, Prices] | None = None,
    ) -> None:
        self.path = Path(path)
        self._patterns = None if redact is None else tuple(re.compile(pattern) for pattern in redact)
        self._prices = prices
        self._entered: list[_Recording] = []

    def __enter__(self) -> Recorder:
        self._entered.append(_join(self.path, self._patterns, self._prices))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self._entered.pop())

    def flush(self) -> None:
        """Wait until every event so far is in the file."""
        for recording in self._entered[-1:]:
            recording.writer.flush()


def record(
    path: str | os.PathLike[str],
    *,
    redact: Iterable[str | re.Pattern[str]] | None = (),
    prices: Mapping[str, Prices] | None = None,
) -> Recorder:
    """Record every run of this process to a SQLite file, as a context manager or as `MainLoop(recorder=...)`.

        with record("runs.db"):
            MainLoop().execute(prompt, session=Session(), adapter=adapter)

    API keys, tokens and passwords are redacted before anything is written; `redact` adds patterns of your own, and
    `redact=None` turns redaction off. `prices` adds to the known prices by model, from which runs get their cost.
    """
    return Recorder(path, redact=redact, prices=prices)


class _Recording:
    """What this process records to one file, shared by the recorders that have entered it."""

    def __init__(self, path: Path, redactor: Redactor, prices: Mapping[str, Prices] | None) -> None:
        self.writer = Writer(path, redactor, prices)
        self.users = 0
        self._stack = ExitStack()
        self._stack.enter_context(observing(self._observe))
        _ALL.add(self)

    def _observe(self, session: Session, event: Any) -> None:
        run_id = getattr(event, "run_id", None)
        if not run_id or type(run_id) is not str:
            run = session[Run].latest()
            run_id = "" if run is None else run.run_id
        self.writer.put((run_id, session.session_id, time.time(), freeze(event)))

    def close(self) -> None:
        self._stack.close()
        self.writer.close()


_LOCK = threading.Lock()
_CURRENT: dict[str, _Recording] = {}
_ALL: weakref.WeakSet[_Recording] = weakref.WeakSet()


def _join(path: Path, patterns: tuple[re.Pattern[str], ...] | None, prices: Mapping[str, Prices] | None) -> _Recording:
    key = os.path.realpath(path)
    with _LOCK:
        recording = _CURRENT.get(key)
        if recording is None:
            redactor = NoRedaction() if patterns is None else Redactor(patterns)
            recording = _CURRENT[key] = _Recording(Path(key), redactor, prices)
        elif patterns is not None:
            recording.writer.add_patterns(patterns)
        recording.users += 1
        return recording


def _leave(recording: _Recording) -> None:
    with _LOCK:
        recording.users -= 1
        if recording.users:
            return
        for key in [key for key, other in _CURRENT.items() if other is recording]:
            del _CURRENT[key]
    recording.close()


def _after_fork() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    for recording in _ALL:
        recording.writer.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
