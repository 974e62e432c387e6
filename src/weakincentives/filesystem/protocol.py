"""What every filesystem can do, whether its files are in memory or on a disk."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

WriteMode = Literal["create", "overwrite", "append"]
Kind = Literal["file", "directory", "symlink", "other"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a directory listing; `path` is what `read` and the others take."""

    name: str
    path: str
    kind: Kind
    size: int


@dataclass(frozen=True, slots=True)
class Stat:
    """What is at a path; `modified` is None where a filesystem keeps no times."""

    path: str
    kind: Kind
    size: int
    modified: datetime | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """One line that a grep found; lines count from 1."""

    path: str
    line_number: int
    line: str


@runtime_checkable
class Filesystem(Protocol):
    """Files below one root, with paths relative to it (`src/main.py`; the root itself is `.`).

    Absolute paths and `..` are refused. Text is UTF-8 and newlines are kept as they are. Everything that is listed
    comes in sorted order. What goes wrong is a `FilesystemError` that names the path.
    """

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> str:
        """The text of a file, or `limit` lines of it from line `offset` (counted from 0) on."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """The whole content of a file."""
        ...

    def write(self, path: str, content: str | bytes, *, mode: WriteMode = "overwrite") -> None:
        """Write a file; missing directories are made. `create` refuses a path that exists."""
        ...

    def mkdir(self, path: str, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Make a directory."""
        ...

    def list(self, path: str = ".") -> tuple[Entry, ...]:
        """What is in a directory, by name."""
        ...

    def glob(self, pattern: str, *, path: str = ".") -> tuple[str, ...]:
        """The files below `path` that match: `*`, `?`, `[ab]`, `{a,b}`, and `**` for any directories."""
        ...

    def grep(
        self, pattern: str, *, path: str = ".", glob: str | None = None, limit: int | None = None
    ) -> tuple[Match, ...]:
        """The lines of a file, or of the text files below a directory, that a regular expression finds.

        `glob` narrows the files (`*.py` at any depth, `src/**` below `path`).
        """
        ...

    def stat(self, path: str) -> Stat:
        """What is at the path."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is something at the path."""
        ...

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, an empty directory, or with `recursive` a whole directory."""
        ...

    def snapshot(self) -> Any:
        """The state now, to be given to `restore`."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot; it stays good for another time."""
        ...
