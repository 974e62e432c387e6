"""Detecting what other processes change below a root."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import NoReturn, cast

from weakincentives.filesystem.protocol import NotFoundError, Parts, SnapshotError, join
from weakincentives.filesystem.search import compile_filter
from weakincentives.filesystem.states import (
    FORMATS,
    DirectoryState,
    FileState,
    LinkState,
    Signature,
    State,
    identity,
    is_settled,
    signature,
)
from weakincentives.filesystem.store import StateStore
from weakincentives.filesystem.tree import Place, walk


class Tracker:
    """The saved states of a whole tree, updated by scans, to detect and undo changes of other processes.

    Each scan saves the files that changed since the last one, judged by their times, size and inode. A file that
    changed just before a scan is compared by content, because its times might not show a second change.
    """

    def __init__(self, store: StateStore, ignore: Iterable[str]) -> None:
        self._store = store
        self._ignore = [compile_filter(pattern) for pattern in ignore]
        self._index: dict[Parts, tuple[Signature | None, State]] = {}

    def ignores(self, parts: Parts) -> bool:
        """True if the path or a directory above it is ignored."""
        return any(self._skips(parts[:depth]) for depth in range(1, len(parts) + 1))

    def scan(self) -> Mapping[Parts, State]:
        """The current states of the whole tree."""
        index: dict[Parts, tuple[Signature | None, State]] = {}
        now = time.time_ns()
        for place, status in self._walk(_reject):
            if stat.S_IFMT(status.st_mode) not in FORMATS.values():
                continue
            _, state = self._index.get(place.parts, (None, None))
            try:
                if not self._is_unchanged(place, status, state):
                    state = self._store.save(place, status)
            except FileNotFoundError:
                continue
            except OSError as error:
                _reject(place.parts, error)
            index[place.parts] = (signature(status) if is_settled(status, now) else None, state)
        self._index = index
        return {parts: state for parts, (_, state) in index.items()}

    def changes_to(self, tree: Mapping[Parts, State]) -> dict[Parts, tuple[State, Signature | None]]:
        """The states to put on the disk to reproduce this tree, each with the identity of what is there now."""
        changes: dict[Parts, tuple[State, Signature | None]] = {}
        missing = dict(tree)
        with suppress(NotFoundError):  # The root itself may have been removed.
            for place, status in self._walk():
                is_special = stat.S_IFMT(status.st_mode) not in FORMATS.values()
                if is_special and place.parts not in missing:
                    continue
                state = missing.pop(place.parts, None)
                if is_special or not self._is_unchanged(place, status, state):
                    changes[place.parts] = state, identity(status)
        for parts, state in missing.items():
            changes[parts] = state, None
        return changes

    def _walk(
        self, unreadable: Callable[[Parts, OSError], None] | None = None
    ) -> Iterator[tuple[Place, os.stat_result]]:
        with self._store.tree.locate((), ".") as root, closing(root.enter()) as folder:
            for place, status in walk(folder, (), skip=self._skips, unreadable=unreadable):
                yield place, cast(os.stat_result, status)

    def _skips(self, parts: Parts) -> bool:
        return any(matches(parts) for matches in self._ignore)

    def _is_unchanged(self, place: Place, status: os.stat_result, state: State) -> bool:
        mode = status.st_mode
        if isinstance(state, DirectoryState):
            return stat.S_ISDIR(mode) and stat.S_IMODE(mode) == state.mode
        if isinstance(state, LinkState):
            return stat.S_ISLNK(mode) and place.readlink() == state.target
        if not isinstance(state, FileState) or not stat.S_ISREG(mode) or stat.S_IMODE(mode) != state.mode:
            return False
        if self._index.get(place.parts) == (signature(status), state):
            return True
        try:
            with place.open() as current:
                return state.content.equals(current)
        except OSError:
            return False


def _reject(parts: Parts, error: OSError) -> NoReturn:
    path = join(parts)
    raise SnapshotError(
        f"{path!r} cannot be saved ({error.strerror}) and so could not be restored; add it to ignore=", path=path
    ) from error
