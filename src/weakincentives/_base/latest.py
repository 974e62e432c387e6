"""A cache of one value, which can be computed again at any time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class Latest(Generic[KeyT, ValueT]):
    """The last value that was made, with the key that it was made for; several threads may use it."""

    __slots__ = ("_entry",)

    def __init__(self) -> None:
        self._entry: tuple[KeyT, ValueT] | None = None

    def of(self, key: KeyT, make: Callable[[], ValueT]) -> ValueT:
        """The value for this key; it is made unless the last one was made for an equal key."""
        entry = self._entry
        if entry is None or entry[0] != key:
            entry = self._entry = (key, make())
        return entry[1]
