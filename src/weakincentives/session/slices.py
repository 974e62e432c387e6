"""The contents of a slice: its items, the operations and reducers that change them, and views of them.

Items live in a list that only grows, so a snapshot copies nothing: a mark is that list and a length. Going back to a
mark truncates the list if no other mark or view needs the items past it; otherwise the list is left alone, and the
items up to the mark are copied.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar, cast, overload

from weakincentives._base.annotations import signature_of
from weakincentives.errors import SessionError
from weakincentives.serde import declare_type

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class LogEntry:
    """Base class of events that record what happened. A rollback undoes state but keeps log entries."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        declare_type(cls)


@dataclass(frozen=True)
class Append(Generic[T]):
    """Add one item at the end."""

    item: T  #: the item


@dataclass(frozen=True)
class Extend(Generic[T]):
    """Add these items at the end."""

    items: Iterable[T]  #: the items


@dataclass(frozen=True)
class Replace(Generic[T]):
    """Replace the slice's contents with these items, or with this one item."""

    items: Iterable[T] | T  #: the new contents


@dataclass(frozen=True)
class Clear(Generic[T]):
    """Remove every item, or those matching `predicate`. An installed slice then holds its initial value again."""

    predicate: Callable[[T], bool] | None = None


Operation: TypeAlias = Append[Any] | Extend[Any] | Replace[Any] | Clear[Any]


class SliceView(Sequence[T]):
    """The items a slice held when the view was made; later changes do not show."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[T], length: int) -> None:
        self._items = items
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        length = self._length
        if isinstance(index, slice):
            start, stop, step = index.indices(length)
            if step > 0:
                return tuple(self._items[start:stop:step])
            return tuple(self._items[position] for position in range(start, stop, step))
        if not -length <= index < length:
            raise IndexError(f"index {index} is out of range for {length} items")
        return self._items[index if index >= 0 else index + length]

    def __repr__(self) -> str:
        return f"SliceView({list(self)!r})"

    def all(self) -> tuple[T, ...]:
        return tuple(self)

    def latest(self) -> T | None:
        return self._items[self._length - 1] if self._length else None

    def where(self, predicate: Callable[[T], bool]) -> tuple[T, ...]:
        return tuple(item for item in self if predicate(item))


def extends(items: Sequence[object], earlier: Sequence[object]) -> bool:
    """True if items begin with all the earlier ones; two views of a slice that was only added to take no time."""
    if isinstance(items, SliceView) and isinstance(earlier, SliceView) and items._items is earlier._items:
        return len(earlier) <= len(items)
    return tuple(items[: len(earlier)]) == tuple(earlier)


def reducer(*, on: type) -> Callable[[F], F]:
    """Make a method of a frozen dataclass the reducer for an event.

    The method receives the event and returns the slice's new value, or `Append`, `Extend`, `Replace` or `Clear`:

        @dataclass(frozen=True)
        class Counter:
            count: int = 0

            @reducer(on=Incremented)
            def add(self, event: Incremented) -> "Counter":
                return replace(self, count=self.count + event.by)
    """
    if not isinstance(on, type):
        raise SessionError(f"@reducer(on=...) must be given an event class, got {on!r}")

    def decorate(function: F) -> F:
        return cast(F, ReducerMethod(function, on))

    return decorate


class ReducerMethod:
    """A method with the events it reduces. It registers its class as soon as the class is defined."""

    def __init__(self, function: Callable[..., Any], on: type) -> None:
        inner = function if isinstance(function, ReducerMethod) else None
        self.function: Callable[..., Any] = inner.function if inner else function
        self.events: tuple[type, ...] = (*(inner.events if inner else ()), on)
        self.__doc__ = self.function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        declared_slices.add(owner, self.events)
        for cls in (owner, *self.events):
            declare_type(cls)

    def __get__(self, instance: object | None, owner: type) -> Callable[..., Any]:
        return cast("Callable[..., Any]", self.function.__get__(instance, owner))


class DeclaredSlices:
    """Slice classes by the event they reduce, known as soon as they are defined.

    `@dataclass(slots=True)` creates a class twice; of two classes with the same qualified name, the later one counts.
    Names are compared at lookup, because the second class gets its full name only after it was registered.
    """

    def __init__(self) -> None:
        self.version = 0
        self._lock = threading.Lock()
        self._by_event: weakref.WeakKeyDictionary[type, list[weakref.ref[type]]] = weakref.WeakKeyDictionary()

    def add(self, owner: type, events: tuple[type, ...]) -> None:
        with self._lock:
            self.version += 1
            for event in events:
                alive = [reference for reference in self._by_event.get(event, ()) if reference() is not None]
                self._by_event[event] = [*alive, weakref.ref(owner)]

    def reducing(self, event_type: type) -> list[type]:
        """The slice classes that reduce this event or a base class of it."""
        found: dict[tuple[str, str], type] = {}
        with self._lock:
            for base in event_type.__mro__:
                for reference in self._by_event.get(base, ()):
                    owner = reference()
                    if owner is not None:
                        found[owner.__module__, owner.__qualname__] = owner
        return list(found.values())


declared_slices = DeclaredSlices()


@lru_cache(maxsize=1024)
def reducer_methods(slice_type: type) -> dict[type, tuple[Callable[..., Any], ...]]:
    """The reducer methods of a class by event, including inherited ones."""
    names: dict[type, dict[str, None]] = {}
    for base in reversed(slice_type.__mro__):
        for name, attribute in vars(base).items():
            if isinstance(attribute, ReducerMethod):
                for event in attribute.events:
                    names.setdefault(event, {})[name] = None
    return {event: tuple(getattr(slice_type, name) for name in found) for event, found in names.items()}


@lru_cache(maxsize=1024)
def has_default_constructor(slice_type: type) -> bool:
    """True if the class can be called without arguments."""
    try:
        signature_of(slice_type).bind()
    except (TypeError, ValueError):
        return False
    return True


Mark: TypeAlias = tuple[list[Any], int]
FunctionReducer: TypeAlias = Callable[[SliceView[Any], Any], object]


class InvalidResult(Exception):
    """A reducer returned something, `got`, that its slice cannot hold."""

    def __init__(self, expected: str, got: object) -> None:
        super().__init__(f"must return {expected}, got {got!r}")
        self.got = got


class Column:
    """The items, initial value and reducers of one slice. The owner holds the lock."""

    def __init__(self, slice_type: type) -> None:
        self.type = slice_type
        self.is_log = issubclass(slice_type, LogEntry)
        self.initial: tuple[Any, ...] = ()
        self.methods = reducer_methods(slice_type)
        self.functions: tuple[tuple[type, FunctionReducer], ...] = ()
        self.items: list[Any] = []
        self._pinned = 0

    def clear(self, predicate: Callable[[Any], bool] | None = None) -> None:
        kept = () if predicate is None else [item for item in self.items if not predicate(item)]
        self._own(list(kept or self.initial))

    def install(self, initial: object) -> None:
        """Set the initial value, which also becomes the current one unless the slice was already written to."""
        untouched = len(self.items) == len(self.initial) and self.latest() is (self.initial or (None,))[0]
        self.initial = (initial,)
        if untouched or not self.items:
            self._own([initial])

    def latest(self) -> Any:
        return self.items[-1] if self.items else None

    def mark(self) -> Mark:
        """The items as they are now; the mark stays valid for as long as it is kept."""
        length = len(self.items)
        if length > self._pinned:
            self._pinned = length
        return self.items, length

    def view(self) -> SliceView[Any]:
        return SliceView(*self.mark())

    def reset(self, mark: Mark) -> None:
        items, length = mark
        if items is not self.items or (length < len(items) and length < self._pinned):
            self._own(items[:length])
        else:
            del items[length:]

    def clone(self) -> Column:
        column = Column(self.type)
        column.initial, column.functions = self.initial, self.functions
        column.items = self.items[:]
        return column

    def methods_for(self, event_type: type) -> tuple[Callable[[Any, Any], object], ...]:
        """The reducer methods for this event, or for its nearest base class that has any."""
        return next((self.methods[base] for base in event_type.__mro__ if base in self.methods), ())

    @property
    def reduces_itself(self) -> bool:
        """True if a function is registered for the slice's own type. It replaces the append."""
        return any(event_type is self.type for event_type, _ in self.functions)

    def reducers(self, event_type: type) -> tuple[Callable[[Any], object], ...]:
        """Every reducer of this slice for the event, each as a function of the event alone."""
        functions = [function for base, function in self.functions if issubclass(event_type, base)]
        return (
            *(_method_reducer(self, method) for method in self.methods_for(event_type)),
            *(_function_reducer(self, function) for function in functions),
        )

    def apply_result(self, result: object) -> None:
        """Apply what a reducer returned, or raise `InvalidResult`."""
        if isinstance(result, self.type):
            self._own([result])
        elif isinstance(result, Append):
            self.items.extend(self._checked((result.item,)))
        elif isinstance(result, Extend):
            self.items.extend(self._checked(result.items))
        elif isinstance(result, Replace):
            single = isinstance(result.items, self.type)
            self._own(self._checked((result.items,) if single else result.items))
        elif isinstance(result, Clear):
            self.clear(result.predicate)
        elif isinstance(result, (tuple, list)):
            self._own(self._checked(result))
        elif result is not UNCHANGED:
            kinds = f"a {self.type.__qualname__}, a tuple of them, or Append, Extend, Replace or Clear"
            raise InvalidResult(kinds, result)

    def _checked(self, items: Any) -> list[Any]:
        checked = list(items) if isinstance(items, Iterable) else [items]
        for item in checked:
            if not isinstance(item, self.type):
                raise InvalidResult(f"items of type {self.type.__qualname__}", item)
        return checked

    def _own(self, items: list[Any]) -> None:
        self.items, self._pinned = items, 0


UNCHANGED = object()


def _method_reducer(column: Column, method: Callable[[Any, Any], object]) -> Callable[[Any], object]:
    def reduce(event: Any) -> object:
        value = column.latest()
        return UNCHANGED if value is None else method(value, event)

    return reduce


def _function_reducer(column: Column, function: FunctionReducer) -> Callable[[Any], object]:
    return lambda event: function(column.view(), event)
