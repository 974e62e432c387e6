"""Durable work as database rows: submit, look up, cancel, retry, answer, prune."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn, cast

import sqlalchemy as sa
from dbos import DBOSClient
from dbos._error import DBOSException

from weakincentives.durable.archive import Archive
from weakincentives.durable.database import (
    APPLICATION,
    DIRECT,
    NO_TENANT,
    SCHEMA,
    connect,
    database_url,
    describe,
    holds_work,
    own_tables,
    question_table,
    sqlite_path,
    status_table,
)
from weakincentives.durable.journal import StoredText, TaggedSerializer
from weakincentives.durable.ownership import Ownership
from weakincentives.durable.signals import Signals
from weakincentives.durable.streams import Publisher
from weakincentives.durable.work import (
    ENGINE_STATUS,
    EXPIRED,
    FINISHED,
    STATUS_OF,
    Approval,
    DatabaseUnavailableError,
    DurableError,
    DurableQuestion,
    KeyConflictError,
    NoSuchWorkError,
    RemoteError,
    Reply,
    StaleQuestionError,
    Step,
    Work,
    WorkStatus,
    accepted_reply,
)
from weakincentives.errors import OutputParseError
from weakincentives.runtime import Question
from weakincentives.serde import load_checked, load_tagged

_SCHEMA_LOCK = 7_739_461
_PRUNED_AT_ONCE = 500

_opening = threading.Lock()
_open: dict[str, WorkStore] = {}


class WorkStore:
    """All durable work in one database. Work is named by its id, `loop/key`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._users = 0
        self.serializer = TaggedSerializer()
        self.is_sqlite = engine.dialect.name == "sqlite"
        self.base_engine = engine
        self.client = _engine_client(engine, self.serializer)
        self._reader = _engine_client(engine, StoredText())
        self.engine = self.client._sys_db.engine
        self.ownership = Ownership(self.engine, self.serializer)
        self.signals = Signals(engine)
        self.archive = Archive(self.client, self.ownership, self.serializer, self.signals)
        self.publisher = Publisher(self.archive)

    @classmethod
    def open(cls, url: str | None = None, *, create: bool = True, idle_timeout: float = 5.0) -> WorkStore:
        """Return this process's store for a database; each `open()` needs a `close()`.

        Without `create`, raises `NoSuchWorkError` if no process has kept durable work in the database.
        """
        url = database_url(url)
        path = sqlite_path(url)
        if not create and not ((path is None or path.exists()) and holds_work(url)):
            place = path or describe(sa.make_url(url))
            raise NoSuchWorkError(f"There is no durable work in {place}.")
        with _opening:
            store = _open.get(url)
            if store is None:
                _create_tables(url)
                store = _open[url] = cls(connect(url, idle_timeout=idle_timeout))
            store._users += 1
            return store

    def close(self) -> None:
        with _opening:
            self._users -= 1
            if self._users > 0:
                return
            for url in [url for url, store in _open.items() if store is self]:
                del _open[url]
        self.signals.close()
        self.client.destroy()
        self._reader.destroy()
        self.base_engine.dispose()

    @property
    def place(self) -> str:
        """The database's URL without its secrets."""
        return describe(self.base_engine.url)

    def submit(self, loop: str, key: str, request: Any, *, queue: str, version: str, tenant: str | None) -> None:
        """Enqueue the work unless the key is known; reject a key that was used for another request."""
        work_id = f"{loop}/{key}"
        options: Any = {
            "workflow_name": loop,
            "queue_name": queue,
            "workflow_id": work_id,
            "app_version": version,
            "queue_partition_key": tenant or NO_TENANT + work_id,
            # The engine drops the queue of dead work; a retry must go back to it.
            "attributes": {"queue": queue},
        }
        with _engine_errors():
            self.client.enqueue(options, request)
        self.check_request(work_id, request, queue)

    def check_request(self, work_id: str, request: Any, queue: str | None = None) -> None:
        """Reject a key that was used for another request, and tell the workers of a queue that it has work."""
        given = self.serializer.serialize({"args": (request,), "kwargs": {}})
        found = self._stored(work_id)
        stored = None if found is None else found.input
        if queue is not None:
            with self.signals.transaction(self.engine) as connection:
                self.signals.add(connection, queue)
        # What was stored before a class changed is compared as it would be stored today.
        if stored not in (None, given) and self.serializer.serialize(self.serializer.deserialize(stored)) != given:
            raise KeyConflictError(f"Key {work_id!r} was used for another request; use a new key for a new request.")

    def find(self, work_id: str) -> Work:
        with _engine_errors():
            found = self.client.list_workflows(workflow_ids=[work_id], load_input=False, load_output=False)
        if not found:
            raise NoSuchWorkError(f"There is no work {work_id!r}; `wink work list` shows what there is.")
        return self._works(found)[0]

    def list(self, *, status: WorkStatus | None = None, loop: str | None = None, limit: int = 100) -> tuple[Work, ...]:
        """Work in this database, newest first."""
        with _engine_errors():
            found = self.client.list_workflows(
                status=ENGINE_STATUS[status] if status else None,
                name=loop,
                limit=limit,
                sort_desc=True,
                load_input=False,
                load_output=False,
            )
        return self._works(found)

    def backlog(self, loop: str) -> tuple[int, float]:
        """How many runs of a loop wait for a worker, and for how many seconds the oldest has waited.

        Messages that wait for the answer to an earlier one are not among them.
        """
        c = status_table.c
        query = sa.select(sa.func.count(), sa.func.min(c.created_at)).where(c.status == "ENQUEUED", c.name == loop)
        with self.engine.connect() as connection:
            waiting, since_ms = connection.execute(query).one()
        return waiting, 0.0 if since_ms is None else max(0.0, time.time() - since_ms / 1000)

    def steps(self, work_id: str) -> tuple[Step, ...]:
        """The recorded steps without their outcomes, whose types this process may not have loaded."""
        with _engine_errors():
            found = self._reader.list_workflow_steps(work_id)
        return tuple(
            Step(
                each["function_id"],
                each["function_name"],
                each["started_at_epoch_ms"],
                each["completed_at_epoch_ms"],
                self._describe_error(cast(Any, each["error"])),
            )
            for each in found
        )

    def outcome(self, work_id: str) -> Any:
        """Return what finished work returned, or raise what it raised."""
        output, error = self._outcome(work_id)
        if error is not None:
            raise self.serializer.deserialize(error)
        return self.serializer.deserialize(output)

    def answer_text(self, work_id: str) -> str | None:
        """The text of the response, which can be read without the program's types."""
        output = self._outcome(work_id)[0]
        return None if output is None else cast(str, load_tagged(json.loads(output)["v"]["text"]))

    def failure(self, work_id: str) -> str | None:
        """The exception the work failed with, as text."""
        return self._describe_error(self._outcome(work_id)[1])

    def questions(
        self, *, work_id: str | None = None, loop: str | None = None, waiting: bool = True
    ) -> tuple[DurableQuestion, ...]:
        """The questions waiting for an answer, oldest first; for one run, for one loop, or all."""
        q, now = question_table.c, int(time.time() * 1000)
        query = sa.select(question_table).order_by(q.asked_ms, q.workflow_uuid, q.call_id)
        if waiting:
            query = query.where(_is_open(now))
        if work_id is not None:
            query = query.where(q.workflow_uuid == work_id)
        with self.engine.connect() as connection:
            rows = connection.execute(query).all()
        names: dict[str, str] = {}
        if ids := sorted({row.workflow_uuid for row in rows}):
            status = "DELAYED" if waiting else None
            with _engine_errors():
                found = self.client.list_workflows(
                    workflow_ids=ids, status=status, name=loop, load_input=False, load_output=False
                )
            names = {each.workflow_id: each.name for each in found}
        asked: list[DurableQuestion] = []
        for row in rows:
            if row.workflow_uuid in names:
                key = row.workflow_uuid.removeprefix(f"{names[row.workflow_uuid]}/")
                asked.append(self._question_in(row, key, now))
        return tuple(asked)

    def _question_in(self, row: Any, key: str, now_ms: int) -> DurableQuestion:
        asked = None if row.asked is None else load_checked(Question, json.loads(row.asked))
        return DurableQuestion(
            row.id,
            row.call_id,
            row.text,
            expires_ms=row.expires_ms,
            step=row.step,
            key=key,
            asked_ms=row.asked_ms,
            answer=self._answer_in(row, now_ms),
            asked=asked,
            **json.loads(row.call),
        )

    def answer(self, work_id: str, question_id: str, reply: Reply) -> None:
        """Record a person's reply, once and in time, and put the waiting work back into its queue.

        It is a reply to exactly the question with this id: to no other, however alike its call.
        """
        self.find(work_id)
        asked = None
        for question in self.questions(work_id=work_id, waiting=False):
            if question.id == question_id and question.answer is None:
                asked = question
        if asked is None:
            self._reject_answer(work_id, question_id)
        text = self.serializer.serialize(accepted_reply(asked, reply))
        q, s = question_table.c, status_table.c
        place = (q.workflow_uuid == work_id, q.step == asked.step, q.call_id == asked.call_id)
        this = (*place, q.id == question_id, _is_open(int(time.time() * 1000)))
        asleep = (s.workflow_uuid == work_id, s.status == "DELAYED")
        with self.signals.transaction(self.engine) as connection:
            # Lock the work before its question, in the same order as `Ownership.ask`.
            connection.execute(sa.select(s.status).where(s.workflow_uuid == work_id).with_for_update())
            answered = connection.execute(sa.update(question_table).where(*this).values(answer=text)).rowcount
            if answered:
                awake = sa.update(status_table).where(*asleep).values(status="ENQUEUED", delay_until_epoch_ms=None)
                connection.execute(awake)
                queue = sa.select(s.queue_name).where(s.workflow_uuid == work_id)
                self.signals.add(connection, connection.execute(queue).scalar() or "")
        if not answered:
            self._reject_answer(work_id, question_id)

    def cancel(self, work_id: str) -> Work:
        """Stop the work at its next step; its current step is still recorded."""
        self.find(work_id)
        self.ownership.cancel(work_id)
        return self.find(work_id)

    def retry(self, work_id: str) -> Work:
        """Repeat the step that failed and go on, or continue cancelled or dead work where it stopped.

        Work that failed between two steps goes on after the last one, so no recorded success is repeated. Cancelled
        work that is still in a step continues after it, and is not started a second time.
        """
        work = self.find(work_id)
        if self.archive.knows(work_id):
            raise DurableError(f"{work_id!r} is a run of a conversation, which has gone on; send the message again.")
        if work.status not in ("failed", "dead", "cancelled"):
            raise DurableError(f"{work_id!r} is {work.status}; only failed, dead or cancelled work can be retried.")
        if work.status != "cancelled" or not self.ownership.uncancel(work_id):
            with _engine_errors():
                # It does nothing if somebody else was faster: only work that has ended can be rewound.
                self.client.rewind_workflow(
                    work_id,
                    start_step=self._first_to_run(work_id),
                    queue_name=work.queue or work.loop + DIRECT,
                    queue_partition_key=work.tenant or NO_TENANT + work_id,
                )
        return self.find(work_id)

    def prune(
        self, *, older_than_seconds: float, statuses: Iterable[WorkStatus] = FINISHED, loop: str | None = None
    ) -> int:
        """Delete work that finished longer ago than this, with its steps; return the number of runs.

        A deleted key can be reused: submitting it again does the work again.
        """
        names = [ENGINE_STATUS[status] for status in FINISHED.intersection(statuses)]
        before = time.time() - older_than_seconds
        deleted, kept = 0, 0
        while True:
            with _engine_errors():
                found = self.client.list_workflows(
                    status=names,
                    name=loop,
                    application_name=APPLICATION,
                    limit=_PRUNED_AT_ONCE,
                    offset=kept,
                    load_input=False,
                    load_output=False,
                )
                old = [each for each in found if (each.completed_at or each.updated_at or 0) < before * 1000]
                # Cancelled work that has an owner is still in its last step.
                stopping = {work.workflow_id for work in old if work.status == "CANCELLED"}
                stopping = {work_id for work_id in stopping if self.ownership.is_running(work_id)}
                ids = [work.workflow_id for work in old if work.workflow_id not in stopping]
                if ids:
                    self.client.delete_workflows(ids)
            with self.engine.begin() as connection:
                connection.execute(sa.delete(question_table).where(question_table.c.workflow_uuid.in_(ids)))
            deleted, kept = deleted + len(ids), kept + len(found) - len(ids)
            if len(found) < _PRUNED_AT_ONCE:
                return deleted

    def _first_to_run(self, work_id: str) -> int:
        """The step that ended work must run first: its last one if that failed, else the next."""
        steps, stored = self.steps(work_id), self._outcome(work_id)[1]
        if not steps:
            return 1
        last, error = steps[-1], None if stored is None else self.serializer.deserialize(stored)
        # A model call whose reply was rejected has failed as well.
        rejected = isinstance(error, OutputParseError) or getattr(error, "phase", "") == "response"
        return last.number if last.error or (rejected and last.name == "model") else last.number + 1

    def _works(self, found: Iterable[Any]) -> tuple[Work, ...]:
        """Running work was last updated when its last step ended."""
        return tuple(self._updated(_work(each)) for each in found)

    def _updated(self, work: Work) -> Work:
        if work.status != "running":
            return work
        steps = self.client.list_workflow_steps(work.id, load_output=False)
        return replace(work, updated_ms=max([work.updated_ms, *(each["completed_at_epoch_ms"] or 0 for each in steps)]))

    def _outcome(self, work_id: str) -> tuple[Any, Any]:
        found = self._stored(work_id)
        return (None, None) if found is None else (found.output, found.error)

    def _stored(self, work_id: str) -> Any:
        """The work with its request and outcome as text; None if there is none."""
        with _engine_errors():
            return next(iter(self._reader.list_workflows(workflow_ids=[work_id])), None)

    def _describe_error(self, stored: str | None) -> str | None:
        if stored is None:
            return None
        error = self.serializer.deserialize(stored)
        return str(error) if isinstance(error, RemoteError) else f"{type(error).__qualname__}: {error}"

    def _answer_in(self, row: Any, now_ms: int) -> Reply | None:
        if row.answer is not None:
            return cast(Reply, self.serializer.deserialize(row.answer))
        return EXPIRED if row.expires_ms is not None and row.expires_ms <= now_ms else None

    def _reject_answer(self, work_id: str, question_id: str) -> NoReturn:
        asked = self.questions(work_id=work_id, waiting=False)
        waiting = ", ".join(repr(question.id) for question in asked if question.answer is None) or "none"
        call_id = question_id.rpartition(":")[0]
        for question in reversed(asked):
            if question.id == question_id:
                expired = isinstance(question.answer, Approval) and question.answer.expired
                late = "expired, so the answer is no" if expired else "has already been answered"
                raise StaleQuestionError(f"Question {question_id!r} of {work_id!r} {late}; waiting: {waiting}.")
            if question.call_id.partition("#")[0] == call_id.partition("#")[0]:
                raise StaleQuestionError(
                    f"The question about call {call_id!r} of {work_id!r} has changed; look again. Waiting: {waiting}."
                )
        raise NoSuchWorkError(f"{work_id!r} has no question {question_id!r}; waiting: {waiting}.")


def _is_open(now_ms: int) -> sa.ColumnElement[bool]:
    """True if a question can still be answered."""
    c = question_table.c
    return sa.and_(c.answer.is_(None), sa.or_(c.expires_ms.is_(None), c.expires_ms > now_ms))


def _engine_client(engine: sa.Engine, serializer: TaggedSerializer) -> DBOSClient:
    return DBOSClient(
        system_database_engine=engine,
        dbos_system_schema=SCHEMA,
        serializer=cast(Any, serializer),
        application_name=APPLICATION,
        lazy=True,
        retry_connection_errors=False,
    )


def _create_tables(url: str) -> None:
    """Create or upgrade the tables, one process at a time, since several may open a new database at once."""
    engine = connect(url, idle_timeout=60.0, exclusive=True)
    system = _engine_client(engine, TaggedSerializer())._sys_db
    try:
        if engine.dialect.name == "sqlite":
            system.run_migrations()
            _create_own_tables(system.engine)
            return
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            # Not pg_advisory_lock(): CREATE INDEX CONCURRENTLY waits for every running statement, including that one.
            while not connection.execute(sa.select(sa.func.pg_try_advisory_lock(_SCHEMA_LOCK))).scalar():
                time.sleep(0.1)
            try:
                system.run_migrations()
                _create_own_tables(system.engine)
            finally:
                with suppress(DatabaseUnavailableError):
                    connection.execute(sa.select(sa.func.pg_advisory_unlock(_SCHEMA_LOCK)))
    finally:
        engine.dispose()


def _create_own_tables(engine: sa.Engine) -> None:
    own_tables.create_all(engine)


@contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except DBOSException as error:
        raise DurableError(str(error)) from error


def _work(status: Any) -> Work:
    partition = status.queue_partition_key
    return Work(
        id=status.workflow_id,
        loop=status.name,
        status=STATUS_OF[status.status],
        version=status.app_version or "",
        queue=status.queue_name or (status.attributes or {}).get("queue", ""),
        tenant="" if partition in (None, NO_TENANT + status.workflow_id) else partition,
        worker=status.executor_id or "",
        # The engine also counts the claim at which it gave up dead work instead of running it.
        attempts=(status.recovery_attempts or 0) - (STATUS_OF[status.status] == "dead"),
        created_ms=status.created_at or 0,
        updated_ms=status.updated_at or 0,
    )
