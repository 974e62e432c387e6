"""A `MainLoop` that survives its process: every effect is a recorded step, every request has a key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from weakincentives.durable.client import DurableClient
from weakincentives.durable.errors import DurableError, Released
from weakincentives.durable.work import QueueLimits, WorkerHealth
from weakincentives.limits import Budget
from weakincentives.prompt import Prompt
from weakincentives.runtime import PromptResponse, ProviderAdapter
from weakincentives.session import Session

if TYPE_CHECKING:
    from weakincentives.durable.engine import Engine

RequestT = TypeVar("RequestT")
OutputT = TypeVar("OutputT")

_POLL_SECONDS = 0.05


class DurableMainLoop(DurableClient[RequestT, OutputT]):
    """Runs requests so that a crash costs at most the step in progress.

        loop = DurableMainLoop("triage", prepare=lambda ticket: Prompt(TRIAGE).bind(ticket), adapter=adapter)
        response = loop.execute(Ticket(7, "It is broken."), key="ticket-7")

    `prepare` makes the prompt of a request, `new_session` its session (by default an empty one). Both run again when
    work continues in another process, so the same request must give the same result. A key gives one result and is
    worked on once. Without `database_url` or `WINK_DATABASE_URL`, work is kept in `.wink/durable.db`.

    `execute()` and `start()` (which is what `wink worker module:loop` calls) make this process a worker. The rest is
    `DurableClient`: it submits and asks, and leaves the work to workers.
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
        super().__init__(name, database_url, version=version)
        if not callable(prepare) or not isinstance(adapter, ProviderAdapter):
            raise DurableError(
                f"Durable loop {name!r} needs a function that makes a prompt from a request and an adapter, "
                f"got {type(prepare).__name__} and {type(adapter).__name__}."
            )
        self.prepare = prepare
        self.adapter = adapter
        self.new_session = new_session
        self.max_expansions = max_expansions
        self.budget = budget
        self.deadline_seconds = deadline_seconds
        self.max_attempts = max_attempts
        self.lease_seconds = self._idle_timeout = lease_seconds
        self._engine: Engine | None = None

    def execute(self, request: RequestT, *, key: str, timeout: float | None = None) -> PromptResponse[OutputT]:
        """Do the work in this process and return its response; a known key returns the response it has.

        If the work leaves this process (a deploy, a takeover, a question to a person), wait for whoever finishes it.
        """
        handle = self._begin(request, key)
        if timeout is None:
            # The outcome is read from the database below; this only saves the polling.
            with suppress(Released, Exception):
                handle.get_result(polling_interval_sec=_POLL_SECONDS)
        return self.result(key, timeout=timeout)

    async def execute_async(
        self, request: RequestT, *, key: str, timeout: float | None = None
    ) -> PromptResponse[OutputT]:
        await asyncio.to_thread(self._begin, request, key)
        return await self.result_async(key, timeout=timeout)

    def start(self, *, queues: tuple[str, ...] = (), limits: QueueLimits = QueueLimits()) -> str:
        """Become a worker, in threads of this process, until `drain()` or `close()`; returns the worker's name.

        The limits belong to the queue: those of the worker that started last apply to all.
        """
        engine = self._start(queues or (self.name,), limits)
        engine.limit(queues or (self.name,), limits)
        return engine.identity

    def health(self) -> WorkerHealth:
        """Whether this worker is live and ready for work, as `wink worker --health` answers over HTTP."""
        if self._engine is None:
            return WorkerHealth(live=True, ready=False, reason="not started", worker="", running=0)
        return self._engine.health()

    def drain(self, seconds: float = 30.0) -> bool:
        """Take no new work and hand back what runs; True if nothing is left running here.

        Work is handed back at its next step, so this takes as long as a step, not as long as a run.
        """
        return self._engine is None or self._engine.drain(seconds)

    def close(self) -> None:
        """Close the database, and with the last loop of this process stop working. The loop can be used again.

        Others may repeat a step that is running now: call `drain()` first.
        """
        with self._lock:
            if self._engine is not None:
                self._engine.leave(self.name)
                self._engine = None
            super().close()

    def _runs_own_work(self) -> bool:
        return self._engine is not None and self.store.is_sqlite

    def _begin(self, request: RequestT, key: str) -> Any:
        work_id = self.work_id(key)
        engine = self._start()
        handle = engine.start(self.name, work_id, request)
        engine.store.check_request(work_id, request)
        return handle

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
