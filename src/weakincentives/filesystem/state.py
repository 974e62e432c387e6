"""What is at places of a disk, saved so that it can be put back."""

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
from weakincentives.filesystem.paths import Parts, join

IN_MEMORY = 16 * 1024
CHUNK = 256 * 1024


class Blob:
    """The saved content of a file: in memory if small, else a file of the store that goes when the blob goes."""

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
"""None where there is nothing."""


class Store:
    """Saves what is on the disk below a jail, and puts it back."""

    def __init__(self, jail: Jail) -> None:
        self.jail = jail
        self._folder: str | None = None

    def save(self, place: Place, status: os.stat_result | None) -> State:
        """What is at a place now. Special files (sockets, devices) are refused."""
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

    def look(self, parts: Parts) -> State:
        """What is at a path now."""
        try:
            with self.jail.locate(parts, join(parts), follow=False, links=False) as place:
                return self.save(place, place.stat())
        except FilesystemError:
            return None

    def put_back(self, states: Mapping[Parts, State]) -> list[str]:
        """Make every path what its state says, all of them even if one fails; the failures are returned in words."""
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
        """Remove what is kept on the disk."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _copy(self, source: IO[bytes], size: int) -> Blob:
        if size <= IN_MEMORY:
            data = source.read(IN_MEMORY + 1)
            if len(data) <= IN_MEMORY:
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
        """Take away what stands where something else, or nothing, should be."""
        try:
            with self.jail.locate(parts, join(parts), follow=False, links=False) as place:
                status = place.stat()
                if status is None or _same_kind(status.st_mode, state):
                    return
                if not stat.S_ISDIR(status.st_mode):
                    os.unlink(place.name, dir_fd=place.fd)
                else:
                    self._remove_directory(place, keep_strangers=state is None)
        except (FileNotFoundError, NotADirectoryError):
            return

    def _remove_directory(self, place: Place, *, keep_strangers: bool) -> None:
        """Files that someone else put in a directory of ours keep it there, unless a file has to take its place."""
        try:
            os.rmdir(place.name, dir_fd=place.fd)
        except OSError as error:
            if not (keep_strangers and error.errno == errno.ENOTEMPTY):
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
                # Its real mode, which may forbid to write in it, is set when everything is there.
                _set_mode(place, state.mode | stat.S_IRWXU)

    def _make_parents(self, parts: Parts) -> None:
        for depth in range(1, len(parts) + 1):
            with self.jail.locate(parts[:depth], join(parts), follow=False, links=False) as place:
                if place.stat() is None:
                    os.mkdir(place.name, dir_fd=place.fd)


def replace(place: Place, content: Blob | bytes, mode: int | None, modified_ns: int | None = None) -> None:
    """Put a file in place whole, or not at all."""
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
    """Put a file where there is none; what another process put there in between is not touched."""
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
