"""Which process may run work, and which worker runs what: leases, handing back, waiting for an answer, takeover.

A killed process loses its connection at once, and with it its advisory lock. A frozen one keeps both, so it must also
renew a lease. When the lease expires, others take over its work, and the worker is fenced off when it thaws.

The engine has no calls that transfer work. Each transfer is a guarded UPDATE of the engine's rows, which is why its
minor version is pinned. Work cancelled while it runs keeps its owner until the execution has left: its current step is
still recorded, and a retry lets that execution continue instead of starting a second one.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, cast

import sqlalchemy as sa

from weakincentives.durable.database import (
    APPLICATION,
    DIRECT,
    NO_TENANT,
    question_table as questions,
    status_table as status,
    unavailable,
    worker_table as workers,
)
from weakincentives.durable.journal import TaggedSerializer
from weakincentives.durable.work import (
    CALL_FACTS,
    EXPIRED,
    DatabaseBusyError,
    DatabaseUnavailableError,
    DurableQuestion,
    Released,
    Reply,
)
from weakincentives.serde import dump_tagged

_log = logging.getLogger(__name__)

_FOREVER_MS = 2**62


class Ownership:
    """Moves work between queues and workers. `owner` is the token that the engine gave to one execution."""

    def __init__(self, engine: sa.Engine, serializer: TaggedSerializer) -> None:
        self.engine = engine
        self._serializer = serializer

    def hand_back(self, work_id: str, owner: str) -> None:
        """Return running work to its queue; the next worker continues after its last recorded step."""
        with self.engine.begin() as connection:
            if _lock_owned(connection, work_id, owner):
                _release(connection, work_id)

    def leave(self, work_id: str, owner: str) -> None:
        """Release work whose execution was stopped: cancelled work no longer has an owner.

        Work that was retried since then goes back to its queue.
        """
        cancelled = (*_owned(work_id, owner), status.c.status == "CANCELLED")
        with self.engine.begin() as connection:
            if connection.execute(sa.update(status).where(*cancelled).values(owner_xid=None)).rowcount:
                return
            if _lock_owned(connection, work_id, owner):
                _release(connection, work_id)

    def workers(self) -> dict[str, str | None]:
        """The workers that are alive, with their versions; on Postgres, a killed one counts until its lease expires.

        A SQLite file has one worker, whose version is not known.
        """
        if self.engine.dialect.name == "sqlite":
            holder = FileLock(str(self.engine.url.database)).holder()
            return {} if holder is None else {holder: None}
        with self.engine.connect() as connection:
            alive = sa.select(workers.c.executor_id, workers.c.version).where(workers.c.lease_until_ms > _now())
            return {row.executor_id: row.version for row in connection.execute(alive)}

    def is_running(self, work_id: str) -> bool:
        """True if an execution owns the work, also if that was cancelled since."""
        query = sa.select(status.c.owner_xid).where(status.c.workflow_uuid == work_id)
        with self.engine.connect() as connection:
            return connection.execute(query).scalar() is not None

    def running(self, worker: str) -> frozenset[tuple[str, str]]:
        """The work owned by this worker's executions, with their tokens."""
        query = sa.select(status.c.workflow_uuid, status.c.owner_xid).where(
            status.c.status == "PENDING", status.c.executor_id == worker, status.c.owner_xid.is_not(None)
        )
        with self.engine.connect() as connection:
            return frozenset((row.workflow_uuid, row.owner_xid) for row in connection.execute(query))

    def requeue(self, work_id: str, owner: str) -> None:
        """Return work whose execution ended without an outcome to its queue. The attempt still counts."""
        with self.engine.begin() as connection:
            running = (*_owned(work_id, owner), status.c.status == "PENDING")
            connection.execute(sa.update(status).where(*running).values(**_queued("ENQUEUED")))

    def reset_attempts(self, work_id: str, owner: str) -> None:
        """Restart the attempt count at one, because the work got further than earlier attempts."""
        with self.engine.begin() as connection:
            connection.execute(sa.update(status).where(*_owned(work_id, owner)).values(recovery_attempts=1))

    def take_over(self, connection: sa.Connection | None = None) -> int:
        """Put the work of workers without a lease back into its queues; return the number of runs.

        Attempts still count, so that work that kills its workers ends as a dead letter. Rows locked by a frozen worker
        are left for the next call.
        """
        if connection is None:
            with self.engine.begin() as own_connection:
                return self.take_over(own_connection)
        orphaned = _orphaned("PENDING").with_for_update(skip_locked=True)
        taken = sa.update(status).where(status.c.workflow_uuid.in_(orphaned)).values(**_queued("ENQUEUED"))
        return connection.execute(taken).rowcount

    def release_cancelled(self) -> None:
        """Release cancelled work whose workers died before they left it."""
        left = _orphaned("CANCELLED").where(status.c.owner_xid.is_not(None))
        with self.engine.begin() as connection:
            connection.execute(sa.update(status).where(status.c.workflow_uuid.in_(left)).values(owner_xid=None))

    def ask(
        self, work_id: str, owner: str, asked: Sequence[DurableQuestion], deadline_ms: int | None
    ) -> dict[str, Reply] | None:
        """Return the replies there are, by call id, or release the work from its worker until there is one.

        One transaction, so that an answer cannot arrive between checking for it and going to sleep. An expired question
        is answered here, with no. At the deadline of the run it is no, too, but open again if the run gets more time.
        """
        replies: dict[str, Reply] = {}
        limits = [each.expires_ms for each in asked] + [deadline_ms]
        # Calls that wait together were asked about together.
        now_ms = int(time.time() * 1000)
        with self.engine.begin() as connection:
            if not _lock_owned(connection, work_id, owner):
                return None
            for question in asked:
                if (reply := self._reply_to(connection, work_id, question, deadline_ms, now_ms)) is not None:
                    replies[question.call_id] = reply
            if not replies:
                until_ms = min((each for each in limits if each is not None), default=_FOREVER_MS)
                _release(connection, work_id, until_ms=until_ms)
        return replies or None

    def _reply_to(
        self,
        connection: sa.Connection,
        work_id: str,
        question: DurableQuestion,
        deadline_ms: int | None,
        now_ms: int,
    ) -> Reply | None:
        """The reply to a question, which is stored if it is new."""
        c = questions.c
        expires_ms = min((each for each in (question.expires_ms, deadline_ms) if each is not None), default=None)
        this = (c.workflow_uuid == work_id, c.step == question.step, c.call_id == question.call_id)
        row = connection.execute(sa.select(questions).where(*this)).one_or_none()
        if row is None or row.id != question.id:
            # An answer to another question, which had this place before the step was repeated, is none to this one.
            facts = {name: getattr(question, name) for name in CALL_FACTS}
            content = {
                "id": question.id,
                "text": question.text,
                "asked_ms": now_ms,
                "expires_ms": expires_ms,
                "answer": None,
                "call": json.dumps(facts),
                "asked": None if question.asked is None else json.dumps(dump_tagged(question.asked)),
            }
            place = {"workflow_uuid": work_id, "step": question.step, "call_id": question.call_id}
            if row is None:
                connection.execute(sa.insert(questions).values({**place, **content}))
            else:
                connection.execute(sa.update(questions).where(*this).values(content))
        elif row.answer is not None:
            return cast(Reply, self._serializer.deserialize(row.answer))
        elif expires_ms is not None and expires_ms <= now_ms:
            if expires_ms == question.expires_ms:
                text = self._serializer.serialize(EXPIRED)
                connection.execute(sa.update(questions).where(*this).values(answer=text))
            return EXPIRED
        else:
            connection.execute(sa.update(questions).where(*this).values(expires_ms=expires_ms))
        return None

    def cancel(self, work_id: str) -> None:
        """Stop the work at its next step, unless it has finished. A running execution owns it until it leaves."""
        now = int(time.time() * 1000)
        unfinished = (status.c.workflow_uuid == work_id, status.c.status.notin_(("SUCCESS", "ERROR", "CANCELLED")))
        with self.engine.begin() as connection:
            cancelled = (
                sa.update(status).where(*unfinished).values(status="CANCELLED", updated_at=now, completed_at=now)
            )
            connection.execute(cancelled)

    def uncancel(self, work_id: str) -> bool:
        """Let the execution of cancelled work continue, if it is still in its step; False if there is none."""
        stopped = (status.c.workflow_uuid == work_id, status.c.status == "CANCELLED", status.c.owner_xid.is_not(None))
        pending = {"status": "PENDING", "updated_at": int(time.time() * 1000), "completed_at": None}
        with self.engine.begin() as connection:
            return bool(connection.execute(sa.update(status).where(*stopped).values(pending)).rowcount)


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
    """True if the owner still runs the work; then the row stays locked until the transaction ends."""
    # An UPDATE, because that locks the row on both databases.
    running = (*_owned(work_id, owner), status.c.status == "PENDING")
    return bool(connection.execute(sa.update(status).where(*running).values(owner_xid=owner)).rowcount)


def _release(connection: sa.Connection, work_id: str, *, until_ms: int | None = None) -> None:
    """Release the work from its worker and put it into its queue, or to sleep until the given time."""
    connection.execute(
        sa.update(status)
        .where(status.c.workflow_uuid == work_id)
        .values(
            **_queued("ENQUEUED" if until_ms is None else "DELAYED"),
            delay_until_epoch_ms=until_ms,
            # Leaving voluntarily does not count as an attempt.
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
        "queue_partition_key": sa.func.coalesce(status.c.queue_partition_key, NO_TENANT + status.c.workflow_uuid),
    }


class SqliteLease:
    """The process that holds the file lock runs all the work, and takes over everything that was running."""

    def __init__(self, ownership: Ownership) -> None:
        self.identity = ""
        self._ownership = ownership
        self._lock = FileLock(str(ownership.engine.url.database))

    def join(self) -> None:
        """Become a worker, and take over the work of workers that are gone."""
        self.identity = new_identity()
        self._lock.acquire(self.identity)
        try:
            self._ownership.take_over()
            self._ownership.release_cancelled()
        except BaseException:
            self._lock.release()
            raise

    def is_valid(self, identity: str) -> bool:
        """Always true: the lock is held until its process ends."""
        return True

    def renew(self) -> None:
        """Nothing to do: a file lock does not expire."""

    def leave(self) -> None:
        self._lock.release()


class PostgresLease:
    """An advisory lock and a lease per worker; its holder also looks for dead workers.

    A worker whose lease expired renews it and continues if nobody took over its work. One that was fenced off rejoins
    under a new identity and abandons what it ran under the old one.
    """

    def __init__(self, ownership: Ownership, *, version: str, seconds: float) -> None:
        self.identity = ""
        self._ownership = ownership
        self._version = version
        self._seconds = seconds
        self._valid_until = 0.0
        self._failed_at = float("-inf")
        self._connection: sa.Connection | None = None

    def join(self) -> None:
        self._enter()
        self._remove_dead_workers()
        self._ownership.release_cancelled()

    def is_valid(self, identity: str) -> bool:
        """True if work started under this identity may continue now; raises `Released` if it never may again."""
        if identity != self.identity:
            raise Released(f"{identity} lost its lease")
        return time.monotonic() < self._valid_until

    def renew(self) -> None:
        """Extend the lease; called several times per lease period."""
        try:
            if not self._extend():
                lost = self.identity
                self._enter()
                _log.warning("Worker %s was fenced off and joined again as %s.", lost, self.identity)
            # After an outage every lease has expired: give other workers time to renew theirs before taking over.
            if time.monotonic() - self._failed_at >= self._seconds:
                self._remove_dead_workers()
        except BaseException:
            self._failed_at = time.monotonic()
            self._drop_connection()
            raise

    def leave(self) -> None:
        try:
            with self._ownership.engine.begin() as connection:
                connection.execute(sa.delete(workers).where(workers.c.executor_id == self.identity))
        except DatabaseUnavailableError:
            _log.warning("Could not delete the lease of %s; it will expire.", self.identity)
        self._drop_connection()

    def _enter(self) -> None:
        identity = new_identity()
        asked = time.monotonic()
        connection = self._locked_connection(identity)
        connection.execute(
            sa.insert(workers).values(
                executor_id=identity, version=self._version, lease_until_ms=_now() + int(self._seconds * 1000)
            )
        )
        self._valid_until = asked + self._seconds
        self.identity = identity

    def _extend(self) -> bool:
        """Extend the lease; False if another worker has deleted it."""
        asked = time.monotonic()
        connection = self._connection or self._locked_connection(self.identity)
        extended = connection.execute(
            sa.update(workers)
            .where(workers.c.executor_id == self.identity)
            .values(lease_until_ms=_now() + int(self._seconds * 1000))
        ).rowcount
        if extended:
            self._valid_until = asked + self._seconds
        return bool(extended)

    def _remove_dead_workers(self) -> None:
        """Delete workers whose lease expired or whose lock is free, and take over their work.

        Skipped shortly after the server has started, when every worker has lost its connection but most are alive.
        """
        connection = self._connection or self._locked_connection(self.identity)
        lock_is_free = sa.func.pg_try_advisory_xact_lock(sa.func.hashtextextended(workers.c.executor_id, 0))
        up_since = sa.cast(sa.extract("epoch", sa.func.pg_postmaster_start_time()) * 1000, sa.BigInteger)
        removed = (
            sa.delete(workers)
            .where(workers.c.executor_id != self.identity, up_since < _now() - int(self._seconds * 1000))
            .where(sa.or_(workers.c.lease_until_ms < _now(), lock_is_free))
            .returning(workers.c.executor_id)
        )
        dead = connection.execute(removed).scalars().all()
        taken = self._ownership.take_over(connection)
        if dead or taken:
            _log.warning("Took over %d runs from %s.", taken, ", ".join(dead) or "workers that are gone")

    def _locked_connection(self, identity: str) -> sa.Connection:
        # Lock before inserting the row: other workers take a row whose lock is free for a dead worker.
        self._drop_connection()
        connection = self._ownership.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(sa.text(f"SET statement_timeout = {int(self._seconds * 1000)}"))
        connection.execute(sa.select(sa.func.pg_advisory_lock(sa.func.hashtextextended(identity, 0))))
        self._connection = connection
        return connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None


class FileLock:
    """Marks the process that runs the work of a SQLite file; the operating system releases it when the process dies."""

    _held: ClassVar[dict[str, str]] = {}

    def __init__(self, database: str) -> None:
        self.path = Path(database + ".lock")
        self._name = os.path.realpath(self.path)
        self._file: Any = None

    def holder(self) -> str | None:
        """The worker that holds the lock, or None."""
        if self._name in self._held:
            # Opened again, the file would be closed again, and that releases this process's lock on it.
            return self._held[self._name]
        with suppress(FileNotFoundError), open(self.path, "r+", encoding="utf-8") as file:
            try:
                _lock(file)
            except OSError:
                return file.read().partition(" ")[2]
        return None

    def acquire(self, worker: str = "") -> None:
        try:
            file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise unavailable(str(self.path), error) from error
        try:
            _lock_soon(file)
        except OSError as error:
            file.seek(0)
            holder = file.read().partition(" ")[0].strip() or "unknown"
            file.close()
            raise DatabaseBusyError(
                f"Process {holder} runs the work of {self.path.with_suffix('')}; submit() your work to it and wait "
                "with result(), as DurableClient does, or use postgresql://... for several workers."
            ) from error
        self._file = file
        self._held[self._name] = worker
        # Only for messages; a full disk must not stop the worker.
        with suppress(OSError):
            os.truncate(file.fileno(), 0)
            os.write(file.fileno(), f"{os.getpid()} {worker}".encode())

    def release(self) -> None:
        if self._file is not None:
            del self._held[self._name]
            self._file.close()
            self._file = None


def _lock_soon(file: Any) -> None:
    """Lock the file; `holder` may hold the lock for a moment."""
    for _ in range(20):
        with suppress(OSError):
            return _lock(file)
        time.sleep(0.01)
    _lock(file)


def _lock(file: Any) -> None:
    # A record lock, not flock(): a child process forked by a tool must not keep it after its parent is killed.
    try:
        import fcntl
    except ImportError:
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def new_identity() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _now() -> Any:
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()) * 1000, sa.BigInteger)
