"""The same loop on a durable engine: recorded steps, keys, workers that take over from each other, and approvals.

Nothing of the engine is imported before a loop is used; it comes with `pip install 'weakincentives[durable]'`.
"""

from __future__ import annotations

from weakincentives.durable.approval import ask_approval
from weakincentives.durable.errors import (
    DatabaseBusyError,
    DeadLetterError,
    DurableError,
    KeyConflictError,
    NoSuchWorkError,
    RemoteError,
    WorkCancelledError,
    WorkPendingError,
)
from weakincentives.durable.limits import QueueLimits
from weakincentives.durable.loop import DurableMainLoop
from weakincentives.durable.work import Approval, Step, Work

__all__ = [
    "Approval",
    "DatabaseBusyError",
    "DeadLetterError",
    "DurableError",
    "DurableMainLoop",
    "KeyConflictError",
    "NoSuchWorkError",
    "QueueLimits",
    "RemoteError",
    "Step",
    "Work",
    "WorkCancelledError",
    "WorkPendingError",
    "ask_approval",
]
