"""The session: typed slices that events change."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.session.errors import SessionBusyError, SessionError
from weakincentives.session.observers import notify, watchers
from weakincentives.session.slices import Slice
from weakincentives.session.snapshot import Snapshot
from weakincentives.session.store import Store

T = TypeVar("T")


class Session:
    """Holds everything that happened in a run and everything that it knows, by type.

    session = Session()
    session.dispatch(Incremented(by=2))
    session[Incremented].all()  # every event of that type
    session[Counter].latest()  # the state that a @reducer made of them
    """

    __slots__ = ("__weakref__", "_claim_lock", "_observers", "_owner", "_store", "clock", "session_id", "silent")

    def __init__(self, *, session_id: str | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.session_id = session_id or os.urandom(16).hex()
        self.clock = clock
        # While this is set nobody hears of events: a replay repeats those that were heard when they happened.
        self.silent = False
        self._store = Store()
        self._observers: tuple[Callable[[Any], None], ...] = ()
        self._claim_lock = threading.Lock()
        self._owner: str | None = None

    def __repr__(self) -> str:
        return f"Session({self.session_id!r})"

    def __getitem__(self, slice_type: type[T]) -> Slice[T]:
        """The slice of this type. A class with `@reducer` methods is installed if it can be made without arguments."""
        if slice_type not in self._store:
            with self._store.lock:
                self._store.column(slice_type)
        return Slice(self._store, slice_type, self._notify)

    def install(self, slice_type: type[T], *, initial: Callable[[], T] | None = None) -> Slice[T]:
        """Give a slice its initial value, made now; a slice that was already written to keeps what it holds."""
        self._store.install(slice_type, initial)
        return self[slice_type]

    def dispatch(self, event: object) -> None:
        """Append the event to the slice of its type, run every reducer of it, then tell the observers.

        All of that happens or, where a reducer raises, none of it.
        """
        self._store.reduce(event)
        if self._observers or watchers:
            self._notify(event)

    broadcast = dispatch

    def observe(self, callback: Callable[[Any], None]) -> Callable[[], None]:
        """Call back with every event after it was reduced; the result of this call ends that."""

        def heard(event: object) -> None:
            callback(event)

        with self._claim_lock:
            self._observers = (*self._observers, heard)

        def unsubscribe() -> None:
            with self._claim_lock:
                self._observers = tuple(other for other in self._observers if other is not heard)

        return unsubscribe

    def snapshot(self) -> Snapshot:
        """Every slice as it is now. Costs the number of slices, not their length."""
        return Snapshot(self.session_id, self._store.mark())

    def restore(self, snapshot: Snapshot, *, preserve_logs: bool = True) -> None:
        """Go back to a snapshot, of this or another session.

        Logs keep what they hold, unless `preserve_logs=False`; a log that is still empty takes the snapshot's.
        """
        if not isinstance(snapshot, Snapshot):
            raise SessionError(f"{type(snapshot).__name__} is no Snapshot; read one from text with Snapshot.from_json")
        self._store.reset(snapshot.marks, preserve_logs=preserve_logs)

    def clone(self, *, session_id: str | None = None, observers: bool = False) -> Session:
        """An independent session with the same slices and reducers, for a run beside this one."""
        session = Session(session_id=session_id, clock=self.clock)
        session._store = self._store.clone()
        if observers:
            session._observers = self._observers
        return session

    @contextmanager
    def claim(self, owner: str) -> Iterator[None]:
        """Keep the session for one run while the block runs."""
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
        """End a claim early; does nothing if another run has the session by now."""
        with self._claim_lock:
            if self._owner == owner:
                self._owner = None

    def _notify(self, event: object) -> None:
        if self.silent:
            return
        if watchers:
            notify(tuple(watchers), self, event)
        notify(self._observers, event)
