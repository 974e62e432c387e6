"""The durable engine of this process: DBOS, configured with our identity, database, serializer and leases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from math import ceil
from typing import Any, TypeVar, cast

from dbos import DBOS, SetWorkflowID
from dbos._context import assert_current_dbos_context
from dbos._utils import GlobalParams

from weakincentives.durable.approval import Approval, Question
from weakincentives.durable.database import APPLICATION, DIRECT, SCHEMA
from weakincentives.durable.errors import DurableError, Released
from weakincentives.durable.lease import Lease, PostgresLease, SqliteLease
from weakincentives.durable.store import WorkStore
from weakincentives.durable.work import QueueLimits

T = TypeVar("T")
Body = Callable[[Any], Any]

# How often a worker polls for new work. The direct queue only holds work that lost its process, which is rare.
_POLL_SECONDS = 0.2
_POLL_SECONDS_DIRECT = 0.5
_POLL_SECONDS_SQLITE = 0.05


class Engine:
    """Runs functions whose steps are recorded. There is one per process, shared by its loops."""

    _current: Engine | None = None
    _guard = threading.RLock()

    def __init__(self, store: WorkStore, *, version: str, lease_seconds: float) -> None:
        self.store = store
        self.version = version
        self.identity = ""
        self._users = 0
        self._active: set[str] = set()
        self._draining = threading.Event()
        self._bodies: dict[str, Body] = {}
        self._workflows: dict[str, Body] = {}
        self._served: list[str] = []
        self._lease: Lease = (
            SqliteLease(store)
            if store.is_sqlite
            else PostgresLease(store, version=version, seconds=lease_seconds, on_rejoin=self._set_identity)
        )

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
        """Run `body` for the work of this loop that arrives in these queues."""
        with self._guard:
            if loop in self._active:
                raise DurableError(f"This process already runs a loop called {loop!r}; close() it first.")
            for queue, limits in queues.items():
                self._register_queue(queue, limits)
            self._active.add(loop)
            self._bodies[loop] = body
            if loop not in self._workflows:
                decorate = DBOS.workflow(name=loop, max_recovery_attempts=max_attempts - 1)
                self._workflows[loop] = decorate(self._function(loop))
            self._served += [queue for queue in queues if queue not in self._served]
            if not self.identity:
                self._launch()

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
        """Start the work in this process unless its id is known; returns a handle with `get_result`."""

        def begin() -> Any:
            with SetWorkflowID(work_id):
                return DBOS.start_workflow(self._workflows[loop], request)

        # In an empty context, so that a tool of durable work can execute other durable work.
        return Context().run(begin)

    def step(self, name: str, run: Callable[[], T]) -> T:
        """Run one step of the current work, or return its recorded outcome."""
        self.yield_if_needed()
        return DBOS.run_step({"name": name}, run)

    def yield_if_needed(self) -> None:
        """Leave the current work if it was taken over or this process is draining."""
        context = assert_current_dbos_context()
        self._lease.check(context.executor_id)
        if self._draining.is_set():
            self.store.ownership.hand_back(context.workflow_id, cast(str, context.owner_xid))
            raise Released("handed back")

    def reset_attempts(self) -> None:
        """Note that the current work, which was resumed here, has recorded another step."""
        context = assert_current_dbos_context()
        self.store.ownership.reset_attempts(context.workflow_id, cast(str, context.owner_xid))

    def ask(self, question: Question) -> Approval:
        """Return a person's answer; without one, the current work leaves this process until it arrives."""
        context = assert_current_dbos_context()
        answer = self.store.ownership.ask(context.workflow_id, cast(str, context.owner_xid), question)
        if answer is None:
            raise Released(f"waiting for an answer to {question.call_id}")
        return answer

    @property
    def work_id(self) -> str:
        return assert_current_dbos_context().workflow_id

    @property
    def next_step(self) -> int:
        """The number under which the next step will be recorded."""
        return assert_current_dbos_context().function_id + 1

    def drain(self, timeout: float) -> bool:
        """Take no new work and hand back what runs at its next step; True if nothing is left running."""
        self._draining.set()
        dbos = _instance()
        for event in dbos.background_thread_stop_events:
            event.set()
        idle = threading.Event()
        for _ in range(max(1, int(timeout / 0.05))):
            if not dbos._active_workflows_set.activeList():
                return True
            idle.wait(0.05)
        return False

    def leave(self, loop: str) -> None:
        """Stop serving a loop. The engine stops with the last one; others take over what still runs here."""
        with self._guard:
            self._active.discard(loop)
            self._users -= 1
            if self._users:
                return
            self._draining.set()
            DBOS.destroy(destroy_registry=True)
            if self.identity:
                self._lease.leave()
            Engine._current = None

    def _function(self, loop: str) -> Body:
        def run(request: Any) -> Any:
            return self._bodies[loop](request)

        return run

    def _set_identity(self, identity: str) -> None:
        self.identity = identity
        GlobalParams.executor_id = identity

    def _launch(self) -> None:
        identity = self._lease.join()
        try:
            DBOS(
                config={
                    "name": APPLICATION,
                    "system_database_engine": self.store.base_engine,
                    "dbos_system_schema": SCHEMA,
                    "application_version": self.version,
                    "executor_id": identity,
                    "serializer": cast(Any, self.store.serializer),
                    "use_listen_notify": False,
                    # Nothing listens, but the listener thread must notice quickly that the engine stops.
                    "notification_listener_polling_interval_sec": 0.1,
                    "log_level": "WARNING",
                }
            )
            self.identity = identity
            # The engine keeps a reference to this list, so queues of later loops can be appended to it.
            DBOS.listen_queues(())
            _instance()._listening_queues = self._served
            DBOS.launch()
        except BaseException:
            self.identity = ""
            DBOS.destroy(destroy_registry=True)
            self._lease.leave()
            raise

    def _register_queue(self, name: str, limits: QueueLimits) -> None:
        poll = _POLL_SECONDS_DIRECT if name.endswith(DIRECT) else _POLL_SECONDS
        if self.store.is_sqlite:
            poll = _POLL_SECONDS_SQLITE
        self.store.client.register_queue(
            name,
            worker_concurrency=limits.concurrency,
            partition_concurrency=limits.tenant_concurrency,
            limiter={"limit": ceil(limits.rate), "period": ceil(limits.rate) / limits.rate} if limits.rate else None,
            polling_interval_sec=poll,
        )


def _instance() -> Any:
    from dbos._dbos import _get_dbos_instance

    return _get_dbos_instance()
