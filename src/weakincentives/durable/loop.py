"""A `MainLoop` that survives its process: every effect is a recorded step, every request has a key.

A process that does none of the work (a web server, a script, a cron job) submits it and checks on it as a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from weakincentives.durable.process import DurableProcess, DurableWorker
from weakincentives.durable.wait import Wait
from weakincentives.durable.work import (
    FINISHED,
    Approval,
    DatabaseUnavailableError,
    DeadLetterError,
    DurableError,
    DurableQuestion,
    Released,
    Work,
    WorkCancelledError,
    WorkPendingError,
    is_name,
)
from weakincentives.limits import Budget
from weakincentives.prompt import Prompt
from weakincentives.runtime import Compaction, PromptResponse, ProviderAdapter
from weakincentives.runtime.spi import Decision
from weakincentives.serde import Upgrades
from weakincentives.session import Session

RequestT = TypeVar("RequestT")
OutputT = TypeVar("OutputT")

_POLL_SECONDS = 0.05


class DurableClient(DurableProcess, Generic[RequestT, OutputT]):
    """Submits requests to the loop with this name and checks on them; workers do the work.

        client = DurableClient[Ticket, None]("triage", "work/durable.db")
        client.submit(Ticket(7, "It is broken."), key="ticket-7")
        print(client.result("ticket-7", timeout=60).text)

    Import the modules that define the types of requests and outputs, so that results can be read. `version` must match
    the workers' version. `upgrades` reads what was stored before a class changed, as in `Snapshot.from_json`. Every
    call has an awaitable form that ends in `_async`.
    """

    def submit(self, request: RequestT, *, key: str, tenant: str | None = None, queue: str | None = None) -> None:
        """Queue the work for a worker and return at once. A known key is not queued again.

        `tenant` says who the work is for: a worker can limit how many of one tenant's runs execute at a time.
        """
        self.work_id(key)
        if type(request).__module__ == "__main__" and not self._runs_own_work():
            raise DurableError(
                f"{type(request).__qualname__} is defined in the running script, where no worker can find it; "
                "move it into a module and import it from there."
            )
        self.store.submit(self.name, key, request, queue=queue or self.name, version=self.version, tenant=tenant)

    async def submit_async(
        self, request: RequestT, *, key: str, tenant: str | None = None, queue: str | None = None
    ) -> None:
        await asyncio.to_thread(self.submit, request, key=key, tenant=tenant, queue=queue)

    def result(self, key: str, *, timeout: float | None = None) -> PromptResponse[OutputT]:
        """Wait for the response; raises what the work raised, or `WorkPendingError` after `timeout` seconds.

        It keeps waiting while the database is unavailable; if it still is at the timeout, that error is raised.
        """
        work_id, wait = self.work_id(key), self._wait(timeout)
        while (work := self._finished(work_id, wait)) is None:
            wait.pause()
        return self._response(work)

    async def result_async(self, key: str, *, timeout: float | None = None) -> PromptResponse[OutputT]:
        work_id, wait = self.work_id(key), await asyncio.to_thread(self._wait, timeout)
        while (work := await asyncio.to_thread(self._finished, work_id, wait)) is None:
            await wait.pause_async()
        return await asyncio.to_thread(self._response, work)

    def status(self, key: str) -> Work:
        """The current status of the work."""
        return self.store.find(self.work_id(key))

    async def status_async(self, key: str) -> Work:
        return await asyncio.to_thread(self.status, key)

    def cancel(self, key: str) -> None:
        """Stop the work at its next step. Its recorded steps are kept, and it can be retried."""
        self.store.cancel(self.work_id(key))

    async def cancel_async(self, key: str) -> None:
        await asyncio.to_thread(self.cancel, key)

    def retry(self, key: str) -> None:
        """Repeat the step that failed and go on, or continue cancelled or dead work where it stopped."""
        self.store.retry(self.work_id(key))

    async def retry_async(self, key: str) -> None:
        await asyncio.to_thread(self.retry, key)

    def questions(self, key: str | None = None) -> tuple[DurableQuestion, ...]:
        """The questions waiting for a person, oldest first, for one key or for all."""
        return self.store.questions(work_id=None if key is None else self.work_id(key), loop=self.name)

    async def questions_async(self, key: str | None = None) -> tuple[DurableQuestion, ...]:
        return await asyncio.to_thread(self.questions, key)

    def approve(
        self,
        key: str,
        question_id: str,
        decision: Decision | None = None,
        *,
        approved: bool = True,
        note: str = "",
        by: str = "",
    ) -> None:
        """Answer the question of a tool call; the work then continues.

            (question,) = client.questions("ticket-7")
            client.approve("ticket-7", question.id, Deny("Too much.", by="Ann"))

        The id is that of the question: if what is asked has changed since, this raises a `StaleQuestionError`. A call
        of a tool that declares `approval=` takes `Approve`, `Deny`, `Edit` or `Answer`. If a handler asked, the answer
        is yes or no: `Approve` or `Deny`, or `approved=` with a `note`.
        """
        short = Approval(approved=approved, note=note, by=by)
        if decision is not None and short != Approval(approved=True):
            raise TypeError("approve() takes a decision or approved=, note=, by=, not both; write Deny(note, by=by)")
        self.store.answer(self.work_id(key), question_id, short if decision is None else decision)

    async def approve_async(
        self,
        key: str,
        question_id: str,
        decision: Decision | None = None,
        *,
        approved: bool = True,
        note: str = "",
        by: str = "",
    ) -> None:
        await asyncio.to_thread(self.approve, key, question_id, decision, approved=approved, note=note, by=by)

    def work_id(self, key: str) -> str:
        """The id of the work with this key in the database and for `wink work`: `loop/key`."""
        if not is_name(key):
            raise DurableError(f"key must be a text that names the work, such as 'ticket-7', got {key!r}.")
        return f"{self.name}/{key}"

    def _runs_own_work(self) -> bool:
        """True if work submitted here is done only by this process."""
        return False

    def _wait(self, timeout: float | None) -> Wait:
        from weakincentives.durable.signals import Waiter

        # The engine sends no signal when it records an outcome.
        return Wait(timeout, Waiter(self.name))

    def _finished(self, work_id: str, wait: Wait) -> Work | None:
        """The work if it has finished; raises when the time is up."""
        try:
            work = self.store.find(work_id)
        except DatabaseUnavailableError:
            if wait.is_over():
                raise
            return None
        if work.status in FINISHED:
            return work
        if wait.is_over():
            whose = f" for workers of version {work.version!r}" if work.status == "queued" else ""
            raise WorkPendingError(f"{work_id!r} is {work.status}{whose}.", status=work.status)
        return None

    def _response(self, work: Work) -> PromptResponse[OutputT]:
        if work.status == "cancelled":
            raise WorkCancelledError(f"{work.id!r} was cancelled; `wink work retry {work.id}` continues it.")
        if work.status == "dead":
            raise DeadLetterError(
                f"{work.id!r} was given up after {work.attempts} attempts without progress; "
                f"`wink work retry {work.id}` tries again."
            )
        response: PromptResponse[OutputT] = self.store.outcome(work.id)
        return response


class DurableMainLoop(DurableWorker, DurableClient[RequestT, OutputT]):
    """Runs requests so that a crash costs at most the step in progress.

        loop = DurableMainLoop("triage", prepare=lambda ticket: Prompt(TRIAGE).bind(ticket), adapter=adapter)
        response = loop.execute(Ticket(7, "It is broken."), key="ticket-7")

    `prepare` creates a request's prompt, and `new_session` its session (empty by default). Both run again when work
    continues in another process, so the same request must give the same result. Each key's work is done once and has
    one result. `compaction` keeps long runs below the size of the model's window. Without `database_url` or
    `WINK_DATABASE_URL`, work is stored in `.wink/durable.db`.

    `execute()` and `start()` (which `wink worker module:loop` calls) make this process a worker. The other methods are
    those of `DurableClient`: they submit work and check on it, and leave it to workers.
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
        upgrades: Upgrades = MappingProxyType({}),
        max_expansions: int = 10,
        budget: Budget | None = None,
        deadline_seconds: float | None = None,
        max_attempts: int = 5,
        lease_seconds: float = 5.0,
        compaction: Compaction | None = None,
    ) -> None:
        super().__init__(name, database_url, version=version, upgrades=upgrades)
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
        self.compaction = compaction
        self.max_attempts = max_attempts
        self.lease_seconds = self._idle_timeout = lease_seconds

    def execute(self, request: RequestT, *, key: str, timeout: float | None = None) -> PromptResponse[OutputT]:
        """Do the work in this process and return its response; a known key returns its existing response.

        If the work leaves this process (a deploy, a takeover, a question to a person), wait until it is finished.
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

    def _runs_own_work(self) -> bool:
        return self._engine is not None and self.store.is_sqlite

    def _begin(self, request: RequestT, key: str) -> Any:
        work_id = self.work_id(key)
        engine = self._start()
        handle = engine.start(self.name, work_id, request)
        engine.store.check_request(work_id, request)
        return handle

    def _body(self) -> Any:
        from weakincentives.durable.driver import Workflow

        return Workflow(
            self.prepare,
            self.adapter,
            self.new_session,
            self.max_expansions,
            self.budget,
            self.deadline_seconds,
            self.compaction,
        )
