"""Durable work as callers see it: its status, its steps, and how much of a queue runs at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weakincentives.durable.errors import DurableError

WorkStatus = Literal["queued", "running", "waiting", "done", "failed", "cancelled", "dead"]

# The engine's name for each status.
ENGINE_STATUS: dict[WorkStatus, str] = {
    "queued": "ENQUEUED",
    "running": "PENDING",
    "waiting": "DELAYED",
    "done": "SUCCESS",
    "failed": "ERROR",
    "cancelled": "CANCELLED",
    "dead": "MAX_RECOVERY_ATTEMPTS_EXCEEDED",
}
STATUS_OF = {engine_status: status for status, engine_status in ENGINE_STATUS.items()}
FINISHED: frozenset[WorkStatus] = frozenset({"done", "failed", "cancelled", "dead"})


@dataclass(frozen=True, slots=True)
class Work:
    """One request and how far it has got."""

    id: str
    loop: str
    status: WorkStatus
    version: str
    queue: str
    tenant: str
    worker: str
    attempts: int
    created_ms: int
    updated_ms: int

    @property
    def key(self) -> str:
        return self.id.removeprefix(f"{self.loop}/")


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded step. It is never run again."""

    number: int
    name: str
    started_ms: int | None
    completed_ms: int | None
    error: str | None

    @property
    def milliseconds(self) -> int:
        return (self.completed_ms or 0) - (self.started_ms or 0)


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """How a worker is doing. `reason` says why it is not ready; `running` counts the runs it works on.

    A worker that is not live must be restarted. One that is not ready is starting, draining, or waiting for its
    database, which a restart does not help.
    """

    live: bool
    ready: bool
    reason: str
    worker: str
    running: int


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much of a queue runs at once.

    `concurrency` is runs at a time per worker, `tenant_concurrency` runs at a time per tenant over all workers, `rate`
    starts per second over all workers. On SQLite the engine counts whole seconds, so the rate holds on average only.
    """

    concurrency: int = 8
    tenant_concurrency: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "tenant_concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DurableError(f"QueueLimits.{name} must be at least 1, got {value}.")
        if self.rate is not None and self.rate <= 0:
            raise DurableError(f"QueueLimits.rate must be more than 0 starts per second, got {self.rate}.")
