"""Files that an agent works on: in memory, or below one directory of the machine."""

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
from weakincentives.filesystem.host import HostFilesystem, HostSnapshot
from weakincentives.filesystem.memory import InMemoryFilesystem, InMemorySnapshot
from weakincentives.filesystem.protocol import Entry, Filesystem, Kind, Match, Stat, WriteMode

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
