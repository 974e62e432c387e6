"""Signals between processes: whoever waits for a row looks at it as soon as it has changed.

Postgres sends a signal with the transaction that changes the row (NOTIFY). On SQLite, any commit is a signal for all.
A signal can be lost, with the connection or before anybody listens, so those who wait also look now and then.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any
from weakref import WeakSet

import psycopg
import sqlalchemy as sa

from weakincentives.durable.work import DatabaseUnavailableError

_CHANNEL = "wink"
_LOST = (DatabaseUnavailableError, sa.exc.SQLAlchemyError, sqlite3.Error, psycopg.Error)
_NAMES = "weakincentives.signals"
# How often a SQLite file is checked for a commit, which takes a few microseconds.
_CHECK_SECONDS = 0.01
# How long a listener without a connection waits for the next, and one without waiters for the next of them.
_RECONNECT_SECONDS = 0.5
_LINGER_SECONDS = 30.0
_CLOSE_SECONDS = 10.0


class Waiter:
    """Waits for signals with a name; it is forgotten with the last reference to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._signalled = threading.Event()
        self._asleep: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def signal(self) -> None:
        self._signalled.set()
        if (asleep := self._asleep) is not None:
            # The event loop may have been closed.
            with suppress(RuntimeError):
                asleep[0].call_soon_threadsafe(asleep[1].set)

    def is_signalled(self) -> bool:
        """True if there was a signal since the last call."""
        signalled = self._signalled.is_set()
        self._signalled.clear()
        return signalled

    def wait(self, seconds: float | None) -> None:
        """Wait for a signal since the last call, at most for so long."""
        self._signalled.wait(seconds)
        self._signalled.clear()

    async def wait_async(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._asleep = asyncio.get_running_loop(), woken
        try:
            if not self._signalled.is_set():
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(woken.wait(), seconds)
        finally:
            self._asleep = None
        self._signalled.clear()


class Signals:
    """The signals of one database, received by one thread while anybody in this process waits for them."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._lock = threading.Lock()
        self._waiters: WeakSet[Waiter] = WeakSet()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._sender = secrets.token_hex(4)

    def waiter(self, name: str) -> Waiter:
        waiter = Waiter(_encoded(name))
        with self._lock:
            self._waiters.add(waiter)
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._listen, name="wink-signals", daemon=True)
                self._thread.start()
        return waiter

    @contextmanager
    def transaction(self, engine: sa.Engine | None = None) -> Iterator[sa.Connection]:
        """A transaction whose end sends the signals that `add` was given."""
        with (engine or self._engine).begin() as connection:
            names: set[str] = set()
            connection.info[_NAMES] = names
            yield connection
            if not self._is_sqlite:
                for name in sorted(names):
                    connection.execute(sa.select(sa.func.pg_notify(_CHANNEL, f"{self._sender} {name}")))
        # In this process, at once.
        for name in names:
            self._signal(name)

    def add(self, connection: sa.Connection, *names: str) -> None:
        connection.info[_NAMES].update(map(_encoded, names))

    def close(self) -> None:
        self._closing.set()
        if (thread := self._thread) is not None:
            with suppress(DatabaseUnavailableError, sa.exc.SQLAlchemyError), self.transaction() as connection:
                self.add(connection, "")
            thread.join(timeout=_CLOSE_SECONDS)

    def _listen(self) -> None:
        while not self._closing.is_set():
            # Without the database, those who wait look by themselves.
            with suppress(*_LOST), self._engine.connect() as connection:
                driver = connection.connection.driver_connection
                if self._is_sqlite:
                    connection.detach()
                    self._watch(driver)
                else:
                    connection.execution_options(isolation_level="AUTOCOMMIT")
                    connection.detach()
                    connection.execute(sa.text(f"LISTEN {_CHANNEL}"))
                    self._receive(driver)
            with self._lock:
                if not self._waiters:
                    self._thread = None
                    return
            self._closing.wait(_RECONNECT_SECONDS)

    def _watch(self, file: Any) -> None:
        """Signal every commit of another connection, until nobody waits."""
        seen, used = None, time.monotonic()
        while not self._closing.wait(_CHECK_SECONDS):
            number = file.execute("PRAGMA data_version").fetchone()[0]
            if number != seen:
                seen = number
                self._signal(None)
            if self._waiters:
                used = time.monotonic()
            elif time.monotonic() - used > _LINGER_SECONDS:
                return

    def _receive(self, connection: Any) -> None:
        """Pass on the signals of a connection, until nobody waits."""
        used = time.monotonic()
        while not self._closing.is_set():
            for notice in connection.notifies(timeout=_LINGER_SECONDS / 4, stop_after=1):
                sender, _, name = notice.payload.partition(" ")
                if sender != self._sender:
                    self._signal(name)
            if self._waiters:
                used = time.monotonic()
            elif time.monotonic() - used > _LINGER_SECONDS:
                return

    def _signal(self, name: str | None) -> None:
        with self._lock:
            waiters = [each for each in self._waiters if name is None or each.name == name]
        for waiter in waiters:
            waiter.signal()


def _encoded(name: str) -> str:
    # A payload of Postgres is short, and a name may be long.
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
