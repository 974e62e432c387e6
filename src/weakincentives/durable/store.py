"""Durable work as rows: hand in, look up, cancel, retry, suspend, wake.

The rows are the engine's own, plus two tables of ours: workers with their leases, and questions to people. What the
engine has no verb for (suspending, handing back, taking over) is one guarded UPDATE here; that is why the engine's
minor version is pinned.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, cast

import sqlalchemy as sa
from dbos import DBOSClient
from dbos._schemas.system_database import SystemSchema

from weakincentives.durable.database import SCHEMA, connect
from weakincentives.durable.errors import DurableError, KeyConflictError, NoSuchWorkError, RemoteError
from weakincentives.durable.serializer import TaggedSerializer
from weakincentives.durable.work import Approval, Question, Step, Work, engine_status, status_of

APPLICATION = "weakincentives"
NO_TENANT = "-"
# Where work that was started without a queue goes on; every process that runs the loop serves it.
DIRECT = ".direct"
_FOREVER_MS = 2**62
_TABLE_LOCK = 7_739_461

_status = SystemSchema.workflow_status
_steps = SystemSchema.operation_outputs
_metadata = sa.MetaData(schema=SystemSchema.metadata_obj.schema)
workers = sa.Table(
    "wink_worker",
    _metadata,
    sa.Column("executor_id", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
)
approvals = sa.Table(
    "wink_approval",
    _metadata,
    sa.Column("workflow_uuid", sa.Text, primary_key=True),
    sa.Column("call_id", sa.Text, primary_key=True),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("asked_ms", sa.BigInteger, nullable=False),
    sa.Column("expires_ms", sa.BigInteger),
    sa.Column("decision", sa.Text),
)


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
            },
            request,
        )
        self.check_request(work_id, request)

    def check_request(self, work_id: str, request: Any) -> None:
        given = self.serializer.serialize({"args": (request,), "kwargs": {}})
        inputs = SystemSchema.workflow_input
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
        columns = (
            _steps.c.function_id,
            _steps.c.function_name,
            _steps.c.started_at_epoch_ms,
            _steps.c.completed_at_epoch_ms,
            _steps.c.error,
        )
        query = sa.select(*columns).where(_steps.c.workflow_uuid == work_id).order_by(_steps.c.function_id)
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
        outputs = SystemSchema.workflow_output
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
            with self.engine.connect() as connection:
                last = connection.execute(
                    sa.select(sa.func.max(_steps.c.function_id)).where(_steps.c.workflow_uuid == work_id)
                ).scalar()
            self.client.rewind_workflow(
                work_id,
                start_step=max(last or 1, 1),
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
        with self.engine.begin() as connection:
            connection.execute(
                sa.update(_status)
                .where(_status.c.workflow_uuid == work_id)
                .values(queue_partition_key=sa.func.coalesce(_status.c.queue_partition_key, NO_TENANT))
            )

    def hand_back(self, work_id: str, owner: str) -> None:
        """Return work in progress to its queue; the next worker goes on after its last recorded step."""
        with self.engine.begin() as connection:
            if self._own(connection, work_id, owner):
                self._release(connection, work_id, "ENQUEUED", None)

    def forgive(self, work_id: str, owner: str) -> None:
        """Count attempts from one again: the work has come further than the attempts before it."""
        with self.engine.begin() as connection:
            connection.execute(
                sa.update(_status)
                .where(_status.c.workflow_uuid == work_id, _status.c.owner_xid == owner)
                .values(recovery_attempts=1)
            )

    def take_over(self) -> int:
        """Return the work of workers without a lease to its queues, and say how much that was.

        The attempts stay counted, so that work which kills its workers ends as a dead letter. Rows that a frozen
        worker still has locked are left for the next sweep.
        """
        orphaned = (
            sa.select(_status.c.workflow_uuid)
            .where(_status.c.status == "PENDING", _status.c.application_name == APPLICATION)
            .where(_status.c.executor_id.notin_(sa.select(workers.c.executor_id)))
            .with_for_update(skip_locked=True)
        )
        with self.engine.begin() as connection:
            ids = connection.execute(orphaned).scalars().all()
            if ids:
                connection.execute(
                    sa.update(_status).where(_status.c.workflow_uuid.in_(ids)).values(**_requeued("ENQUEUED"))
                )
        return len(ids)

    def ask(self, work_id: str, owner: str, question: Question) -> Approval | None:
        """The answer to a question; None when there is none yet, and the work was taken off its worker to wait.

        One transaction, so that an answer cannot slip between looking for it and going to sleep. An expired question
        is answered here, with a no.
        """
        now = int(time.time() * 1000)
        with self.engine.begin() as connection:
            if not self._own(connection, work_id, owner):
                return None
            row = connection.execute(sa.select(approvals).where(*_is(work_id, question.call_id))).one_or_none()
            if row is None:
                connection.execute(
                    sa.insert(approvals).values(
                        workflow_uuid=work_id,
                        call_id=question.call_id,
                        question=question.text,
                        asked_ms=now,
                        expires_ms=question.expires_ms,
                    )
                )
            elif row.decision is not None:
                return cast(Approval, self.serializer.deserialize(row.decision))
            elif row.expires_ms is not None and row.expires_ms <= now:
                expired = Approval(approved=False, note="Nobody answered in time.", expired=True)
                connection.execute(
                    sa.update(approvals)
                    .where(*_is(work_id, question.call_id))
                    .values(decision=self.serializer.serialize(expired))
                )
                return expired
            self._release(connection, work_id, "DELAYED", question.expires_ms or _FOREVER_MS)
        return None

    def decide(self, work_id: str, call_id: str, decision: Approval) -> None:
        """Record a person's answer, once, and wake the work that waits for it."""
        with self.engine.begin() as connection:
            # First the work, then its question: the order in which `ask` locks them.
            connection.execute(sa.select(_status.c.status).where(_status.c.workflow_uuid == work_id).with_for_update())
            recorded = connection.execute(
                sa.update(approvals)
                .where(*_is(work_id, call_id), approvals.c.decision.is_(None))
                .values(decision=self.serializer.serialize(decision))
            ).rowcount
            if not recorded:
                self._explain_unasked(connection, work_id, call_id)
            connection.execute(
                sa.update(_status)
                .where(_status.c.workflow_uuid == work_id, _status.c.status == "DELAYED")
                .values(status="ENQUEUED", delay_until_epoch_ms=None, updated_at=self._system._now_ms_sql())
            )

    def questions(self, work_id: str) -> tuple[Question, ...]:
        """The questions that wait for an answer."""
        with self.engine.connect() as connection:
            rows = connection.execute(
                sa.select(approvals).where(approvals.c.workflow_uuid == work_id, approvals.c.decision.is_(None))
            ).all()
        return tuple(Question(row.call_id, row.question, row.expires_ms) for row in rows)

    def _explain_unasked(self, connection: sa.Connection, work_id: str, call_id: str) -> None:
        known = connection.execute(
            sa.select(approvals.c.call_id, approvals.c.decision).where(approvals.c.workflow_uuid == work_id)
        ).all()
        if any(row.call_id == call_id for row in known):
            raise DurableError(f"Call {call_id!r} of {work_id!r} was decided already.")
        waiting = ", ".join(repr(row.call_id) for row in known if row.decision is None) or "none"
        raise NoSuchWorkError(f"{work_id!r} has no call {call_id!r} that waits for approval; waiting: {waiting}.")

    def _own(self, connection: sa.Connection, work_id: str, owner: str) -> bool:
        # An UPDATE, so that the row stays locked until the transaction ends, on both databases.
        owned = (_status.c.workflow_uuid == work_id, _status.c.owner_xid == owner, _status.c.status == "PENDING")
        return bool(connection.execute(sa.update(_status).where(*owned).values(owner_xid=owner)).rowcount)

    def _release(self, connection: sa.Connection, work_id: str, status: str, until_ms: int | None) -> None:
        connection.execute(
            sa.update(_status)
            .where(_status.c.workflow_uuid == work_id)
            .values(
                **_requeued(status),
                delay_until_epoch_ms=until_ms,
                # Leaving in good order is no failed attempt.
                recovery_attempts=_status.c.recovery_attempts - 1,
            )
        )

    def _create(self) -> None:
        if self.is_sqlite:
            self._system.run_migrations()
            _metadata.create_all(self.engine)
            return
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.select(sa.func.pg_advisory_lock(_TABLE_LOCK)))
            try:
                self._system.run_migrations()
                _metadata.create_all(self.engine)
            finally:
                with suppress(sa.exc.DBAPIError):
                    connection.execute(sa.select(sa.func.pg_advisory_unlock(_TABLE_LOCK)))


def work_id_of(loop: str, key: str) -> str:
    return f"{loop}/{key}"


def _is(work_id: str, call_id: str) -> tuple[Any, Any]:
    return approvals.c.workflow_uuid == work_id, approvals.c.call_id == call_id


def _requeued(status: str) -> dict[str, Any]:
    return {
        "status": status,
        "owner_xid": None,
        "started_at_epoch_ms": None,
        "updated_at": int(time.time() * 1000),
        "queue_name": sa.func.coalesce(_status.c.queue_name, _status.c.name + DIRECT),
        "queue_partition_key": sa.func.coalesce(_status.c.queue_partition_key, NO_TENANT),
    }


def _work(status: Any) -> Work:
    return Work(
        id=status.workflow_id,
        loop=status.name,
        status=status_of(status.status),
        version=status.app_version or "",
        queue=status.queue_name or "",
        tenant="" if status.queue_partition_key in (None, NO_TENANT) else status.queue_partition_key,
        worker=status.executor_id or "",
        attempts=status.recovery_attempts or 0,
        created_ms=status.created_at or 0,
        updated_ms=status.updated_at or 0,
    )
