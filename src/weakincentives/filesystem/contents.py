"""The contents of files that are kept for later: small ones in memory, others in a private folder outside the root."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from io import BufferedReader, BytesIO, FileIO, RawIOBase
from typing import IO, TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_IN_MEMORY = 16 * 1024
CHUNK = 256 * 1024
LARGE = 1 << 20
"""Contents of this size have a file of their own."""
MAX_SEGMENT = 32 << 20
"""The size of a file with many contents after which the next is begun."""


class Segment:
    """A file with saved contents, one after the other; a new one is deleted once none of them is referenced."""

    def __init__(self, path: str, file: FileIO | None = None) -> None:
        self.path = path
        self.size = 0
        self._is_synced = False
        self._file = file

    @classmethod
    def new(cls, folder: str) -> Segment:
        """A new file in a folder."""
        path = os.path.join(folder, f"contents-{uuid4().hex}")
        file = FileIO(path, "xb", opener=_open_private)
        segment = cls(path, file)
        weakref.finalize(segment, _discard, path, file, os.getpid())
        return segment

    def add(self, source: IO[bytes]) -> tuple[int, int]:
        """Append what a file contains; returns where it begins, and its length."""
        assert self._file is not None
        fd, start = self._file.fileno(), self.size
        try:
            while chunk := source.read(CHUNK):
                write_all(fd, chunk)
                self.size += len(chunk)
        except BaseException:
            os.ftruncate(fd, start)
            os.lseek(fd, start, os.SEEK_SET)
            self.size = start
            raise
        self._is_synced = False
        return start, self.size - start

    def end(self) -> None:
        """Add nothing more."""
        if self._file is not None:
            self._file.close()

    def sync(self) -> None:
        if not self._is_synced:
            sync_file(self.path)
            self._is_synced = True


class SavedContent:
    """The content of a file as it was: in memory, or in a segment."""

    __slots__ = ("__weakref__", "data", "length", "segment", "start")

    def __init__(self, data: bytes = b"", segment: Segment | None = None, start: int = 0, length: int = 0) -> None:
        self.data = data
        self.segment = segment
        self.start = start
        self.length = len(data) if segment is None else length

    def open(self) -> IO[bytes]:
        if self.segment is None:
            return BytesIO(self.data)
        part = _Part(self.segment.path, self.start, self.length)
        return BufferedReader(part, max(1, min(CHUNK, self.length)))

    def read(self) -> bytes:
        if self.segment is None:
            return self.data
        with self.open() as stream:
            return stream.read()

    def __len__(self) -> int:
        return self.length

    def equals(self, other: IO[bytes]) -> bool:
        with self.open() as mine:
            while chunk := mine.read(CHUNK):
                if other.read(len(chunk)) != chunk:
                    return False
        return not other.read(1)

    def export(self, path: str) -> None:
        """Make the content available at another path, without a copy if possible."""
        if self.segment is not None and self.segment.size == self.length:
            with suppress(OSError):
                os.link(self.segment.path, path)
                return
        with self.open() as source, open(path, "wb") as target:
            shutil.copyfileobj(source, target)


class _Part(RawIOBase):
    """A part of a file, to be read."""

    def __init__(self, path: str, start: int, length: int) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self._start = start
        self._end = start + length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        data = os.pread(self._fd, min(len(memoryview(buffer)), self._end - self._start), self._start)
        memoryview(buffer)[: len(data)] = data
        self._start += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


class Contents:
    """Keeps contents: those of at most `small` bytes in memory, and larger ones too while the `budget` lasts.

    The others are in segments in `folder()`, which is asked for when it is needed.
    """

    def __init__(self, folder: Callable[[], str], *, small: int = MAX_IN_MEMORY, budget: int = 0) -> None:
        self._folder = folder
        self._small = small
        self._budget = budget
        self._lock = threading.Lock()
        # A weak reference, so that the file goes with what is in it.
        self._current: weakref.ref[Segment] | None = None

    def save(self, source: IO[bytes], size: int) -> SavedContent:
        """Keep what a file contains; `size` is what it is thought to have."""
        limit = max(self._small, self._budget)
        if size <= limit:
            data = source.read(limit + 1)
            if len(data) <= limit:
                return self._in_memory(SavedContent(data))
            source.seek(0)
        return self._on_disk(source, size)

    def hold(self, content: SavedContent) -> SavedContent:
        """The same content, in a segment if it is too large for memory."""
        if content.segment is not None:
            return content
        if len(content) <= max(self._small, self._budget):
            return self._in_memory(content)
        return self._on_disk(BytesIO(content.data), len(content))

    def _in_memory(self, content: SavedContent) -> SavedContent:
        if len(content) > self._small:
            self._budget -= len(content)
            weakref.finalize(content, self._give_back, len(content)).atexit = False
        return content

    def _give_back(self, size: int) -> None:
        self._budget += size

    def _on_disk(self, source: IO[bytes], size: int) -> SavedContent:
        folder = self._folder()
        # A sparse file takes no room until it is copied.
        if size >= LARGE and size > shutil.disk_usage(folder).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if size >= LARGE:
            segment = Segment.new(folder)
            start, length = segment.add(source)
            segment.end()
            return SavedContent(b"", segment, start, length)
        with self._lock:
            segment = self._segment(folder)
            start, length = segment.add(source)
            return SavedContent(b"", segment, start, length)

    def _segment(self, folder: str) -> Segment:
        """The segment to which contents are added."""
        segment = None if self._current is None else self._current()
        if segment is None or segment.size >= MAX_SEGMENT or os.path.dirname(segment.path) != folder:
            if segment is not None:
                segment.end()
            segment = Segment.new(folder)
            self._current = weakref.ref(segment)
        return segment


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_file(path: str) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _discard(path: str, file: FileIO, process: int) -> None:
    file.close()
    # A forked child has the objects of its parent, but not its files.
    if process == os.getpid():
        with suppress(OSError):
            os.unlink(path)
