"""Errors of durable work.

WinkError
└── DurableError
    ├── DatabaseBusyError         another process runs the work of this SQLite file
    ├── DatabaseUnavailableError  the database cannot be reached or written now
    ├── KeyConflictError          the key was used for another request
    ├── NoSuchWorkError           there is no work with this key
    ├── WorkPendingError          the result is not available yet
    ├── WorkCancelledError        the work was cancelled
    ├── DeadLetterError           the work was given up after too many failed attempts
    └── RemoteError               the work failed with an exception class that this process has not loaded
"""

from __future__ import annotations

from weakincentives.errors import WinkError


class DurableError(WinkError):
    """Base class of the errors of durable work."""


class DatabaseBusyError(DurableError):
    """Another process runs the work of this SQLite file; only one can at a time."""


class DatabaseUnavailableError(DurableError):
    """The database cannot be reached or written now: a lost server, a full disk.

    Try again later. Work that is running waits for its database by itself.
    """


class KeyConflictError(DurableError):
    """The key was used for another request."""


class NoSuchWorkError(DurableError):
    """There is no work with this key."""


class WorkPendingError(DurableError):
    """The work has not finished; `status` is its current status."""

    def __init__(self, message: str, *, status: str) -> None:
        super().__init__(message)
        self.status = status


class WorkCancelledError(DurableError):
    """The work was cancelled before it finished."""


class DeadLetterError(DurableError):
    """The work was given up after too many attempts; `wink work retry` starts it again."""


class RemoteError(DurableError):
    """The work failed with an exception whose class this process has not loaded; `type_name` names it."""

    def __init__(self, message: str, *, type_name: str) -> None:
        super().__init__(message)
        self.type_name = type_name


class Released(BaseException):
    """Unwinds an execution that no longer owns its work: handed back, waiting for a person, or taken over.

    A BaseException, so that the engine records no outcome and no `except Exception` in a handler swallows it.
    """
