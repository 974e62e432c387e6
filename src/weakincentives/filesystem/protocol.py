"""The methods of every filesystem, their errors, and the rules for paths and text that all of them share.

Errors carry the `path` as it was given. Most also derive from the built-in exception for the same failure.

    FilesystemError
    ├── InvalidPathError          absolute, `..`, a NUL byte, or a symbolic link that leads out of the root
    ├── NotFoundError             (FileNotFoundError)
    ├── AlreadyExistsError        (FileExistsError)
    ├── IsDirectoryError          (IsADirectoryError)
    ├── NotDirectoryError         (NotADirectoryError)
    ├── DirectoryNotEmptyError    (OSError)
    ├── NotTextError              (ValueError) not UTF-8
    ├── BadPatternError           (ValueError) a glob or a regular expression
    ├── SnapshotError             the snapshot belongs to another filesystem, or could not be restored completely
    ├── FolderBusyError           other programs are working in the folder
    ├── JournalError              an undo journal cannot be written or read
    ├── NeedsFolderError          a branch has no folder in which programs could run
    └── StaleFilesError           others have changed the files that changes are based on; nothing was applied
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import IO, Any, Literal, Protocol, get_args, runtime_checkable

from weakincentives._base.display import shortened
from weakincentives.errors import WinkError

WriteMode = Literal["create", "overwrite", "append"]
EntryKind = Literal["file", "directory", "symlink", "other"]
Parts = tuple[str, ...]

MAX_DEPTH = 200
SNIFF_LENGTH = 8192
"""The number of bytes of a file that are checked for NUL bytes, which mark it as binary."""
GREP_TIMEOUT = 5.0
"""The seconds that one grep may spend on matching."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory; pass `path` to `read` and the other methods."""

    name: str  #: the last part of its path
    path: str
    kind: EntryKind  #: file or directory
    size: int  #: in bytes


@dataclass(frozen=True, slots=True)
class Stat:
    """The kind and size of a file or directory; `modified` is None if the filesystem keeps no times."""

    path: str  #: the path that was asked for
    kind: EntryKind  #: file or directory
    size: int  #: in bytes
    modified: datetime | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A line that grep found. Lines count from 1."""

    path: str  #: the file
    line_number: int  #: its number, from 1
    line: str  #: its text


@runtime_checkable
class Filesystem(Protocol):
    """Files below one root, with paths relative to it (`src/main.py`; the root itself is `.`).

    Absolute paths and `..` are rejected. Text is UTF-8 and newlines are kept. Listings and searches are sorted. A
    failure is a `FilesystemError` that names the path.
    """

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> str:
        """The text of a file, or `limit` lines of it starting at line `offset` (counted from 0)."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """The whole content of a file."""
        ...

    def write(self, path: str, content: str | bytes, *, mode: WriteMode = "overwrite") -> None:
        """Write a file, creating missing directories. `create` rejects a path that exists."""
        ...

    def mkdir(self, path: str, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Create a directory."""
        ...

    def list(self, path: str = ".") -> tuple[Entry, ...]:
        """The entries of a directory, sorted by name."""
        ...

    def glob(self, pattern: str, *, path: str = ".") -> tuple[str, ...]:
        """The files below `path` that match: `*`, `?`, `[ab]`, `{a,b}`, and `**` for any directories."""
        ...

    def grep(
        self, pattern: str, *, path: str = ".", glob: str | None = None, limit: int | None = None
    ) -> tuple[Match, ...]:
        """The lines of a file, or of the text files below a directory, that match a regular expression.

        The pattern may use all of Python's `re` syntax. Matching that takes too long is a `BadPatternError`. `glob`
        selects the files to search (`*.py` at any depth, `src/**` below `path`).
        """
        ...

    def stat(self, path: str) -> Stat:
        """The kind and size of the file or directory at the path."""
        ...

    def exists(self, path: str) -> bool:
        """True if there is something at the path."""
        ...

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, an empty directory, or with `recursive` a directory and its contents."""
        ...

    def snapshot(self) -> Any:
        """The current state, for `restore`."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot. The same snapshot can be restored again."""
        ...


def split(path: str) -> Parts:
    """The names in a relative path; the root (`.` or an empty path) has none."""
    text = str(path)
    if "\0" in text:
        raise InvalidPathError(f"Path {text!r} contains a NUL byte", path=text)
    if text.startswith("/"):
        raise InvalidPathError(
            f"Path {text!r} is absolute; use a path relative to the root, such as {text.strip('/') or '.'!r}", path=text
        )
    parts = tuple(part for part in text.split("/") if part not in ("", "."))
    if ".." in parts:
        raise InvalidPathError(f"Path {text!r} contains '..'; use a path relative to the root", path=text)
    if len(parts) > MAX_DEPTH:
        raise InvalidPathError(f"Path {shortened(text, 60)!r} is more than {MAX_DEPTH} directories deep", path=text)
    return parts


def join(parts: Parts) -> str:
    return "/".join(parts) or "."


def check_mode(mode: str) -> None:
    if mode not in get_args(WriteMode):
        raise ValueError(f"mode must be 'create', 'overwrite' or 'append', got {mode!r}")


def encode(content: str | bytes, path: str) -> bytes:
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    if not isinstance(content, str):
        raise TypeError(f"Content of {path!r} must be str or bytes, got {type(content).__name__}")
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise NotTextError(f"Content of {path!r} cannot be written as UTF-8: {error}", path=path) from None


def read_lines(stream: IO[bytes], path: str, *, offset: int, limit: int | None) -> str:
    """The requested lines, without reading past them. Only a newline character ends a line."""
    if offset < 0 or (limit is not None and limit < 0):
        raise FilesystemError(
            f"offset and limit must be 0 or more, got {offset} and {limit} while reading {path!r}", path=path
        )
    if offset == 0 and limit is None:
        data = stream.read()
    else:
        data = b"".join(islice(stream, offset, None if limit is None else offset + limit))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotTextError(
            f"{path!r} is not UTF-8 text (byte 0x{data[error.start]:02x}); use read_bytes for binary files", path=path
        ) from None


def is_binary(data: bytes) -> bool:
    return b"\0" in data[:SNIFF_LENGTH]


class FilesystemError(WinkError):
    """A filesystem operation was refused or failed."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class InvalidPathError(FilesystemError, ValueError):
    """The path does not name a place below the root."""


class NotFoundError(FilesystemError, FileNotFoundError):
    """There is nothing at the path."""


class AlreadyExistsError(FilesystemError, FileExistsError):
    """Something already exists at the path."""


class IsDirectoryError(FilesystemError, IsADirectoryError):
    """The path is a directory where a file is expected."""


class NotDirectoryError(FilesystemError, NotADirectoryError):
    """The path, or a part of it, is a file where a directory is expected."""


class DirectoryNotEmptyError(FilesystemError, OSError):
    """Deleting a directory with contents needs recursive=True."""


class NotTextError(FilesystemError, ValueError):
    """The file is not UTF-8 text."""


class BadPatternError(FilesystemError, ValueError):
    """A glob or regular expression is invalid."""


class SnapshotError(FilesystemError):
    """The filesystem cannot take or restore a snapshot.

    `saved_in` is the folder with the content of the files that could not be restored, None if there are none.
    """

    def __init__(self, message: str, *, path: str = "", saved_in: str | None = None) -> None:
        super().__init__(message, path=path)
        self.saved_in = saved_in


class FolderBusyError(FilesystemError):
    """Programs of another run are working in the folder; they work there one after the other."""


class JournalError(FilesystemError):
    """There is no place for an undo journal, or one that was left behind cannot be read."""


class NeedsFolderError(FilesystemError):
    """What was asked for is possible in the real folder alone, which a branch does not touch.

    A call whose effects are to be shown before they happen cannot be tried out then: it is asked about as a call.
    """


class StaleFilesError(FilesystemError):
    """Others have changed the files at `paths`, on which the changes of a call are based."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = tuple(paths)
        named = ", ".join(map(repr, self.paths[:10])) + (", ..." if len(self.paths) > 10 else "")
        super().__init__(
            f"Others have changed {named} since; nothing was applied. Run the call again on the files as they are now",
            path=self.paths[0],
        )
