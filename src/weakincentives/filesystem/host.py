"""Files of the host, below one directory."""

from __future__ import annotations

import os
import shutil
import stat
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from typing import Any, TypeVar

from weakincentives._base.fence import check_fence, current_calls
from weakincentives.filesystem.changes import CallMark, Changes
from weakincentives.filesystem.jail import Jail, Place, entries, translated, walk
from weakincentives.filesystem.patch import FileChange, Node, change, is_same, plan
from weakincentives.filesystem.protocol import (
    GREP_TIMEOUT,
    SNIFF_LENGTH,
    AlreadyExistsError,
    DirectoryNotEmptyError,
    Entry,
    EntryKind,
    FilesystemError,
    InvalidPathError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    Parts,
    SnapshotError,
    Stat,
    WriteMode,
    check_mode,
    encode,
    is_binary,
    join,
    read_lines,
    split,
)
from weakincentives.filesystem.search import Files, Searchable
from weakincentives.filesystem.undo import (
    Journal,
    Mark,
    State,
    StateStore,
    Tracker,
    append,
    as_node,
    as_state,
    create,
    replace,
)

S = TypeVar("S")
_KINDS: dict[int, EntryKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """The state of a HostFilesystem at one moment. It keeps what is needed to go back while it is referenced."""

    mark: Mark | CallMark[State]  #: a position in the journal of changes
    tree: Mapping[Parts, State] | None = None  #: the state of each path, with `track_external`


class _Shared:
    """The state shared by all filesystems with the same root: changes of tool calls, and what was saved for them."""

    def __init__(self, jail: Jail) -> None:
        self.changes: Changes[State] = Changes()
        self.store = StateStore(jail)


_shared: weakref.WeakValueDictionary[str, _Shared] = weakref.WeakValueDictionary()
_sharing = threading.Lock()


def _shared_below(jail: Jail) -> _Shared:
    with _sharing:
        return _shared.setdefault(jail.root, _Shared(jail))


class HostFilesystem(Searchable):
    """The files below `root`: `HostFilesystem("work")`.

    Paths cannot lead out of the root, not even through symbolic links. Taking a snapshot is free; the old content of a
    file is saved before its first change after the snapshot. Restoring therefore undoes what was done through this
    object and leaves alone what other processes did.

    With `track_external=True`, restoring undoes the changes of other processes too. Every snapshot then scans the tree
    and saves the files that changed. `ignore` lists what to leave out (`node_modules`, `*.log`, `data/raw`).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        track_external: bool = False,
        ignore: Iterable[str] = (),
        grep_timeout: float = GREP_TIMEOUT,
    ) -> None:
        self._grep_timeout = grep_timeout
        self._jail = Jail(root)
        self._store = StateStore(self._jail)
        self._journal = Journal(self._store)
        self._tracker = Tracker(self._store, ignore) if track_external else None
        self._shared = _shared_below(self._jail)
        self._changes = self._shared.changes
        self._lock = self._changes.lock
        self._unrestored: dict[Parts, State] = {}
        self._exported: str | None = None

    @property
    def root(self) -> str:
        """The absolute path of the root, with links resolved."""
        return self._jail.root

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> str:
        with self._opened(path) as fd, os.fdopen(fd, "rb") as stream:
            return read_lines(stream, path, offset=offset, limit=limit)

    def read_bytes(self, path: str) -> bytes:
        with self._opened(path) as fd, os.fdopen(fd, "rb") as stream:
            return stream.read()

    def write(self, path: str, content: str | bytes, *, mode: WriteMode = "overwrite") -> None:
        check_fence()
        check_mode(mode)
        data = encode(content, path)
        parts = split(path)
        with self._lock:
            self._make_parents(parts[:-1], path)
            with self._jail.locate(parts, path) as place:
                status = place.stat()
                if status is not None:
                    _check_file(status, path)
                    if mode == "create":
                        raise AlreadyExistsError(
                            f"{path!r} already exists; use mode='overwrite' to replace it", path=path
                        )
                    os.close(place.open(os.O_WRONLY))
                self._record(place)
                if mode == "append" and status is not None:
                    append(place, data)
                elif mode == "create":
                    create(place, data)
                else:
                    replace(place, [BytesIO(data)], None if status is None else stat.S_IMODE(status.st_mode))

    def mkdir(self, path: str, *, parents: bool = False, exist_ok: bool = False) -> None:
        check_fence()
        parts = split(path)
        with self._lock:
            if parents:
                self._make_parents(parts[:-1], path)
            try:
                with self._jail.locate(parts, path) as place:
                    status = place.stat()
                    if status is None:
                        self._record(place)
                        os.mkdir(place.name, dir_fd=place.fd)
                    elif not (exist_ok and stat.S_ISDIR(status.st_mode)):
                        raise AlreadyExistsError(f"{path!r} already exists", path=path)
            except NotFoundError:
                raise NotFoundError(
                    f"Cannot create {path!r}: {join(parts[:-1])!r} does not exist; pass parents=True", path=path
                ) from None

    def list(self, path: str = ".") -> tuple[Entry, ...]:
        with self._directory(path) as (fd, base):
            return tuple(
                Entry(name, join((*base, name)), kind := _kind(status.st_mode), status.st_size if kind == "file" else 0)
                for name, status in entries(fd)
            )

    def stat(self, path: str) -> Stat:
        parts = split(path)
        with self._jail.locate(parts, path) as place:
            status = _existing(place, path)
        kind = _kind(status.st_mode)
        modified = datetime.fromtimestamp(status.st_mtime, UTC)
        return Stat(join(parts), kind, status.st_size if kind == "file" else 0, modified)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        check_fence()
        parts = split(path)
        with self._lock, self._jail.locate(parts, path, follow=False) as place:
            if place.name == ".":
                raise InvalidPathError("The root cannot be deleted", path=path)
            status = _existing(place, path)
            if stat.S_ISDIR(status.st_mode) and not recursive:
                with _open_directory(place) as fd:
                    if os.listdir(fd):
                        raise DirectoryNotEmptyError(f"{path!r} is not empty; pass recursive=True", path=path)
            self._delete(place, status)

    def snapshot(self) -> HostSnapshot:
        return self._snapshot(lambda: self._journal.mark())

    def begin_call(self) -> HostSnapshot:
        """A snapshot for the rollback of the current tool call: restoring it undoes only what the call changed.

        With `track_external`, that includes what other processes did, except to files that other calls changed since.
        """
        if not current_calls():
            return self.snapshot()
        return self._snapshot(lambda: self._changes.begin(watch=self._tracker is not None))

    def restore(self, snapshot: HostSnapshot) -> None:
        check_fence()
        if not isinstance(snapshot, HostSnapshot) or snapshot.mark.journal not in (self._journal, self._changes):
            raise SnapshotError(
                f"The snapshot was not taken from this filesystem ({self.root}), or it has been closed since"
            )
        with self._lock:
            changes = {parts: state for parts, state in self._unrestored.items() if not self._is_tracked(parts)}
            mark: Any = snapshot.mark
            changes |= self._with_external(snapshot, mark.journal.restore(mark), lambda parts, found: found)
            for parts in changes:
                if mark.journal is not self._changes:
                    self._changes.record(parts, partial(self._shared.store.current, parts))
                if not self._is_tracked(parts):
                    self._journal.record(parts, partial(self._store.current, parts))
            self._put_back(changes)

    def changes_since(self, mark: HostSnapshot) -> tuple[FileChange, ...]:
        """The changes of the current tool call, by path; `mark` is what `begin_call` returned for it.

        A path that has its old content and mode again is left out. With `track_external`, the changes of other
        processes are included. If other calls have overwritten a file that the call changed, and have ended, this is a
        `StaleFilesError`.
        """
        return tuple(change(path, *both) for path, both in self.nodes_since(mark).items())

    def nodes_since(self, mark: HostSnapshot, limit: int | None = None) -> dict[str, tuple[Node | None, Node | None]]:
        """Content, then and now, of the paths in `changes_since`; of files with more than `limit` bytes, only that."""
        with self._lock:
            call = mark.mark if isinstance(mark, HostSnapshot) else None
            if not isinstance(call, CallMark) or call.journal is not self._changes:
                raise SnapshotError("mark must be what begin_call() of this filesystem returned in the current call")

            def current(parts: Parts) -> State:
                return self._store.peek(parts, limit)

            made = self._changes.made_by(call, current)
            made = self._with_external(mark, made, lambda parts, found: (found, current(parts)))
            both = ((as_node(before, limit), as_node(after, limit)) for before, after in made.values())
            nodes = dict(zip(map(join, made), both, strict=True))
        # Two files that were not read may differ.
        unread = set() if limit is None else {path for path, both in nodes.items() if Node("other") in both}
        return {path: nodes[path] for path in sorted(nodes) if path in unread or nodes[path][0] != nodes[path][1]}

    def node(self, path: str, limit: int | None = None) -> Node | None:
        """The content of a path, links not followed; a file with more than `limit` bytes is not read."""
        return as_node(self._store.peek(split(path), limit))

    def apply(self, changes: Iterable[FileChange]) -> None:
        """Make exactly these changes, all or none: a path that is not as it was before is a `StaleFilesError`."""
        check_fence()
        with self._lock:
            if self._unrestored:
                self._put_back(self._unrestored)
            found: dict[Parts, State] = {}

            def now(parts: Parts) -> Node | None:
                found[parts] = self._shared.store.current(parts)
                return as_node(found[parts])

            nodes = plan(changes, now, self.list)
            for parts in nodes:
                self._changes.record(parts, partial(found.__getitem__, parts))
                if not self._is_tracked(parts):
                    self._journal.record(parts, partial(self._store.current, parts))
            # Until this is done, an interrupt leaves the next snapshot or restore to put back what was there.
            self._unrestored = {parts: found[parts] for parts in nodes}
            try:
                failures = self._store.put_back({parts: as_state(node, found[parts]) for parts, node in nodes.items()})
                for parts, node in nodes.items():
                    if parts not in failures and not is_same(as_node(self._store.current(parts)), node):
                        failures[parts] = f"{join(parts)!r} changed meanwhile"
                if failures:
                    raise FilesystemError(
                        f"Could not apply the changes, so nothing was changed: {'; '.join(failures.values())}",
                        path=join(next(iter(failures))),
                    )
            except BaseException:
                self._put_back(
                    {
                        parts: state
                        for parts, state in self._unrestored.items()
                        if not is_same(as_node(self._store.current(parts)), as_node(state))
                    }
                )
                raise
            self._unrestored = {}

    @property
    def tracks_external(self) -> bool:
        """True if restoring also undoes the changes of other processes."""
        return self._tracker is not None

    def changed_since(self, snapshot: HostSnapshot) -> tuple[str, ...]:
        """The paths that differ from a snapshot, whoever changed them; needs `track_external=True`."""
        if self._tracker is None or snapshot.tree is None:
            raise SnapshotError(f"Changes are found by HostFilesystem({self.root!r}, track_external=True) alone")
        with self._lock:
            return tuple(sorted(map(join, self._tracker.changes_to(snapshot.tree))))

    def close(self) -> None:
        """Discard the snapshots and what was saved for them; the files and the copies in `saved_in` are kept."""
        with self._lock:
            self._journal = Journal(self._store)
            self._unrestored, self._exported = {}, None
            self._store.clear()

    def __repr__(self) -> str:
        return f"HostFilesystem({self.root!r})"

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        """The descriptor of a regular file; the caller closes it."""
        with self._jail.locate(split(path), path) as place:
            fd = place.open(os.O_RDONLY)
            try:
                _check_file(os.fstat(fd), path)
            except FilesystemError:
                os.close(fd)
                raise
            yield fd

    @contextmanager
    def _directory(self, path: str) -> Iterator[tuple[int, Parts]]:
        parts = split(path)
        with self._jail.locate(parts, path) as place:
            if not stat.S_ISDIR(_existing(place, path).st_mode):
                raise NotDirectoryError(f"{path!r} is a file, not a directory", path=path)
            with _open_directory(place) as fd:
                yield fd, parts

    def _walk(self, base: Parts, depth: int | None) -> Files:
        path = join(base)
        with self._jail.locate(base, path) as place:
            if not stat.S_ISDIR(_existing(place, path).st_mode):
                yield base, lambda: self.read_bytes(path)
                return
            with _open_directory(place) as fd, closing(walk(fd, base, depth)) as found:
                for entry, status in found:
                    if stat.S_ISREG(status.st_mode):
                        yield entry.parts, partial(_load, entry)

    def _make_parents(self, parts: Parts, path: str) -> None:
        if parts and self.exists(join(parts)):
            return
        for depth in range(1, len(parts) + 1):
            with self._jail.locate(parts[:depth], path) as place:
                if place.stat() is None:
                    self._record(place)
                    os.mkdir(place.name, dir_fd=place.fd)

    def _delete(self, place: Place, status: os.stat_result) -> None:
        remove: Callable[..., None] = os.unlink
        if stat.S_ISDIR(status.st_mode):
            with _open_directory(place) as fd:
                for name, inner in entries(fd):
                    self._delete(Place(fd, name, (*place.parts, name)), inner)
            remove = os.rmdir
        with translated(join(place.parts)):
            self._record(place)
            remove(place.name, dir_fd=place.fd)

    def _snapshot(self, mark: Callable[[], Mark | CallMark[State]]) -> HostSnapshot:
        with self._lock:
            if self._unrestored:
                self._put_back(self._unrestored)
            return HostSnapshot(mark(), self._tracker.scan() if self._tracker else None)

    def _with_external(
        self, snapshot: HostSnapshot, own: dict[Parts, S], convert: Callable[[Parts, State], S]
    ) -> dict[Parts, S]:
        """The changes made through a filesystem, and those that the tracker finds, which knows its paths better."""
        if self._tracker is None or snapshot.tree is None:
            return own
        others, tracked = snapshot.mark.others, self._tracker.changes_to(snapshot.tree)
        kept = {parts: state for parts, state in own.items() if parts in others or not self._is_tracked(parts)}
        return kept | {parts: convert(parts, state) for parts, state in tracked.items() if parts not in others}

    def _put_back(self, states: dict[Parts, State]) -> None:
        """Put the states on the disk. Those that fail are kept for the next attempt, and their files exported."""
        # Until this is done, all of them count as not restored: an interrupt may come at any time.
        self._unrestored = states
        failures = self._store.put_back(states)
        self._journal.reached({parts: state for parts, state in states.items() if parts not in failures})
        self._unrestored = {parts: states[parts] for parts in failures}
        outdated, (self._exported, missing) = self._exported, self._store.export(self._unrestored)
        if outdated is not None:
            shutil.rmtree(outdated, ignore_errors=True)
        if failures:
            message = f"Could not restore everything: {'; '.join(failures.values())}"
            if self._exported is not None:
                message += f"; the saved files are in {self._exported}"
            if missing:
                message += f"; {', '.join(map(repr, missing))} could only be kept in memory"
            raise SnapshotError(f"{message}; the next snapshot or restore tries again", saved_in=self._exported)

    def _record(self, place: Place) -> None:
        self._unrestored.pop(place.parts, None)
        self._changes.record(place.parts, lambda: self._shared.store.save(place, place.stat()))
        if not self._is_tracked(place.parts):
            self._journal.record(place.parts, lambda: self._store.save(place, place.stat()))

    def _is_tracked(self, parts: Parts) -> bool:
        return self._tracker is not None and not self._tracker.ignores(parts)


@contextmanager
def _open_directory(place: Place) -> Iterator[int]:
    fd = place.open(os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def _existing(place: Place, path: str) -> os.stat_result:
    status = place.stat()
    if status is None:
        raise NotFoundError(f"{path!r} does not exist", path=path)
    return status


def _check_file(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsDirectoryError(f"{path!r} is a directory; list it instead", path=path)
    if not stat.S_ISREG(status.st_mode):
        raise FilesystemError(f"{path!r} is neither a file nor a directory", path=path)


def _load(place: Place) -> bytes:
    """The content of a file found by a walk; empty if it is binary or can no longer be read."""
    try:
        with os.fdopen(place.open(os.O_RDONLY), "rb") as stream:
            head = stream.read(SNIFF_LENGTH)
            return b"" if is_binary(head) else head + stream.read()
    except OSError:
        return b""


def _kind(mode: int) -> EntryKind:
    return _KINDS.get(stat.S_IFMT(mode), "other")
