"""Which worker runs which work: handing back, waiting for an answer, taking over.

The engine has no calls for these. Each is a guarded UPDATE of its rows, which is why its minor version is pinned.

Work that is cancelled while it runs keeps its owner until the execution has left: the step it is in is still recorded,
and a retry lets that execution go on instead of starting a second one beside it.
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
from weakincentives.durable.journal import TaggedSerializer

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

    def leave(self, work_id: str, owner: str) -> None:
        """Give up the work that an execution stopped: cancelled work has no owner from now on.

        Work that was retried in the meantime goes back to its queue.
        """
        cancelled = (*_owned(work_id, owner), status.c.status == "CANCELLED")
        with self._engine.begin() as connection:
            if connection.execute(sa.update(status).where(*cancelled).values(owner_xid=None)).rowcount:
                return
            if _lock_owned(connection, work_id, owner):
                _release(connection, work_id)

    def running(self, worker: str) -> frozenset[tuple[str, str]]:
        """The work that belongs to executions of this worker, with their tokens."""
        query = sa.select(status.c.workflow_uuid, status.c.owner_xid).where(
            status.c.status == "PENDING", status.c.executor_id == worker, status.c.owner_xid.is_not(None)
        )
        with self._engine.connect() as connection:
            return frozenset((row.workflow_uuid, row.owner_xid) for row in connection.execute(query))

    def requeue(self, work_id: str, owner: str) -> None:
        """Return work whose execution ended without an outcome to its queue. The attempt stays counted."""
        with self._engine.begin() as connection:
            running = (*_owned(work_id, owner), status.c.status == "PENDING")
            connection.execute(sa.update(status).where(*running).values(**_queued("ENQUEUED")))

    def reset_attempts(self, work_id: str, owner: str) -> None:
        """Count attempts from one again, because the work got further than earlier attempts did."""
        with self._engine.begin() as connection:
            connection.execute(sa.update(status).where(*_owned(work_id, owner)).values(recovery_attempts=1))

    def take_over(self, connection: sa.Connection | None = None) -> int:
        """Return the work of workers without a lease to its queues; returns how many runs that was.

        Attempts stay counted, so that work that kills its workers ends as a dead letter. Rows that a frozen worker has
        locked are left for the next call.
        """
        if connection is None:
            with self._engine.begin() as own_connection:
                return self.take_over(own_connection)
        orphaned = _orphaned("PENDING").with_for_update(skip_locked=True)
        taken = sa.update(status).where(status.c.workflow_uuid.in_(orphaned)).values(**_queued("ENQUEUED"))
        return connection.execute(taken).rowcount

    def release_cancelled(self) -> None:
        """Take cancelled work from workers that died before they left it."""
        left = _orphaned("CANCELLED").where(status.c.owner_xid.is_not(None))
        with self._engine.begin() as connection:
            connection.execute(sa.update(status).where(status.c.workflow_uuid.in_(left)).values(owner_xid=None))

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

    def cancel(self, work_id: str) -> None:
        """Stop the work at its next step, unless it has finished. A running execution keeps it until it leaves."""
        now = int(time.time() * 1000)
        unfinished = (status.c.workflow_uuid == work_id, status.c.status.notin_(("SUCCESS", "ERROR", "CANCELLED")))
        with self._engine.begin() as connection:
            cancelled = (
                sa.update(status).where(*unfinished).values(status="CANCELLED", updated_at=now, completed_at=now)
            )
            connection.execute(cancelled)

    def resume(self, work_id: str, queue: str) -> bool:
        """Continue cancelled or dead work where it stopped; False if it is neither."""
        now = int(time.time() * 1000)
        stopped = (status.c.workflow_uuid == work_id, status.c.status == "CANCELLED", status.c.owner_xid.is_not(None))
        ended = (
            status.c.workflow_uuid == work_id,
            status.c.status.in_(("CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")),
            status.c.owner_xid.is_(None),
        )
        with self._engine.begin() as connection:
            uncancelled = sa.update(status).where(*stopped).values(status="PENDING", updated_at=now, completed_at=None)
            if connection.execute(uncancelled).rowcount:
                return True
            fresh = _queued("ENQUEUED") | {"queue_name": queue, "recovery_attempts": 0, "completed_at": None}
            requeued = sa.update(status).where(*ended).values(**fresh, delay_until_epoch_ms=None)
            return bool(connection.execute(requeued).rowcount)


def _owned(work_id: str, owner: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (status.c.workflow_uuid == work_id, status.c.owner_xid == owner)


def _orphaned(name: str) -> sa.Select[tuple[str]]:
    """The work with this status that belongs to a worker without a lease."""
    return (
        sa.select(status.c.workflow_uuid)
        .where(status.c.status == name, status.c.application_name == APPLICATION)
        .where(status.c.executor_id.notin_(sa.select(workers.c.executor_id)))
    )


def _lock_owned(connection: sa.Connection, work_id: str, owner: str) -> bool:
    """Whether the owner still runs the work; if so, the row stays locked until the transaction ends."""
    # An UPDATE, because that locks the row on both databases.
    running = (*_owned(work_id, owner), status.c.status == "PENDING")
    return bool(connection.execute(sa.update(status).where(*running).values(owner_xid=owner)).rowcount)


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
