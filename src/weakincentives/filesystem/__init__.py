"""Files an agent works on: in memory, or below one directory of the host.

`HostFilesystem` is imported on first use, because most prompts do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front, public_names
from weakincentives.filesystem.edits import (
    MAX_RESTORABLE as MAX_RESTORABLE,
    FileEdit as FileEdit,
    Retreat as Retreat,
    edits_of as edits_of,
    retreat as retreat,
)
from weakincentives.filesystem.memory import (
    InMemoryDirectory as InMemoryDirectory,
    InMemoryFilesystem as InMemoryFilesystem,
    InMemorySnapshot as InMemorySnapshot,
)
from weakincentives.filesystem.patch import FileChange as FileChange
from weakincentives.filesystem.protocol import (
    AlreadyExistsError as AlreadyExistsError,
    BadPatternError as BadPatternError,
    DirectoryNotEmptyError as DirectoryNotEmptyError,
    Entry as Entry,
    EntryKind as EntryKind,
    Filesystem as Filesystem,
    FilesystemError as FilesystemError,
    FolderBusyError as FolderBusyError,
    InvalidPathError as InvalidPathError,
    IsDirectoryError as IsDirectoryError,
    JournalError as JournalError,
    Match as Match,
    NeedsFolderError as NeedsFolderError,
    NotDirectoryError as NotDirectoryError,
    NotFoundError as NotFoundError,
    NotTextError as NotTextError,
    SnapshotError as SnapshotError,
    StaleFilesError as StaleFilesError,
    Stat as Stat,
    WriteMode as WriteMode,
)

if TYPE_CHECKING:
    from weakincentives.filesystem.host import HostFilesystem as HostFilesystem, HostSnapshot as HostSnapshot
    from weakincentives.filesystem.programs import ProgramRun as ProgramRun
    from weakincentives.filesystem.recovery import Recovery as Recovery

if not TYPE_CHECKING:
    __all__ = public_names(globals(), "HostFilesystem", "HostSnapshot", "ProgramRun", "Recovery")


__getattr__ = lazy_front(
    __name__,
    {"host": ["HostFilesystem", "HostSnapshot"], "programs": ["ProgramRun"], "recovery": ["Recovery"]},
)
