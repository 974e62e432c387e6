"""The files of the host below one directory, and nothing outside it."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import IO
from uuid import uuid4

from weakincentives.filesystem.contents import CHUNK, Contents, SavedContent, write_all
from weakincentives.filesystem.protocol import FilesystemError, NotFoundError, Parts, StaleFilesError, join
from weakincentives.filesystem.states import (
    DirectoryState,
    FileState,
    LinkState,
    State,
    Status,
    identity,
    is_settled,
    signature,
)
from weakincentives.filesystem.swap import swap_names
from weakincentives.filesystem.tree import Check, Folder, Place, Tree

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
HOLD = os.O_PATH | NOFOLLOW if hasattr(os, "O_PATH") else os.O_RDONLY | getattr(os, "O_SYMLINK", NOFOLLOW)
"""The flags to open whatever has a name, without reading it."""
OPEN_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | NOFOLLOW
TEMPORARY = ".wink-"
"""How the names of files begin that are about to take another name."""
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Jail(Tree):
    """A directory of the host, and the only way to reach places below it."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        if os.open not in os.supports_dir_fd:
            raise FilesystemError("HostFilesystem needs a POSIX system; use InMemoryFilesystem here")
        self.root = os.path.realpath(root)
        if not os.path.isdir(self.root):
            raise NotFoundError(f"Root {os.fspath(root)!r} is not a directory; create it first", path=os.fspath(root))

    def open_root(self) -> DiskFolder:
        return DiskFolder(os.open(self.root, OPEN_DIRECTORY))

    def make_root(self) -> None:
        try:
            os.mkdir(self.root)
        except OSError:
            # It is there, or whoever needs it fails with its name.
            return


class DiskFolder(Folder):
    """An open directory of the host."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def enter(self, name: str) -> DiskFolder:
        return DiskFolder(os.open(name, OPEN_DIRECTORY, dir_fd=self.fd))

    def readlink(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def entries(self) -> list[tuple[str, Status]]:
        entries: list[tuple[str, Status]] = []
        with os.scandir(self.fd) as scan:
            for entry in scan:
                try:
                    entries.append((entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue
        return sorted(entries, key=lambda item: item[0])

    def names(self) -> list[str]:
        return os.listdir(self.fd)

    def place(self, name: str, parts: Parts) -> DiskPlace:
        return DiskPlace(self.fd, name, parts)

    def close(self) -> None:
        os.close(self.fd)

    def check_changeable(self) -> None:
        """Raise if names in this directory may not be changed."""
        DiskPlace(self.fd, ".", ()).check_access(os.W_OK | os.X_OK)


class DiskPlace(Place):
    """A name in an open directory of the host."""

    __slots__ = ("fd",)

    def __init__(self, fd: int, name: str, parts: Parts) -> None:
        self.fd = fd
        self.name = name
        self.parts = parts

    def stat(self) -> os.stat_result | None:
        try:
            return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def save(self, status: Status, contents: Contents) -> State:
        if stat.S_ISDIR(status.st_mode):
            return DirectoryState(stat.S_IMODE(status.st_mode))
        if stat.S_ISLNK(status.st_mode):
            return LinkState(self.readlink())
        with self.open() as stream:
            # Of the open file, since another one may have taken the name by now.
            status, now = os.fstat(stream.fileno()), time.time_ns()
            content = contents.save(stream, status.st_size)
        known = signature(status) if is_settled(status, now) else None
        return FileState(content, stat.S_IMODE(status.st_mode), status.st_mtime_ns, known)

    def open(self) -> IO[bytes]:
        stream = os.fdopen(self.open_fd(os.O_RDONLY), "rb")
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            stream.close()
            raise OSError(errno.EINVAL, "it is neither a file nor a directory")
        return stream

    def open_fd(self, flags: int) -> int:
        return os.open(self.name, flags | NOFOLLOW, 0o666, dir_fd=self.fd)

    def readlink(self) -> str:
        return os.readlink(self.name, dir_fd=self.fd)

    def enter(self) -> DiskFolder:
        return DiskFolder(self.open_fd(OPEN_DIRECTORY))

    def check_writable(self) -> None:
        # Opening the file would look like a write to whoever watches it.
        self.check_access(os.W_OK)

    def check_access(self, access: int) -> None:
        effective = os.access in os.supports_effective_ids
        if not os.access(self.name, access, dir_fd=self.fd, effective_ids=effective):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def create(self, content: bytes) -> None:
        temporary = _temporary_name()
        self.prepare(temporary, SavedContent(content), None, None)
        try:
            self._link(temporary)
        finally:
            self.drop(temporary)

    def append(self, content: bytes) -> None:
        """Add to the end of a file completely or not at all.

        The file is replaced by a longer copy: the file open under this name may have another name outside the root, and
        no check can detect that while names are being swapped.
        """
        temporary = _temporary_name()
        with self.open() as source:
            mode = stat.S_IMODE(os.fstat(source.fileno()).st_mode)
            self._write_new(temporary, [source, BytesIO(content)], mode, None)
        self.put(temporary, None)

    def replace(self, content: SavedContent, mode: int | None, modified_ns: int | None = None) -> None:
        temporary = _temporary_name()
        self.prepare(temporary, content, mode, modified_ns)
        self.put(temporary, None)

    def prepare(self, temporary: str, content: SavedContent, mode: int | None, modified_ns: int | None) -> bool:
        with content.open() as source:
            self._write_new(temporary, [source], mode, modified_ns)
        return True

    def put(self, temporary: str, check: Check | None) -> None:
        try:
            if check is None:
                os.replace(temporary, self.name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            else:
                self._put_checked(temporary, check)
        except BaseException:
            self.drop(temporary)
            raise

    def sync(self) -> None:
        fd = self.open_fd(os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def symlink(self, target: str, temporary: str, check: Check | None) -> None:
        os.symlink(target, temporary, dir_fd=self.fd)
        self.put(temporary, check)

    def mkdir(self) -> None:
        os.mkdir(self.name, dir_fd=self.fd)

    def unlink(self) -> None:
        os.unlink(self.name, dir_fd=self.fd)

    def remove(self, temporary: str, check: Check) -> None:
        with self._held(self.name) as status:
            self._expect(check, status)
            # Under another name first: only what was checked is deleted.
            os.rename(self.name, temporary, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            if not self._is_checked(temporary, status, check):
                with suppress(FileExistsError):
                    self._link(temporary)
                self.drop(temporary)
                raise self._changed()
        self.drop(temporary)

    def rmdir(self) -> None:
        os.rmdir(self.name, dir_fd=self.fd)

    def set_directory_mode(self, mode: int) -> None:
        fd = self.open_fd(OPEN_DIRECTORY)
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                os.fchmod(fd, mode)
        finally:
            os.close(fd)

    def _write_new(
        self, temporary: str, sources: Iterable[IO[bytes]], mode: int | None, modified_ns: int | None
    ) -> None:
        """Write a new file with the contents of the sources, one after the other."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW
        fd = os.open(temporary, flags, 0o666, dir_fd=self.fd)
        try:
            for source in sources:
                while chunk := source.read(CHUNK):
                    write_all(fd, chunk)
            if mode is not None:
                os.fchmod(fd, mode)
            if modified_ns is not None:
                os.utime(fd, ns=(modified_ns, modified_ns))
        except BaseException:
            self.drop(temporary)
            raise
        finally:
            os.close(fd)

    def _put_checked(self, temporary: str, check: Check) -> None:
        # As long as they are held, nothing else can get the same inodes.
        with self._held(temporary) as own, self._held(self.name) as status:
            self._expect(check, status)
            if status is None:
                try:
                    self._link(temporary)
                except FileExistsError:
                    raise self._changed() from None
            elif swap_names(self.fd, temporary, self.name):
                # What was replaced has the temporary name now, and may be another than what was checked.
                if not self._is_checked(temporary, status, check):
                    self._swap_back(temporary, own)
                    raise self._changed()
            else:
                os.replace(temporary, self.name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        self.drop(temporary)

    def _swap_back(self, temporary: str, own: os.stat_result | None) -> None:
        """Give a file of others its name again, unless they have replaced it meanwhile."""
        swap_names(self.fd, temporary, self.name)
        taken = DiskPlace(self.fd, temporary, self.parts).stat()
        if own is None or taken is None or taken.st_ino != own.st_ino:
            # What they have put in place of the new file is newer still.
            swap_names(self.fd, temporary, self.name)

    @contextmanager
    def _held(self, name: str) -> Iterator[os.stat_result | None]:
        """The status of what has a name, which keeps its inode during the block; None if there is nothing."""
        try:
            fd = os.open(name, HOLD, dir_fd=self.fd)
        except FileNotFoundError:
            yield None
            return
        try:
            yield os.fstat(fd)
        finally:
            os.close(fd)

    def _link(self, temporary: str) -> None:
        """Give a new file the name of this place, which must be free."""
        try:
            os.link(temporary, self.name, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            if self.stat() is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            os.rename(temporary, self.name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def drop(self, temporary: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=self.fd)

    def _is_checked(self, temporary: str, status: os.stat_result | None, check: Check) -> bool:
        """True if what has the temporary name by now is what was checked, and nobody has written to it meanwhile."""
        place = DiskPlace(self.fd, temporary, self.parts)
        taken = place.stat()
        if taken is None or identity(taken) != identity(status):
            return False
        return is_settled(taken, time.time_ns(), renamed=True) or check(place, taken)

    def _expect(self, check: Check, status: Status | None) -> None:
        if not check(self, status):
            raise self._changed()

    def _changed(self) -> StaleFilesError:
        return StaleFilesError([join(self.parts)])


def _temporary_name() -> str:
    return f"{TEMPORARY}{uuid4().hex[:16]}"
