"""Filesystem errors. Each carries the `path` as it was given.

Most also derive from the built-in exception for the same failure.

    FilesystemError
    ├── InvalidPathError          absolute, `..`, a NUL byte, or a symbolic link that leads out of the root
    ├── NotFoundError             (FileNotFoundError)
    ├── AlreadyExistsError        (FileExistsError)
    ├── IsDirectoryError          (IsADirectoryError)
    ├── NotDirectoryError         (NotADirectoryError)
    ├── DirectoryNotEmptyError    (OSError)
    ├── NotTextError              (ValueError) not UTF-8
    ├── BadPatternError           (ValueError) a glob or a regular expression
    └── SnapshotError             the snapshot belongs to another filesystem, or could not be restored completely
"""

from __future__ import annotations

from weakincentives.errors import WinkError


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
