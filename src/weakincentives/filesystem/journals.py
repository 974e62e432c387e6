"""Where undo journals are kept: outside the root, for its owner alone, and with a lock that ends with its process.

A journal says what to put back if the process that works on the files dies. It cannot be in the root, where the agent
and its programs would see it, nor beside the root, which other programs watch and which may not be writable. So each
root has a folder in the user's state, named by its path:

    <state>/files/<name>-<digest of the path>/
        mutex           locked while files are exchanged or leftovers are put back
        programs        locked while programs may change the files
        report-*        what was put back, for whoever opens the root next
        process-<id>/   one for each process that has journals or saved contents
            alive       locked as long as the process lives
            contents-*  saved contents
            journal-*   what to put back
            others      the paths that other processes have changed while programs ran for this one

The state is `$WINK_STATE`, else `$XDG_STATE_HOME/weakincentives` or `~/.local/state/weakincentives`, else a folder of
the user among the temporary files; the first that is outside the root and can be written. Processes in containers that
share a root need a `WINK_STATE` on the same volume, to find what another one left.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path

from weakincentives.filesystem.contents import Segment, sync_file, write_all
from weakincentives.filesystem.locks import FileLock, try_lock
from weakincentives.filesystem.protocol import JournalError, Parts

STATE_VARIABLE = "WINK_STATE"
MUTEX = "mutex"
PROGRAMS = "programs"
PROCESS = "process-"
ALIVE = "alive"
JOURNAL = "journal-"
OF_PROGRAMS = "-programs"
"""How the names of journals end that are about programs."""
OTHERS = "others"
REPORT = "report-"
KEPT = "kept"
MUTEX_SECONDS = 30.0
"""How long to wait for another process that is exchanging files."""

DYING_SECONDS = 0.1
"""How long the locks of a process that is dying may last one longer than another."""

PREPARING_SECONDS = 600.0
"""After how long a folder that is being prepared is taken for a leftover."""
EXPIRY_SECONDS = 30 * 24 * 3600.0
"""After how long what a process left behind is deleted, if nobody has used its root since."""

# The folders of this process. Opening the lock file of one would release its lock.
_own_folders: dict[str, int] = {}


def _is_free(fd: int, folder: str) -> bool:
    """True if the process of a folder has died; the folder is then locked.

    To be called while others are kept out: whoever has the journal of an exchange then is dying, and its locks end
    one after the other.
    """
    ends = time.monotonic() + DYING_SECONDS
    while not try_lock(fd):
        is_dying = any(not path.endswith(OF_PROGRAMS) for path in journals_in(folder))
        if not is_dying or time.monotonic() >= ends:
            return False
        time.sleep(DYING_SECONDS / 100)
    return True


class JournalFolder:
    """The folder with the journals of one root."""

    def __init__(self, root: str) -> None:
        self.root = root
        digest = blake2b(os.fsencode(root), digest_size=12).hexdigest()
        name = f"{Path(root).name[:40] or 'root'}-{digest}"
        self.paths = [os.path.join(state, "files", name) for state in _states(root)]
        self._owner: Owner | None = None
        self._turn = threading.RLock()
        self._mutex: FileLock | None = None
        self._creating = threading.Lock()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep out other threads and processes that exchange files of this root, or put back leftovers."""
        with self._turn:
            if self._mutex is not None:
                # Closing the file a second time would release the lock.
                yield
                return
            mutex = FileLock(self._private_folder(), MUTEX)
            if not mutex.acquire(MUTEX_SECONDS):
                raise JournalError(
                    f"Another process has been changing the same files for {MUTEX_SECONDS:g} seconds; it has locked "
                    f"{mutex.path!r}"
                )
            self._mutex = mutex
            try:
                yield
            finally:
                self._mutex = None
                mutex.release()

    def owner(self) -> Owner:
        """The folder of this process."""
        with self._creating:
            if self._owner is None or self._owner.process != os.getpid():
                folder = self._private_folder()
                _drop_expired(os.path.dirname(folder))
                self._owner = Owner(folder)
            return self._owner

    def contents_folder(self) -> str:
        return self.owner().path

    def is_used(self) -> bool:
        """True if some process keeps something here, or did."""
        return any(os.path.isdir(path) for path in self.paths)

    def has_leftovers(self) -> bool:
        """True if another process has journals; whether it is alive is not looked at."""
        for path in self.paths:
            for folder in _processes(path):
                if not _is_own(folder) and journals_in(folder):
                    return True
        return False

    def abandoned(self) -> Iterator[str]:
        """The folders of processes that have died, each locked meanwhile and deleted afterwards.

        To be called while others are kept out.
        """
        for path in self.paths:
            for folder in [*_processes(path), *_unprepared(path)]:
                if _is_own(folder):
                    continue
                with suppress(OSError):
                    _check_private(folder)
                    fd = os.open(os.path.join(folder, ALIVE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    try:
                        if _is_free(fd, folder):
                            yield folder
                            shutil.rmtree(folder, ignore_errors=True)
                    finally:
                        os.close(fd)

    def program_lock(self) -> FileLock:
        """The lock that whoever runs programs has."""
        return FileLock(self._private_folder(), PROGRAMS)

    def has_programs(self) -> bool:
        """True if programs are running in the folder, or were when their process died."""
        return any(os.path.lexists(os.path.join(path, PROGRAMS)) for path in self.paths)

    def clear_programs(self) -> bool:
        """Delete what a process left that died while programs ran; False if they are running.

        Not to be called while this process runs some.
        """
        lock = self.program_lock()
        if not lock.acquire(0.0):
            return False
        lock.release()
        return True

    def tell_programs(self, paths: Iterable[Parts]) -> None:
        """Note paths that are about to change for other processes that run programs, whose changes they are not."""
        if not self.has_programs():
            return
        for path in self.paths:
            for folder in _processes(path):
                if not _is_own(folder) and any(name.endswith(OF_PROGRAMS) for name in _listdir(folder)):
                    _append(os.path.join(folder, OTHERS), paths)

    def leave_report(self, report: bytes) -> None:
        """Leave a report on what was put back for whoever opens the root next."""
        folder, name = self._private_folder(), secrets.token_hex(8)
        new = os.path.join(folder, f".{name}")
        Path(new).write_bytes(report)
        os.rename(new, os.path.join(folder, f"{REPORT}{name}"))

    def kept_folder(self) -> str:
        """The folder for files that could not be put back, or were replaced, until somebody deletes them."""
        folder = os.path.join(os.path.dirname(os.path.dirname(self._private_folder())), KEPT)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return folder

    def take_reports(self) -> list[bytes]:
        """The reports that were left; they are deleted."""
        reports: list[bytes] = []
        for path in self.paths:
            for name in _listdir(path):
                file = os.path.join(path, name)
                if name.startswith(REPORT):
                    with suppress(OSError):
                        reports.append(Path(file).read_bytes())
                        os.unlink(file)
        return reports

    def _private_folder(self) -> str:
        """The first of the paths that can be used, created if necessary."""
        problems: list[str] = []
        for path in self.paths:
            try:
                os.makedirs(path, mode=0o700, exist_ok=True)
                _check_private(path)
                if os.access(path, os.W_OK | os.X_OK):
                    return path
                problems.append(f"{path!r} cannot be written")
            except OSError as error:
                problems.append(f"{path!r}: {error.strerror}")
        raise JournalError(
            f"There is no private folder outside of {self.root!r} for undo journals ({'; '.join(problems)}); set "
            f"{STATE_VARIABLE} to one that can be written",
            path=self.root,
        )


class Owner:
    """The folder of one process, which nobody else touches while the process lives."""

    def __init__(self, place: str) -> None:
        self.process = os.getpid()
        name = f"{PROCESS}{secrets.token_hex(8)}"
        new, self.path = os.path.join(place, f".{name}"), os.path.join(place, name)
        os.mkdir(new, 0o700)
        fd = os.open(os.path.join(new, ALIVE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not try_lock(fd):
            raise JournalError(f"{new!r} cannot be locked; set {STATE_VARIABLE} to a folder on a local disk")
        _own_folders[self.path] = self.process
        os.rename(new, self.path)
        self._number = 0
        weakref.finalize(self, _end_owner, self.path, fd, self.process)

    def next_path(self) -> str:
        """The path of the next journal."""
        self._number += 1
        return os.path.join(self.path, f"{JOURNAL}{self._number:06}")


class Journal:
    """A journal of this process. While it is there, its process has not finished what it says."""

    def __init__(self, owner: Owner, record: bytes, segments: Iterable[Segment], *, of_programs: bool = False) -> None:
        self.path = owner.next_path() + (OF_PROGRAMS if of_programs else "")
        self._segments = tuple(segments)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, blake2b(record, digest_size=16).digest())
            write_all(fd, record)
        except BaseException:
            os.unlink(self.path)
            raise
        finally:
            os.close(fd)

    def syncs(self) -> list[Callable[[], None]]:
        """The functions after which the journal is on the disk."""
        files = [segment.sync for segment in self._segments]
        return [partial(sync_file, self.path), partial(sync_file, os.path.dirname(self.path)), *files]

    def end(self) -> None:
        """Delete the journal: its process has finished."""
        os.unlink(self.path)
        # Else it could be there again after a power failure, and undo what was finished.
        sync_file(os.path.dirname(self.path))


def journals_in(folder: str) -> list[str]:
    """The journals of a process, newest first."""
    names = [name for name in _listdir(folder) if name.startswith(JOURNAL)]
    return [os.path.join(folder, name) for name in sorted(names, reverse=True)]


def others_in(folder: str) -> set[Parts]:
    """The paths that others have changed while programs ran for a process."""
    try:
        data = Path(folder, OTHERS).read_bytes()
    except OSError:
        return set()
    return {tuple(os.fsdecode(path).split("/")) for path in data.split(b"\0") if path}


def read_journal(path: str) -> bytes | None:
    """The record of a journal; None if it was not written to its end, so that nothing was done yet."""
    data = Path(path).read_bytes()
    digest, record = data[:16], data[16:]
    return record if blake2b(record, digest_size=16).digest() == digest else None


def _states(root: str) -> list[str]:
    """The folders that may hold the state, best first; those in the root only if there are no others."""
    if named := os.environ.get(STATE_VARIABLE):
        candidates = [os.path.abspath(named)]
    else:
        candidates = []
        with suppress(RuntimeError):
            home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
            candidates.append(os.path.join(home, "weakincentives"))
        candidates.append(os.path.join(tempfile.gettempdir(), f"weakincentives-{os.geteuid()}"))
    inside = root.rstrip("/") + "/"
    outside = [path for path in candidates if not f"{os.path.realpath(path)}/".startswith(inside)]
    return outside or candidates


def _check_private(folder: str) -> None:
    """Raise if a folder belongs to somebody else, or others may read it."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "it is not a folder of this user alone", folder)


def _drop_expired(state: str) -> None:
    """Delete what was left behind long ago for roots that nobody has used since."""
    for name in _listdir(state):
        folder = os.path.join(state, name)
        with suppress(OSError):
            is_old = time.time() - os.lstat(folder).st_mtime > EXPIRY_SECONDS
            if is_old and not any(map(_is_alive, _processes(folder))):
                shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: str) -> list[str]:
    """The folders of processes."""
    return [os.path.join(folder, name) for name in _listdir(folder) if name.startswith(PROCESS)]


def _unprepared(folder: str) -> list[str]:
    """The folders whose processes have died before they could lock them."""
    hidden = [os.path.join(folder, name) for name in _listdir(folder) if name.startswith(f".{PROCESS}")]
    return [path for path in hidden if _is_old(path)]


def _append(file: str, paths: Iterable[Parts]) -> None:
    """Append paths to a file, unless it is gone by now."""
    data = b"".join(os.fsencode("/".join(parts)) + b"\0" for parts in paths)
    with suppress(OSError):
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)


def _is_alive(owner: str) -> bool:
    if _is_own(owner):
        return True
    try:
        fd = os.open(os.path.join(owner, ALIVE), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(fd)
    finally:
        os.close(fd)


def _is_own(folder: str) -> bool:
    return _own_folders.get(folder) == os.getpid()


def _is_old(folder: str) -> bool:
    """True if it takes too long to prepare a folder."""
    with suppress(OSError):
        return time.time() - os.lstat(folder).st_mtime > PREPARING_SECONDS
    return False


def _end_owner(path: str, fd: int, process: int) -> None:
    if process != os.getpid():
        return
    if not journals_in(path):
        shutil.rmtree(path, ignore_errors=True)
    del _own_folders[path]
    os.close(fd)
    with suppress(OSError):
        os.rmdir(os.path.dirname(path))


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
