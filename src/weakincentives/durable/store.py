"""Durable work as rows: hand in, look up, cancel, retry."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, cast

import sqlalchemy as sa
from dbos import DBOSClient

from weakincentives.durable import tables
from weakincentives.durable.database import SCHEMA, connect
from weakincentives.durable.errors import DurableError, KeyConflictError, NoSuchWorkError, RemoteError
from weakincentives.durable.ownership import Ownership
from weakincentives.durable.questions import Questions
from weakincentives.durable.serializer import TaggedSerializer
from weakincentives.durable.tables import APPLICATION, DIRECT, NO_TENANT
from weakincentives.durable.work import Step, Work, engine_status, status_of

_TABLE_LOCK = 7_739_461

_opening = threading.Lock()
_open: dict[str, Store] = {}


class Store:
    """The rows of one database."""

    def __init__(self, engine: sa.Engine) -> None:
        self._users = 0
        self.serializer = TaggedSerializer()
        self.is_sqlite = engine.dialect.name == "sqlite"
        self.base_engine = engine
        self.client = DBOSClient(
            system_database_engine=engine,
            dbos_system_schema=SCHEMA,
            serializer=cast(Any, self.serializer),
            application_name=APPLICATION,
            lazy=True,
        )
        self._system = self.client._sys_db
        self.engine = self._system.engine
        self.ownership = Ownership(self.engine)
        self.questions = Questions(self.engine, self.serializer, self.ownership)
        try:
            self._create()
        except sa.exc.OperationalError as error:
            reason = str(error.orig).partition("\n")[0]
            raise DurableError(f"Cannot use {self.place}: {reason}") from error

    @classmethod
    def open(cls, url: str, *, idle_timeout: float = 5.0) -> Store:
        """The store of this database, the same for all of this process; each opening needs a `close()`."""
        with _opening:
            store = _open.get(url)
            if store is None:
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
        self.client.destroy()
        self.base_engine.dispose()

    @property
    def place(self) -> str:
        """Where this is, without the password."""
        return self.base_engine.url.render_as_string(hide_password=True)

    def submit(self, loop: str, key: str, request: Any, *, queue: str, version: str, tenant: str | None) -> None:
        """Enqueue the work unless the key is known; the key of another request is refused."""
        work_id = work_id_of(loop, key)
        self.client.enqueue(
            {
                "workflow_name": loop,
                "queue_name": queue,
                "workflow_id": work_id,
                "app_version": version,
                "queue_partition_key": tenant or NO_TENANT,
                # The engine forgets the queue of work that is cancelled or given up; a retry must go back there.
                "attributes": {"queue": queue},
            },
            request,
        )
        self.check_request(work_id, request)

    def check_request(self, work_id: str, request: Any) -> None:
        given = self.serializer.serialize({"args": (request,), "kwargs": {}})
        inputs = tables.inputs
        with self.engine.connect() as connection:
            stored = connection.execute(sa.select(inputs.c.inputs).where(inputs.c.workflow_uuid == work_id)).scalar()
        if stored is not None and stored != given:
            raise KeyConflictError(f"Key {work_id!r} belongs to another request; use a new key for a new request.")

    def find(self, work_id: str) -> Work:
        found = self.client.list_workflows(workflow_ids=[work_id], load_input=False, load_output=False)
        if not found:
            raise NoSuchWorkError(f"Nothing is known under the key {work_id!r}; `wink work list` shows what is.")
        return _work(found[0])

    def list(self, *, status: str | None = None, loop: str | None = None, limit: int = 100) -> tuple[Work, ...]:
        found = self.client.list_workflows(
            status=engine_status(status) if status else None,
            name=loop,
            limit=limit,
            sort_desc=True,
            load_input=False,
            load_output=False,
        )
        return tuple(_work(each) for each in found)

    def steps(self, work_id: str) -> tuple[Step, ...]:
        """The recorded steps, without their outcomes: those may be of types that this process does not know."""
        c = tables.steps.c
        columns = (c.function_id, c.function_name, c.started_at_epoch_ms, c.completed_at_epoch_ms, c.error)
        query = sa.select(*columns).where(c.workflow_uuid == work_id).order_by(c.function_id)
        with self.engine.connect() as connection:
            return tuple(Step(*row[:4], self._failure(row[4])) for row in connection.execute(query))

    def outcome(self, work_id: str) -> Any:
        """What finished work returned; what it raised is raised again."""
        output, error = self._outcome(work_id)
        if error is not None:
            raise self.serializer.deserialize(error)
        return self.serializer.deserialize(output)

    def failure(self, work_id: str) -> str | None:
        """What the work failed with, as text."""
        return self._failure(self._outcome(work_id)[1])

    def _outcome(self, work_id: str) -> tuple[Any, Any]:
        outputs = tables.outputs
        query = sa.select(outputs.c.output, outputs.c.error).where(outputs.c.workflow_uuid == work_id)
        with self.engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        return (None, None) if row is None else (row.output, row.error)

    def _failure(self, stored: str | None) -> str | None:
        if stored is None:
            return None
        error = self.serializer.deserialize(stored)
        return str(error) if isinstance(error, RemoteError) else f"{type(error).__qualname__}: {error}"

    def cancel(self, work_id: str) -> None:
        self.find(work_id)
        self.client.cancel_workflow(work_id)

    def retry(self, work_id: str) -> Work:
        """Start finished work again: a failure from its last step, a dead letter or cancelled work where it stood."""
        work = self.find(work_id)
        if work.status == "failed":
            last = max((step.number for step in self.steps(work_id)), default=1)
            self.questions.forget(work_id, since_step=last)
            self.client.rewind_workflow(
                work_id,
                start_step=last,
                queue_name=work.queue or work.loop + DIRECT,
                queue_partition_key=work.tenant or NO_TENANT,
            )
        elif work.status in ("cancelled", "dead"):
            self.client.resume_workflow(work_id, queue_name=work.queue or work.loop + DIRECT)
            self._set_tenant(work_id)
        else:
            raise DurableError(f"{work_id!r} is {work.status}; only failed, dead or cancelled work can be retried.")
        return self.find(work_id)

    def _set_tenant(self, work_id: str) -> None:
        c = tables.status.c
        tenant = sa.func.coalesce(c.queue_partition_key, NO_TENANT)
        with self.engine.begin() as connection:
            connection.execute(
                sa.update(tables.status).where(c.workflow_uuid == work_id).values(queue_partition_key=tenant)
            )

    def _create(self) -> None:
        if self.is_sqlite:
            self._system.run_migrations()
            tables.ours.create_all(self.engine)
            return
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.select(sa.func.pg_advisory_lock(_TABLE_LOCK)))
            try:
                self._system.run_migrations()
                tables.ours.create_all(self.engine)
            finally:
                with suppress(sa.exc.DBAPIError):
                    connection.execute(sa.select(sa.func.pg_advisory_unlock(_TABLE_LOCK)))


def work_id_of(loop: str, key: str) -> str:
    return f"{loop}/{key}"


def _work(status: Any) -> Work:
    return Work(
        id=status.workflow_id,
        loop=status.name,
        status=status_of(status.status),
        version=status.app_version or "",
        queue=status.queue_name or (status.attributes or {}).get("queue", ""),
        tenant="" if status.queue_partition_key in (None, NO_TENANT) else status.queue_partition_key,
        worker=status.executor_id or "",
        attempts=status.recovery_attempts or 0,
        created_ms=status.created_at or 0,
        updated_ms=status.updated_at or 0,
    )
