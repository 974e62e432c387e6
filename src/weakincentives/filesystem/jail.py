"""The files of the host below one directory, and nothing outside it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from io import BytesIO
from typing import IO
from uuid import uuid4

from weakincentives.filesystem.contents import SavedContent
from weakincentives.filesystem.protocol import FilesystemError, NotFoundError, Parts, join
from weakincentives.filesystem.states import State
from weakincentives.filesystem.tree import Folder, Place, Status, Tree, translated

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
OPEN_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | NOFOLLOW


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

    def state(self) -> State:
        return None

    def open(self) -> IO[bytes]:
        stream = os.fdopen(self.open_fd(os.O_RDONLY), "rb")
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            stream.close()
            raise OSError(errno.EINVAL, "it is no file any more")
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

    def check_access(self, wanted: int) -> None:
        effective = os.access in os.supports_effective_ids
        if not os.access(self.name, wanted, dir_fd=self.fd, effective_ids=effective):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def create(self, content: bytes) -> None:
        fd = self.open_fd(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with os.fdopen(fd, "wb") as target:
                target.write(content)
        except BaseException:
            os.unlink(self.name, dir_fd=self.fd)
            raise

    def append(self, content: bytes) -> None:
        """Add to the end of a file completely or not at all.

        The file is replaced by a longer copy: the file open under this name may have another name outside the root, and
        no check can detect that while names are being swapped.
        """
        with self.open() as source:
            mode = stat.S_IMODE(os.fstat(source.fileno()).st_mode)
            self._replace([source, BytesIO(content)], mode)

    def replace(self, content: SavedContent, mode: int | None, modified_ns: int | None = None) -> None:
        with content.open() as source:
            self._replace([source], mode, modified_ns)

    def _replace(self, sources: Iterable[IO[bytes]], mode: int | None, modified_ns: int | None = None) -> None:
        temporary = f".wink-{uuid4().hex[:16]}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o666, dir_fd=self.fd)
        try:
            with translated(join(self.parts)), os.fdopen(fd, "wb") as target:
                for source in sources:
                    shutil.copyfileobj(source, target)
                target.flush()
                if mode is not None:
                    os.fchmod(fd, mode)
                if modified_ns is not None:
                    os.utime(fd, ns=(modified_ns, modified_ns))
            os.replace(temporary, self.name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            os.unlink(temporary, dir_fd=self.fd)
            raise

    def symlink(self, target: str) -> None:
        temporary = f".wink-{uuid4().hex[:16]}"
        os.symlink(target, temporary, dir_fd=self.fd)
        try:
            os.replace(temporary, self.name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            os.unlink(temporary, dir_fd=self.fd)
            raise

    def mkdir(self) -> None:
        os.mkdir(self.name, dir_fd=self.fd)

    def unlink(self) -> None:
        os.unlink(self.name, dir_fd=self.fd)

    def rmdir(self) -> None:
        os.rmdir(self.name, dir_fd=self.fd)

    def set_directory_mode(self, mode: int) -> None:
        fd = self.open_fd(OPEN_DIRECTORY)
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                os.fchmod(fd, mode)
        finally:
            os.close(fd)
