"""`MainLoop` on a durable engine: recorded steps, idempotency keys, workers that take over from each other, approvals.

The engine is imported when a loop or a store is first used; install it with `pip install 'weakincentives[durable]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front
from weakincentives.durable.conversations import DurableConversations
from weakincentives.durable.loop import DurableClient, DurableMainLoop
from weakincentives.durable.metrics import measured
from weakincentives.durable.work import (
    Approval,
    DatabaseBusyError,
    DatabaseUnavailableError,
    DeadLetterError,
    DurableError,
    DurableQuestion,
    InFlight,
    KeyConflictError,
    NoSuchWorkError,
    QueueLimits,
    RemoteError,
    Reply,
    StaleQuestionError,
    Step,
    Work,
    WorkCancelledError,
    WorkerHealth,
    WorkPendingError,
    WorkStatus,
    ask_approval,
)

if TYPE_CHECKING:
    from weakincentives.durable.store import WorkStore

__all__ = [
    "Approval",
    "DatabaseBusyError",
    "DatabaseUnavailableError",
    "DeadLetterError",
    "DurableClient",
    "DurableConversations",
    "DurableError",
    "DurableMainLoop",
    "DurableQuestion",
    "InFlight",
    "KeyConflictError",
    "NoSuchWorkError",
    "QueueLimits",
    "RemoteError",
    "Reply",
    "StaleQuestionError",
    "Step",
    "Work",
    "WorkCancelledError",
    "WorkPendingError",
    "WorkStatus",
    "WorkStore",
    "WorkerHealth",
    "ask_approval",
    "measured",
]

__getattr__ = lazy_front(__name__, {"store": ["WorkStore"]})
