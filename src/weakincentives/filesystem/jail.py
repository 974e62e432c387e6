"""Resolving paths below a root directory without ever leaving it.

Each name is opened relative to its parent without following links; a link is read and its target resolved the same way.
Nothing that another process renames or links meanwhile can lead out of the root.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from weakincentives.filesystem.protocol import (
    AlreadyExistsError,
    DirectoryNotEmptyError,
    FilesystemError,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    Parts,
    join,
)

MAX_LINKS = 40
MAX_SWAPS = 10
"""How often a name may change between directory and link while it is being opened."""
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
OPEN_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | NOFOLLOW


@dataclass(frozen=True, slots=True)
class Place:
    """A name in an open directory; `parts` is its path with links resolved. The root has the name `.`."""

    fd: int
    name: str
    parts: Parts

    def stat(self) -> os.stat_result | None:
        """The status of what is there, without following a link; None if nothing is."""
        try:
            return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, flags: int, mode: int = 0o666) -> int:
        return os.open(self.name, flags | NOFOLLOW, mode, dir_fd=self.fd)


class Jail:
    """A root directory, and the only way to reach places below it."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        if os.open not in os.supports_dir_fd:
            raise FilesystemError("HostFilesystem needs a POSIX system; use InMemoryFilesystem here")
        self.root = os.path.realpath(root)
        if not os.path.isdir(self.root):
            raise NotFoundError(f"Root {os.fspath(root)!r} is not a directory; create it first", path=os.fspath(root))

    @contextmanager
    def locate(self, parts: Parts, path: str, *, follow: bool = True, links: bool = True) -> Iterator[Place]:
        """Open the directory of a path, which must exist; the last name may be missing.

        `follow=False` does not follow a link at the end, `links=False` follows none: a link is no directory. An
        `OSError` inside the block is raised as a `FilesystemError` that names the path.
        """
        walk = _Walk(self.root, path, links=links)
        try:
            with translated(path):
                yield walk.to(parts, follow=follow)
        finally:
            walk.close()


class _Walk:
    """One descent from the root: the open directories and their names."""

    def __init__(self, root: str, path: str, *, links: bool) -> None:
        self.root = root
        self.path = path
        self.links = links
        self.links_left = MAX_LINKS
        self.fds: list[int] = []
        self.names: list[str] = []

    def to(self, parts: Parts, *, follow: bool) -> Place:
        self.fds.append(os.open(self.root, OPEN_DIRECTORY))
        pending = [*reversed(parts)]
        while pending:
            name = pending.pop()
            if name == "..":
                if not self.names:
                    raise self.leads_out()
                self.names.pop()
                os.close(self.fds.pop())
                continue
            if pending:
                target = self.enter(name)
            else:
                target = _readlink(name, self.fds[-1]) if follow else None
                if target is None:
                    return Place(self.fds[-1], name, (*self.names, name))
            if target is not None:
                pending.extend(reversed(self.follow(target)))
        return Place(self.fds[-1], ".", tuple(self.names))

    def enter(self, name: str) -> str | None:
        """Enter a directory. A link is not entered; its target is returned."""
        for _ in range(MAX_SWAPS):
            try:
                fd = os.open(name, OPEN_DIRECTORY, dir_fd=self.fds[-1])
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
                    raise
            else:
                self.fds.append(fd)
                self.names.append(name)
                return None
            target = _readlink(name, self.fds[-1])
            if target is not None:
                return target
            mode = os.stat(name, dir_fd=self.fds[-1], follow_symlinks=False).st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                raise NotDirectoryError(
                    f"{self.path!r}: {join((*self.names, name))!r} is a file, not a directory", path=self.path
                )
        raise InvalidPathError(f"{self.path!r} is changing while it is used; try again", path=self.path)

    def follow(self, target: str) -> list[str]:
        """The names to resolve in place of a link."""
        if not self.links:
            raise NotDirectoryError(f"{self.path!r} leads through a symbolic link", path=self.path)
        if self.links_left == 0:
            raise InvalidPathError(f"{self.path!r} leads through too many symbolic links", path=self.path)
        self.links_left -= 1
        if target.startswith("/"):
            if target != self.root and not target.startswith(self.root.rstrip("/") + "/"):
                raise self.leads_out()
            target = target[len(self.root) :]
            self.names.clear()
            while len(self.fds) > 1:
                os.close(self.fds.pop())
        return [name for name in target.split("/") if name not in ("", ".")]

    def leads_out(self) -> InvalidPathError:
        return InvalidPathError(f"{self.path!r} is a symbolic link that leads out of the root", path=self.path)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Raise an `OSError` of the block as a `FilesystemError`."""
    try:
        yield
    except FilesystemError:
        raise
    except UnicodeEncodeError:
        raise InvalidPathError(f"Path {path!r} is not valid Unicode", path=path) from None
    except OSError as error:
        raise _translate(error, path) from error


def entries(fd: int) -> list[tuple[str, os.stat_result]]:
    """The entries of an open directory, sorted by name; those that vanish meanwhile are left out."""
    found = []
    with os.scandir(fd) as scan:
        for entry in scan:
            try:
                found.append((entry.name, entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue
    return sorted(found, key=lambda item: item[0])


def walk(
    fd: int,
    base: Parts,
    depth: int | None = None,
    *,
    skip: Callable[[Parts], bool] | None = None,
    unreadable: Callable[[Parts, OSError], None] | None = None,
) -> Generator[tuple[Place, os.stat_result], None, None]:
    """Yield everything readable below an open directory, parents first, without following links.

    A place is valid until the next step. `skip` leaves out a path and everything below it; `unreadable` is called for
    directories that cannot be opened.
    """
    if depth is not None and depth <= 0:
        return
    for name, status in entries(fd):
        parts = (*base, name)
        if skip is not None and skip(parts):
            continue
        yield Place(fd, name, parts), status
        if stat.S_ISDIR(status.st_mode):
            try:
                inner = os.open(name, OPEN_DIRECTORY, dir_fd=fd)
            except OSError as error:
                if unreadable is not None and error.errno != errno.ENOENT:
                    unreadable(parts, error)
                continue
            try:
                yield from walk(inner, parts, None if depth is None else depth - 1, skip=skip, unreadable=unreadable)
            finally:
                os.close(inner)


def _readlink(name: str, fd: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


_KINDS: dict[int, tuple[type[FilesystemError], str]] = {
    errno.ENOENT: (NotFoundError, "does not exist"),
    errno.EEXIST: (AlreadyExistsError, "already exists"),
    errno.EISDIR: (IsDirectoryError, "is a directory"),
    errno.ENOTDIR: (NotDirectoryError, "is not a directory"),
    errno.ENOTEMPTY: (DirectoryNotEmptyError, "is not empty; pass recursive=True"),
    errno.ENAMETOOLONG: (InvalidPathError, "is too long for this system"),
    errno.ELOOP: (InvalidPathError, "is a symbolic link that changed while it was used"),
}


def _translate(error: OSError, path: str) -> FilesystemError:
    kind, text = _KINDS.get(error.errno or 0, (FilesystemError, f"failed: {error.strerror or error}"))
    return kind(f"{path!r} {text}", path=path)
