"""Saving what is on the disk, and putting it back."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO
from uuid import uuid4

from weakincentives.filesystem.errors import FilesystemError
from weakincentives.filesystem.jail import NOFOLLOW, OPEN_DIRECTORY, Jail, Place, translated
from weakincentives.filesystem.protocol import Parts, join

MAX_IN_MEMORY = 16 * 1024
CHUNK = 256 * 1024


class Blob:
    """The saved content of a file: in memory if small, else in a file of the store that is deleted with the blob."""

    __slots__ = ("__weakref__", "data", "file")

    def __init__(self, data: bytes | None, file: str | None = None) -> None:
        self.data = data
        self.file = file
        if file is not None:
            weakref.finalize(self, _unlink, file)

    def equals(self, other: IO[bytes]) -> bool:
        if self.file is None:
            data = self.data or b""
            return other.read(len(data) + 1) == data
        with open(self.file, "rb") as mine:
            while chunk := mine.read(CHUNK):
                if other.read(CHUNK) != chunk:
                    return False
        return not other.read(1)

    def copy_to(self, target: IO[bytes]) -> None:
        if self.file is None:
            target.write(self.data or b"")
        else:
            with open(self.file, "rb") as source:
                shutil.copyfileobj(source, target)


@dataclass(frozen=True, slots=True)
class FileState:
    blob: Blob
    mode: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class DirectoryState:
    mode: int


@dataclass(frozen=True, slots=True)
class LinkState:
    target: str


State = FileState | DirectoryState | LinkState | None
"""None means that nothing is there."""


class StateStore:
    """Saves what is on the disk below a root, and puts it back."""

    def __init__(self, jail: Jail) -> None:
        self.jail = jail
        self._folder: str | None = None

    def save(self, place: Place, status: os.stat_result | None) -> State:
        """Save what is at a place. Special files (sockets, devices) are rejected."""
        if status is None:
            return None
        if stat.S_ISDIR(status.st_mode):
            return DirectoryState(stat.S_IMODE(status.st_mode))
        if stat.S_ISLNK(status.st_mode):
            return LinkState(os.readlink(place.name, dir_fd=place.fd))
        if not stat.S_ISREG(status.st_mode):
            path = join(place.parts)
            raise FilesystemError(f"{path!r} is neither a file nor a directory", path=path)
        with os.fdopen(place.open(os.O_RDONLY), "rb") as source:
            blob = self._copy(source, status.st_size)
        return FileState(blob, stat.S_IMODE(status.st_mode), status.st_mtime_ns)

    def current(self, parts: Parts) -> State:
        """Save what is at a path."""
        try:
            with self.jail.locate(parts, join(parts), follow=False, links=False) as place:
                return self.save(place, place.stat())
        except FilesystemError:
            return None

    def put_back(self, states: Mapping[Parts, State]) -> list[str]:
        """Put every state back at its path, even if some fail; returns the failures as text."""
        failures: list[str] = []
        for parts in sorted(states, key=len, reverse=True):
            try:
                self._clear(parts, states[parts])
            except FilesystemError as error:
                failures.append(str(error))
        for parts in sorted(states, key=len):
            try:
                self._put(parts, states[parts])
            except FilesystemError as error:
                failures.append(str(error))
        directories = [(parts, state) for parts, state in states.items() if isinstance(state, DirectoryState)]
        for parts, state in sorted(directories, key=lambda item: len(item[0]), reverse=True):
            try:
                with self.jail.locate(parts, join(parts), follow=False, links=False) as place:
                    _set_mode(place, state.mode)
            except FilesystemError as error:
                failures.append(str(error))
        return failures

    def clear(self) -> None:
        """Delete what was saved to disk."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _copy(self, source: IO[bytes], size: int) -> Blob:
        if size <= MAX_IN_MEMORY:
            data = source.read(MAX_IN_MEMORY + 1)
            if len(data) <= MAX_IN_MEMORY:
                return Blob(data)
            source.seek(0)
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="wink-undo-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        file = os.path.join(self._folder, uuid4().hex)
        with open(file, "wb") as target:
            shutil.copyfileobj(source, target)
        return Blob(None, file)

    def _clear(self, parts: Parts, state: State) -> None:
        """Remove what is at the path if it is not of the kind to be put there."""
        try:
            with self.jail.locate(parts, join(parts), follow=False, links=False) as place:
                status = place.stat()
                if status is None or _same_kind(status.st_mode, state):
                    return
                if not stat.S_ISDIR(status.st_mode):
                    os.unlink(place.name, dir_fd=place.fd)
                else:
                    self._remove_directory(place, keep_others=state is None)
        except (FileNotFoundError, NotADirectoryError):
            return

    def _remove_directory(self, place: Place, *, keep_others: bool) -> None:
        """Remove a directory. Files that others put into it keep it there, unless a file has to take its place."""
        try:
            os.rmdir(place.name, dir_fd=place.fd)
        except OSError as error:
            if not (keep_others and error.errno == errno.ENOTEMPTY):
                raise

    def _put(self, parts: Parts, state: State) -> None:
        if state is None:
            return
        path = join(parts)
        self._make_parents(parts[:-1])
        with self.jail.locate(parts, path, follow=False, links=False) as place:
            status = place.stat()
            if isinstance(state, FileState):
                replace(place, state.blob, state.mode, state.modified_ns)
            elif isinstance(state, LinkState):
                if status is not None:
                    os.unlink(place.name, dir_fd=place.fd)
                os.symlink(state.target, place.name, dir_fd=place.fd)
            else:
                if status is None:
                    os.mkdir(place.name, dir_fd=place.fd)
                # The saved mode may forbid writing into it, so it is set once everything is in place.
                _set_mode(place, state.mode | stat.S_IRWXU)

    def _make_parents(self, parts: Parts) -> None:
        for depth in range(1, len(parts) + 1):
            with self.jail.locate(parts[:depth], join(parts), follow=False, links=False) as place:
                if place.stat() is None:
                    os.mkdir(place.name, dir_fd=place.fd)


class Version:
    """One state of the disk, as the difference from the next version."""

    __slots__ = ("before", "next")

    def __init__(self) -> None:
        self.before: dict[Parts, State] = {}
        self.next: Version | None = None


class Mark:
    """A version that can be restored for as long as the mark is referenced."""

    __slots__ = ("__weakref__", "journal", "version")

    def __init__(self, journal: Journal, version: Version) -> None:
        self.journal = journal
        self.version = version


class Journal:
    """Undoes changes made through a filesystem, at a cost proportional to the changes.

    A version knows what the paths that changed after it contained, and which version came next. The newest one is the
    disk itself. Going back walks the chain and reverses its links, so every version can be reached from every other.
    Nothing is saved while no mark is referenced, and a version that no mark refers to is dropped with what it saved.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._current = Version()
        self._marks: weakref.WeakSet[Mark] = weakref.WeakSet()

    def mark(self) -> Mark:
        if self._current.before:
            self._current.next = Version()
            self._current = self._current.next
        mark = Mark(self, self._current)
        self._marks.add(mark)
        return mark

    def record(self, place: Place) -> None:
        """Save what is at the place, before it is changed."""
        if not self._marks:
            self._current = Version()
        elif place.parts not in self._current.before:
            self._current.before[place.parts] = self._store.save(place, place.stat())

    def switch_to(self, mark: Mark) -> dict[Parts, State]:
        """Make that version the current one; returns the states to put on the disk."""
        chain = [mark.version]
        while chain[-1].next is not None:
            chain.append(chain[-1].next)
        target, self._current.before = self._current.before, {}
        for older, newer in zip(reversed(chain[:-1]), reversed(chain[1:]), strict=True):
            states, older.before = older.before, {}
            newer.before = {parts: target[parts] if parts in target else self._store.current(parts) for parts in states}
            newer.next, older.next = older, None
            target.update(states)
            self._current = older
        return target


def replace(place: Place, content: Blob | bytes, mode: int | None, modified_ns: int | None = None) -> None:
    """Write a file completely or not at all."""
    temporary = f".wink-{uuid4().hex[:16]}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o666, dir_fd=place.fd)
    try:
        with translated(join(place.parts)), os.fdopen(fd, "wb") as target:
            if isinstance(content, Blob):
                content.copy_to(target)
            else:
                target.write(content)
            target.flush()
            if mode is not None:
                os.fchmod(fd, mode)
            if modified_ns is not None:
                os.utime(fd, ns=(modified_ns, modified_ns))
        os.replace(temporary, place.name, src_dir_fd=place.fd, dst_dir_fd=place.fd)
    except BaseException:
        os.unlink(temporary, dir_fd=place.fd)
        raise


def create(place: Place, content: bytes) -> None:
    """Write a file where there is none; one that another process created meanwhile is left alone."""
    fd = place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(fd, "wb") as target:
            target.write(content)
    except BaseException:
        os.unlink(place.name, dir_fd=place.fd)
        raise


def _set_mode(place: Place, mode: int) -> None:
    fd = place.open(OPEN_DIRECTORY)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _same_kind(mode: int, state: State) -> bool:
    return (
        (stat.S_ISREG(mode) and isinstance(state, FileState))
        or (stat.S_ISDIR(mode) and isinstance(state, DirectoryState))
        or (stat.S_ISLNK(mode) and isinstance(state, LinkState))
    )


def _unlink(file: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file)
