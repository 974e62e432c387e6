"""Which process may run work: a lock that ends with the process, and a lease that a frozen process cannot renew.

A killed process loses its connection at once, and with it its advisory lock. A frozen one keeps both, so it must also
renew a lease. When the lease expires, others take over its work, and the worker finds itself fenced off when it thaws.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from weakincentives.durable.database import worker_table as workers
from weakincentives.durable.errors import DatabaseBusyError, Released
from weakincentives.durable.store import WorkStore

_log = logging.getLogger(__name__)


class Lease(Protocol):
    """The right to run work under an identity."""

    def join(self) -> str:
        """Become a worker and return the identity."""
        ...

    def check(self, identity: str) -> None:
        """Raise `Released` if work started under this identity may have been taken over."""
        ...

    def leave(self) -> None: ...


class SqliteLease:
    """Whoever holds the file lock runs all the work, and takes over everything that was running."""

    def __init__(self, store: WorkStore) -> None:
        self._store = store
        self._lock = FileLock(str(store.base_engine.url.database))

    def join(self) -> str:
        self._lock.acquire()
        self._store.ownership.take_over()
        return new_identity()

    def check(self, identity: str) -> None:
        pass

    def leave(self) -> None:
        self._lock.release()


class PostgresLease:
    """An advisory lock and a lease per worker, renewed by a thread that also looks for dead workers.

    A worker that was fenced off joins again under a new identity and abandons what it ran under the old one.
    """

    def __init__(self, store: WorkStore, *, version: str, seconds: float, on_rejoin: Callable[[str], None]) -> None:
        self._store = store
        self._version = version
        self._seconds = seconds
        self._on_rejoin = on_rejoin
        self._identity = ""
        self._valid_until = 0.0
        self._connection: sa.Connection | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wink-lease", daemon=True)

    def join(self) -> str:
        self._enter()
        self._remove_dead_workers()
        self._thread.start()
        return self._identity

    def check(self, identity: str) -> None:
        if identity != self._identity or time.monotonic() >= self._valid_until:
            raise Released(f"{identity} lost its lease")

    def leave(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._seconds)
        try:
            with self._store.engine.begin() as connection:
                connection.execute(sa.delete(workers).where(workers.c.executor_id == self._identity))
        except sa.exc.SQLAlchemyError:
            _log.warning("Could not delete the lease of %s; it will expire.", self._identity)
        self._drop_connection()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds / 10):
            try:
                if time.monotonic() >= self._valid_until or not self._renew():
                    lost = self._identity
                    self._enter()
                    self._on_rejoin(self._identity)
                    _log.warning("Worker %s was fenced off and joined again as %s.", lost, self._identity)
                self._remove_dead_workers()
            except Exception as error:
                # Whatever the error, a worker that stops renewing can never run anything again.
                reason = str(getattr(error, "orig", error)).partition("\n")[0]
                _log.warning("Worker %s could not renew its lease: %s", self._identity, reason)
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
        self._identity, self._valid_until = identity, asked + self._seconds

    def _renew(self) -> bool:
        asked = time.monotonic()
        connection = self._connection or self._locked_connection(self._identity)
        renewed = connection.execute(
            sa.update(workers)
            .where(workers.c.executor_id == self._identity)
            .values(lease_until_ms=_now() + int(self._seconds * 1000))
        ).rowcount
        if renewed:
            self._valid_until = asked + self._seconds
        return bool(renewed)

    def _remove_dead_workers(self) -> None:
        """Delete workers whose lease expired or whose lock is free, and take over their work."""
        connection = self._connection or self._locked_connection(self._identity)
        lock_is_free = sa.func.pg_try_advisory_xact_lock(sa.func.hashtextextended(workers.c.executor_id, 0))
        removed = (
            sa.delete(workers)
            .where(workers.c.executor_id != self._identity)
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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115
        try:
            _lock(file)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise DatabaseBusyError(
                f"Process {holder} runs the work of {self.path.with_suffix('')}; submit() your work to it and wait "
                "with result(), or use postgresql://... for several workers."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

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
