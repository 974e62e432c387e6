"""Files an agent works on: in memory, or below one directory of the host.

`HostFilesystem` is imported on first use, because most prompts do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._imports import lazy_front
from weakincentives.filesystem.memory import InMemoryDirectory, InMemoryFilesystem, InMemorySnapshot
from weakincentives.filesystem.patch import FileChange
from weakincentives.filesystem.protocol import (
    AlreadyExistsError,
    BadPatternError,
    DirectoryNotEmptyError,
    Entry,
    EntryKind,
    Filesystem,
    FilesystemError,
    InvalidPathError,
    IsDirectoryError,
    Match,
    NotDirectoryError,
    NotFoundError,
    NotTextError,
    SnapshotError,
    StaleFilesError,
    Stat,
    WriteMode,
)

if TYPE_CHECKING:
    from weakincentives.filesystem.host import HostFilesystem, HostSnapshot

__all__ = [
    "AlreadyExistsError",
    "BadPatternError",
    "DirectoryNotEmptyError",
    "Entry",
    "EntryKind",
    "FileChange",
    "Filesystem",
    "FilesystemError",
    "HostFilesystem",
    "HostSnapshot",
    "InMemoryDirectory",
    "InMemoryFilesystem",
    "InMemorySnapshot",
    "InvalidPathError",
    "IsDirectoryError",
    "Match",
    "NotDirectoryError",
    "NotFoundError",
    "NotTextError",
    "SnapshotError",
    "StaleFilesError",
    "Stat",
    "WriteMode",
]


__getattr__ = lazy_front(__name__, {"host": ["HostFilesystem", "HostSnapshot"]})
