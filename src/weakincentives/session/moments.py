"""Earlier states that a session holds, and how a snapshot stores them: each item once, and where it is used.

A moment refers to lists of items that only grow, so keeping one copies nothing. As text, its state lists ranges of
items: `"0:0-12 3:5-6"` is the first 12 items of the first slice, and the sixth of the fourth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from weakincentives.session.slices import Mark

Range = tuple[int, int]
LOST: Any = object()
"""Stands for an item that could not be read."""


class Reducible:
    """An item with parts that it may be impossible to store; without them, it is still worth having."""

    __slots__ = ()

    def reduced(self) -> Self:
        """The item without such parts."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment(Reducible):
    """An item of a slice that holds an earlier state of its session, as a `Snapshot`."""

    state: Any = field(default=None, repr=False, compare=False)  #: the earlier state


class Pool:
    """The items of a snapshot and of the moments in it, by type: first those of the snapshot, then all others."""

    def __init__(self, marks: Mapping[type, Mark]) -> None:
        self._current = {kind: mark for kind, mark in marks.items() if mark[1]}
        self.types = list(self._current)
        self.past: dict[type, list[Any]] = {}
        self._places: dict[type, dict[int, int]] = {}
        self._scans: dict[int, tuple[list[list[int]], int]] = {}
        self._texts: dict[int, str] = {}
        moments = [
            item for kind in self.types if issubclass(kind, Moment) for item in self._current[kind][0][: marks[kind][1]]
        ]
        # The states of moments may hold further ones.
        while moments:
            moment = moments.pop()
            if id(moment) not in self._texts:
                self._texts[id(moment)] = self._text(moment.state.marks)
                moments += [
                    item
                    for kind, items in self.past.items()
                    if issubclass(kind, Moment)
                    for item in items
                    if id(item) not in self._texts
                ]

    def entries(self) -> Iterator[tuple[type, list[Any]]]:
        """The items of the snapshot by type."""
        for kind, (items, length) in self._current.items():
            yield kind, items[:length]

    def text_of(self, moment: Moment) -> str:
        """The state of a moment as text."""
        return self._texts[id(moment)]

    def _text(self, marks: Mapping[type, Mark]) -> str:
        found = []
        for kind, (items, length) in marks.items():
            if not length:
                continue
            if kind not in self._current and kind not in self.past:
                self.types.append(kind)
                self.past[kind] = []
            if kind in self._current and items is self._current[kind][0] and length <= self._current[kind][1]:
                ranges: Sequence[Range] = [(0, length)]
            else:
                ranges = self._ranges(kind, items, length)
            found.append(f"{self.types.index(kind)}:{','.join(f'{start}-{stop}' for start, stop in ranges)}")
        return " ".join(found)

    def _ranges(self, kind: type, items: list[Any], length: int) -> list[Range]:
        """The places of the first items of a list; what was found for fewer of them is used again."""
        runs, done = self._scans.get(id(items), ([], 0))
        for item in items[done:length]:
            place = self._place(kind, item)
            if runs and runs[-1][1] == place:
                runs[-1][1] += 1
            else:
                runs.append([place, place + 1])
        self._scans[id(items)] = runs, max(done, length)
        found: list[Range] = []
        for start, stop in runs:
            found.append((start, min(stop, start + length)))
            length -= stop - start
            if length <= 0:
                break
        return found

    def _place(self, kind: type, item: Any) -> int:
        items, length = self._current.get(kind, ([], 0))
        places = self._places.get(kind)
        if places is None:
            places = self._places[kind] = {id(each): place for place, each in enumerate(items[:length])}
        place = places.get(id(item))
        if place is None:
            past = self.past.setdefault(kind, [])
            place = places[id(item)] = length + len(past)
            past.append(item)
        return place


def fill(
    pools: Sequence[tuple[type, list[Any]]],
    current: Mapping[type, list[Any]],
    make: Callable[[dict[type, Mark]], Any],
) -> None:
    """Give each moment in these pools its state, which it has as text; `make` makes a snapshot of marks.

    States that begin alike share one list, as they did before they were stored.
    """
    shared: dict[Range, list[Any]] = {}
    for number, (kind, items) in enumerate(pools):
        if items[: len(current.get(kind, ()))] == current.get(kind) and not _has_lost(items):
            shared[number, 0] = current[kind]
    for _, items in pools:
        for moment in reversed(items):
            if isinstance(moment, Moment):
                object.__setattr__(moment, "state", make(_marks(moment.state, pools, shared)))


def _marks(text: Any, pools: Sequence[tuple[type, list[Any]]], shared: dict[Range, list[Any]]) -> dict[type, Mark]:
    marks: dict[type, Mark] = {}
    for each in text.split():
        name, _, places = each.partition(":")
        number = int(name)
        kind, pool = pools[number]
        if kind is LOST:
            continue
        ranges = [(int(start), int(stop)) for start, _, stop in (part.partition("-") for part in places.split(","))]
        if any(not 0 <= start <= stop <= len(pool) for start, stop in ranges):
            raise ValueError(f"no items {places!r} of {kind.__qualname__}")
        length = sum(stop - start for start, stop in ranges)
        known = shared.get((number, ranges[0][0])) if len(ranges) == 1 else None
        if known is None or len(known) < length or kind in marks:
            before, had = marks.get(kind, ([], 0))
            found = [item for start, stop in ranges for item in pool[start:stop] if item is not LOST]
            known, length = [*before[:had], *found], had + len(found)
            if len(ranges) == 1 and kind not in marks and not _has_lost(pool):
                shared[number, ranges[0][0]] = known
        marks[kind] = known, length
    return marks


def _has_lost(items: Sequence[Any]) -> bool:
    return any(item is LOST for item in items)
