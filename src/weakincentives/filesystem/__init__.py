"""Files that an agent works on: in memory, or below one directory of the machine.

The machine's files are loaded when they are first asked for: most prompts need none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._imports import lazy_front
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


__getattr__ = lazy_front(__name__, {"HostFilesystem": "host", "HostSnapshot": "host"})
