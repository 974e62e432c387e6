"""Typed, append-only state of a run: slices, reducers, observers and snapshots."""

from weakincentives.errors import SessionBusyError, SessionError
from weakincentives.session.session import Bus, ChildSession, Session, Slice, check_tags, observing
from weakincentives.session.slices import (
    Append,
    Clear,
    Extend,
    LogEntry,
    Operation,
    Replace,
    SliceView,
    extends,
    reducer,
)
from weakincentives.session.snapshot import Snapshot

__all__ = [
    "Append",
    "Bus",
    "ChildSession",
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
    "check_tags",
    "extends",
    "observing",
    "reducer",
]
