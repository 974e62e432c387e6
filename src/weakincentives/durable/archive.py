"""Conversations as database rows: what was sent, the state after the last run, and the stream of the newest.

At most one run of a conversation is in the queue of the engine: the next is put there in the transaction that ends the
one before. So the runs of a conversation are in order whatever the clocks of its senders say, and the queue's
partitions are free for tenants. `attempt` counts the executions of a run, and fences off those that have lost it.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from dbos import DBOSClient
from sqlalchemy.dialects import postgresql, sqlite

from weakincentives.content import Blob
from weakincentives.durable.database import (
    NO_TENANT,
    blob_table as blobs,
    conversation_table as conversations,
    run_table as runs,
    stream_table as streams,
)
from weakincentives.durable.journal import ChangedResource, TaggedSerializer
from weakincentives.durable.ownership import Ownership
from weakincentives.durable.signals import Signals
from weakincentives.durable.work import (
    STATUS_OF,
    DeadLetterError,
    DurableError,
    InFlight,
    KeyConflictError,
    WorkCancelledError,
)
from weakincentives.errors import SerdeError, SessionError
from weakincentives.runtime import Message
from weakincentives.runtime.spi import Decision
from weakincentives.serde import Upgrades, dump_tagged, load_tagged, upgrade_tagged
from weakincentives.session import Session, Snapshot

# A run that was put into the queue this long ago may have ended there without a word: cancelled, or given up.
_UNSETTLED_MS = 2_000
_SETTLED_AT_ONCE = 200
# How long the stream of a run stays after its end, for those who still read it; that of the newest run stays.
_KEPT_STREAM_MS = 15_000
_RECENT_STATES = 32
_ENDED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]


@dataclass(frozen=True, slots=True)
class ConversationRun:
    """The request of a run, as the engine stores it."""

    conversation: str
    number: int


# Events of a run: its attempt, their place in that, and the events as text.
Batch: TypeAlias = tuple[ConversationRun, int, int, str]


@dataclass(frozen=True, slots=True)
class Action:
    """A change of a conversation without a model: the name of a method of `Conversation`, and its arguments.

    `new` is the id of the conversation that a fork makes.
    """

    name: Literal["preview", "rewind", "undo_rewind", "fork"]
    point: str | None = None
    compensate: bool = False
    new: str = ""
    over_effects: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """Something sent to a conversation: a message, decisions about calls that wait, or an action; and params."""

    message: Message | None = None
    decisions: Mapping[str, Decision] | None = None
    params: tuple[Any, ...] = ()
    tools: tuple[DeclaredTool, ...] = ()
    again: bool = False
    point: str = ""
    action: Action | None = None
    over_effects: bool = False


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool that the sender declares, and answers itself."""

    name: str
    description: str
    schema: str


@dataclass(frozen=True, slots=True)
class State:
    """A conversation between two runs: its session as JSON text, and the states of its resources."""

    session: str
    resources: tuple[ChangedResource, ...] = ()
    # What `session` says, if this process has it.
    known: Snapshot | None = field(default=None, compare=False)

    @classmethod
    def of(cls, session: Session, resources: tuple[ChangedResource, ...] = ()) -> State:
        snapshot = session.snapshot()
        return cls(snapshot.to_json(), resources, snapshot)

    def snapshot(self, name: str, upgrades: Upgrades) -> Snapshot:
        if self.known is not None:
            return self.known
        try:
            return Snapshot.from_json(self.session, types=[object], upgrades=upgrades)
        except (SessionError, SerdeError) as error:
            raise DurableError(
                f"Conversation {name!r} was stored by another version of the program, and cannot be read: {error} Pass "
                "upgrades= for classes that have changed, or let workers of that version answer it, or delete() it."
            ) from error


@dataclass(frozen=True, slots=True)
class BegunRun:
    """An execution of a run: what was sent, the state before it, its number, and when the first execution began."""

    sent: Sent
    state: State | None
    attempt: int
    stopped: bool
    began_ms: int


@dataclass(frozen=True, slots=True)
class Posted:
    """A run that was sent, by its number and its time: after `delete`, numbers begin again."""

    number: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as a reader sees it."""

    posted: Posted
    attempt: int
    joined: int | None
    ended: bool
    outcome: str | None


class RecentStates:
    """The states that this process stored last, each with its bytes: reading a long one takes longer than a step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: OrderedDict[str, tuple[bytes, State]] = OrderedDict()

    def put(self, name: str, packed: bytes, state: State) -> None:
        with self._lock:
            self._states[name] = packed, state
            self._states.move_to_end(name)
            if len(self._states) > _RECENT_STATES:
                self._states.popitem(last=False)

    def find(self, name: str, packed: bytes) -> State | None:
        """The state with these bytes, unless another process has changed it since."""
        with self._lock:
            stored, state = self._states.get(name, (b"", None))
        return state if stored == packed else None


class Archive:
    """The conversations in one database. They are named by id, `name/conversation`."""

    def __init__(
        self, client: DBOSClient, ownership: Ownership, serializer: TaggedSerializer, signals: Signals
    ) -> None:
        self._engine = ownership.engine
        self._dialect: Any = sqlite if self._engine.dialect.name == "sqlite" else postgresql
        self._client = client
        self._ownership = ownership
        self._serializer = serializer
        self._signals = signals
        self._recent = RecentStates()

    def post(
        self, name: str, sent: Sent, *, loop: str, version: str, tenant: str | None, key: str | None, join: bool
    ) -> Posted:
        """Add what was sent, once per key. It joins the run under way, or is the next run."""
        request, media = _dump(sent)
        now = _now()
        with self._signals.transaction(self._engine) as connection:
            # Locks the conversation, on both databases.
            new = {"id": name, "last_number": 1, "created_ms": now, "updated_ms": now}
            counted = {"last_number": conversations.c.last_number + 1, "updated_ms": now}
            added = (
                self._dialect.insert(conversations)
                .values(new)
                .on_conflict_do_update(index_elements=["id"], set_=counted)
            )
            number = connection.execute(added.returning(conversations.c.last_number)).scalar_one()
            if key is not None:
                same = sa.select(runs).where(runs.c.conversation == name, runs.c.key == key)
                known = connection.execute(same).one_or_none()
                if known is not None:
                    connection.rollback()
                    if known.request != request:
                        raise KeyConflictError(
                            f"Key {key!r} of conversation {name!r} was used for another message; use a new key."
                        )
                    return Posted(known.number, known.created_ms)
            self._save_blobs(connection, name, media)
            first = self._first(connection, name)
            row = {
                "conversation": name,
                "number": number,
                "key": key,
                "request": request,
                "loop": loop,
                "version": version,
                "tenant": tenant,
                "joined": first.number if join and first is not None else None,
                "attempt": 0,
                "stopped": False,
                "created_ms": now,
                "queued_ms": now if first is None else None,
            }
            connection.execute(sa.insert(runs).values(row))
            if first is None:
                self._enqueue(connection, ConversationRun(name, number), loop, version, tenant)
            elif row["joined"]:
                self._signals.add(connection, joining(ConversationRun(name, first.number)))
        return Posted(number, now)

    def begin(self, run: ConversationRun) -> BegunRun | str | None:
        """Begin an execution; returns the outcome of a run that has ended, or None if there is no such run."""
        this = _this(run)
        with self._engine.begin() as connection:
            began = sa.func.coalesce(runs.c.began_ms, _now())
            counted = sa.update(runs).where(*this, runs.c.ended_ms.is_(None))
            counted = counted.values(attempt=runs.c.attempt + 1, began_ms=began)
            found = (runs.c.attempt, runs.c.request, runs.c.stopped, runs.c.began_ms)
            row = connection.execute(counted.returning(*found)).one_or_none()
            if row is None:
                return connection.execute(sa.select(runs.c.outcome).where(*this)).scalar()
            stored = sa.select(conversations.c.state).where(conversations.c.id == run.conversation)
            state = self._state(connection, run.conversation, connection.execute(stored).scalar())
            sent = self._sent(connection, run.conversation, row.request)
            return BegunRun(sent, state, row.attempt, row.stopped, row.began_ms)

    def finish(
        self,
        run: ConversationRun,
        attempt: int,
        state: State,
        outcome: str,
        *,
        joined: Iterable[int] = (),
        batches: Sequence[Batch] = (),
    ) -> bool:
        """End a run: store its outcome and the state after it, and queue the next; False if another execution has it.

        Messages that joined the run, but came too late for it, are runs of their own. `batches` are its last events.
        """
        name, now = run.conversation, _now()
        body, media = _packed(state)
        with self._signals.transaction(self._engine) as connection:
            changed = sa.update(conversations).where(conversations.c.id == name)
            if not connection.execute(changed.values(updated_ms=now, state=body)).rowcount:
                # It was deleted, perhaps before the last events were written.
                connection.execute(sa.delete(streams).where(streams.c.conversation == name))
                return True
            ended = sa.update(runs).where(*_this(run), runs.c.attempt == attempt, runs.c.ended_ms.is_(None))
            if not connection.execute(ended.values(ended_ms=now, outcome=outcome)).rowcount:
                connection.rollback()
                return False
            self._save_blobs(connection, name, media)
            self._write(connection, batches)
            self._close(connection, run, joined)
        self._recent.put(name, body, state)
        return True

    def late(self, run: ConversationRun, known: Iterable[int]) -> tuple[tuple[int, Message], ...]:
        """The messages that have joined a run, but for those that it knows, in order."""
        query = (
            sa.select(runs.c.number, runs.c.request)
            .where(runs.c.conversation == run.conversation, runs.c.joined == run.number)
            .where(runs.c.number.notin_(list(known)))
            .order_by(runs.c.number)
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
            found = [(row.number, self._sent(connection, run.conversation, row.request)) for row in rows]
        return tuple((number, sent.message) for number, sent in found if sent.message is not None)

    def create(self, name: str, state: State) -> None:
        """Add a conversation with this state, unless there is one with this id."""
        body, media = _packed(state)
        with self._engine.begin() as connection:
            new = {"id": name, "last_number": 0, "state": body, "created_ms": _now(), "updated_ms": _now()}
            connection.execute(self._insert(conversations, new))
            self._save_blobs(connection, name, media)

    def stop(self, name: str) -> int | None:
        """Ask the run under way to stop; returns its number, or None if there is none."""
        with self._engine.begin() as connection:
            connection.execute(sa.update(conversations).where(conversations.c.id == name).values(updated_ms=_now()))
            first = self._first(connection, name)
            if first is None:
                return None
            this = _this(ConversationRun(name, first.number))
            connection.execute(sa.update(runs).where(*this).values(stopped=True))
            return int(first.number)

    def stopped(self, under_way: Iterable[ConversationRun]) -> frozenset[ConversationRun]:
        """Those among these runs that were asked to stop."""
        wanted = frozenset(under_way)
        query = sa.select(runs.c.conversation, runs.c.number).where(
            runs.c.stopped == sa.true(),
            runs.c.ended_ms.is_(None),
            runs.c.conversation.in_({run.conversation for run in wanted}),
        )
        with self._engine.connect() as connection:
            return wanted & {ConversationRun(row.conversation, row.number) for row in connection.execute(query)}

    def find(self, name: str, run: Posted | int | None = None) -> RunRow | None:
        """A run, or the newest that was sent."""
        c = runs.c
        found = (c.number, c.created_ms, c.attempt, c.joined, c.ended_ms, c.outcome)
        query = sa.select(*found).where(c.conversation == name)
        if isinstance(run, Posted):
            query = query.where(c.number == run.number, c.created_ms == run.created_ms)
        else:
            query = query.order_by(c.number.desc()).limit(1) if run is None else query.where(c.number == run)
        with self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        posted = Posted(row.number, row.created_ms)
        return RunRow(posted, row.attempt, row.joined, row.ended_ms is not None, row.outcome)

    def knows(self, work: str) -> bool:
        """True if this is the id of a run of a conversation."""
        name, _, number = work.rpartition(":")
        return number.isdecimal() and self.find(name, int(number)) is not None

    def decisions(self, work: str) -> dict[str, Decision]:
        """The decisions that a run of a conversation was sent, by call id; readable without the program's types."""
        name, _, number = work.rpartition(":")
        query = sa.select(runs.c.request).where(runs.c.conversation == name)
        with self._engine.connect() as connection:
            found = (
                connection.execute(query.where(runs.c.number == int(number))).scalar() if number.isdecimal() else None
            )
        return {} if found is None else load_tagged(json.loads(found)["sent"]["v"]["decisions"]) or {}

    def load(self, name: str) -> State | None:
        """The state after the last run; None if no run has ended."""
        with self._engine.connect() as connection:
            stored = connection.execute(sa.select(conversations.c.state).where(conversations.c.id == name)).scalar()
            return self._state(connection, name, stored)

    def in_flight(self, name: str) -> InFlight:
        """The runs that are not answered yet."""
        c, minute = runs.c, _now() - 60_000
        waiting = sa.select(c.number, c.request, c.joined).where(c.conversation == name, c.ended_ms.is_(None))
        recent = sa.select(sa.func.count()).where(c.conversation == name, c.created_ms > minute)
        with self._engine.connect() as connection:
            rows = connection.execute(waiting.order_by(c.number)).all()
            sent = [self._sent(connection, name, row.request).message for row in rows]
            count = connection.execute(recent).scalar_one()
        own = [row.number for row in rows if row.joined is None]
        return InFlight(own[0] if own else None, tuple(each for each in sent if each is not None), len(own), count)

    def write(self, batches: Sequence[Batch]) -> None:
        """Add batches of events to streams."""
        with self._signals.transaction(self._engine) as connection:
            self._write(connection, batches)

    def _write(self, connection: sa.Connection, batches: Sequence[Batch]) -> None:
        names = ("conversation", "number", "attempt", "sequence", "events")
        rows = [dict(zip(names, (run.conversation, run.number, *rest), strict=True)) for run, *rest in batches]
        if rows:
            connection.execute(self._insert(streams), rows)
            self._signals.add(connection, *{run.conversation for run, *_ in batches})

    def read(self, name: str, number: int, attempt: int, first: int) -> list[tuple[int, str]]:
        """The batches of an attempt from this one on, each with its place."""
        c = streams.c
        query = (
            sa.select(c.sequence, c.events)
            .where(c.conversation == name, c.number == number, c.attempt == attempt, c.sequence >= first)
            .order_by(c.sequence)
        )
        with self._engine.connect() as connection:
            return [(row.sequence, row.events) for row in connection.execute(query)]

    def settle(self) -> None:
        """End the runs that the engine has ended without them: those that were cancelled or given up."""
        waiting = (
            sa.select(runs.c.conversation, runs.c.number)
            .where(runs.c.ended_ms.is_(None), runs.c.queued_ms < _now() - _UNSETTLED_MS)
            .order_by(runs.c.queued_ms)
            .limit(_SETTLED_AT_ONCE)
        )
        with self._engine.connect() as connection:
            open_runs = [ConversationRun(row.conversation, row.number) for row in connection.execute(waiting)]
        by_id = {work_id(run): run for run in open_runs}
        if not by_id:
            return
        for ended in self._client.list_workflows(
            workflow_ids=list(by_id), status=_ENDED, load_input=False, load_output=False
        ):
            if ended.status == "CANCELLED" and self._ownership.is_running(ended.workflow_id):
                continue  # It ends by itself, at its next step.
            self._settle(by_id[ended.workflow_id], ended.status)

    def delete(self, name: str) -> bool:
        """Delete a conversation with all its rows; False if there is none."""
        with self._engine.begin() as connection:
            found = connection.execute(sa.delete(conversations).where(conversations.c.id == name)).rowcount
            numbers = connection.execute(
                sa.delete(runs).where(runs.c.conversation == name).returning(runs.c.number, runs.c.queued_ms)
            ).all()
            for table in (streams, blobs):
                connection.execute(sa.delete(table).where(table.c.conversation == name))
        ids = [work_id(ConversationRun(name, row.number)) for row in numbers if row.queued_ms is not None]
        if ids:
            self._client.cancel_workflows(ids)
            self._client.delete_workflows(ids)
        return bool(found)

    def _settle(self, run: ConversationRun, status: str) -> None:
        with self._signals.transaction(self._engine) as connection:
            changed = sa.update(conversations).where(conversations.c.id == run.conversation)
            connection.execute(changed.values(updated_ms=_now()))
            ended = sa.update(runs).where(*_this(run), runs.c.ended_ms.is_(None))
            outcome = self._serializer.serialize(_ended_as(work_id(run), status))
            if connection.execute(ended.values(ended_ms=_now(), outcome=outcome)).rowcount:
                self._close(connection, run, ())

    def _close(self, connection: sa.Connection, run: ConversationRun, joined: Iterable[int]) -> None:
        """After a run: its messages that came too late are runs, old streams go, and the next run is queued."""
        late = (runs.c.conversation == run.conversation, runs.c.joined == run.number, runs.c.ended_ms.is_(None))
        in_time = runs.c.number.in_(list(joined))
        answered = {"ended_ms": sa.case((in_time, _now())), "joined": sa.case((in_time, runs.c.joined))}
        connection.execute(sa.update(runs).where(*late).values(answered))
        recent = sa.select(runs.c.number).where(
            runs.c.conversation == run.conversation, runs.c.ended_ms > _now() - _KEPT_STREAM_MS
        )
        old = sa.delete(streams).where(streams.c.conversation == run.conversation, streams.c.number < run.number)
        connection.execute(old.where(streams.c.number.notin_(recent)))
        self._advance(connection, run.conversation)
        self._signals.add(connection, run.conversation)

    def _advance(self, connection: sa.Connection, name: str) -> None:
        """Queue the first run that has not ended, if it is not queued yet. The conversation is locked."""
        first = self._first(connection, name)
        if first is None or first.queued_ms is not None:
            return
        run = ConversationRun(name, first.number)
        connection.execute(sa.update(runs).where(*_this(run)).values(queued_ms=_now()))
        self._enqueue(connection, run, first.loop, first.version, first.tenant)

    def _enqueue(
        self, connection: sa.Connection, run: ConversationRun, loop: str, version: str, tenant: str | None
    ) -> None:
        options: Any = {
            "workflow_name": loop,
            "queue_name": loop,
            "workflow_id": work_id(run),
            "app_version": version,
            "queue_partition_key": tenant or NO_TENANT + work_id(run),
            "attributes": {"queue": loop},
        }
        self._client.enqueue_in_transaction(connection, options, run)
        self._signals.add(connection, loop)

    def _first(self, connection: sa.Connection, name: str) -> Any:
        query = (
            sa.select(runs.c.number, runs.c.queued_ms, runs.c.loop, runs.c.version, runs.c.tenant)
            .where(runs.c.conversation == name, runs.c.ended_ms.is_(None), runs.c.joined.is_(None))
            .order_by(runs.c.number)
            .limit(1)
        )
        return connection.execute(query).one_or_none()

    def _insert(self, table: sa.Table, values: Mapping[str, Any] | None = None) -> Any:
        """An INSERT that does nothing if the row is there."""
        insert = self._dialect.insert(table).on_conflict_do_nothing()
        return insert if values is None else insert.values(values)

    def _save_blobs(self, connection: sa.Connection, name: str, media: Mapping[str, bytes]) -> None:
        if not media:
            return
        known = sa.select(blobs.c.digest).where(blobs.c.conversation == name, blobs.c.digest.in_(list(media)))
        missing = media.keys() - set(connection.execute(known).scalars())
        rows = [{"conversation": name, "digest": digest, "data": media[digest]} for digest in sorted(missing)]
        if rows:
            connection.execute(self._insert(blobs), rows)

    def _load_blobs(self, connection: sa.Connection, name: str, digests: Sequence[str]) -> dict[str, bytes]:
        if not digests:
            return {}
        query = sa.select(blobs.c.digest, blobs.c.data).where(blobs.c.conversation == name, blobs.c.digest.in_(digests))
        return {row.digest: bytes(row.data) for row in connection.execute(query)}

    def _sent(self, connection: sa.Connection, name: str, request: str) -> Sent:
        document = json.loads(request)
        media = self._load_blobs(connection, name, document.get("blobs", ()))
        data = upgrade_tagged(document["sent"], self._serializer.upgrades)
        sent = load_tagged(data, {digest: Blob(found) for digest, found in media.items()})
        assert isinstance(sent, Sent)
        return sent

    def _state(self, connection: sa.Connection, name: str, packed: bytes | None) -> State | None:
        if packed is None or (recent := self._recent.find(name, packed)) is not None:
            return None if packed is None else recent
        session, resources = json.loads(zlib.decompress(packed))
        if isinstance(session, dict):
            digests = session["blobs"]
            media = self._load_blobs(connection, name, digests)
            session["blobs"] = [b64encode(media[digest]).decode() for digest in digests]
            session = json.dumps(session)
        return State(session, load_tagged(resources))


def work_id(run: ConversationRun) -> str:
    """The id of a run for the engine and `wink work`."""
    return f"{run.conversation}:{run.number}"


def joining(run: ConversationRun) -> str:
    """The signal that a message joins a run."""
    return f"join {work_id(run)}"


def _this(run: ConversationRun) -> tuple[sa.ColumnElement[bool], ...]:
    return (runs.c.conversation == run.conversation, runs.c.number == run.number)


def _dump(sent: Sent) -> tuple[str, dict[str, bytes]]:
    """The sent content as JSON, with the digests of its media, and their bytes."""
    media: dict[str, Blob] = {}
    document: dict[str, Any] = {"sent": dump_tagged(sent, media)}
    if media:
        document["blobs"] = sorted(media)
    return json.dumps(document, separators=(",", ":")), {digest: blob.data for digest, blob in media.items()}


def _packed(state: State) -> tuple[bytes, dict[str, bytes]]:
    """A state as bytes, with the digests of its media, and their bytes."""
    session: Any = state.session
    media: dict[str, bytes] = {}
    # Snapshots end with the bytes of media, if they have any.
    if session.endswith("]}") and '"blobs": [' in session:
        document = json.loads(session)
        if found := [b64decode(data) for data in document.get("blobs", ())]:
            digests = [sha256(data).hexdigest() for data in found]
            media = dict(zip(digests, found, strict=True))
            session = {**document, "blobs": digests}
    text = json.dumps([session, dump_tagged(state.resources)], separators=(",", ":"))
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1), media


def _ended_as(name: str, status: str) -> DurableError:
    """The error of a run that the engine has ended."""
    if STATUS_OF[status] == "dead":
        return DeadLetterError(f"{name!r} was given up after too many attempts without progress; send it again.")
    return WorkCancelledError(f"{name!r} was cancelled; send it again.")


def _now() -> int:
    return int(time.time() * 1000)
