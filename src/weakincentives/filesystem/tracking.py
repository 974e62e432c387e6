"""Detecting what other processes change below a root."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import NoReturn, cast

from weakincentives.filesystem.protocol import NeedsFolderError, NotFoundError, Parts, SnapshotError, join
from weakincentives.filesystem.search import compile_filter
from weakincentives.filesystem.states import (
    FORMATS,
    SPECIAL,
    DirectoryState,
    FileState,
    LinkState,
    LostState,
    Signature,
    State,
    identity,
    is_settled,
    signature,
)
from weakincentives.filesystem.store import StateStore
from weakincentives.filesystem.tree import Place, walk

MAX_TRACKED = 50_000
"""The most files, directories and links below a root that a program may change if that is to be taken back."""
MAX_TRACKED_BYTES = 1 << 30
"""The most bytes of these files."""


class Limits:
    """Counts what is below a root, which must not be too much to be taken back."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._paths = 0
        self._bytes = 0

    @property
    def problem(self) -> str:
        return (
            f"What a program changes in {self._root!r} cannot be taken back, because there are more than "
            f"{MAX_TRACKED:,} files or {MAX_TRACKED_BYTES >> 20:,} MB; list folders that need not be restored in "
            "HostFilesystem(ignore=...)."
        )

    def count(self, status: os.stat_result) -> None:
        """Count a path; raises if it is too much."""
        self._paths += 1
        self._bytes += status.st_size if stat.S_ISREG(status.st_mode) else 0
        if self._paths > MAX_TRACKED or self._bytes > MAX_TRACKED_BYTES:
            raise NeedsFolderError(self.problem, path=self._root)

    def are_passed_by(self, tree: Mapping[Parts, State]) -> bool:
        """True if a whole tree is too much."""
        size = sum(len(state.content) for state in tree.values() if isinstance(state, FileState))
        return len(tree) > MAX_TRACKED or size > MAX_TRACKED_BYTES


class Tracker:
    """The saved states of a whole tree, updated by scans, to detect and undo changes of other processes.

    Each scan saves the files that changed since the last one, judged by their times, size and inode. A file that
    changed just before a scan is compared by content, because its times might not show a second change.
    """

    def __init__(self, store: StateStore, ignore: Iterable[str]) -> None:
        self.ignore = tuple(ignore)
        self._store = store
        self._filters = [compile_filter(pattern) for pattern in self.ignore]
        self._index: Mapping[Parts, State] = {}

    def ignores(self, parts: Parts) -> bool:
        """True if the path or a directory above it is ignored."""
        return any(self._skips(parts[:depth]) for depth in range(1, len(parts) + 1))

    def scan(self, limits: Limits | None = None) -> Mapping[Parts, State]:
        """The current states of the whole tree; raises when the limits are passed, before more is saved."""
        index: dict[Parts, State] = {}
        now = time.time_ns()
        for place, status in self._walk(_reject):
            if limits is not None:
                limits.count(status)
            try:
                index[place.parts] = self._state(place, status, now)
            except FileNotFoundError:
                continue
            except OSError as error:
                _reject(place.parts, error)
        self._index = index
        return index

    def changes_to(self, tree: Mapping[Parts, State]) -> dict[Parts, tuple[State, Signature | None]]:
        """The states to put on the disk to reproduce this tree, each with the identity of what is there now."""
        changes: dict[Parts, tuple[State, Signature | None]] = {}
        missing = dict(tree)
        with suppress(NotFoundError):  # The root itself may have been removed.
            for place, status in self._walk():
                state = missing.pop(place.parts, None)
                if not _is_unchanged(place, status, state):
                    changes[place.parts] = state, identity(status)
        for parts, state in missing.items():
            changes[parts] = state, None
        return changes

    def _state(self, place: Place, status: os.stat_result, now: int) -> State:
        """The state of what is at a place: the saved one if it has not changed, else it is saved."""
        known = self._index.get(place.parts)
        if stat.S_IFMT(status.st_mode) not in FORMATS.values():
            return SPECIAL
        if not _is_unchanged(place, status, known):
            return self._store.save(place, status)
        if isinstance(known, FileState) and known.signature is None and is_settled(status, now):
            return replace(known, signature=signature(status))
        return known

    def _walk(
        self, unreadable: Callable[[Parts, OSError], None] | None = None
    ) -> Iterator[tuple[Place, os.stat_result]]:
        with self._store.tree.locate((), ".") as root, closing(root.enter()) as folder:
            for place, status in walk(folder, (), skip=self._skips, unreadable=unreadable):
                yield place, cast(os.stat_result, status)

    def _skips(self, parts: Parts) -> bool:
        return any(matches(parts) for matches in self._filters)


def _is_unchanged(place: Place, status: os.stat_result, state: State) -> bool:
    mode = status.st_mode
    if isinstance(state, DirectoryState):
        return stat.S_ISDIR(mode) and stat.S_IMODE(mode) == state.mode
    if isinstance(state, LinkState):
        return stat.S_ISLNK(mode) and place.readlink() == state.target
    if isinstance(state, LostState):
        return stat.S_IFMT(mode) not in FORMATS.values()
    if not isinstance(state, FileState) or not stat.S_ISREG(mode) or stat.S_IMODE(mode) != state.mode:
        return False
    if state.signature is not None and state.signature == signature(status):
        return True
    if status.st_size != len(state.content):
        return False
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
