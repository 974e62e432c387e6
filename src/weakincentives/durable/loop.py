"""`MainLoop` that survives its process: every effect is a recorded step, every request has a key."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from weakincentives.durable.database import database_url as resolve_url, require_engine
from weakincentives.durable.errors import (
    DatabaseBusyError,
    DeadLetterError,
    DurableError,
    Released,
    WorkCancelledError,
    WorkPendingError,
)
from weakincentives.durable.limits import QueueLimits
from weakincentives.durable.work import FINISHED, Approval, Work
from weakincentives.limits import Budget
from weakincentives.prompt import Prompt
from weakincentives.runtime import PromptResponse, ProviderAdapter
from weakincentives.session import Session

if TYPE_CHECKING:
    from weakincentives.durable.engine import Engine
    from weakincentives.durable.store import Store

RequestT = TypeVar("RequestT")
OutputT = TypeVar("OutputT")

_POLL_SECONDS = 0.05
_SLOWEST_POLL_SECONDS = 0.5


class DurableMainLoop(Generic[RequestT, OutputT]):
    """Runs requests so that a crash costs at most the step in flight.

        loop = DurableMainLoop("triage", prepare=lambda ticket: Prompt(TRIAGE).bind(ticket), adapter=adapter)
        response = loop.execute(Ticket(7, "It is broken."), key="ticket-7")

    `prepare` makes the prompt of a request, and `new_session` the session, if it is to begin with more than nothing.
    Both run again when work goes on in another process, so the same request must give the same. The same key gives the
    same result and is worked on once. Without `database_url` (or
    `WINK_DATABASE_URL`) the work is kept in `.wink/durable.db` and done by this process; with `postgresql://...` it is
    shared by every process that calls `start()` (`wink worker module:loop`).
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
            raise DurableError(f"A durable loop cannot be called {name!r}; use a short name without '/'.")
        if not callable(prepare) or not isinstance(adapter, ProviderAdapter):
            raise DurableError(
                f"Durable loop {name!r} needs a function that makes a prompt of a request, and an adapter; "
                f"got a {type(prepare).__name__} and a {type(adapter).__name__}."
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
        self._store: Store | None = None
        self._engine: Engine | None = None

    def execute(self, request: RequestT, *, key: str, timeout: float | None = None) -> PromptResponse[OutputT]:
        """Do the work in this process, or fetch its result if the key is known; waits for either.

        If this process loses the work (a deploy, a takeover, a question to a person), it waits for whoever has it.
        """
        work_id = self.work_id(key)
        engine = self._start()
        handle = engine.start(self.name, work_id, request)
        engine.store.check_request(work_id, request)
        if timeout is None:
            # The outcome is read from the rows below; this only spares the caller the polling.
            with suppress(Released, Exception):
                handle.get_result(polling_interval_sec=_POLL_SECONDS)
        return self.result(key, timeout=timeout)

    def submit(self, request: RequestT, *, key: str, tenant: str | None = None, queue: str | None = None) -> None:
        """Hand the work in and return at once; a worker does it, on SQLite this process unless another one does.

        `tenant` is who the work is for: a worker may limit how much of one tenant runs at a time.
        """
        self.work_id(key)
        store = self.store
        if not store.is_sqlite and type(request).__module__ == "__main__":
            raise DurableError(
                f"{type(request).__qualname__} is defined in the script that runs, where no worker can find it; "
                "move it into a module and import it from there."
            )
        store.submit(self.name, key, request, queue=queue or self.name, version=self.version, tenant=tenant)
        if store.is_sqlite:
            self._start_unless_busy()

    def result(self, key: str, *, timeout: float | None = None) -> PromptResponse[OutputT]:
        """The response, waiting for it; a failure is raised as it was, `WorkPendingError` when the time is up."""
        work = self._wait(self.work_id(key), timeout)
        if work.status == "cancelled":
            raise WorkCancelledError(f"{work.id!r} was cancelled; `wink work retry {work.id}` goes on with it.")
        if work.status == "dead":
            raise DeadLetterError(
                f"{work.id!r} was given up after {work.attempts - 1} attempts that came no further; "
                f"`wink work retry {work.id}` tries again."
            )
        response: PromptResponse[OutputT] = self.store.outcome(work.id)
        return response

    def status(self, key: str) -> Work:
        """Where the work stands."""
        return self.store.find(self.work_id(key))

    def cancel(self, key: str) -> None:
        """Stop the work at its next step; what it did stays recorded, and it can be retried."""
        self.store.cancel(self.work_id(key))

    def retry(self, key: str) -> None:
        """Start failed work again with its last step, and cancelled or given up work where it stood."""
        self.store.retry(self.work_id(key))

    def approve(self, key: str, call_id: str, *, approved: bool = True, note: str = "", by: str = "") -> None:
        """Answer the question of a tool call, from any process, even days later; the work then goes on."""
        self.store.questions.answer(self.work_id(key), call_id, Approval(approved=approved, note=note, by=by))

    def start(self, *, queues: tuple[str, ...] = (), limits: QueueLimits = QueueLimits()) -> str:
        """Be a worker from now on, in threads of this process; returns the name that others see.

        `drain()` and `close()` end that. The limits belong to the queue: the worker that started last sets them.
        """
        engine = self._start(queues or (self.name,), limits)
        engine.limit(queues or (self.name,), limits)
        return engine.identity

    def drain(self, seconds: float = 30.0) -> bool:
        """Take no more work and hand back what runs; True when nothing is left running here.

        Work is handed back at its next step, so this takes as long as one step, not as one loop.
        """
        return self._engine is None or self._engine.drain(seconds)

    def close(self) -> None:
        """Let go of the database, and stop working here with the last loop of this process; may be used again."""
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
    def store(self) -> Store:
        """The rows of this loop's database."""
        with self._lock:
            if self._store is None:
                require_engine()
                from weakincentives.durable.store import Store

                self._store = Store.open(resolve_url(self.database_url), idle_timeout=self.lease_seconds)
            return self._store

    def work_id(self, key: str) -> str:
        """What the work of this key is called in the database and by `wink work`."""
        if not isinstance(key, str) or not key.strip():
            raise DurableError(f"{key!r} is no key; give the work a text of its own, such as 'ticket-7'.")
        return f"{self.name}/{key}"

    def _start(self, queues: tuple[str, ...] | None = None, limits: QueueLimits = QueueLimits()) -> Engine:
        with self._lock:
            if self._engine is None:
                store = self.store
                from weakincentives.durable.driver import Recipe
                from weakincentives.durable.engine import Engine
                from weakincentives.durable.tables import DIRECT

                recipe = Recipe(
                    self.prepare,
                    self.adapter,
                    self.new_session,
                    self.max_expansions,
                    self.budget,
                    self.deadline_seconds,
                )
                # Only a worker serves a shared queue; a SQLite file has no other worker.
                served = queues if queues is not None else (self.name,) if store.is_sqlite else ()
                direct = {self.name + DIRECT: QueueLimits(limits.concurrency)}
                engine = Engine.join(store, version=self.version, lease_seconds=self.lease_seconds)
                try:
                    engine.serve(
                        self.name, recipe, direct | dict.fromkeys(served, limits), max_attempts=self.max_attempts
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
            pause = min(pause * 1.5, _SLOWEST_POLL_SECONDS)


def _package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("weakincentives")
    except PackageNotFoundError:
        return "0"
