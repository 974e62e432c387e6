"""One slice's items, kept so that taking a snapshot copies nothing.

Items live in a list that only grows. A mark is that list and a length. Going back to a mark cuts the list where no
other mark, view or session reaches past the cut; otherwise the list is left alone and copied at the next write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from weakincentives.session.log import LogEntry
from weakincentives.session.operations import Append, Clear, Extend, Replace
from weakincentives.session.reducer import reducer_methods
from weakincentives.session.view import SliceView

Mark: TypeAlias = tuple[list[Any], int]
FunctionReducer: TypeAlias = Callable[[SliceView[Any], Any], object]


class BadResult(Exception):
    """A reducer returned what its slice cannot take."""


class Column:
    """The items, the initial value and the reducers of one slice. The owner holds the lock."""

    __slots__ = (
        "_items",
        "_length",
        "_pinned",
        "_pristine",
        "_shared",
        "functions",
        "initial",
        "is_log",
        "methods",
        "type",
    )

    def __init__(self, slice_type: type) -> None:
        self.type = slice_type
        self.is_log = issubclass(slice_type, LogEntry)
        self.initial: tuple[Any, ...] = ()
        self.methods = reducer_methods(slice_type)
        self.functions: tuple[tuple[type, FunctionReducer], ...] = ()
        self._items: list[Any] = []
        self._length = 0
        self._shared = False
        self._pinned = 0
        self._pristine: list[Any] = self._items

    @property
    def length(self) -> int:
        return self._length if self._shared else len(self._items)

    def append(self, item: object) -> None:
        if self._shared:
            self._own(self._items[: self._length])
        self._items.append(item)

    def extend(self, items: Iterable[object]) -> None:
        if self._shared:
            self._own(self._items[: self._length])
        self._items.extend(items)

    def replace(self, items: Iterable[object]) -> None:
        self._own(list(items))

    def clear(self, predicate: Callable[[Any], bool] | None = None) -> None:
        kept = () if predicate is None else [item for item in self.all() if not predicate(item)]
        self._own(list(kept or self.initial))

    def install(self, initial: object) -> None:
        """Set the initial value; it also becomes the state unless the slice was already written to."""
        untouched = self._items is self._pristine and self.length == len(self.initial)
        self.initial = (initial,)
        if untouched or not self.length:
            self._own([initial])
            self._pristine = self._items

    def all(self) -> tuple[Any, ...]:
        return tuple(self._items[: self._length] if self._shared else self._items)

    def latest(self) -> Any:
        if self._shared:
            return self._items[self._length - 1] if self._length else None
        return self._items[-1] if self._items else None

    def mark(self) -> Mark:
        """The items as they are now, for as long as anyone keeps the mark."""
        length = self._length if self._shared else len(self._items)
        if length > self._pinned:
            self._pinned = length
        return self._items, length

    def mark_briefly(self) -> Mark:
        """A mark that is used or dropped before the lock is let go, so that nothing need be kept for it."""
        return self._items, self._length if self._shared else len(self._items)

    def view(self) -> SliceView[Any]:
        return SliceView(*self.mark())

    def reset(self, mark: Mark) -> None:
        items, length = mark
        if items is self._items and not self._shared:
            if length == len(items):
                return
            if self._pinned <= length:
                del items[length:]
                return
        self._items, self._length, self._shared = items, length, True

    def clone(self) -> Column:
        column = Column(self.type)
        column.initial, column.functions = self.initial, self.functions
        column._pristine = self._pristine
        column.reset(self.mark())
        return column

    def methods_for(self, event_type: type) -> tuple[Callable[[Any, Any], object], ...]:
        """The reducer methods for this event; those of its nearest base class where it has none of its own."""
        return next((self.methods[base] for base in event_type.__mro__ if base in self.methods), ())

    def reducers(self, event_type: type) -> tuple[Callable[[Any], object], ...]:
        """Everything in this slice that reduces the event, each as a function of the event alone."""
        functions = [function for base, function in self.functions if issubclass(event_type, base)]
        return (
            *(_of_value(self, method) for method in self.methods_for(event_type)),
            *(_of_view(self, function) for function in functions),
        )

    def take(self, result: object) -> None:
        """Carry out what a reducer returned, or raise `BadResult`."""
        if isinstance(result, self.type):
            self._own([result])
        elif isinstance(result, Append):
            if not isinstance(result.item, self.type):
                raise self._misplaced(result.item)
            self.append(result.item)
        elif isinstance(result, Extend):
            self.extend(self._checked(result.items))
        elif isinstance(result, Replace):
            single = isinstance(result.items, self.type)
            self.replace(self._checked((result.items,) if single else result.items))
        elif isinstance(result, Clear):
            self.clear(result.predicate)
        elif isinstance(result, (tuple, list)):
            self.replace(self._checked(result))
        elif result is not UNCHANGED:
            raise BadResult(
                f"returned {result!r}; return a {self.type.__qualname__}, a tuple of them, "
                "or Append, Extend, Replace or Clear"
            )

    def _checked(self, items: Any) -> tuple[Any, ...]:
        if not isinstance(items, Iterable):
            raise self._misplaced(items)
        checked = tuple(items)
        for item in checked:
            if not isinstance(item, self.type):
                raise self._misplaced(item)
        return checked

    def _misplaced(self, item: object) -> BadResult:
        return BadResult(f"put {item!r} into a slice of {self.type.__qualname__}")

    def _own(self, items: list[Any]) -> None:
        self._items, self._shared, self._pinned = items, False, 0


UNCHANGED = object()


def _of_value(column: Column, method: Callable[[Any, Any], object]) -> Callable[[Any], object]:
    def reduce(event: Any) -> object:
        value = column.latest()
        return UNCHANGED if value is None else method(value, event)

    return reduce


def _of_view(column: Column, function: FunctionReducer) -> Callable[[Any], object]:
    def reduce(event: Any) -> object:
        return function(column.view(), event)

    return reduce
