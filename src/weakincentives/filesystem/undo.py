"""Saving what is on the disk, and putting it back: changes made through a filesystem, and those of other processes."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, ClassVar, NoReturn
from uuid import uuid4

from weakincentives.filesystem.jail import NOFOLLOW, OPEN_DIRECTORY, Jail, Place, translated, walk
from weakincentives.filesystem.patch import Node
from weakincentives.filesystem.protocol import (
    DirectoryNotEmptyError,
    FilesystemError,
    NotDirectoryError,
    NotFoundError,
    Parts,
    SnapshotError,
    join,
)
from weakincentives.filesystem.search import compile_filter

MAX_IN_MEMORY = 16 * 1024
CHUNK = 256 * 1024
SETTLED_NS = 50_000_000
"""File times can be coarse: within this interval two changes may get the same time."""

Signature = tuple[int, ...]


class SavedContent:
    """The saved content of a file: in memory if small, else in a file of the store that is deleted with it."""

    def __init__(self, data: bytes = b"", file: str = "") -> None:
        self.data = data
        self.file = file
        if file:
            weakref.finalize(self, _unlink, file)

    def open(self) -> IO[bytes]:
        return open(self.file, "rb") if self.file else BytesIO(self.data)

    def __len__(self) -> int:
        return os.path.getsize(self.file) if self.file else len(self.data)

    def equals(self, other: IO[bytes]) -> bool:
        with self.open() as mine:
            while chunk := mine.read(CHUNK):
                if other.read(len(chunk)) != chunk:
                    return False
        return not other.read(1)

    def export(self, path: str) -> None:
        """Make the content available at another path, without a copy if possible."""
        try:
            os.link(self.file, path)
        except OSError:
            with self.open() as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)


@dataclass(frozen=True, slots=True)
class FileState:
    content: SavedContent
    mode: int | None
    modified_ns: int | None = None


@dataclass(frozen=True, slots=True)
class DirectoryState:
    mode: int | None


@dataclass(frozen=True, slots=True)
class LinkState:
    target: str


@dataclass(frozen=True, slots=True)
class LostState:
    """A state that could not be saved, so it cannot be put back."""

    reason: str


State = FileState | DirectoryState | LinkState | LostState | None
"""None means that nothing is there."""


def as_node(state: State, limit: int | None = None) -> Node | None:
    """A state as data; a file with more than `limit` bytes is not read."""
    match state:
        case None:
            return None
        case FileState() if limit is None or len(state.content) <= limit:
            with state.content.open() as source:
                return Node("file", source.read(), state.mode)
        case DirectoryState():
            return Node("directory", mode=state.mode)
        case LinkState():
            return Node("link", os.fsencode(state.target))
    return Node("other")


def as_state(node: Node | None, found: State) -> State:
    """The state to put in place of what was found; a file without a mode of its own keeps the mode."""
    match node:
        case None:
            return None
        case Node("file"):
            kept = found.mode if isinstance(found, FileState) else None
            return FileState(SavedContent(node.content), kept if node.mode is None else node.mode)
        case Node("directory"):
            return DirectoryState(node.mode)
    return LinkState(os.fsdecode(node.content))


_FORMATS: dict[type, int] = {FileState: stat.S_IFREG, DirectoryState: stat.S_IFDIR, LinkState: stat.S_IFLNK}


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
            content = self._copy(source, status.st_size)
        return FileState(content, stat.S_IMODE(status.st_mode), status.st_mtime_ns)

    def current(self, parts: Parts) -> State:
        """Save what is at a path."""
        try:
            with self.jail.locate(parts, join(parts), follow=False, links=False) as place:
                return self.save(place, place.stat())
        except (NotFoundError, NotDirectoryError):
            return None
        except FilesystemError as error:
            return LostState(f"{error}, so it was not saved")

    def peek(self, parts: Parts, limit: int | None) -> State:
        """The content of a path, for a moment: nothing is written to disk, and a file of more bytes is not read."""
        try:
            with self.jail.locate(parts, join(parts), follow=False, links=False) as place:
                status = place.stat()
                if status is None or not stat.S_ISREG(status.st_mode):
                    return self.save(place, status)
                if limit is not None and status.st_size > limit:
                    return LostState("it is too large")
                with os.fdopen(place.open(os.O_RDONLY), "rb") as source:
                    return FileState(SavedContent(source.read()), stat.S_IMODE(status.st_mode))
        except (NotFoundError, NotDirectoryError):
            return None
        except FilesystemError as error:
            return LostState(f"{error}, so it was not read")

    def put_back(self, states: Mapping[Parts, State]) -> dict[Parts, str]:
        """Put every state back at its path, even if some fail; returns the reasons for the failures."""
        failures = {parts: state.reason for parts, state in states.items() if isinstance(state, LostState)}

        def attempt(put: Callable[[Parts], None], order: Iterable[Parts]) -> None:
            for parts in order:
                if parts not in failures:
                    try:
                        put(parts)
                    except FilesystemError as error:
                        failures[parts] = str(error)

        with suppress(OSError):
            os.mkdir(self.jail.root)
        deepest_first = sorted(states, key=len, reverse=True)
        attempt(lambda parts: self._clear(parts, states[parts]), deepest_first)
        attempt(lambda parts: self._put(parts, states[parts]), reversed(deepest_first))
        attempt(lambda parts: self._finish(parts, states[parts]), deepest_first)
        return failures

    def export(self, states: Mapping[Parts, State]) -> tuple[str | None, list[str]]:
        """Write the files among these states to a new folder that outlives the process.

        Returns the folder, None if there was nothing or no room to write, and the paths for which there was no room.
        """
        folder: str | None = None
        missing: list[str] = []
        for parts, state in states.items():
            if isinstance(state, FileState):
                try:
                    folder = folder or tempfile.mkdtemp(prefix="wink-unrestored-")
                    target = os.path.join(folder, *parts)
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    state.content.export(target)
                except OSError:
                    missing.append(join(parts))
        return folder, missing

    def clear(self) -> None:
        """Delete what was saved to disk."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _copy(self, source: IO[bytes], size: int) -> SavedContent:
        if size <= MAX_IN_MEMORY:
            data = source.read(MAX_IN_MEMORY + 1)
            if len(data) <= MAX_IN_MEMORY:
                return SavedContent(data)
            source.seek(0)
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="wink-undo-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        # A sparse file takes no room until it is copied.
        if size > shutil.disk_usage(self._folder).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file = os.path.join(self._folder, uuid4().hex)
        try:
            with open(file, "wb") as target:
                shutil.copyfileobj(source, target)
        except BaseException:
            _unlink(file)
            raise
        return SavedContent(file=file)

    def _clear(self, parts: Parts, state: State) -> None:
        """Remove what is at the path, unless it is already of the kind to be put there."""
        try:
            with self.jail.locate(parts, join(parts), follow=False, links=False) as place:
                status = place.stat()
                if status is None or stat.S_IFMT(status.st_mode) == _FORMATS.get(type(state)):
                    return
                remove = os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink
                remove(place.name, dir_fd=place.fd)
        except (FileNotFoundError, NotADirectoryError):
            return
        except DirectoryNotEmptyError:
            # A directory into which others put files is kept, unless a file has to take its place.
            if state is not None:
                raise

    def _put(self, parts: Parts, state: State) -> None:
        if state is None:
            return
        path = join(parts)
        self._make_parents(parts[:-1])
        with self.jail.locate(parts, path, follow=False, links=False) as place:
            status = place.stat()
            if isinstance(state, FileState):
                with state.content.open() as source:
                    replace(place, [source], state.mode, state.modified_ns)
            elif isinstance(state, LinkState):
                if status is not None:
                    os.unlink(place.name, dir_fd=place.fd)
                os.symlink(state.target, place.name, dir_fd=place.fd)
            elif isinstance(state, DirectoryState):
                if status is None:
                    os.mkdir(place.name, dir_fd=place.fd)
                if state.mode is not None:
                    _set_mode(place, state.mode | stat.S_IRWXU)

    def _finish(self, parts: Parts, state: State) -> None:
        """Restore a directory's mode, last, because it may forbid what had to be done inside."""
        if isinstance(state, DirectoryState) and state.mode is not None:
            with self.jail.locate(parts, join(parts), follow=False, links=False) as place:
                _set_mode(place, state.mode)

    def _make_parents(self, parts: Parts) -> None:
        for depth in range(1, len(parts) + 1):
            with self.jail.locate(parts[:depth], join(parts), follow=False, links=False) as place:
                if place.stat() is None:
                    os.mkdir(place.name, dir_fd=place.fd)


@dataclass(eq=False, repr=False, slots=True)
class Version:
    """One state of the disk, as the difference from the next version."""

    before: dict[Parts, State] = field(default_factory=dict)
    next: Version | None = None


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Mark:
    """A version that can be restored for as long as the mark is referenced."""

    others: ClassVar[frozenset[Parts]] = frozenset()
    journal: Journal
    version: Version


class Journal:
    """Undoes changes made through a filesystem, at a cost proportional to the changes.

    A version records the previous content of the paths that changed after it, and which version came next. The newest
    one is the disk itself. Going back is a change like any other, so a later version can be restored after an earlier
    one. Nothing is saved while no mark is referenced, and a version that no mark refers to is dropped with what it
    saved.
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

    def record(self, parts: Parts, save: Callable[[], State]) -> None:
        """Note that a path is about to change; `save` returns what is there."""
        if not self._marks:
            self._current = Version()
        elif parts not in self._current.before:
            self._current.before[parts] = save()

    def restore(self, mark: Mark) -> dict[Parts, State]:
        """The states to put on the disk, to go back to a version."""
        chain = [mark.version]
        while chain[-1].next is not None:
            chain.append(chain[-1].next)
        states = {parts: state for version in reversed(chain) for parts, state in version.before.items()}
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
            known = self._index.get(place.parts, (None, None))[1]
            try:
                state = known if self._is_unchanged(place, status, known) else self._store.save(place, status)
            except FileNotFoundError:
                continue
            except OSError as error:
                _reject(place.parts, error)
            settled = now - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_NS
            index[place.parts] = (_signature(status) if settled else None, state)
        self._index = index
        return {parts: state for parts, (_, state) in index.items()}

    def changes_to(self, tree: Mapping[Parts, State]) -> dict[Parts, State]:
        """The states to put on the disk to reproduce this tree."""
        changes: dict[Parts, State] = {}
        missing = dict(tree)
        with suppress(NotFoundError):  # The root itself may have been removed.
            for place, status in self._walk():
                state = missing.pop(place.parts, None)
                if not self._is_unchanged(place, status, state):
                    changes[place.parts] = state
        return {**changes, **missing}

    def _walk(
        self, unreadable: Callable[[Parts, OSError], None] | None = None
    ) -> Iterator[tuple[Place, os.stat_result]]:
        with (
            self._store.jail.locate((), ".") as root,
            closing(walk(root.fd, (), skip=self._skips, unreadable=unreadable)) as found,
        ):
            for place, status in found:
                if stat.S_IFMT(status.st_mode) in _FORMATS.values():
                    yield place, status

    def _skips(self, parts: Parts) -> bool:
        return any(matches(parts) for matches in self._ignore)

    def _is_unchanged(self, place: Place, status: os.stat_result, state: State) -> bool:
        mode = status.st_mode
        if isinstance(state, DirectoryState):
            return stat.S_ISDIR(mode) and stat.S_IMODE(mode) == state.mode
        if isinstance(state, LinkState):
            return stat.S_ISLNK(mode) and os.readlink(place.name, dir_fd=place.fd) == state.target
        if not isinstance(state, FileState) or not stat.S_ISREG(mode) or stat.S_IMODE(mode) != state.mode:
            return False
        if self._index.get(place.parts) == (_signature(status), state):
            return True
        try:
            with os.fdopen(place.open(os.O_RDONLY), "rb") as current:
                return state.content.equals(current)
        except OSError:
            return False


def replace(place: Place, sources: Iterable[IO[bytes]], mode: int | None, modified_ns: int | None = None) -> None:
    """Write a file with what the sources contain, one after the other, completely or not at all."""
    temporary = f".wink-{uuid4().hex[:16]}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o666, dir_fd=place.fd)
    try:
        with translated(join(place.parts)), os.fdopen(fd, "wb") as target:
            for source in sources:
                shutil.copyfileobj(source, target)
            target.flush()
            if mode is not None:
                os.fchmod(fd, mode)
            if modified_ns is not None:
                os.utime(fd, ns=(modified_ns, modified_ns))
        os.replace(temporary, place.name, src_dir_fd=place.fd, dst_dir_fd=place.fd)
    except BaseException:
        os.unlink(temporary, dir_fd=place.fd)
        raise


def append(place: Place, content: bytes) -> None:
    """Add to the end of a file completely or not at all.

    The file is replaced by a longer copy: the file open under this name may have another name outside the root, and no
    check can detect that while names are being swapped.
    """
    with os.fdopen(place.open(os.O_RDONLY), "rb") as source:
        replace(place, [source, BytesIO(content)], stat.S_IMODE(os.fstat(source.fileno()).st_mode))


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


def _unlink(file: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file)


def _reject(parts: Parts, error: OSError) -> NoReturn:
    path = join(parts)
    raise SnapshotError(
        f"{path!r} cannot be saved ({error.strerror}) and so could not be restored; add it to ignore=", path=path
    ) from error


def _signature(status: os.stat_result) -> Signature:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode)
