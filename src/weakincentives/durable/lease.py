"""Which process may run work: a lock that ends with the process, and a lease that a frozen process cannot renew.

A killed process loses its connection at once, and with it its advisory lock. A frozen one keeps both, so it must also
renew a lease. When the lease expires, others take over its work, and the worker finds itself fenced off when it thaws.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from weakincentives.durable.database import unavailable, worker_table as workers
from weakincentives.durable.errors import DatabaseBusyError, DatabaseUnavailableError, Released
from weakincentives.durable.store import WorkStore

_log = logging.getLogger(__name__)


class SqliteLease:
    """Whoever holds the file lock runs all the work, and takes over everything that was running."""

    def __init__(self, store: WorkStore) -> None:
        self.identity = ""
        self._store = store
        self._lock = FileLock(str(store.base_engine.url.database))

    def join(self) -> None:
        """Become a worker, and take over the work of those that are gone."""
        self._lock.acquire()
        try:
            self._store.ownership.take_over()
            self._store.ownership.release_cancelled()
        except BaseException:
            self._lock.release()
            raise
        self.identity = new_identity()

    def is_valid(self, identity: str) -> bool:
        """Always: the lock is held until its process ends."""
        return True

    def renew(self) -> None:
        """Nothing to do: a file lock does not expire."""

    def leave(self) -> None:
        self._lock.release()


class PostgresLease:
    """An advisory lock and a lease per worker, whose holder also looks for dead workers.

    A worker whose lease expired while nobody took over its work renews it and goes on. One that was fenced off joins
    again under a new identity and abandons what it ran under the old one.
    """

    def __init__(self, store: WorkStore, *, version: str, seconds: float) -> None:
        self.identity = ""
        self._store = store
        self._version = version
        self._seconds = seconds
        self._valid_until = 0.0
        self._failed_at = float("-inf")
        self._connection: sa.Connection | None = None

    def join(self) -> None:
        self._enter()
        self._remove_dead_workers()
        self._store.ownership.release_cancelled()

    def is_valid(self, identity: str) -> bool:
        """Whether work started under this identity may go on now; raises `Released` if it never may again."""
        if identity != self.identity:
            raise Released(f"{identity} lost its lease")
        return time.monotonic() < self._valid_until

    def renew(self) -> None:
        """Keep the lease; called several times in a lease's duration."""
        try:
            if not self._extend():
                lost = self.identity
                self._enter()
                _log.warning("Worker %s was fenced off and joined again as %s.", lost, self.identity)
            # After an outage every lease has expired: give the others time to renew theirs before taking over.
            if time.monotonic() - self._failed_at >= self._seconds:
                self._remove_dead_workers()
        except BaseException:
            self._failed_at = time.monotonic()
            self._drop_connection()
            raise

    def leave(self) -> None:
        try:
            with self._store.engine.begin() as connection:
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

        Not shortly after the server started, when every worker has lost its connection and most live.
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
        taken = self._store.ownership.take_over(connection)
        if dead or taken:
            _log.warning("Took over %d runs from %s.", taken, ", ".join(dead) or "workers that are gone")

    def _locked_connection(self, identity: str) -> sa.Connection:
        # Lock before inserting the row: to other workers, a row whose lock is free is a dead worker.
        self._drop_connection()
        connection = self._store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
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
    """Marks the process that runs the work of a SQLite file; the operating system frees it when the process dies."""

    def __init__(self, database: str) -> None:
        self.path = Path(database + ".lock")
        self._file: Any = None

    def acquire(self) -> None:
        try:
            file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise unavailable(str(self.path), error) from error
        try:
            _lock(file)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise DatabaseBusyError(
                f"Process {holder} runs the work of {self.path.with_suffix('')}; submit() your work to it and wait "
                "with result(), as DurableClient does, or use postgresql://... for several workers."
            ) from error
        self._file = file
        # Only for the message above; a full disk must not stop the worker.
        with suppress(OSError):
            os.truncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _lock(file: Any) -> None:
    # A record lock, not flock(): a child process forked by a tool must not hold it after its parent was killed.
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
