"""What a person sees of durable work: where it stands and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WorkStatus = Literal["queued", "running", "waiting", "done", "failed", "cancelled", "dead"]

_NAMES: dict[str, WorkStatus] = {
    "ENQUEUED": "queued",
    "PENDING": "running",
    "DELAYED": "waiting",
    "SUCCESS": "done",
    "ERROR": "failed",
    "CANCELLED": "cancelled",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "dead",
}
STATUSES: tuple[WorkStatus, ...] = tuple(_NAMES.values())
FINISHED: frozenset[WorkStatus] = frozenset({"done", "failed", "cancelled", "dead"})


def status_of(engine_name: str) -> WorkStatus:
    """Our word for the engine's."""
    return _NAMES[engine_name]


def engine_status(status: str) -> str:
    """The engine's word for ours."""
    return next(name for name, ours in _NAMES.items() if ours == status)


@dataclass(frozen=True, slots=True)
class Work:
    """One request on its way to a result."""

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


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded step: it is never run again."""

    number: int
    name: str
    started_ms: int | None
    completed_ms: int | None
    error: str | None

    @property
    def milliseconds(self) -> int:
        return (self.completed_ms or 0) - (self.started_ms or 0)


@dataclass(frozen=True, slots=True)
class Question:
    """Something that a person has to answer before the tool call of this step goes on."""

    call_id: str
    text: str
    expires_ms: int | None = None
    step: int = 0


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's answer: yes or no, with a note for the model and the name of who decided."""

    approved: bool
    note: str = ""
    by: str = ""
    expired: bool = False
