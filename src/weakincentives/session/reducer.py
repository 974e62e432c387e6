"""The `@reducer` decorator, and the slices that the program has declared with it."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

from weakincentives.session.errors import SessionError

F = TypeVar("F", bound=Callable[..., Any])


def reducer(*, on: type) -> Callable[[F], F]:
    """Make a method of a frozen dataclass the reducer of an event.

    It takes the event and returns the new value of the slice, or `Append`, `Extend`, `Replace` or `Clear`:

        @dataclass(frozen=True)
        class Counter:
            count: int = 0

            @reducer(on=Incremented)
            def add(self, event: Incremented) -> "Counter":
                return replace(self, count=self.count + event.by)
    """
    if not isinstance(on, type):
        raise SessionError(f"@reducer(on={on!r}) is no event class; pass the class itself")

    def mark(function: F) -> F:
        return cast(F, ReducerMethod(function, on))

    return mark


class ReducerMethod:
    """A method that knows which events it reduces and tells the declared slices about its class."""

    def __init__(self, function: Callable[..., Any], on: type) -> None:
        inner = function if isinstance(function, ReducerMethod) else None
        self.function: Callable[..., Any] = inner.function if inner else function
        self.events: tuple[type, ...] = (*(inner.events if inner else ()), on)
        self.__doc__ = self.function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        DECLARED.add(owner, self.events)

    def __get__(self, instance: object | None, owner: type) -> Callable[..., Any]:
        return cast("Callable[..., Any]", self.function.__get__(instance, owner))


class DeclaredSlices:
    """Slice classes by the event they reduce, from their definition on.

    `@dataclass(slots=True)` makes a class twice: of two with the same qualified name, the later one counts. The name is
    compared when a slice is looked for, since the second class gets its full name only after it was announced.
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
        """The slices that reduce this event or a base class of it."""
        found: dict[tuple[str, str], type] = {}
        with self._lock:
            for base in event_type.__mro__:
                for reference in self._by_event.get(base, ()):
                    owner = reference()
                    if owner is not None:
                        found[owner.__module__, owner.__qualname__] = owner
        return list(found.values())


DECLARED = DeclaredSlices()


@lru_cache(maxsize=1024)
def reducer_methods(slice_type: type) -> dict[type, tuple[Callable[..., Any], ...]]:
    """The reducer methods of a class, inherited ones included, by event."""
    names: dict[type, dict[str, None]] = {}
    for base in reversed(slice_type.__mro__):
        for name, attribute in vars(base).items():
            if isinstance(attribute, ReducerMethod):
                for event in attribute.events:
                    names.setdefault(event, {})[name] = None
    return {event: tuple(getattr(slice_type, name) for name in found) for event, found in names.items()}


@lru_cache(maxsize=1024)
def makeable(slice_type: type) -> bool:
    """Whether the class can be made without arguments."""
    try:
        inspect.signature(slice_type).bind()
    except (TypeError, ValueError):
        return False
    return True
