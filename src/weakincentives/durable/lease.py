"""Which worker may run work: locks that die with a process, and leases that a frozen one cannot renew.

A killed process loses its connection, and with it its advisory lock, at once. A frozen one keeps both, so it also has
to renew a lease; once the lease has run out others take its work over, and when it thaws it finds itself fenced off.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import sqlalchemy as sa

from weakincentives.durable.database import FileLock
from weakincentives.durable.errors import Released
from weakincentives.durable.store import Store
from weakincentives.durable.tables import workers

_log = logging.getLogger(__name__)


class Lease(Protocol):
    """The right to run work under an identity."""

    def join(self) -> str:
        """Enter the fleet and return the identity."""
        ...

    def check(self, identity: str) -> None:
        """Raise `Released` when work begun under this identity may have been taken over."""
        ...

    def leave(self) -> None: ...


class SoleLease:
    """SQLite: whoever holds the file lock runs all the work, and may take over everything that was running."""

    def __init__(self, store: Store) -> None:
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


class FleetLease:
    """Postgres: an advisory lock and a lease per worker, renewed by a thread that also looks for the dead.

    A worker that finds itself fenced off joins again under a new identity; what it ran under the old one is over.
    """

    def __init__(self, store: Store, *, version: str, seconds: float, rejoined: Callable[[str], None]) -> None:
        self._store = store
        self._version = version
        self._seconds = seconds
        self._rejoined = rejoined
        self._identity = ""
        self._valid_until = 0.0
        self._connection: sa.Connection | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wink-lease", daemon=True)

    def join(self) -> str:
        self._enter()
        self._sweep()
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
            _log.warning("Could not give up the lease of %s; it runs out by itself.", self._identity)
        self._drop_connection()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds / 10):
            try:
                if time.monotonic() >= self._valid_until or not self._renew():
                    lost = self._identity
                    self._enter()
                    self._rejoined(self._identity)
                    _log.warning("Worker %s was fenced off and joined again as %s.", lost, self._identity)
                self._sweep()
            except Exception as error:
                # Whatever it is, a worker that stopped renewing would run nothing any more.
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

    def _sweep(self) -> None:
        """Bury the dead: those whose lease ran out or whose lock is free."""
        connection = self._connection or self._locked_connection(self._identity)
        lock_is_free = sa.func.pg_try_advisory_xact_lock(sa.func.hashtextextended(workers.c.executor_id, 0))
        buried = (
            sa.delete(workers)
            .where(workers.c.executor_id != self._identity)
            .where(sa.or_(workers.c.lease_until_ms < _now(), lock_is_free))
            .returning(workers.c.executor_id)
        )
        dead = connection.execute(buried).scalars().all()
        taken = self._store.ownership.take_over(connection)
        if dead or taken:
            _log.warning("Took over %d pieces of work from %s.", taken, ", ".join(dead) or "workers long gone")

    def _locked_connection(self, identity: str) -> sa.Connection:
        # The lock comes before the row: a row without a lock is a dead worker to everybody else.
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


def new_identity() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _now() -> Any:
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()) * 1000, sa.BigInteger)
