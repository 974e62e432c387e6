"""Files that an agent works on: in memory, or below one directory of the machine.

The machine's files are loaded when they are first asked for: most prompts need none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weakincentives.filesystem.errors import (
    AlreadyExistsError,
    BadPatternError,
    DirectoryNotEmptyError,
    FilesystemError,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    NotTextError,
    SnapshotError,
)
from weakincentives.filesystem.memory import InMemoryFilesystem, InMemorySnapshot
from weakincentives.filesystem.protocol import Entry, Filesystem, Kind, Match, Stat, WriteMode

if TYPE_CHECKING:
    from weakincentives.filesystem.host import HostFilesystem, HostSnapshot

__all__ = [
    "AlreadyExistsError",
    "BadPatternError",
    "DirectoryNotEmptyError",
    "Entry",
    "Filesystem",
    "FilesystemError",
    "HostFilesystem",
    "HostSnapshot",
    "InMemoryFilesystem",
    "InMemorySnapshot",
    "InvalidPathError",
    "IsDirectoryError",
    "Kind",
    "Match",
    "NotDirectoryError",
    "NotFoundError",
    "NotTextError",
    "SnapshotError",
    "Stat",
    "WriteMode",
]


def __getattr__(name: str) -> Any:
    if name in ("HostFilesystem", "HostSnapshot"):
        from weakincentives.filesystem import host

        return getattr(host, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
