"""A `MainLoop` that survives its process: every effect is a recorded step, every request has a key."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from weakincentives._imports import require_extra
from weakincentives.durable.approval import Approval
from weakincentives.durable.errors import (
    DatabaseBusyError,
    DeadLetterError,
    DurableError,
    Released,
    WorkCancelledError,
    WorkPendingError,
)
from weakincentives.durable.work import FINISHED, QueueLimits, Work
from weakincentives.limits import Budget
from weakincentives.prompt import Prompt
from weakincentives.runtime import PromptResponse, ProviderAdapter
from weakincentives.session import Session

if TYPE_CHECKING:
    from weakincentives.durable.engine import Engine
    from weakincentives.durable.store import WorkStore

RequestT = TypeVar("RequestT")
OutputT = TypeVar("OutputT")

_POLL_SECONDS = 0.05
_MAX_POLL_SECONDS = 0.5


class DurableMainLoop(Generic[RequestT, OutputT]):
    """Runs requests so that a crash costs at most the step in progress.

        loop = DurableMainLoop("triage", prepare=lambda ticket: Prompt(TRIAGE).bind(ticket), adapter=adapter)
        response = loop.execute(Ticket(7, "It is broken."), key="ticket-7")

    `prepare` makes the prompt of a request, `new_session` its session (by default an empty one). Both run again when
    work continues in another process, so the same request must give the same result. A key gives one result and is
    worked on once. Without `database_url` or `WINK_DATABASE_URL`, work is kept in `.wink/durable.db` and done by this
    process; with `postgresql://...` it is shared by all processes that call `start()` (`wink worker module:loop`).
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[RequestT], Prompt[OutputT]],
        adapter: ProviderAdapter,
        database_url: str | None = None,
        *,
        new_session: Callable[[RequestT], Session] = lambda request: Session(),
        version: str | None = None,
        max_expansions: int = 10,
        budget: Budget | None = None,
        deadline_seconds: float | None = None,
        max_attempts: int = 5,
        lease_seconds: float = 5.0,
    ) -> None:
        if not name or "/" in name or name.startswith("_dbos_"):
            raise DurableError(f"The name of a durable loop must be a short text without '/', got {name!r}.")
        if not callable(prepare) or not isinstance(adapter, ProviderAdapter):
            raise DurableError(
                f"Durable loop {name!r} needs a function that makes a prompt from a request and an adapter, "
                f"got {type(prepare).__name__} and {type(adapter).__name__}."
            )
        self.name = name
        self.prepare = prepare
        self.adapter = adapter
        self.database_url = database_url
        self.new_session = new_session
        self.version = version or _package_version()
        self.max_expansions = max_expansions
        self.budget = budget
        self.deadline_seconds = deadline_seconds
        self.max_attempts = max_attempts
        self.lease_seconds = lease_seconds
        self._lock = threading.RLock()
        self._store: WorkStore | None = None
        self._engine: Engine | None = None

    def execute(self, request: RequestT, *, key: str, timeout: float | None = None) -> PromptResponse[OutputT]:
        """Do the work in this process and return its response; a known key returns the response it has.

        If the work leaves this process (a deploy, a takeover, a question to a person), wait for whoever finishes it.
        """
        work_id = self.work_id(key)
        engine = self._start()
        handle = engine.start(self.name, work_id, request)
        engine.store.check_request(work_id, request)
        if timeout is None:
            # The outcome is read from the database below; this only saves the polling.
            with suppress(Released, Exception):
                handle.get_result(polling_interval_sec=_POLL_SECONDS)
        return self.result(key, timeout=timeout)

    def submit(self, request: RequestT, *, key: str, tenant: str | None = None, queue: str | None = None) -> None:
        """Queue the work and return at once; a worker does it, on SQLite this process unless another one does.

        `tenant` says who the work is for: a worker can limit how much of one tenant runs at a time.
        """
        self.work_id(key)
        store = self.store
        if not store.is_sqlite and type(request).__module__ == "__main__":
            raise DurableError(
                f"{type(request).__qualname__} is defined in the running script, where no worker can find it; "
                "move it into a module and import it from there."
            )
        store.submit(self.name, key, request, queue=queue or self.name, version=self.version, tenant=tenant)
        if store.is_sqlite:
            self._start_unless_busy()

    def result(self, key: str, *, timeout: float | None = None) -> PromptResponse[OutputT]:
        """Wait for the response; raises what the work raised, or `WorkPendingError` after `timeout` seconds."""
        work = self._wait(self.work_id(key), timeout)
        if work.status == "cancelled":
            raise WorkCancelledError(f"{work.id!r} was cancelled; `wink work retry {work.id}` continues it.")
        if work.status == "dead":
            raise DeadLetterError(
                f"{work.id!r} was given up after {work.attempts - 1} attempts without progress; "
                f"`wink work retry {work.id}` tries again."
            )
        response: PromptResponse[OutputT] = self.store.outcome(work.id)
        return response

    def status(self, key: str) -> Work:
        """The current status of the work."""
        return self.store.find(self.work_id(key))

    def cancel(self, key: str) -> None:
        """Stop the work at its next step. Its recorded steps are kept, and it can be retried."""
        self.store.cancel(self.work_id(key))

    def retry(self, key: str) -> None:
        """Run failed work again from its last step, and continue cancelled or dead work where it stopped."""
        self.store.retry(self.work_id(key))

    def approve(self, key: str, call_id: str, *, approved: bool = True, note: str = "", by: str = "") -> None:
        """Answer the question of a tool call, from any process; the work then goes on."""
        self.store.answer(self.work_id(key), call_id, Approval(approved=approved, note=note, by=by))

    def start(self, *, queues: tuple[str, ...] = (), limits: QueueLimits = QueueLimits()) -> str:
        """Become a worker, in threads of this process, until `drain()` or `close()`; returns the worker's name.

        The limits belong to the queue: those of the worker that started last apply to all.
        """
        engine = self._start(queues or (self.name,), limits)
        engine.limit(queues or (self.name,), limits)
        return engine.identity

    def drain(self, seconds: float = 30.0) -> bool:
        """Take no new work and hand back what runs; True if nothing is left running here.

        Work is handed back at its next step, so this takes as long as a step, not as long as a run.
        """
        return self._engine is None or self._engine.drain(seconds)

    def close(self) -> None:
        """Close the database, and with the last loop of this process stop working. The loop can be used again."""
        with self._lock:
            if self._engine is not None:
                self._engine.leave(self.name)
                self._engine = None
            if self._store is not None:
                self._store.close()
                self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def store(self) -> WorkStore:
        """All work in this loop's database."""
        with self._lock:
            if self._store is None:
                require_extra("dbos", "durable", "Durable work")
                from weakincentives.durable.store import WorkStore

                self._store = WorkStore.open(self.database_url, idle_timeout=self.lease_seconds)
            return self._store

    def work_id(self, key: str) -> str:
        """The id of the work with this key in the database and for `wink work`: `loop/key`."""
        if not isinstance(key, str) or not key.strip():
            raise DurableError(f"key must be a text that names the work, such as 'ticket-7', got {key!r}.")
        return f"{self.name}/{key}"

    def _start(self, queues: tuple[str, ...] | None = None, limits: QueueLimits = QueueLimits()) -> Engine:
        with self._lock:
            if self._engine is None:
                store = self.store
                from weakincentives.durable.database import DIRECT
                from weakincentives.durable.driver import Workflow
                from weakincentives.durable.engine import Engine

                workflow = Workflow(
                    self.prepare,
                    self.adapter,
                    self.new_session,
                    self.max_expansions,
                    self.budget,
                    self.deadline_seconds,
                )
                # Only workers serve a shared queue; on SQLite there is no other worker than this process.
                served = queues if queues is not None else (self.name,) if store.is_sqlite else ()
                direct = {self.name + DIRECT: QueueLimits(limits.concurrency)}
                engine = Engine.join(store, version=self.version, lease_seconds=self.lease_seconds)
                try:
                    engine.serve(
                        self.name, workflow, direct | dict.fromkeys(served, limits), max_attempts=self.max_attempts
                    )
                except BaseException:
                    engine.leave(self.name)
                    raise
                self._engine = engine
            return self._engine

    def _start_unless_busy(self) -> None:
        with suppress(DatabaseBusyError):
            self._start()

    def _wait(self, work_id: str, timeout: float | None) -> Work:
        store = self.store
        until = None if timeout is None else time.monotonic() + timeout
        pause = _POLL_SECONDS
        while True:
            work = store.find(work_id)
            if work.status in FINISHED:
                return work
            if until is not None and time.monotonic() >= until:
                raise WorkPendingError(f"{work_id!r} is {work.status}.", status=work.status)
            if store.is_sqlite and work.status in ("queued", "running"):
                self._start_unless_busy()
            time.sleep(pause)
            pause = min(pause * 1.5, _MAX_POLL_SECONDS)


def _package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("weakincentives")
    except PackageNotFoundError:
        return "0"
