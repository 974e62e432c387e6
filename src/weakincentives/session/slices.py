"""`session[Type]`: reading and writing one slice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from weakincentives.session.errors import SessionError
from weakincentives.session.operations import Operation
from weakincentives.session.store import Store
from weakincentives.session.view import SliceView

T = TypeVar("T")
E = TypeVar("E")


class Slice(Generic[T]):
    """The items of one type in a session, oldest first."""

    __slots__ = ("_notify", "_store", "_type")

    def __init__(self, store: Store, slice_type: type[T], notify: Callable[[object], None]) -> None:
        self._store = store
        self._type = slice_type
        self._notify = notify

    def all(self) -> tuple[T, ...]:
        """Every item, as a copy; `view()` is cheaper where the history is long."""
        with self._store.lock:
            return self._store.column(self._type).all()

    def view(self) -> SliceView[T]:
        """The items as they are now, without copying them; what comes later does not show."""
        with self._store.lock:
            return self._store.column(self._type).view()

    def latest(self) -> T | None:
        """The newest item; of a slice with reducer methods, its value."""
        with self._store.lock:
            latest: T | None = self._store.column(self._type).latest()
            return latest

    def where(self, predicate: Callable[[T], bool]) -> tuple[T, ...]:
        return tuple(item for item in self.all() if predicate(item))

    def __len__(self) -> int:
        with self._store.lock:
            return self._store.column(self._type).length

    def __iter__(self) -> Iterator[T]:
        return iter(self.view())

    def append(self, item: T) -> None:
        """Add an item. No reducer runs and no observer hears of it; that is what `dispatch` is for."""
        self._check(item)
        with self._store.lock:
            self._store.writable(self._type).append(item)

    def seed(self, items: T | Iterable[T]) -> None:
        """Make these items, or this one item, the whole slice."""
        seeds: tuple[Any, ...] = (items,) if isinstance(items, self._type) else tuple(items)  # type: ignore[arg-type]
        for item in seeds:
            self._check(item)
        with self._store.lock:
            self._store.writable(self._type).replace(seeds)

    def clear(self, predicate: Callable[[T], bool] | None = None) -> None:
        """Drop every item, or those for which `predicate` holds; an installed slice goes back to its initial value."""
        with self._store.lock:
            self._store.writable(self._type).clear(predicate)

    def apply(self, event: object) -> None:
        """Send an event to this slice only."""
        self._store.reduce_in(self._type, event)
        self._notify(event)

    def register(
        self, event_type: type[E], reducer: Callable[[SliceView[T], E], T | tuple[T, ...] | Operation]
    ) -> None:
        """Reduce events of this type, and of its subclasses, into this slice.

        The reducer takes the items so far and the event; it returns the slice's new value, a tuple of items, or an
        operation such as `Append`.
        """
        if not isinstance(event_type, type):
            raise SessionError(f"register({event_type!r}, ...): name the event by its class")
        self._store.register(self._type, event_type, reducer)

    def _check(self, item: object) -> None:
        if not isinstance(item, self._type):
            raise SessionError(f"{item!r} does not belong into a slice of {self._type.__qualname__}")
