"""The states of a filesystem over time, to which it can go back."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from weakincentives.filesystem.protocol import Parts
from weakincentives.filesystem.states import State


@dataclass(eq=False, repr=False, slots=True)
class Version:
    """One state of the disk, as the difference from the next version."""

    before: dict[Parts, State] = field(default_factory=dict)
    next: Version | None = None


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Mark:
    """A version that can be restored for as long as the mark is referenced."""

    others: ClassVar[frozenset[Parts]] = frozenset()
    journal: Versions
    version: Version


class Versions:
    """Undoes changes made through a filesystem, at a cost proportional to the changes.

    A version records the previous content of the paths that changed after it, and which version came next. The newest
    one is the disk itself. Going back is a change like any other, so a later version can be restored after an earlier
    one. Nothing is saved while no mark is referenced, and a version that no mark refers to is dropped with what it
    saved.
    """

    def __init__(self) -> None:
        self._current = Version()
        self._marks: weakref.WeakSet[Mark] = weakref.WeakSet()

    @property
    def in_use(self) -> bool:
        """True if a version may be restored."""
        return bool(self._marks)

    def mark(self) -> Mark:
        if self._current.before:
            self._current.next = Version()
            self._current = self._current.next
        mark = Mark(self, self._current)
        self._marks.add(mark)
        return mark

    def record(self, parts: Parts, save: Callable[[], State]) -> None:
        """Note that a path is about to change; `save` returns what is there."""
        if not self._marks:
            self._current = Version()
        elif parts not in self._current.before:
            self._current.before[parts] = save()

    def since(self, mark: Mark) -> dict[Parts, State]:
        """The states at a version of the paths that have changed since."""
        states: dict[Parts, State] = {}
        for version in reversed(_chain(mark.version)):
            states |= version.before
        return states

    def restore(self, mark: Mark) -> dict[Parts, State]:
        """The states to put on the disk, to go back to a version."""
        chain, states = _chain(mark.version), self.since(mark)
        if not any(other.version in chain[1:] for other in self._marks):
            # Nobody can go forward again, so what the disk has now need not be saved.
            mark.version.before, mark.version.next = dict(states), None
            self._current = mark.version
        return states

    def reached(self, states: Mapping[Parts, State]) -> None:
        """Note that these states are on the disk again."""
        before = self._current.before
        for parts, state in states.items():
            if parts in before and before[parts] is state:
                del before[parts]


def _chain(version: Version) -> list[Version]:
    """A version and those that came next."""
    chain = [version]
    while chain[-1].next is not None:
        chain.append(chain[-1].next)
    return chain
