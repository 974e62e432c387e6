"""Files of the host, below one directory."""

from __future__ import annotations

import os
import shutil
import stat
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any, Self, TypeVar

from weakincentives._fence import check_fence, current_calls
from weakincentives.filesystem.changes import CallMark, Changes
from weakincentives.filesystem.contents import Contents, SavedContent
from weakincentives.filesystem.jail import Jail
from weakincentives.filesystem.overlay import Overlay
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
    NeedsFolderError,
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
from weakincentives.filesystem.states import State, as_node, as_state
from weakincentives.filesystem.store import StateStore
from weakincentives.filesystem.tracking import Tracker
from weakincentives.filesystem.tree import Folder, Place, Status, Tree, translated, walk
from weakincentives.filesystem.versions import Mark, Versions

S = TypeVar("S")
_KINDS: dict[int, EntryKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """The state of a HostFilesystem at one moment. It keeps what is needed to go back while it is referenced."""

    mark: Mark | CallMark[State]  #: a position in the versions or among the calls
    tree: Mapping[Parts, State] | None = None  #: the state of each path, with `track_external`


class _Shared:
    """The state shared by all filesystems with the same root: changes of tool calls, and what was saved for them."""

    def __init__(self, tree: Tree) -> None:
        self.changes: Changes[State] = Changes()
        self.store = StateStore(tree, Contents())


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
        jail = Jail(root)
        self._tree: Tree = jail
        self._jail = jail
        self._store = StateStore(jail, Contents())
        self._versions = Versions()
        self._tracker = Tracker(self._store, ignore) if track_external else None
        self._shared = _shared_below(jail)
        self._changes = self._shared.changes
        self._lock = self._changes.lock
        self._unrestored: dict[Parts, State] = {}
        self._exported: str | None = None

    @property
    def root(self) -> str:
        """The absolute path of the root, with links resolved; a branch has none, which is a `NeedsFolderError`."""
        if self.is_branch:
            raise NeedsFolderError(
                f"These files are a branch of {self._tree.root!r}: what is written stays out of that folder until the "
                "call is approved, so programs cannot find it there. Use read() and write(), or ask about such a tool "
                "with approval='call'",
                path=self._tree.root,
            )
        return self._tree.root

    @property
    def is_branch(self) -> bool:
        """True if what is written stays out of the folder."""
        return isinstance(self._tree, Overlay)

    def branch(self) -> Self:
        """A filesystem with the same files, which keeps its changes for itself.

        What it did not change is read from the folder, or from the branch that it was made of, as it is then. Changes
        are kept in memory, large ones in a private folder outside the root, so nobody else sees them. What
        `changes_since` returns of a branch can be applied to the folder.
        """
        branch = copy(self)
        with self._lock:
            overlay = self._tree.copy() if isinstance(self._tree, Overlay) else Overlay(self._jail, Contents())
        branch._tree = overlay
        branch._store = StateStore(overlay, overlay.contents)
        branch._versions, branch._tracker = Versions(), None
        branch._shared = _Shared(overlay)
        branch._changes = branch._shared.changes
        branch._lock = branch._changes.lock
        branch._unrestored, branch._exported = {}, None
        return branch

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> str:
        with self._opened(path) as stream:
            return read_lines(stream, path, offset=offset, limit=limit)

    def read_bytes(self, path: str) -> bytes:
        with self._opened(path) as stream:
            return stream.read()

    def write(self, path: str, content: str | bytes, *, mode: WriteMode = "overwrite") -> None:
        check_fence()
        check_mode(mode)
        data = encode(content, path)
        parts = split(path)
        with self._lock:
            self._make_parents(parts[:-1], path)
            with self._tree.locate(parts, path) as place:
                status = place.stat()
                if status is not None:
                    _check_file(status, path)
                    if mode == "create":
                        raise AlreadyExistsError(
                            f"{path!r} already exists; use mode='overwrite' to replace it", path=path
                        )
                    place.check_writable()
                self._record(place)
                if mode == "append" and status is not None:
                    place.append(data)
                elif mode == "create":
                    place.create(data)
                else:
                    permissions = None if status is None else stat.S_IMODE(status.st_mode)
                    place.replace(SavedContent(data), permissions)

    def mkdir(self, path: str, *, parents: bool = False, exist_ok: bool = False) -> None:
        check_fence()
        parts = split(path)
        with self._lock:
            if parents:
                self._make_parents(parts[:-1], path)
            try:
                with self._tree.locate(parts, path) as place:
                    status = place.stat()
                    if status is None:
                        self._record(place)
                        place.mkdir()
                    elif not (exist_ok and stat.S_ISDIR(status.st_mode)):
                        raise AlreadyExistsError(f"{path!r} already exists", path=path)
            except NotFoundError:
                raise NotFoundError(
                    f"Cannot create {path!r}: {join(parts[:-1])!r} does not exist; pass parents=True", path=path
                ) from None

    def list(self, path: str = ".") -> tuple[Entry, ...]:
        entries: list[Entry] = []
        with self._directory(path) as (folder, base):
            for name, status in folder.entries():
                entries.append(Entry(name, join((*base, name)), _kind(status.st_mode), _size(status)))
        return tuple(entries)

    def stat(self, path: str) -> Stat:
        parts = split(path)
        with self._tree.locate(parts, path) as place:
            status = _existing(place, path)
        modified = datetime.fromtimestamp(status.st_mtime, UTC)
        return Stat(join(parts), _kind(status.st_mode), _size(status), modified)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        check_fence()
        parts = split(path)
        with self._lock, self._tree.locate(parts, path, follow=False) as place:
            if place.name == ".":
                raise InvalidPathError("The root cannot be deleted", path=path)
            status = _existing(place, path)
            if stat.S_ISDIR(status.st_mode) and not recursive:
                with closing(place.enter()) as folder:
                    if folder.names():
                        raise DirectoryNotEmptyError(f"{path!r} is not empty; pass recursive=True", path=path)
            self._delete(place, status)

    def snapshot(self) -> HostSnapshot:
        return self._snapshot(self._versions.mark)

    def begin_call(self) -> HostSnapshot:
        """A snapshot for the rollback of the current tool call: restoring it undoes only what the call changed.

        With `track_external`, that includes what other processes did, except to files that other calls changed since.
        """
        if not current_calls():
            return self.snapshot()
        return self._snapshot(lambda: self._changes.begin(watch=self._tracker is not None))

    def restore(self, snapshot: HostSnapshot) -> None:
        check_fence()
        if not isinstance(snapshot, HostSnapshot) or snapshot.mark.journal not in (self._versions, self._changes):
            raise SnapshotError(
                f"The snapshot was not taken from this filesystem ({self._tree.root}), or it has been closed since"
            )
        with self._lock:
            changes = {parts: state for parts, state in self._unrestored.items() if not self._is_tracked(parts)}
            mark: Any = snapshot.mark
            changes |= self._with_external(snapshot, mark.journal.restore(mark), lambda parts, found: found)
            for parts in changes:
                if mark.journal is not self._changes:
                    self._changes.record(parts, partial(self._shared.store.current, parts))
                if not self._is_tracked(parts):
                    self._versions.record(parts, partial(self._store.current, parts))
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
                    self._versions.record(parts, partial(self._store.current, parts))
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
            raise SnapshotError(f"Changes are found by HostFilesystem({self._tree.root!r}, track_external=True) alone")
        with self._lock:
            return tuple(sorted(map(join, self._tracker.changes_to(snapshot.tree))))

    def close(self) -> None:
        """Discard the snapshots and what was saved for them; the files and the copies in `saved_in` are kept."""
        with self._lock:
            self._versions = Versions()
            self._unrestored, self._exported = {}, None
            self._store.contents.clear()

    def __repr__(self) -> str:
        return f"HostFilesystem({self._tree.root!r})" + (".branch()" if self.is_branch else "")

    @contextmanager
    def _opened(self, path: str) -> Iterator[IO[bytes]]:
        """The content of a regular file."""
        with self._tree.locate(split(path), path) as place:
            _check_file(_existing(place, path), path)
            with place.open() as stream:
                yield stream

    @contextmanager
    def _directory(self, path: str) -> Iterator[tuple[Folder, Parts]]:
        parts = split(path)
        with self._tree.locate(parts, path) as place:
            if not stat.S_ISDIR(_existing(place, path).st_mode):
                raise NotDirectoryError(f"{path!r} is a file, not a directory", path=path)
            with closing(place.enter()) as folder:
                yield folder, parts

    def _walk(self, base: Parts, depth: int | None) -> Files:
        path = join(base)
        with self._tree.locate(base, path) as place:
            if not stat.S_ISDIR(_existing(place, path).st_mode):
                yield base, lambda: self.read_bytes(path)
                return
            with closing(place.enter()) as folder, closing(walk(folder, base, depth)) as entries:
                for entry, status in entries:
                    if stat.S_ISREG(status.st_mode):
                        yield entry.parts, partial(_load, entry)

    def _make_parents(self, parts: Parts, path: str) -> None:
        if parts and self.exists(join(parts)):
            return
        for depth in range(1, len(parts) + 1):
            with self._tree.locate(parts[:depth], path) as place:
                if place.stat() is None:
                    self._record(place)
                    place.mkdir()

    def _delete(self, place: Place, status: Status) -> None:
        is_directory = stat.S_ISDIR(status.st_mode)
        if is_directory:
            with closing(place.enter()) as folder:
                for name, inner in folder.entries():
                    self._delete(folder.place(name, (*place.parts, name)), inner)
        with translated(join(place.parts)):
            self._record(place)
            if is_directory:
                place.rmdir()
            else:
                place.unlink()

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
        self._versions.reached({parts: state for parts, state in states.items() if parts not in failures})
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
            self._versions.record(place.parts, lambda: self._store.save(place, place.stat()))

    def _is_tracked(self, parts: Parts) -> bool:
        return self._tracker is not None and not self._tracker.ignores(parts)


def _existing(place: Place, path: str) -> Status:
    status = place.stat()
    if status is None:
        raise NotFoundError(f"{path!r} does not exist", path=path)
    return status


def _check_file(status: Status, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsDirectoryError(f"{path!r} is a directory; list it instead", path=path)
    if not stat.S_ISREG(status.st_mode):
        raise FilesystemError(f"{path!r} is neither a file nor a directory", path=path)


def _load(place: Place) -> bytes:
    """The content of a file found by a walk; empty if it is binary or can no longer be read."""
    try:
        with place.open() as stream:
            head = stream.read(SNIFF_LENGTH)
            return b"" if is_binary(head) else head + stream.read()
    except OSError:
        return b""


def _kind(mode: int) -> EntryKind:
    return _KINDS.get(stat.S_IFMT(mode), "other")


def _size(status: Status) -> int:
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
