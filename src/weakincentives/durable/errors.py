"""What can go wrong with durable work.

WinkError
└── DurableError
    ├── DatabaseBusyError     another process runs the work of this SQLite file
    ├── KeyConflictError      the key belongs to another request
    ├── NoSuchWorkError       nothing is known under this key
    ├── WorkPendingError      the result is not there yet
    ├── WorkCancelledError    the work was cancelled
    ├── DeadLetterError       the work brought its workers down too often
    └── RemoteError           the work failed with an exception that this process does not know
"""

from __future__ import annotations

from weakincentives.errors import WinkError


class DurableError(WinkError):
    """Base of the errors of durable work."""


class DatabaseBusyError(DurableError):
    """Another process holds the SQLite file; one process at a time runs its work."""


class KeyConflictError(DurableError):
    """The key was used for another request."""


class NoSuchWorkError(DurableError):
    """Nothing is known under this key."""


class WorkPendingError(DurableError):
    """The work is not done yet; `status` says where it stands."""

    def __init__(self, message: str, *, status: str) -> None:
        super().__init__(message)
        self.status = status


class WorkCancelledError(DurableError):
    """The work was cancelled before it was done."""


class DeadLetterError(DurableError):
    """The work was given up after too many attempts; `wink work retry` starts it once more."""


class RemoteError(DurableError):
    """The work failed with an exception whose class this process has not loaded; `type_name` names it."""

    def __init__(self, message: str, *, type_name: str) -> None:
        super().__init__(message)
        self.type_name = type_name


class Released(BaseException):
    """Unwinds an execution that no longer owns its work: handed back, suspended or fenced off.

    A BaseException, so that the engine records no outcome for it and no handler of a user swallows it.
    """
