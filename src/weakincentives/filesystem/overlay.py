"""The changes of a branch above the files of the host: they are seen in the branch alone."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from weakincentives.filesystem.contents import Contents, SavedContent
from weakincentives.filesystem.jail import DiskFolder, DiskPlace, Jail
from weakincentives.filesystem.protocol import Parts
from weakincentives.filesystem.states import DirectoryState, FileState, LinkState, State, Status
from weakincentives.filesystem.tree import NOT_A_DIRECTORY, Check, Folder, Place, Tree

MAX_NAME = 255
"""The bytes of a name in a directory that exists in a branch alone."""


@dataclass(frozen=True, slots=True)
class BranchStatus:
    """The status of something that exists in a branch alone."""

    st_mode: int
    st_size: int = 0
    st_mtime_ns: int = 0
    st_ctime_ns: int = 0
    st_ino: int = 0

    @property
    def st_mtime(self) -> float:
        return self.st_mtime_ns / 1e9


class Overlay(Tree):
    """A tree of the host with changes above it.

    `states` has what the branch put at a path, None where it removed something. Below an `opaque` directory, nothing of
    the host is seen; below the others, what the branch did not change is read from the host when it is needed. Each
    directory on the way to a changed path has a state too, so that the change stays if the host's directory goes.
    """

    def __init__(self, below: Jail, contents: Contents) -> None:
        self.below = below
        self.root = below.root
        self.contents = contents
        self.states: dict[Parts, State] = {}
        self.opaque: set[Parts] = set()
        self._children: dict[Parts, set[str]] = {}
        self._umask: int | None = None

    def copy(self) -> Overlay:
        """The same changes, to be changed further."""
        twin = Overlay(self.below, self.contents)
        twin.states = dict(self.states)
        twin.opaque = set(self.opaque)
        twin._children = {parts: set(names) for parts, names in self._children.items()}
        return twin

    def open_root(self) -> OverlayFolder:
        return OverlayFolder(self, (), self.below.open_root())

    def make_root(self) -> None:
        return

    def put(self, parts: Parts, state: State, *, opaque: bool = False) -> None:
        for depth in range(1, len(parts)):
            self.states.setdefault(parts[:depth], DirectoryState(None))
            self._register(parts[:depth])
        self._register(parts)
        if opaque:
            self.opaque.add(parts)
        self.states[parts] = state

    def remove(self, parts: Parts, *, is_below: bool) -> None:
        """Remove what is at a path; `is_below` says that the host has something there, too."""
        for name in self._children.pop(parts, ()):
            self.remove((*parts, name), is_below=False)
        self.opaque.discard(parts)
        if is_below:
            self.put(parts, None)
        else:
            self.states.pop(parts, None)

    def natural_mode(self, mode: int) -> int:
        """The mode that the host would give to something new."""
        if self._umask is None:
            self._umask = _read_umask()
        return mode & ~self._umask

    def children(self, parts: Parts) -> tuple[str, ...]:
        """The names in a directory that the branch has changed."""
        return tuple(self._children.get(parts, ()))

    def _register(self, parts: Parts) -> None:
        self._children.setdefault(parts[:-1], set()).add(parts[-1])


class OverlayFolder(Folder):
    """An open directory of a branch; `below` is that of the host, None if there is none."""

    __slots__ = ("below", "overlay", "parts")

    def __init__(self, overlay: Overlay, parts: Parts, below: DiskFolder | None) -> None:
        self.overlay = overlay
        self.parts = parts
        self.below = below

    def enter(self, name: str) -> OverlayFolder:
        parts = (*self.parts, name)
        if parts not in self.overlay.states:
            return OverlayFolder(self.overlay, parts, self._host_folder(name).enter(name))
        state = self.overlay.states[parts]
        if state is None:
            _fail(errno.ENOENT)
        if not isinstance(state, DirectoryState):
            _fail(errno.ELOOP if isinstance(state, LinkState) else errno.ENOTDIR)
        below = None
        if self.below is not None and parts not in self.overlay.opaque:
            try:
                below = self.below.enter(name)
            except OSError as error:
                # Something else has taken its place.
                if error.errno not in (errno.ENOENT, *NOT_A_DIRECTORY):
                    raise
        return OverlayFolder(self.overlay, parts, below)

    def readlink(self, name: str) -> str | None:
        parts = (*self.parts, name)
        if parts in self.overlay.states:
            state = self.overlay.states[parts]
            return state.target if isinstance(state, LinkState) else None
        return None if self.below is None else self.below.readlink(name)

    def entries(self) -> list[tuple[str, Status]]:
        entries = {} if self.below is None else dict(self.below.entries())
        for name in self.overlay.children(self.parts):
            status = self.place(name, (*self.parts, name)).stat()
            if status is None:
                entries.pop(name, None)
            else:
                entries[name] = status
        return sorted(entries.items(), key=lambda item: item[0])

    def names(self) -> list[str]:
        return [name for name, _ in self.entries()]

    def place(self, name: str, parts: Parts) -> OverlayPlace:
        return OverlayPlace(self, name, parts)

    def close(self) -> None:
        if self.below is not None:
            self.below.close()

    def check_changeable(self) -> None:
        """Raise if names in this directory may not be changed."""
        state = self.overlay.states.get(self.parts)
        if isinstance(state, DirectoryState) and state.mode is not None:
            _check_mode(state.mode)
        elif self.below is not None:
            self.below.check_changeable()

    def _host_folder(self, name: str) -> DiskFolder:
        """The host's directory, in which a name is then looked for; without one, only the name is checked."""
        if self.below is None:
            if len(os.fsencode(name)) > MAX_NAME:
                _fail(errno.ENAMETOOLONG)
            _fail(errno.ENOENT)
        return self.below


class OverlayPlace(Place):
    """A name in an open directory of a branch."""

    __slots__ = ("_below", "_folder", "_overlay")

    def __init__(self, folder: OverlayFolder, name: str, parts: Parts) -> None:
        self.name = name
        self.parts = parts
        self._folder = folder
        self._overlay = folder.overlay
        self._below: DiskPlace | None = None if folder.below is None else folder.below.place(name, parts)

    def stat(self) -> Status | None:
        if self.parts not in self._overlay.states:
            try:
                self._folder._host_folder(self.name)
            except FileNotFoundError:
                return None
            assert self._below is not None
            return self._below.stat()
        match self._overlay.states[self.parts]:
            case FileState(content, mode, modified_ns):
                return BranchStatus(stat.S_IFREG | (mode or 0), len(content), modified_ns or 0)
            case LinkState(target):
                return BranchStatus(stat.S_IFLNK | 0o777, len(os.fsencode(target)))
            case DirectoryState(mode):
                return self._directory_status(mode)
        return None

    def save(self, status: Status, contents: Contents) -> State:
        state = self._overlay.states.get(self.parts)
        if isinstance(state, FileState | LinkState):
            return state
        if self._below is None or state is not None:
            return DirectoryState(stat.S_IMODE(status.st_mode))
        return self._below.save(status, contents)

    def open(self) -> IO[bytes]:
        state = self._overlay.states.get(self.parts)
        if isinstance(state, FileState):
            return state.content.open()
        return self._host_place().open()

    def readlink(self) -> str:
        state = self._overlay.states.get(self.parts)
        return state.target if isinstance(state, LinkState) else self._host_place().readlink()

    def enter(self) -> OverlayFolder:
        if self.name != ".":
            return self._folder.enter(self.name)
        below = None if self._folder.below is None else self._folder.below.enter(".")
        return OverlayFolder(self._overlay, self.parts, below)

    def check_writable(self) -> None:
        state = self._overlay.states.get(self.parts)
        if isinstance(state, FileState):
            _check_mode(state.mode or 0)
        else:
            self._host_place().check_writable()

    def create(self, content: bytes) -> None:
        if self.stat() is not None:
            _fail(errno.EEXIST)
        self.replace(SavedContent(content), None)

    def append(self, content: bytes) -> None:
        status = self.stat()
        assert status is not None
        with self.open() as source:
            self.replace(SavedContent(source.read() + content), stat.S_IMODE(status.st_mode))

    def replace(self, content: SavedContent, mode: int | None, modified_ns: int | None = None) -> None:
        if mode is None:
            mode = self._overlay.natural_mode(0o666)
        content = self._overlay.contents.hold(content)
        self._put(FileState(content, mode, time.time_ns() if modified_ns is None else modified_ns))

    def prepare(self, temporary: str, content: SavedContent, mode: int | None, modified_ns: int | None) -> bool:
        return False

    def put(self, temporary: str, check: Check | None) -> None:
        raise NotImplementedError("nothing is prepared in a branch")

    def drop(self, temporary: str) -> None:
        raise NotImplementedError("nothing is prepared in a branch")

    def sync(self) -> None:
        return

    def symlink(self, target: str, temporary: str, check: Check | None) -> None:
        self._put(LinkState(target))

    def mkdir(self) -> None:
        if self.stat() is not None:
            _fail(errno.EEXIST)
        parent = self._folder.place(".", self.parts[:-1]).stat()
        inherited = 0 if parent is None else parent.st_mode & stat.S_ISGID
        self._put(DirectoryState(self._overlay.natural_mode(0o777) | inherited), opaque=True)

    def unlink(self) -> None:
        self._remove()

    def remove(self, temporary: str, check: Check) -> None:
        self._remove()

    def rmdir(self) -> None:
        folder = self.enter()
        try:
            if folder.names():
                _fail(errno.ENOTEMPTY)
        finally:
            folder.close()
        self._remove()

    def set_directory_mode(self, mode: int) -> None:
        status = self.stat()
        if status is not None and stat.S_IMODE(status.st_mode) != mode:
            self._overlay.put(self.parts, DirectoryState(mode), opaque=self.parts in self._overlay.opaque)

    def _put(self, state: State, *, opaque: bool = False) -> None:
        self._folder.check_changeable()
        self._overlay.put(self.parts, state, opaque=opaque)

    def _remove(self) -> None:
        self._folder.check_changeable()
        is_below = False
        if self._below is not None:
            with suppress(OSError):
                is_below = self._below.stat() is not None
        self._overlay.remove(self.parts, is_below=is_below)

    def _host_place(self) -> DiskPlace:
        if self._below is None or self.parts in self._overlay.states:
            _fail(errno.ENOENT)
        return self._below

    def _directory_status(self, mode: int | None) -> Status:
        status: Status | None = None
        if self._below is not None and self.parts not in self._overlay.opaque:
            with suppress(OSError):
                status = self._below.stat()
        if status is not None and stat.S_ISDIR(status.st_mode) and mode is None:
            return status
        own_mode = self._overlay.natural_mode(0o777) if mode is None else mode
        return BranchStatus(stat.S_IFDIR | own_mode, st_mtime_ns=0 if status is None else status.st_mtime_ns)


def _check_mode(mode: int) -> None:
    """Raise if a mode forbids the owner to write; the superuser may always."""
    if not mode & stat.S_IWUSR and os.geteuid() != 0:
        _fail(errno.EACCES)


def _read_umask() -> int:
    """The mode bits that new files do not get. Setting it is the only portable way to read it."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _fail(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))
