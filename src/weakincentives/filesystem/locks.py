"""Locks between processes, which end with the process that has them."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path


class FileLock:
    """A lock that other processes of this user respect, by a file in a private folder, which is deleted with it.

    A process must not open the file of a lock that it has: closing it would release the lock.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.folder = folder
        self.path = os.path.join(folder, name)
        self._fd = -1

    def acquire(self, seconds: float, *, note: str = "") -> bool:
        """Wait for the lock; False if the time is over. The note tells others who has it."""
        ends, pause = time.monotonic() + seconds, 0.001
        while not self._try():
            if time.monotonic() >= ends:
                return False
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        if note:
            os.write(self._fd, note.encode())
        return True

    def note(self) -> str:
        """The note of whoever has the lock."""
        try:
            return Path(self.path).read_text()
        except OSError:
            return ""

    def release(self) -> None:
        with suppress(OSError):
            os.unlink(self.path)
        os.close(self._fd)
        self._fd = -1
        with suppress(OSError):
            os.rmdir(self.folder)

    def _try(self) -> bool:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            # Whoever had it before has deleted the folder.
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            return False
        try:
            # The file may have been deleted between opening and locking it.
            if try_lock(fd) and os.path.samestat(os.fstat(fd), os.stat(self.path)):
                self._fd, fd = fd, -1
        except FileNotFoundError:
            return False
        finally:
            if fd != -1:
                os.close(fd)
        return self._fd != -1


def try_lock(fd: int) -> bool:
    """Lock an open file, for this process alone, until it is closed or the process ends."""
    import fcntl

    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True
