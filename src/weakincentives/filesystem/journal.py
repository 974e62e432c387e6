"""Undoing what was changed through a filesystem, at the price of the changes alone.

A version knows what the paths that changed after it held, and which version came next. The newest one is the disk
itself; going back to an older one walks the chain and turns its links round, so that every version can be reached from
every other. A version that no snapshot refers to is forgotten, and what it saved with it.
"""

from __future__ import annotations

import weakref

from weakincentives.filesystem.jail import Place
from weakincentives.filesystem.paths import Parts
from weakincentives.filesystem.state import State, Store


class Version:
    """A moment of the disk, as the difference to the version after it."""

    __slots__ = ("before", "next")

    def __init__(self) -> None:
        self.before: dict[Parts, State] = {}
        self.next: Version | None = None


class Mark:
    """A version that someone may want to go back to, for as long as the mark is held."""

    __slots__ = ("__weakref__", "journal", "version")

    def __init__(self, journal: Journal, version: Version) -> None:
        self.journal = journal
        self.version = version


class Journal:
    """Saves each path before its first change after a mark, and nothing while no mark is held."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._now = Version()
        self._marks: weakref.WeakSet[Mark] = weakref.WeakSet()

    def mark(self) -> Mark:
        if self._now.before:
            self._now.next = Version()
            self._now = self._now.next
        mark = Mark(self, self._now)
        self._marks.add(mark)
        return mark

    def record(self, place: Place) -> None:
        """Call before the place is changed."""
        if not self._marks:
            self._now = Version()
        elif place.parts not in self._now.before:
            self._now.before[place.parts] = self._store.save(place, place.stat())

    def go_to(self, mark: Mark) -> dict[Parts, State]:
        """Make that version the present one; returns what the disk has to become for it."""
        chain = [mark.version]
        while chain[-1].next is not None:
            chain.append(chain[-1].next)
        becomes, self._now.before = self._now.before, {}
        for older, newer in zip(reversed(chain[:-1]), reversed(chain[1:]), strict=True):
            states, older.before = older.before, {}
            newer.before = {parts: becomes[parts] if parts in becomes else self._store.look(parts) for parts in states}
            newer.next, older.next = older, None
            becomes.update(states)
            self._now = older
        return becomes
