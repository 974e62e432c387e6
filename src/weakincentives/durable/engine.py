"""The durable engine of this process: DBOS, configured with our identity, database, serializer and leases."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from math import ceil
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from dbos import DBOS, Queue, SetWorkflowID
from dbos._context import assert_current_dbos_context
from dbos._error import DBOSException, DBOSWorkflowCancelledError, DBOSWorkflowConflictIDError
from dbos._queue import queue_worker_thread
from dbos._utils import GlobalParams

from weakincentives.durable.database import APPLICATION, DIRECT, SCHEMA
from weakincentives.durable.ownership import PostgresLease, SqliteLease
from weakincentives.durable.signals import Waiter
from weakincentives.durable.store import WorkStore
from weakincentives.durable.work import (
    Cancelled,
    DatabaseUnavailableError,
    DurableError,
    DurableQuestion,
    QueueLimits,
    Released,
    Reply,
    WorkerHealth,
)

T = TypeVar("T")
Body = Callable[[Any], Any]

_log = logging.getLogger(__name__)

# How often a worker looks for work that nobody has signalled: because a process died, a delay or a limit is over.
_POLL_SECONDS = 0.2
_POLL_SECONDS_DIRECT = 0.5
# How long the thread of claimed work may take to start, before it is checked again.
_START_SECONDS = 0.005
# How long a step waits before it retries a lost database.
_MIN_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 2.0
# A lease that has not been renewed for this long never will be; the worker needs a restart.
_STUCK_SECONDS = 60.0
# An exhausted connection pool means that the database does not respond.
_UNAVAILABLE = (DatabaseUnavailableError, sa.exc.TimeoutError)


class Engine:
    """Runs functions whose steps are recorded. There is one per process, shared by its loops."""

    _current: Engine | None = None
    _guard = threading.RLock()

    def __init__(self, store: WorkStore, *, version: str, lease_seconds: float) -> None:
        self.store = store
        self.version = version
        self._users = 0
        self._active: set[str] = set()
        self._draining = threading.Event()
        self._bodies: dict[str, Body] = {}
        self._workflows: dict[str, Body] = {}
        self._served: list[str] = []
        self._pauses: list[_Pause] = []
        self._pollers: list[threading.Thread] = []
        self._lease = (
            SqliteLease(store.ownership)
            if store.is_sqlite
            else PostgresLease(store.ownership, version=version, seconds=lease_seconds)
        )
        self._renew_seconds = lease_seconds / 10
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="wink-lease", daemon=True)
        self._kept_at = time.monotonic()
        self._problem = ""
        self._blocked: dict[str, str] = {}
        # Executions, as (work id, owner), that may have ended without an outcome, and those that were abandoned.
        self._suspects: frozenset[tuple[str, str]] = frozenset()
        self._given_up: set[tuple[str, str]] = set()
        self._starting = threading.Lock()

    @property
    def identity(self) -> str:
        return self._lease.identity

    @classmethod
    def current(cls) -> Engine | None:
        return cls._current

    @classmethod
    def join(cls, store: WorkStore, *, version: str, lease_seconds: float) -> Engine:
        """Return the engine of this process, creating it if there is none; each `join()` needs a `leave()`."""
        with cls._guard:
            engine = cls._current
            if engine is None:
                engine = cls._current = cls(store, version=version, lease_seconds=lease_seconds)
            elif (engine.store, engine.version) != (store, version):
                raise DurableError(
                    f"This process already uses {engine.store.place} with version {engine.version!r}; loops that share "
                    "a process need the same database_url and version. close() the other loop, or use another process."
                )
            engine._users += 1
            return engine

    def serve(self, loop: str, body: Body, queues: Mapping[str, QueueLimits], *, max_attempts: int) -> None:
        """Run `body` for the work of this loop that arrives in these queues, and its `keep`, if any, now and then."""
        with self._guard:
            if loop in self._active:
                raise DurableError(f"This process already runs a loop called {loop!r}; close() it first.")
            registered = {name: self._register_queue(name, limits) for name, limits in queues.items()}
            self._active.add(loop)
            self._bodies[loop] = body
            if loop not in self._workflows:
                decorate = DBOS.workflow(name=loop, max_recovery_attempts=max_attempts - 1)
                self._workflows[loop] = decorate(self._function(loop))
            if not self._keeper.is_alive():
                self._launch()
            for name, queue in registered.items():
                if name not in self._served:
                    self._served.append(name)
                    self._poll(queue)

    def limit(self, queues: Iterable[str], limits: QueueLimits) -> None:
        """Set the limits of these queues, for this and every other worker."""
        for queue in queues:
            if queue not in self._served:
                served = ", ".join(self._served)
                raise DurableError(
                    f"This process already serves {served}; close() the loop before it serves {queue!r}."
                )
            self._register_queue(queue, limits)

    def start(self, loop: str, work_id: str, request: Any) -> Any:
        """Start the work in this process unless its id is known; return a handle with `get_result`."""

        def begin() -> Any:
            with SetWorkflowID(work_id):
                return DBOS.start_workflow(self._workflows[loop], request)

        # In an empty context, so that a tool of durable work can execute other durable work.
        return Context().run(begin)

    def step(self, name: str, run: Callable[[], T]) -> T:
        """Run one step of the current work, or return its recorded outcome.

        A step runs only once here, however often the database fails to record it.
        """
        self.yield_if_needed()
        context = assert_current_dbos_context()
        number = context.function_id
        outcome: Future[T] = Future()

        def once() -> T:
            if not outcome.done():
                try:
                    outcome.set_result(run())
                except Exception as error:
                    outcome.set_exception(error)
            return outcome.result()

        def record() -> T:
            context.function_id = number
            try:
                return DBOS.run_step({"name": name}, once)
            except DBOSWorkflowCancelledError:
                raise Cancelled("it was cancelled") from None
            except DBOSWorkflowConflictIDError:
                # Otherwise the engine would keep a thread polling for the new owner's outcome.
                raise Released("taken over") from None
            except DBOSException:
                if self._stopping.is_set():
                    raise Released("closed") from None
                raise

        return self.when_available(record, is_own=lambda error: outcome.done() and error is outcome.exception())

    def yield_if_needed(self) -> None:
        """Leave the current work if it was taken over or this process is draining; wait for an expired lease."""
        identity = assert_current_dbos_context().executor_id
        while not self._draining.is_set() and not self._lease.is_valid(identity):
            self._draining.wait(_MIN_PAUSE_SECONDS)
        if self._draining.is_set():
            # Without a database, others take over the work when the lease expires.
            with suppress(*_UNAVAILABLE):
                self.store.ownership.hand_back(*_execution())
            raise Released("handed back")

    def reset_attempts(self) -> None:
        """Record that the current work, resumed here, has completed another step."""
        with suppress(*_UNAVAILABLE):
            self.store.ownership.reset_attempts(*_execution())

    def ask(self, questions: Sequence[DurableQuestion], deadline_ms: int | None) -> dict[str, Reply]:
        """Return the replies there are; without any, the current work leaves this process until one arrives."""
        work_id, owner = _execution()
        replies = self.when_available(lambda: self.store.ownership.ask(work_id, owner, questions, deadline_ms))
        if replies is None:
            raise Released(f"waiting for an answer to {', '.join(each.call_id for each in questions)}")
        return replies

    @property
    def work_id(self) -> str:
        return assert_current_dbos_context().workflow_id

    @property
    def next_step(self) -> int:
        """The number under which the next step will be recorded."""
        return assert_current_dbos_context().function_id + 1

    def drain(self, timeout: float) -> bool:
        """Accept no new work and hand back running work at its next step; True if nothing is left running."""
        self._draining.set()
        for pause in self._pauses:
            pause.stop()
        until = time.monotonic() + timeout
        while _running():
            if time.monotonic() >= until:
                return False
            time.sleep(0.05)
        return True

    def health(self) -> WorkerHealth:
        live = self._keeper.is_alive() and time.monotonic() - self._kept_at < _STUCK_SECONDS
        # Copied first, since the threads of running work change it.
        blocked = list(self._blocked.values())
        if not live:
            reason = "the lease is not renewed"
        elif self._draining.is_set():
            reason = "draining"
        elif not self._pollers or not all(thread.is_alive() for thread in self._pollers):
            reason = "starting"
        else:
            reason = self._problem or next(iter(blocked), "")
        return WorkerHealth(live, not reason, reason, self.identity, len(_running()))

    def leave(self, loop: str) -> None:
        """Stop serving a loop. The engine stops with the last one; others take over what still runs here."""
        with self._guard:
            self._active.discard(loop)
            self._users -= 1
            if self._users:
                return
            self._draining.set()
            self._stop()
            Engine._current = None

    def _function(self, loop: str) -> Body:
        def run(request: Any) -> Any:
            work_id, owner = _execution()
            with self._starting:
                if (work_id, owner) in self._given_up:
                    raise Released("started too late")
            try:
                return self._bodies[loop](request)
            except Cancelled:
                with suppress(*_UNAVAILABLE):
                    self.store.ownership.leave(work_id, owner)
                raise

        return run

    def _keep(self) -> None:
        """Renew the lease and requeue work that lost its execution, until the engine stops."""
        while not self._stopping.wait(self._renew_seconds):
            self._kept_at = time.monotonic()
            try:
                self._lease.renew()
                GlobalParams.executor_id = self.identity
                self._requeue_lost()
                for keep in [body.keep for body in list(self._bodies.values()) if hasattr(body, "keep")]:
                    keep(self.store)
            except Exception as error:
                # Catch every error: a worker that stops renewing can never run anything again.
                if str(error) != self._problem:
                    _log.warning("Worker %s cannot renew its lease: %s", self.identity, error)
                self._problem = str(error)
            else:
                if self._problem:
                    _log.warning("Worker %s has its database again.", self.identity)
                self._problem = ""

    def _requeue_lost(self) -> None:
        """Requeue this worker's work that nothing here is running, for example because recording its outcome failed."""
        owned = self.store.ownership.running(self.identity)
        with self._starting:
            running = _running()
            idle = frozenset(each for each in owned if each[0] not in running)
            # Lost only if seen twice: work that was just claimed is about to start.
            lost, self._suspects = idle & self._suspects, idle
            self._given_up |= lost
        for work_id, owner in lost:
            self.store.ownership.requeue(work_id, owner)
            _log.warning("%s ended without an outcome; it is back in its queue.", work_id)

    def when_available(self, call: Callable[[], T], is_own: Callable[[Exception], bool] = lambda error: False) -> T:
        """Call something that needs the database, retrying until it is available or this engine stops."""
        work_id, pause = self.work_id, _MIN_PAUSE_SECONDS
        try:
            while True:
                try:
                    return call()
                except _UNAVAILABLE as error:
                    if is_own(error):
                        raise
                    if work_id not in self._blocked:
                        _log.warning("%s waits for its database: %s", work_id, error)
                    self._blocked[work_id] = str(error)
                if self._stopping.wait(pause):
                    raise Released("left without its database")
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        finally:
            self._blocked.pop(work_id, None)

    def _launch(self) -> None:
        self._lease.join()
        try:
            DBOS(
                config={
                    "name": APPLICATION,
                    "system_database_engine": self.store.base_engine,
                    "dbos_system_schema": SCHEMA,
                    "application_version": self.version,
                    "executor_id": self.identity,
                    "serializer": cast(Any, self.store.serializer),
                    "use_listen_notify": False,
                    # Nothing listens, but the listener thread must notice quickly that the engine stops.
                    "notification_listener_polling_interval_sec": 0.1,
                    "log_level": "WARNING",
                }
            )
            # This engine starts the pollers of its queues itself, so that a signal can end their pauses.
            DBOS.listen_queues(())
            DBOS.launch()
            # Otherwise a lost connection blocks its caller for up to 90 seconds after the server is back.
            _instance()._sys_db._retry_connection_errors = False
            self._keeper.start()
        except BaseException:
            self._stop()
            raise

    def _poll(self, queue: Queue) -> None:
        """Have the engine run the work of this queue, as its own threads would do."""
        pause = _Pause(self.store.signals.waiter(queue.name), self._has_begun_all)
        arguments, name = (pause, _instance(), queue), f"wink-queue-{queue.name}"
        poller = threading.Thread(target=queue_worker_thread, args=arguments, name=name, daemon=True)
        self._pauses.append(pause)
        self._pollers.append(poller)
        poller.start()

    def _has_begun_all(self) -> bool:
        """True if all work that this worker has claimed runs; what does not run yet is not counted by the engine."""
        with suppress(*_UNAVAILABLE):
            return {work_id for work_id, _ in self.store.ownership.running(self.identity)} <= _running()
        return True

    def _stop(self) -> None:
        self._stopping.set()
        for pause in self._pauses:
            pause.stop()
        for poller in self._pollers:
            poller.join(timeout=10 * self._renew_seconds)
        if self._keeper.is_alive():
            self._keeper.join(timeout=10 * self._renew_seconds)
        DBOS.destroy(destroy_registry=True)
        self._lease.leave()

    def _register_queue(self, name: str, limits: QueueLimits) -> Queue:
        return self.store.client.register_queue(
            name,
            worker_concurrency=limits.concurrency,
            partition_concurrency=limits.tenant_concurrency,
            limiter={"limit": ceil(limits.rate), "period": ceil(limits.rate) / limits.rate} if limits.rate else None,
            polling_interval_sec=_POLL_SECONDS_DIRECT if name.endswith(DIRECT) else _POLL_SECONDS,
        )


class _Pause:
    """The pause of a poller of the engine: it ends when the time is up, or there is new work, or for good.

    The engine takes it for the `threading.Event` that stops the poller. It counts work as running when its thread has
    started, so a signal does not end the pause before that: otherwise the worker would exceed its concurrency.
    """

    def __init__(self, waiter: Waiter, is_ready: Callable[[], bool]) -> None:
        self._waiter = waiter
        self._is_ready = is_ready
        self._stopped = False

    def is_set(self) -> bool:
        return self._stopped

    def wait(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        self._waiter.wait(timeout)
        while not self._stopped and time.monotonic() < until and not self._is_ready():
            time.sleep(_START_SECONDS)
        return self._stopped

    def stop(self) -> None:
        self._stopped = True
        self._waiter.signal()


def _execution() -> tuple[str, str]:
    """The id of the current work, and the token of the execution that owns it."""
    context = assert_current_dbos_context()
    return context.workflow_id, cast(str, context.owner_xid)


def _instance() -> Any:
    from dbos._dbos import _get_dbos_instance

    return _get_dbos_instance()


def _running() -> frozenset[str]:
    """The ids of the work that this process is running."""
    try:
        return frozenset(_instance()._active_workflows_set.activeList())
    except DBOSException:
        # Called while the engine is stopping.
        return frozenset()
