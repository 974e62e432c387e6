"""Who works on what: handing back, putting to sleep, taking over.

The engine has no verbs for these; each is one guarded UPDATE of its rows, which is why its minor version is pinned.
"""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from weakincentives.durable.tables import APPLICATION, DIRECT, NO_TENANT, status, workers


class Ownership:
    """Moves work between queues and workers. An owner is the token that the engine gave to one execution."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def hand_back(self, work_id: str, owner: str) -> None:
        """Return work in progress to its queue; the next worker goes on after its last recorded step."""
        with self._engine.begin() as connection:
            if self.hold(connection, work_id, owner):
                self.release(connection, work_id)

    def forgive(self, work_id: str, owner: str) -> None:
        """Count attempts from one again: the work has come further than the attempts before it."""
        owned = (status.c.workflow_uuid == work_id, status.c.owner_xid == owner)
        with self._engine.begin() as connection:
            connection.execute(sa.update(status).where(*owned).values(recovery_attempts=1))

    def take_over(self, connection: sa.Connection | None = None) -> int:
        """Return the work of workers without a lease to its queues, and say how much that was.

        The attempts stay counted, so that work which kills its workers ends as a dead letter. Rows that a frozen
        worker still has locked are left for the next time.
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

    def hold(self, connection: sa.Connection, work_id: str, owner: str) -> bool:
        """Whether the work is still the owner's; it stays so until the transaction ends."""
        # An UPDATE, since that locks the row on both databases.
        owned = (status.c.workflow_uuid == work_id, status.c.owner_xid == owner, status.c.status == "PENDING")
        return bool(connection.execute(sa.update(status).where(*owned).values(owner_xid=owner)).rowcount)

    def release(self, connection: sa.Connection, work_id: str, *, until_ms: int | None = None) -> None:
        """Take the work off its worker: into the queue, or to sleep until then."""
        connection.execute(
            sa.update(status)
            .where(status.c.workflow_uuid == work_id)
            .values(
                **_queued("ENQUEUED" if until_ms is None else "DELAYED"),
                delay_until_epoch_ms=until_ms,
                # Leaving in good order is no failed attempt.
                recovery_attempts=status.c.recovery_attempts - 1,
            )
        )

    def wake(self, connection: sa.Connection, work_id: str) -> None:
        """Put sleeping work into its queue."""
        asleep = (status.c.workflow_uuid == work_id, status.c.status == "DELAYED")
        connection.execute(sa.update(status).where(*asleep).values(status="ENQUEUED", delay_until_epoch_ms=None))


def _queued(name: str) -> dict[str, Any]:
    return {
        "status": name,
        "owner_xid": None,
        "started_at_epoch_ms": None,
        "updated_at": int(time.time() * 1000),
        "queue_name": sa.func.coalesce(status.c.queue_name, status.c.name + DIRECT),
        "queue_partition_key": sa.func.coalesce(status.c.queue_partition_key, NO_TENANT),
    }
