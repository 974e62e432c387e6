"""`record("runs.db")`: everything that sessions of this process do goes to one file."""

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
from weakincentives.runtime import Run
from weakincentives.session import Session, observing
from weakincentives.telemetry.frozen import freeze
from weakincentives.telemetry.redaction import NoRedaction, Redactor
from weakincentives.telemetry.writer import Writer


class Recorder:
    """Records while it is entered; may be entered many times, also at once from several threads.

    Recorders of the same file share one writer, so nothing is written twice.
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
        self._entered: list[_Line] = []

    def __enter__(self) -> Recorder:
        self._entered.append(_join(self.path, self._patterns, self._prices))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self._entered.pop())

    def flush(self) -> None:
        """Wait until everything that has happened is in the file."""
        for line in self._entered[-1:]:
            line.writer.flush()


def record(
    path: str | os.PathLike[str],
    *,
    redact: Iterable[str | re.Pattern[str]] | None = (),
    prices: Mapping[str, Prices] | None = None,
) -> Recorder:
    """Record every run of this process to a SQLite file, as a context manager or as `MainLoop(recorder=...)`.

        with record("runs.db"):
            MainLoop().execute(prompt, session=Session(), adapter=adapter)

    API keys, tokens and passwords are redacted before anything is written; `redact` adds patterns to look for, and
    `redact=None` turns all of it off. `prices` by model come on top of the known ones and give runs their cost.
    """
    return Recorder(path, redact=redact, prices=prices)


class _Line:
    """The one way from this process to one file, shared by the recorders that have entered it."""

    def __init__(self, path: Path, redactor: Redactor, prices: Mapping[str, Prices] | None) -> None:
        self.writer = Writer(path, redactor, prices)
        self.users = 0
        self._stack = ExitStack()
        self._stack.enter_context(observing(self.hear))
        _LINES_EVER.add(self)

    def hear(self, session: Session, event: Any) -> None:
        run_id = getattr(event, "run_id", None)
        if not run_id or type(run_id) is not str:
            run = session[Run].latest()
            run_id = "" if run is None else run.run_id
        self.writer.put((run_id, session.session_id, time.time(), freeze(event)))

    def close(self) -> None:
        self._stack.close()
        self.writer.close()


_LOCK = threading.Lock()
_LINES: dict[str, _Line] = {}
_LINES_EVER: weakref.WeakSet[_Line] = weakref.WeakSet()


def _join(path: Path, patterns: tuple[re.Pattern[str], ...] | None, prices: Mapping[str, Prices] | None) -> _Line:
    key = os.path.realpath(path)
    with _LOCK:
        line = _LINES.get(key)
        if line is None:
            redactor = NoRedaction() if patterns is None else Redactor(patterns)
            line = _LINES[key] = _Line(Path(key), redactor, prices)
        elif patterns is not None:
            line.writer.tighten(patterns)
        line.users += 1
        return line


def _leave(line: _Line) -> None:
    with _LOCK:
        line.users -= 1
        if line.users:
            return
        for key in [key for key, other in _LINES.items() if other is line]:
            del _LINES[key]
    line.close()


def _after_fork() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    for line in _LINES_EVER:
        line.writer.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
