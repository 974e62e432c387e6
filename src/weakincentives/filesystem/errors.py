"""Why a filesystem refused; every error carries the `path` as it was given.

Most are also the built-in error that Python users catch for the same thing.

    FilesystemError
    ├── InvalidPathError          absolute, `..`, a NUL byte, or a symlink that leads out of the root
    ├── NotFoundError             (FileNotFoundError)
    ├── AlreadyExistsError        (FileExistsError)
    ├── IsDirectoryError          (IsADirectoryError)
    ├── NotDirectoryError         (NotADirectoryError)
    ├── DirectoryNotEmptyError    (OSError)
    ├── NotTextError              (ValueError) not UTF-8
    ├── BadPatternError           (ValueError) a glob or a regular expression
    └── SnapshotError             the snapshot belongs to another filesystem, or could not be restored whole
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
    """Something is at the path already."""


class IsDirectoryError(FilesystemError, IsADirectoryError):
    """The path is a directory where a file was meant."""


class NotDirectoryError(FilesystemError, NotADirectoryError):
    """The path, or a part of it, is a file where a directory was meant."""


class DirectoryNotEmptyError(FilesystemError, OSError):
    """A directory with something in it is only deleted with recursive=True."""


class NotTextError(FilesystemError, ValueError):
    """The file is not UTF-8 text."""


class BadPatternError(FilesystemError, ValueError):
    """A glob or regular expression that cannot be compiled."""


class SnapshotError(FilesystemError):
    """A snapshot that this filesystem cannot go back to."""
