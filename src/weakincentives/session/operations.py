"""What a reducer may ask of its slice, besides returning the new value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Append(Generic[T]):
    """Add one item at the end."""

    item: T


@dataclass(frozen=True)
class Extend(Generic[T]):
    """Add these items at the end."""

    items: Iterable[T]


@dataclass(frozen=True)
class Replace(Generic[T]):
    """Make these items, or this one item, the whole slice."""

    items: Iterable[T] | T


@dataclass(frozen=True)
class Clear(Generic[T]):
    """Empty the slice, or drop the items for which `predicate` holds. An installed slice never stays empty."""

    predicate: Callable[[T], bool] | None = None


Operation: TypeAlias = Append[Any] | Extend[Any] | Replace[Any] | Clear[Any]
