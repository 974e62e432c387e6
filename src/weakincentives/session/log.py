"""The marker of events that are history rather than state."""

from __future__ import annotations


class LogEntry:
    """Base of events that record what happened: a rollback undoes state, not the record of it."""

    __slots__ = ()
