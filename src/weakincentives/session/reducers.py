"""The `@reducer` decorator, and the slice classes declared with it."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

from weakincentives.errors import SessionError

F = TypeVar("F", bound=Callable[..., Any])


def reducer(*, on: type) -> Callable[[F], F]:
    """Make a method of a frozen dataclass the reducer for an event.

    The method takes the event and returns the slice's new value, or `Append`, `Extend`, `Replace` or `Clear`:

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

    def __get__(self, instance: object | None, owner: type) -> Callable[..., Any]:
        return cast("Callable[..., Any]", self.function.__get__(instance, owner))


class DeclaredSlices:
    """Slice classes by the event they reduce, known as soon as they are defined.

    `@dataclass(slots=True)` creates a class twice; of two classes with the same qualified name the later one counts.
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
        inspect.signature(slice_type).bind()
    except (TypeError, ValueError):
        return False
    return True
