"""Resolving paths below a root without ever leaving it, on the disk and in a branch alike.

Each name is opened relative to its parent without following links; a link is read and its target resolved the same way.
Nothing that another process renames or links meanwhile can lead out of the root.
"""

from __future__ import annotations

import errno
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import IO

from weakincentives.filesystem.contents import Contents, SavedContent
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
from weakincentives.filesystem.states import State, Status

MAX_LINKS = 40
MAX_SWAPS = 10
"""How often a name may change between directory and link while it is being opened."""
NOT_A_DIRECTORY = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)


class Folder(ABC):
    """An open directory. Its methods raise `OSError`."""

    __slots__ = ()

    @abstractmethod
    def enter(self, name: str) -> Folder:
        """Open a directory in this one, which is not followed if it is a link."""

    @abstractmethod
    def readlink(self, name: str) -> str | None:
        """The target of a link; None if there is no link."""

    @abstractmethod
    def entries(self) -> list[tuple[str, Status]]:
        """The entries with their status, sorted by name; those that vanish meanwhile are left out."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of the entries."""

    @abstractmethod
    def place(self, name: str, parts: Parts) -> Place:
        """The place of a name in this directory."""

    @abstractmethod
    def close(self) -> None: ...


class Place(ABC):
    """A name in an open directory; `parts` is its path with links resolved. The root has the name `.`.

    The methods follow no link at the end, and raise `OSError`.
    """

    __slots__ = ("name", "parts")
    name: str
    parts: Parts

    @abstractmethod
    def stat(self) -> Status | None:
        """The status of what is there; None if nothing is."""

    @abstractmethod
    def save(self, status: Status, contents: Contents) -> State:
        """The state of what is there."""

    @abstractmethod
    def open(self) -> IO[bytes]:
        """The content of what is there."""

    @abstractmethod
    def readlink(self) -> str:
        """The target of the link that is there."""

    @abstractmethod
    def enter(self) -> Folder:
        """Open the directory that is there."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raise if the file that is there may not be written."""

    @abstractmethod
    def create(self, content: bytes) -> None:
        """Write a file where there is none; one that another process created meanwhile is left alone."""

    @abstractmethod
    def append(self, content: bytes) -> None:
        """Add to the end of a file completely or not at all."""

    @abstractmethod
    def replace(self, content: SavedContent, mode: int | None, modified_ns: int | None = None) -> None:
        """Write a file completely or not at all; without a mode, it gets that of a new one."""

    @abstractmethod
    def prepare(self, temporary: str, content: SavedContent, mode: int | None, modified_ns: int | None) -> bool:
        """Write a file under another name, for `put`; False if there is nothing to prepare."""

    @abstractmethod
    def put(self, temporary: str, check: Check | None) -> None:
        """Give this name to a file that was prepared, in place of what the check allows to replace."""

    @abstractmethod
    def drop(self, temporary: str) -> None:
        """Delete a file that was prepared."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until what is there is on the disk."""

    @abstractmethod
    def symlink(self, target: str, temporary: str, check: Check | None) -> None:
        """Put a link in place of nothing, a file or a link."""

    @abstractmethod
    def mkdir(self) -> None: ...

    @abstractmethod
    def unlink(self) -> None: ...

    @abstractmethod
    def remove(self, temporary: str, check: Check) -> None:
        """Delete a file or a link, if the check allows to; it has another name until it is gone."""

    @abstractmethod
    def rmdir(self) -> None: ...

    @abstractmethod
    def set_directory_mode(self, mode: int) -> None: ...


Check = Callable[[Place, Status | None], bool]
"""True if what is at a place may be replaced."""


class Tree(ABC):
    """A root directory, and the only way to reach places below it."""

    root: str

    @abstractmethod
    def open_root(self) -> Folder: ...

    @abstractmethod
    def make_root(self) -> None:
        """Create the root if it is gone."""

    @contextmanager
    def locate(self, parts: Parts, path: str, *, follow: bool = True, links: bool = True) -> Iterator[Place]:
        """Open the directory of a path, which must exist; the last name may be missing.

        `follow=False` does not follow a link at the end, `links=False` follows none: a link is no directory. An
        `OSError` inside the block is raised as a `FilesystemError` that names the path.
        """
        descent = _Descent(self, path, links=links)
        try:
            with translated(path):
                yield descent.to(parts, follow=follow)
        finally:
            descent.close()


class _Descent:
    """One way from the root to a place: the open directories and their names."""

    def __init__(self, tree: Tree, path: str, *, links: bool) -> None:
        self.tree = tree
        self.path = path
        self.links = links
        self.links_left = MAX_LINKS
        self.folders: list[Folder] = []
        self.names: list[str] = []

    def to(self, parts: Parts, *, follow: bool) -> Place:
        self.folders.append(self.tree.open_root())
        pending = [*reversed(parts)]
        while pending:
            name = pending.pop()
            if name == "..":
                if not self.names:
                    raise self.leads_out()
                self.names.pop()
                self.folders.pop().close()
                continue
            if pending:
                target = self.enter(name)
            else:
                target = self.folders[-1].readlink(name) if follow else None
                if target is None:
                    return self.folders[-1].place(name, (*self.names, name))
            if target is not None:
                pending.extend(reversed(self.follow(target)))
        return self.folders[-1].place(".", tuple(self.names))

    def enter(self, name: str) -> str | None:
        """Enter a directory. A link is not entered; its target is returned."""
        folder = self.folders[-1]
        for _ in range(MAX_SWAPS):
            try:
                inner = folder.enter(name)
            except OSError as error:
                if error.errno not in NOT_A_DIRECTORY:
                    raise
            else:
                self.folders.append(inner)
                self.names.append(name)
                return None
            target = folder.readlink(name)
            if target is not None:
                return target
            parts = (*self.names, name)
            status = folder.place(name, parts).stat()
            if status is not None and not (stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                raise NotDirectoryError(f"{self.path!r}: {join(parts)!r} is a file, not a directory", path=self.path)
        raise InvalidPathError(f"{self.path!r} is changing while it is used; try again", path=self.path)

    def follow(self, target: str) -> list[str]:
        """The names to resolve in place of a link."""
        if not self.links:
            raise NotDirectoryError(f"{self.path!r} leads through a symbolic link", path=self.path)
        if self.links_left == 0:
            raise InvalidPathError(f"{self.path!r} leads through too many symbolic links", path=self.path)
        self.links_left -= 1
        if target.startswith("/"):
            root = self.tree.root
            if target != root and not target.startswith(root.rstrip("/") + "/"):
                raise self.leads_out()
            target = target[len(root) :]
            self.names.clear()
            while len(self.folders) > 1:
                self.folders.pop().close()
        return [name for name in target.split("/") if name not in ("", ".")]

    def leads_out(self) -> InvalidPathError:
        return InvalidPathError(f"{self.path!r} is a symbolic link that leads out of the root", path=self.path)

    def close(self) -> None:
        for folder in self.folders:
            folder.close()


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


def walk(
    folder: Folder,
    base: Parts,
    depth: int | None = None,
    *,
    skip: Callable[[Parts], bool] | None = None,
    unreadable: Callable[[Parts, OSError], None] | None = None,
) -> Generator[tuple[Place, Status], None, None]:
    """Yield everything readable below an open directory, parents first, without following links.

    A place is valid until the next step. `skip` leaves out a path and everything below it; `unreadable` is called for
    directories that cannot be opened.
    """
    if depth is not None and depth <= 0:
        return
    for name, status in folder.entries():
        parts = (*base, name)
        if skip is not None and skip(parts):
            continue
        yield folder.place(name, parts), status
        if stat.S_ISDIR(status.st_mode):
            try:
                inner = folder.enter(name)
            except OSError as error:
                if unreadable is not None and error.errno != errno.ENOENT:
                    unreadable(parts, error)
                continue
            with closing(inner):
                inner_depth = None if depth is None else depth - 1
                yield from walk(inner, parts, inner_depth, skip=skip, unreadable=unreadable)


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
