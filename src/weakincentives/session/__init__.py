"""Typed, append-only state of a run: slices, reducers, observers and snapshots."""

from __future__ import annotations

from weakincentives.session.bus import Bus
from weakincentives.session.errors import SessionBusyError, SessionError
from weakincentives.session.log import LogEntry
from weakincentives.session.observers import observing
from weakincentives.session.operations import Append, Clear, Extend, Operation, Replace
from weakincentives.session.reducer import reducer
from weakincentives.session.session import Session
from weakincentives.session.slices import Slice
from weakincentives.session.snapshot import Snapshot
from weakincentives.session.view import SliceView

__all__ = [
    "Append",
    "Bus",
    "Clear",
    "Extend",
    "LogEntry",
    "Operation",
    "Replace",
    "Session",
    "SessionBusyError",
    "SessionError",
    "Slice",
    "SliceView",
    "Snapshot",
    "observing",
    "reducer",
]
