"""The session: typed slices that events change, and who observes the events."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from weakincentives._base.display import MAX_DRAWN, Displayed, Shown, Table, shortened
from weakincentives._base.threads import Turns
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import SessionBusyError, SessionError
from weakincentives.filesystem import InMemoryDirectory, InMemoryFilesystem, InMemorySnapshot
from weakincentives.session.slices import Append, Clear, InvalidResult, LogEntry, Operation, Replace, SliceView
from weakincentives.session.snapshot import Snapshot
from weakincentives.session.store import SliceStore

logger = logging.getLogger(__name__)

T = TypeVar("T")
E = TypeVar("E")

MAX_TAG = 200
process_observers: list[Callable[[Any, object], None]] = []


class Slice(Displayed, Generic[T]):
    """The items of one type in a session, oldest first."""

    __slots__ = ("_notify", "_store", "_type")

    def __init__(self, store: SliceStore, slice_type: type[T], notify: Callable[[object], None]) -> None:
        self._store = store
        self._type = slice_type
        self._notify = notify

    def _display(self) -> Iterator[Shown]:
        items = self.all()
        if len(items) > MAX_DRAWN:
            yield f"{len(items) - MAX_DRAWN:,} earlier"
        for item in items[-MAX_DRAWN:]:
            yield from item._display() if isinstance(item, Displayed) else (repr(item),)

    def all(self) -> tuple[T, ...]:
        """A copy of every item. For a long history, `view()` is cheaper."""
        with self._store.lock:
            return tuple(self._store.column(self._type).items)

    def view(self) -> SliceView[T]:
        """The current items without copying them; later changes do not show."""
        with self._store.lock:
            return self._store.column(self._type).view()

    def latest(self) -> T | None:
        """The newest item. For a slice with reducer methods, its current value."""
        with self._store.lock:
            latest: T | None = self._store.column(self._type).latest()
            return latest

    def where(self, predicate: Callable[[T], bool]) -> tuple[T, ...]:
        return tuple(item for item in self.all() if predicate(item))

    def __len__(self) -> int:
        with self._store.lock:
            return len(self._store.column(self._type).items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.view())

    def append(self, item: T) -> None:
        """Add an item without running reducers or observers; use `dispatch` for those."""
        self._change(Append(item))

    def seed(self, items: T | Iterable[T]) -> None:
        """Replace the slice's contents with these items, or with this one item."""
        self._change(Replace(items))

    def update(self, function: Callable[[SliceView[T]], Iterable[T]]) -> None:
        """Replace the slice's contents with what `function` makes of them; no other thread writes in between."""
        with self._store.lock:
            self._change(Replace(function(self._store.writable(self._type).view())))

    def clear(self, predicate: Callable[[T], bool] | None = None) -> None:
        """Remove every item, or those matching `predicate`. An installed slice then holds its initial value again."""
        self._change(Clear(predicate))

    def apply(self, event: object) -> None:
        """Apply an event to this slice only."""
        self._store.reduce_in(self._type, event)
        self._notify(event)

    def register(
        self, event_type: type[E], reducer: Callable[[SliceView[T], E], T | tuple[T, ...] | Operation]
    ) -> None:
        """Reduce events of this type, and of its subclasses, into this slice.

        The reducer receives the current items and the event. It returns the slice's new value, a tuple of items, or an
        operation such as `Append`. A reducer for the slice's own type replaces the default append.
        """
        if not isinstance(event_type, type):
            raise SessionError(f"register(...) must be given an event class, got {event_type!r}")
        self._store.register(self._type, event_type, reducer)

    def _change(self, operation: Operation) -> None:
        with self._store.lock:
            try:
                self._store.writable(self._type).apply_result(operation)
            except InvalidResult as error:
                name = self._type.__qualname__
                raise SessionError(f"Items of slice '{name}' must be of that type, got {error.got!r}") from None


class Bus:
    """Delivers each event immediately to the handlers of its type, in order of subscription.

    Anything with `dispatch(event)` can serve as a bus; this is the plain in-process one.
    """

    def __init__(self) -> None:
        self.handlers: tuple[tuple[type, Callable[[Any], None]], ...] = ()
        self._lock = threading.Lock()

    def subscribe(self, event_type: type[E], handler: Callable[[E], None]) -> Callable[[], None]:
        """Call the handler for events of this type and its subclasses. Returns a function that unsubscribes it."""
        entry = (event_type, handler)
        with self._lock:
            self.handlers = (*self.handlers, entry)

        def unsubscribe() -> None:
            with self._lock:
                self.handlers = tuple(other for other in self.handlers if other is not entry)

        return unsubscribe

    def dispatch(self, event: object) -> None:
        """Deliver an event. A handler that raises is logged; the others still run."""
        notify([handler for event_type, handler in self.handlers if isinstance(event, event_type)], event)


class Session(Displayed):
    """Holds the state of a run and everything that happened in it, by type.

    Events go in, and state comes out:

        session = Session()
        session.dispatch(Incremented(by=2))
        session[Incremented].all()  # every event of that type
        session[Counter].latest()  # the state that a @reducer made of them

    `tags` are recorded with each of its runs, for `wink runs list --where key=value`; a snapshot does not hold them.
    """

    def __init__(
        self,
        *,
        session_id: str | None = None,  #: by default a random one
        clock: Clock = SYSTEM_CLOCK,  #: a `FakeClock` in tests
        tags: Mapping[str, str] | None = None,  #: recorded with each of its runs
    ) -> None:
        self.session_id = session_id or os.urandom(16).hex()
        self.clock = clock
        self.tags = check_tags(tags)
        # The session that this one is inside of, for a run that a tool call makes.
        self.parent: Session | None = None
        # Transactions are made one after the other: undoing one restores slices that another might have changed.
        self.transactions = Turns()
        # Set during a replay: it repeats events that observers have already seen.
        self.silent = False
        self._store = SliceStore()
        self._bus = Bus()
        self._claim_lock = threading.Lock()
        self._owner: str | None = None
        self._last_time = 0.0
        self._workspace: InMemoryFilesystem | None = None
        # The events of a `together` block of each thread.
        self._unseen = threading.local()

    @property
    def workspace(self) -> InMemoryFilesystem:
        """The in-memory files of the runs on this session, used where a prompt has no other filesystem."""
        with self._claim_lock:
            if self._workspace is None:
                self._workspace = InMemoryFilesystem()
            return self._workspace

    def __repr__(self) -> str:
        return f"Session({self.session_id!r})"

    def _display(self) -> Iterator[Shown]:
        found = self.snapshot()
        yield f"Session {self.session_id}: {len(found.slices)} types"
        rows = [(kind.__name__, f"{len(found[kind])}", shortened(repr(found[kind][-1]), 100)) for kind in found.slices]
        yield Table(("type", "items", "latest"), rows, right=("items",))

    def __getitem__(self, slice_type: type[T]) -> Slice[T]:
        """The slice of this type. This installs a class that has `@reducer` methods and no required arguments."""
        if slice_type not in self._store:
            with self._store.lock:
                self._store.column(slice_type)
        return Slice(self._store, slice_type, self._notify)

    def install(self, slice_type: type[T], *, initial: Callable[[], T] | None = None) -> Slice[T]:
        """Give a slice its initial value. A slice that was already written to keeps its items."""
        self._store.install(slice_type, initial)
        return self[slice_type]

    def dispatch(self, event: object) -> None:
        """Append the event to the slice of its type, run its reducers, then call the observers.

        If a reducer raises, nothing changes. A slice with a reducer for its own type decides what it keeps.
        """
        self._store.reduce(event)
        if self._bus.handlers or process_observers:
            self._notify(event)

    broadcast = dispatch

    def announce(self, event: object) -> None:
        """Call the observers with an event that the session does not keep."""
        if self.observed:
            self._notify(event)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Call observers of what the block dispatches when it has ended, so that a snapshot of theirs has all of it."""
        if getattr(self._unseen, "events", None) is not None:
            yield
            return
        self._unseen.events = events = deque[object]()
        try:
            yield
        finally:
            self._unseen.events = None
            while events:
                self._notify(events.popleft())

    @property
    def observed(self) -> bool:
        return bool(self._bus.handlers or process_observers) and not self.silent

    def observe(self, callback: Callable[[Any], None]) -> Callable[[], None]:
        """Call back with every event after it was reduced. Returns a function that stops it."""
        return self._bus.subscribe(object, callback)

    def snapshot(self) -> Snapshot:
        """The state of every slice, and `workspace`. The cost depends on the number of slices, not on their length."""
        files = None if self._workspace is None else self._workspace.snapshot()
        return Snapshot(self.session_id, self._store.mark(), files=files or InMemorySnapshot(InMemoryDirectory()))

    def state(self, *, logs: bool = True) -> Snapshot:
        """A snapshot of the slices alone; without logs, of those that `restore` changes."""
        return Snapshot(self.session_id, self._store.mark(logs=logs))

    def restore(self, snapshot: Snapshot, *, preserve_logs: bool = True, keep: Collection[type] = ()) -> None:
        """Go back to a snapshot of this or another session, with the files of `workspace`.

        Logs keep their entries unless `preserve_logs=False`; an empty log gets the snapshot's entries. Slices of the
        types in `keep` stay as they are.
        """
        if not isinstance(snapshot, Snapshot):
            raise SessionError(
                f"snapshot must be a Snapshot, got {type(snapshot).__name__}; read text with Snapshot.from_json"
            )
        self._store.reset(snapshot.marks, preserve_logs=preserve_logs, keep=keep)
        if snapshot.files is not None and (self._workspace is not None or snapshot.files.root.entries):
            self.workspace.restore(snapshot.files)

    def __contains__(self, slice_type: type) -> bool:
        """True if the slice of this type has items; at less cost than to ask the slice."""
        return self._store.has_items(slice_type)

    def initial(self, slice_type: type) -> tuple[list[Any], int]:
        """The content of the slice before anything was written to it, as a mark."""
        with self._store.lock:
            items = list(self._store.column(slice_type).initial)
        return items, len(items)

    def clone(self, *, session_id: str | None = None, observers: bool = False) -> Session:
        """An independent session with the same slices, reducers and in-memory files, for a parallel run."""
        session = Session(session_id=session_id, clock=self.clock, tags=self.tags)
        session._store = self._store.clone()
        if self._workspace is not None:
            session.workspace.restore(self._workspace.snapshot())
        if observers:
            session._bus.handlers = self._bus.handlers
        return session

    def child(self, own_types: Collection[type]) -> ChildSession:
        """A session inside this one, for a run inside a tool call: all but the slices of these types are shared."""
        return ChildSession(self, frozenset(own_types).__contains__)

    def branch(self) -> SessionBranch:
        """A session that begins with the state of this one, and keeps its changes to itself."""
        return SessionBranch(self)

    def _holds_back(self, event: object) -> bool:
        """True if observers may not see the event yet, because its changes may never be made."""
        return False

    @property
    def stores(self) -> tuple[object, ...]:
        """The stores of its slices and those around it, as `Fence.protect` takes them."""
        return (self._store,)

    def timestamp(self) -> float:
        """The time by the session's clock, never the same twice, so that sorting by it keeps events in order."""
        with self._claim_lock:
            now = time.time() if self.clock is SYSTEM_CLOCK else self.clock.now().timestamp()
            self._last_time = max(now, self._last_time + 1e-6)
            return self._last_time

    @property
    def busy(self) -> bool:
        """True while a run has claimed the session."""
        return self._owner is not None

    @contextmanager
    def claim(self, owner: str) -> Iterator[None]:
        """Reserve the session for one run while the block runs."""
        with self._claim_lock:
            if self._owner is not None:
                raise SessionBusyError(
                    f"Session '{self.session_id}' is in use by {self._owner!r}, so {owner!r} cannot run on it; "
                    "give each run its own session, for example session.clone(), or close its stream first"
                )
            self._owner = owner
        try:
            yield
        finally:
            self.release(owner)

    def release(self, owner: str) -> None:
        """End a claim early; does nothing if another run has since claimed the session."""
        with self._claim_lock:
            if self._owner == owner:
                self._owner = None

    def _notify(self, event: object) -> None:
        if self.silent or self._holds_back(event):
            return
        unseen = getattr(self._unseen, "events", None)
        if unseen is not None:
            unseen.append(event)
            return
        if process_observers:
            notify(tuple(process_observers), self, event)
        self._bus.dispatch(event)


class ChildSession(Session):
    """A session inside another, with some slices of its own; observers of the other see its events."""

    def __init__(self, parent: Session, is_own: Callable[[type], bool]) -> None:
        super().__init__(session_id=parent.session_id, clock=parent.clock, tags=parent.tags)
        self.silent = parent.silent
        self.parent: Session = parent
        self.transactions = parent.transactions
        self._own = self._store = parent._store.child(is_own)
        self._bus = parent._bus

    @property
    def workspace(self) -> InMemoryFilesystem:
        return self.parent.workspace

    @property
    def stores(self) -> tuple[object, ...]:
        return (self._store, *self.parent.stores)

    def timestamp(self) -> float:
        return self.parent.timestamp()

    def _holds_back(self, event: object) -> bool:
        return self.parent._holds_back(event)

    def copy_parents(self) -> None:
        """Begin with what the parent has of the slices that are not shared."""
        self._own.copy_parents()

    def own_snapshot(self) -> Snapshot:
        """The slices that are not shared."""
        return Snapshot(self.session_id, self._own.own_marks())

    def restore_own(self, snapshot: Snapshot) -> None:
        """Go back to what `own_snapshot` returned, in this process or another."""
        self._own.reset_own(snapshot.marks)


class SessionBranch(ChildSession):
    """A session whose changes are made in its parent later, or never: `session.branch()`.

    Log entries tell what has happened, so they are the parent's at once; observers see nothing else.
    The files of its `workspace` are a branch too.
    """

    def __init__(self, parent: Session) -> None:
        super().__init__(parent, is_state)
        self.copy_parents()

    @property
    def workspace(self) -> InMemoryFilesystem:
        if self._workspace is None:
            self._workspace = self.parent.workspace.branch()
        return self._workspace

    @property
    def branched_workspace(self) -> InMemoryFilesystem | None:
        """The branch of the parent's files, if it was used."""
        return self._workspace

    def _holds_back(self, event: object) -> bool:
        return is_state(type(event)) or super()._holds_back(event)


def is_state(slice_type: type) -> bool:
    """True for slices that a rollback restores: all but logs."""
    return not issubclass(slice_type, LogEntry)


def check_tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of these tags; raises unless each has a name and a short text."""
    if not isinstance(tags, Mapping | None):
        raise TypeError(f"tags must be a mapping of names to texts, got {tags!r}; write tags={{'release': '7'}}")
    for name, text in (tags or {}).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"tags must map strings to strings, got {name!r}: {text!r}; write str(...)")
        if not name or "=" in name or name in ("$", "overrides") or len(name) > MAX_TAG or len(text) > MAX_TAG:
            raise ValueError(
                f"tags must have names without '=', other than 'overrides' and '$', and at most {MAX_TAG} characters; "
                f"got {shortened(name, 40)!r}: {shortened(text, 40)!r}"
            )
    return dict(tags or {})


@contextmanager
def observing(callback: Callable[[Any, object], None]) -> Iterator[None]:
    """Call `callback(session, event)` for every event of every session in this process while the block runs."""
    # Found again by identity: callbacks may compare as equal.
    observer = partial(callback)
    process_observers.append(observer)
    try:
        yield
    finally:
        process_observers.remove(observer)


def notify(callbacks: Iterable[Callable[..., None]], *arguments: object) -> None:
    """Call each callback. One that raises is logged; the others still run."""
    for callback in callbacks:
        try:
            callback(*arguments)
        except Exception:
            logger.exception("Observer %r failed on %s", callback, type(arguments[-1]).__qualname__)
