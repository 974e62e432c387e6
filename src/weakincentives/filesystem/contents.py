"""The contents of files that are kept for later: small ones in memory, others in a private folder outside the root."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from io import BytesIO
from typing import IO
from uuid import uuid4

MAX_IN_MEMORY = 16 * 1024
CHUNK = 256 * 1024


class SavedContent:
    """The saved content of a file: in memory, or in a file that is deleted with this object."""

    def __init__(self, data: bytes = b"", file: str = "") -> None:
        self.data = data
        self.file = file
        if file:
            weakref.finalize(self, _unlink, file)

    def open(self) -> IO[bytes]:
        return open(self.file, "rb") if self.file else BytesIO(self.data)

    def __len__(self) -> int:
        return os.path.getsize(self.file) if self.file else len(self.data)

    def equals(self, other: IO[bytes]) -> bool:
        with self.open() as mine:
            while chunk := mine.read(CHUNK):
                if other.read(len(chunk)) != chunk:
                    return False
        return not other.read(1)

    def export(self, path: str) -> None:
        """Make the content available at another path, without a copy if possible."""
        try:
            os.link(self.file, path)
        except OSError:
            with self.open() as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)


class Contents:
    """Keeps contents, those of more than `in_memory` bytes as files."""

    def __init__(self, in_memory: int = MAX_IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._folder: str | None = None

    def save(self, source: IO[bytes], size: int) -> SavedContent:
        """Keep what a file contains; `size` is what it is thought to have."""
        if size <= self._in_memory:
            data = source.read(self._in_memory + 1)
            if len(data) <= self._in_memory:
                return SavedContent(data)
            source.seek(0)
        folder = self._private_folder()
        # A sparse file takes no room until it is copied.
        if size > shutil.disk_usage(folder).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file = os.path.join(folder, uuid4().hex)
        try:
            with open(file, "wb") as target:
                shutil.copyfileobj(source, target)
        except BaseException:
            _unlink(file)
            raise
        return SavedContent(file=file)

    def hold(self, content: SavedContent) -> SavedContent:
        """The same content, as a file if it is too large for memory."""
        if content.file or len(content.data) <= self._in_memory:
            return content
        with content.open() as source:
            return self.save(source, len(content.data))

    def clear(self) -> None:
        """Delete what was saved to disk."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _private_folder(self) -> str:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="wink-undo-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


def _unlink(file: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file)
