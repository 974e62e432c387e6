"""A process that takes part in durable work: it opens the database, and as a worker it also runs the work."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from weakincentives._base.imports import require_extra
from weakincentives.durable.work import DurableError, QueueLimits, WorkerHealth
from weakincentives.serde import Upgrades, check_upgrades

if TYPE_CHECKING:
    from weakincentives.durable.engine import Engine
    from weakincentives.durable.store import WorkStore


class DurableProcess:
    """Opens the database of the work with this name when it is first used, and closes it."""

    def __init__(
        self,
        name: str,
        database_url: str | None = None,
        *,
        version: str | None = None,
        upgrades: Upgrades = MappingProxyType({}),
    ) -> None:
        if not isinstance(name, str) or not name or "/" in name or name.startswith("_dbos_"):
            raise DurableError(f"The name of durable work must be a short text without '/', got {name!r}.")
        self.name = name
        self.database_url = database_url
        self.version = version or _package_version()
        self.upgrades = check_upgrades(upgrades)
        self._idle_timeout = 5.0
        self._lock = threading.RLock()
        self._store: WorkStore | None = None

    def close(self) -> None:
        """Close the database. The next call opens it again."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def store(self) -> WorkStore:
        """All work in this database, whatever its name."""
        with self._lock:
            if self._store is None:
                require_extra("dbos", "durable", "Durable work")
                from weakincentives.durable.store import WorkStore

                self._store = WorkStore.open(self.database_url, idle_timeout=self._idle_timeout)
                self._store.serializer.upgrades |= self.upgrades
            return self._store


class DurableWorker(DurableProcess):
    """A process that can run the work with this name, in threads; `wink worker module:variable` starts one."""

    max_attempts = 5
    lease_seconds = 5.0

    def __init__(self, name: str, database_url: str | None = None, **options: Any) -> None:
        super().__init__(name, database_url, **options)
        self._engine: Engine | None = None

    def start(self, *, queues: tuple[str, ...] = (), limits: QueueLimits = QueueLimits()) -> str:
        """Become a worker, in threads of this process, until `drain()` or `close()`; returns the worker's name.

        The limits belong to the queue: those of the worker that started last apply to all workers.
        """
        if not all(isinstance(queue, str) and queue.strip() for queue in queues):
            raise DurableError(f"A queue needs a name, got {queues!r}; by default it is the loop's.")
        engine = self._start(queues or (self.name,), limits)
        engine.limit(queues or (self.name,), limits)
        return engine.identity

    def health(self) -> WorkerHealth:
        """The health of this worker: live, and ready for work, as `wink worker --health` reports over HTTP."""
        if self._engine is None:
            return WorkerHealth(live=True, ready=False, reason="not started", worker="", running=0)
        return self._engine.health()

    def drain(self, seconds: float = 30.0) -> bool:
        """Accept no new work and hand back running work; True if nothing is left running here.

        Work is handed back at its next step, so this takes as long as a step, not as long as a run.
        """
        return self._engine is None or self._engine.drain(seconds)

    def close(self) -> None:
        """Close the database; closing the last loop of this process stops its work. The loop can be used again.

        Other workers may repeat a step that is running now, so call `drain()` first.
        """
        with self._lock:
            if self._engine is not None:
                self._engine.leave(self.name)
                self._engine = None
            super().close()

    def _body(self) -> Any:
        """The function that the engine runs for each piece of work."""
        raise NotImplementedError

    def _start(self, queues: tuple[str, ...] | None = None, limits: QueueLimits = QueueLimits()) -> Engine:
        with self._lock:
            if self._engine is None:
                self._idle_timeout = self.lease_seconds
                store = self.store
                from weakincentives.durable.database import DIRECT
                from weakincentives.durable.engine import Engine

                # Only workers serve a shared queue; on SQLite this process is the only worker.
                served = queues if queues is not None else (self.name,) if store.is_sqlite else ()
                direct = {self.name + DIRECT: QueueLimits(limits.concurrency)}
                engine = Engine.join(store, version=self.version, lease_seconds=self.lease_seconds)
                try:
                    engine.serve(
                        self.name, self._body(), direct | dict.fromkeys(served, limits), max_attempts=self.max_attempts
                    )
                except BaseException:
                    engine.leave(self.name)
                    raise
                self._engine = engine
            return self._engine


def _package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("weakincentives")
    except PackageNotFoundError:
        return "0"
