"""A slice as it was at one moment, without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, overload

T = TypeVar("T")


class SliceView(Sequence[T]):
    """The items that a slice held when the view was made; later changes do not show."""

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
