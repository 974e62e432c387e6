"""Submit durable work and ask about it, in a process that does none of it: a web server, a script, a cron job."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from weakincentives._imports import require_extra
from weakincentives.durable.approval import Approval, Question
from weakincentives.durable.errors import (
    DatabaseUnavailableError,
    DeadLetterError,
    DurableError,
    WorkCancelledError,
    WorkPendingError,
)
from weakincentives.durable.work import FINISHED, Work
from weakincentives.runtime import PromptResponse

if TYPE_CHECKING:
    from weakincentives.durable.store import WorkStore

RequestT = TypeVar("RequestT")
OutputT = TypeVar("OutputT")

_MIN_POLL_SECONDS = 0.05
_MAX_POLL_SECONDS = 0.5


class DurableClient(Generic[RequestT, OutputT]):
    """Submits requests to the loop of this name and asks about them; workers do the work.

        client = DurableClient[Ticket, None]("triage", "work/durable.db")
        client.submit(Ticket(7, "It is broken."), key="ticket-7")
        print(client.result("ticket-7", timeout=60).text)

    Import the modules that define the types of requests and outputs, so that results can be read. `version` must be the
    version of the workers. Every call has an awaitable form that ends in `_async`.
    """

    def __init__(self, name: str, database_url: str | None = None, *, version: str | None = None) -> None:
        if not isinstance(name, str) or not name or "/" in name or name.startswith("_dbos_"):
            raise DurableError(f"The name of a durable loop must be a short text without '/', got {name!r}.")
        self.name = name
        self.database_url = database_url
        self.version = version or _package_version()
        self._idle_timeout = 5.0
        self._lock = threading.RLock()
        self._store: WorkStore | None = None

    def submit(self, request: RequestT, *, key: str, tenant: str | None = None, queue: str | None = None) -> None:
        """Queue the work and return at once; a worker does it. A known key is not queued again.

        `tenant` says who the work is for: a worker can limit how much of one tenant runs at a time.
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

        Waiting goes on while the database is unavailable; at the timeout that is the error.
        """
        work_id, wait = self.work_id(key), _Wait(timeout)
        while (work := self._finished(work_id, wait)) is None:
            time.sleep(wait.pause())
        return self._response(work)

    async def result_async(self, key: str, *, timeout: float | None = None) -> PromptResponse[OutputT]:
        work_id, wait = self.work_id(key), _Wait(timeout)
        while (work := await asyncio.to_thread(self._finished, work_id, wait)) is None:
            await asyncio.sleep(wait.pause())
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
        """Run failed work again from its last step, and continue cancelled or dead work where it stopped."""
        self.store.retry(self.work_id(key))

    async def retry_async(self, key: str) -> None:
        await asyncio.to_thread(self.retry, key)

    def questions(self, key: str | None = None) -> tuple[Question, ...]:
        """The questions that wait for a person, the oldest first: of one key, or of all."""
        return self.store.questions(work_id=None if key is None else self.work_id(key), loop=self.name)

    async def questions_async(self, key: str | None = None) -> tuple[Question, ...]:
        return await asyncio.to_thread(self.questions, key)

    def approve(self, key: str, call_id: str, *, approved: bool = True, note: str = "", by: str = "") -> None:
        """Answer the question of a tool call; the work then goes on."""
        self.store.answer(self.work_id(key), call_id, Approval(approved=approved, note=note, by=by))

    async def approve_async(
        self, key: str, call_id: str, *, approved: bool = True, note: str = "", by: str = ""
    ) -> None:
        await asyncio.to_thread(self.approve, key, call_id, approved=approved, note=note, by=by)

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
        """All work in this database, of every loop."""
        with self._lock:
            if self._store is None:
                require_extra("dbos", "durable", "Durable work")
                from weakincentives.durable.store import WorkStore

                self._store = WorkStore.open(self.database_url, idle_timeout=self._idle_timeout)
            return self._store

    def work_id(self, key: str) -> str:
        """The id of the work with this key in the database and for `wink work`: `loop/key`."""
        if not isinstance(key, str) or not key.strip():
            raise DurableError(f"key must be a text that names the work, such as 'ticket-7', got {key!r}.")
        return f"{self.name}/{key}"

    def _runs_own_work(self) -> bool:
        """Whether only this process does what is submitted here."""
        return False

    def _finished(self, work_id: str, wait: _Wait) -> Work | None:
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
                f"{work.id!r} was given up after {work.attempts - 1} attempts without progress; "
                f"`wink work retry {work.id}` tries again."
            )
        response: PromptResponse[OutputT] = self.store.outcome(work.id)
        return response


class _Wait:
    """How long to wait in all, and between two looks."""

    def __init__(self, timeout: float | None) -> None:
        self._until = None if timeout is None else time.monotonic() + timeout
        self._pause = _MIN_POLL_SECONDS

    def is_over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def pause(self) -> float:
        pause, self._pause = self._pause, min(self._pause * 1.5, _MAX_POLL_SECONDS)
        return pause if self._until is None else max(0.0, min(pause, self._until - time.monotonic()))


def _package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("weakincentives")
    except PackageNotFoundError:
        return "0"
