"""Which worker runs which work: handing back, waiting for an answer, taking over.

The engine has no calls for these. Each is a guarded UPDATE of its rows, which is why its minor version is pinned.
"""

from __future__ import annotations

import time
from typing import Any, cast

import sqlalchemy as sa

from weakincentives.durable.approval import Approval, Question
from weakincentives.durable.database import (
    APPLICATION,
    DIRECT,
    NO_TENANT,
    question_table as questions,
    status_table as status,
    worker_table as workers,
)
from weakincentives.durable.serializer import TaggedSerializer

_FOREVER_MS = 2**62


class Ownership:
    """Moves work between queues and workers. `owner` is the token that the engine gave to one execution."""

    def __init__(self, engine: sa.Engine, serializer: TaggedSerializer) -> None:
        self._engine = engine
        self._serializer = serializer

    def hand_back(self, work_id: str, owner: str) -> None:
        """Return running work to its queue; the next worker continues after its last recorded step."""
        with self._engine.begin() as connection:
            if _lock_owned(connection, work_id, owner):
                _release(connection, work_id)

    def reset_attempts(self, work_id: str, owner: str) -> None:
        """Count attempts from one again, because the work got further than earlier attempts did."""
        owned = (status.c.workflow_uuid == work_id, status.c.owner_xid == owner)
        with self._engine.begin() as connection:
            connection.execute(sa.update(status).where(*owned).values(recovery_attempts=1))

    def take_over(self, connection: sa.Connection | None = None) -> int:
        """Return the work of workers without a lease to its queues; returns how many rows that was.

        Attempts stay counted, so that work that kills its workers ends as a dead letter. Rows that a frozen worker has
        locked are left for the next call.
        """
        orphaned = (
            sa.select(status.c.workflow_uuid)
            .where(status.c.status == "PENDING", status.c.application_name == APPLICATION)
            .where(status.c.executor_id.notin_(sa.select(workers.c.executor_id)))
            .with_for_update(skip_locked=True)
        )
        taken = sa.update(status).where(status.c.workflow_uuid.in_(orphaned)).values(**_queued("ENQUEUED"))
        if connection is not None:
            return connection.execute(taken).rowcount
        with self._engine.begin() as own_connection:
            return own_connection.execute(taken).rowcount

    def ask(self, work_id: str, owner: str, question: Question) -> Approval | None:
        """Return the answer, or None after taking the work off its worker until there is one.

        One transaction, so that an answer cannot arrive between looking for it and going to sleep. An expired question
        is answered here, with no.
        """
        now = int(time.time() * 1000)
        this = (
            questions.c.workflow_uuid == work_id,
            questions.c.step == question.step,
            questions.c.call_id == question.call_id,
        )
        with self._engine.begin() as connection:
            if not _lock_owned(connection, work_id, owner):
                return None
            row = connection.execute(sa.select(questions).where(*this)).one_or_none()
            if row is None:
                connection.execute(
                    sa.insert(questions).values(
                        workflow_uuid=work_id,
                        step=question.step,
                        call_id=question.call_id,
                        text=question.text,
                        asked_ms=now,
                        expires_ms=question.expires_ms,
                    )
                )
            elif row.answer is not None:
                return cast(Approval, self._serializer.deserialize(row.answer))
            elif row.expires_ms is not None and row.expires_ms <= now:
                expired = Approval(approved=False, note="Nobody answered in time.", expired=True)
                text = self._serializer.serialize(expired)
                connection.execute(sa.update(questions).where(*this).values(answer=text))
                return expired
            _release(connection, work_id, until_ms=question.expires_ms or _FOREVER_MS)
        return None


def _lock_owned(connection: sa.Connection, work_id: str, owner: str) -> bool:
    """Whether the owner still runs the work; if so, the row stays locked until the transaction ends."""
    # An UPDATE, because that locks the row on both databases.
    owned = (status.c.workflow_uuid == work_id, status.c.owner_xid == owner, status.c.status == "PENDING")
    return bool(connection.execute(sa.update(status).where(*owned).values(owner_xid=owner)).rowcount)


def _release(connection: sa.Connection, work_id: str, *, until_ms: int | None = None) -> None:
    """Take the work off its worker and put it into its queue, or to sleep until the given time."""
    connection.execute(
        sa.update(status)
        .where(status.c.workflow_uuid == work_id)
        .values(
            **_queued("ENQUEUED" if until_ms is None else "DELAYED"),
            delay_until_epoch_ms=until_ms,
            # Leaving on purpose does not count as an attempt.
            recovery_attempts=status.c.recovery_attempts - 1,
        )
    )


def _queued(name: str) -> dict[str, Any]:
    return {
        "status": name,
        "owner_xid": None,
        "started_at_epoch_ms": None,
        "updated_at": int(time.time() * 1000),
        "queue_name": sa.func.coalesce(status.c.queue_name, status.c.name + DIRECT),
        "queue_partition_key": sa.func.coalesce(status.c.queue_partition_key, NO_TENANT),
    }
