"""Files of the host, below one directory."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import IO, Any, Self

from weakincentives._base.fence import check_fence, current_calls
from weakincentives.filesystem.changes import CallMark
from weakincentives.filesystem.contents import Contents, SavedContent
from weakincentives.filesystem.jail import Jail
from weakincentives.filesystem.journals import JournalFolder
from weakincentives.filesystem.overlay import Overlay
from weakincentives.filesystem.patch import FileChange, Node, change, plan
from weakincentives.filesystem.programs import BranchChanges, ProgramRun
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
    StaleFilesError,
    Stat,
    WriteMode,
    check_mode,
    encode,
    is_binary,
    join,
    read_lines,
    split,
)
from weakincentives.filesystem.recovery import Recovery
from weakincentives.filesystem.search import Files, Searchable
from weakincentives.filesystem.shared import Ending, Exchange, SharedFiles
from weakincentives.filesystem.states import Signature, State, Status, as_node, as_state
from weakincentives.filesystem.store import StateStore, export
from weakincentives.filesystem.tracking import Tracker
from weakincentives.filesystem.transition import anything, is_identified
from weakincentives.filesystem.tree import Check, Folder, Place, Tree, translated, walk
from weakincentives.filesystem.versions import Mark, Versions

logger = logging.getLogger("weakincentives.filesystem")
BRANCH_MEMORY = 64 << 20
"""The bytes of contents that a branch keeps in memory; the rest is kept in a private folder."""
_KINDS: dict[int, EntryKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """The state of a HostFilesystem at one moment. It keeps what is needed to go back while it is referenced."""

    mark: Mark | CallMark[State]  #: a position in the versions or among the calls
    tree: Mapping[Parts, State] | None = None  #: the state of each path, with `track_external`


_shared: weakref.WeakValueDictionary[str, SharedFiles] = weakref.WeakValueDictionary()
_sharing = threading.Lock()


def _shared_below(jail: Jail) -> SharedFiles:
    with _sharing:
        files = _shared.get(jail.root)
        if files is None:
            journals = JournalFolder(jail.root)
            files = _shared[jail.root] = SharedFiles(jail, Contents(journals.contents_folder), journals)
        return files


class HostFilesystem(Searchable):
    """The files below `root`: `HostFilesystem("work")`.

    Paths cannot lead out of the root, not even through symbolic links. Taking a snapshot is free;
    the old content of a file is saved before its first change after the snapshot. Restoring
    therefore undoes what was done through this object and leaves alone what other processes did.

    With `track_external=True`, restoring undoes the changes of other processes too. Every snapshot
    then scans the tree and saves the files that changed. `ignore` lists what to leave out
    (`node_modules`, `*.log`, `data/raw`).
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
        jail = _jail_at(root)
        self._tree: Tree = jail
        self._shared = _shared_below(jail)
        self._versions = Versions()
        self._tracker = _tracker_of(self._shared, ignore) if track_external else None
        self._unrestored: dict[Parts, State] = {}
        self._unfinished: list[Ending] = []
        self._exported: str | None = None
        self._origin: _Origin | None = None
        self._programs: list[str] = []
        try:
            self._shared.settle(thoroughly=True)
        except FilesystemError as error:
            # Reading is possible; whatever else begins with the same attempt.
            logger.error("%s", error)

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

    @property
    def identity(self) -> object:
        """What all filesystems with this root share; a branch has another."""
        return self._shared

    def branch(self) -> Self:
        """A filesystem with the same files, which keeps its changes for itself.

        What it did not change is read from the folder, or from the branch that it was made of, as
        it is then. Changes are kept in memory, large ones in a private folder outside the root, so
        nobody else sees them. What `changes_since` returns of a branch can be applied to the
        folder.
        """
        self._shared.settle()
        branch = copy(self)
        with self._shared.lock:
            overlay = self._overlay()
        branch._tree = overlay
        branch._shared = SharedFiles(overlay, overlay.contents, None)
        branch._versions, branch._tracker = Versions(), None
        branch._unrestored, branch._unfinished, branch._exported = {}, [], None
        if self._origin is None:
            branch._origin = _Origin(self, branch._versions.mark(), {})
        else:
            branch._origin = _Origin(self._origin.files, branch._versions.mark(), self._changed_states())
        branch._programs = []
        return branch

    def _overlay(self) -> Overlay:
        """The tree of a new branch."""
        if isinstance(self._tree, Overlay):
            return self._tree.copy()
        assert isinstance(self._tree, Jail) and self._shared.journals is not None
        contents = Contents(self._shared.journals.contents_folder, budget=BRANCH_MEMORY)
        return Overlay(self._tree, contents)

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        """What this process has put back for others, which had died while they changed files below this root."""
        return tuple(self._shared.recoveries)

    def programs(self, label: str, *, wait: float = 0.0) -> ProgramRun:
        """Let programs work in the real folder, so that what they change can be taken back: `with files.programs(...)`.

        Needs `track_external=True`. `label` names them in reports. `wait` is how many seconds to
        wait for the programs of other runs; then this is a `FolderBusyError`. For a branch,
        everything is taken back, and what they have changed is in the branch; if there is too much
        below the root for that, this is a `NeedsFolderError`.
        """
        check_fence()
        files = self if self._origin is None else self._origin.files
        if files._tracker is None:
            raise FilesystemError(f"Programs need HostFilesystem({self._tree.root!r}, track_external=True)")
        files._shared.settle()
        changes = None
        if self._origin is not None:
            self._programs.append(label)
            before = self._changed_states()
            changes = BranchChanges(before, {parts: self._shared.store.current(parts) for parts in before})
        return ProgramRun(files._shared, files._tracker, label, _ProgramFolder(files, self), changes, wait=wait)

    @property
    def programs_run(self) -> tuple[str, ...]:
        """The programs that ran in the real folder for this branch, and were taken back."""
        return tuple(self._programs)

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> str:
        with self._opened(path) as stream:
            return read_lines(stream, path, offset=offset, limit=limit)

    def read_bytes(self, path: str) -> bytes:
        with self._opened(path) as stream:
            return stream.read()

    def write(self, path: str, content: str | bytes, *, mode: WriteMode = "overwrite") -> None:
        check_fence(self.identity)
        check_mode(mode)
        data = encode(content, path)
        parts = split(path)
        with self._shared.lock:
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
                with self._changing(place):
                    if mode == "append" and status is not None:
                        place.append(data)
                    elif mode == "create":
                        place.create(data)
                    else:
                        permissions = None if status is None else stat.S_IMODE(status.st_mode)
                        place.replace(SavedContent(data), permissions)

    def mkdir(self, path: str, *, parents: bool = False, exist_ok: bool = False) -> None:
        check_fence(self.identity)
        parts = split(path)
        with self._shared.lock:
            if parents:
                self._make_parents(parts[:-1], path)
            try:
                with self._tree.locate(parts, path) as place:
                    status = place.stat()
                    if status is None:
                        with self._changing(place):
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
        check_fence(self.identity)
        parts = split(path)
        with self._shared.lock, self._tree.locate(parts, path, follow=False) as place:
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

        With `track_external`, that includes what other processes did, except to files that other
        calls changed since.
        """
        if not current_calls():
            return self.snapshot()
        tracks = self._tracker is not None
        are_busy = tracks and self._shared.others_run_programs()
        mark = self._snapshot(lambda: self._shared.changes.begin(watch=tracks))
        if are_busy or (tracks and self._shared.others_run_programs()):
            # In the middle of their work, nobody knows what is to be restored.
            mark = replace(mark, tree=None)
        return mark

    def restore(self, snapshot: HostSnapshot) -> None:
        check_fence(self.identity)
        own_journals = (self._versions, self._shared.changes)
        if not isinstance(snapshot, HostSnapshot) or snapshot.mark.journal not in own_journals:
            raise SnapshotError(
                f"The snapshot was not taken from this filesystem ({self._tree.root}), or it has been closed since"
            )
        self._shared.settle()
        with self._shared.lock:
            checks: dict[Parts, Check] = {}
            states = {parts: state for parts, state in self._unrestored.items() if not self._is_tracked(parts)}
            mark: Any = snapshot.mark
            own = mark.journal.restore(mark)
            external = self._external(snapshot)
            for parts, state in own.items():
                if external is None or parts in snapshot.mark.others or not self._is_tracked(parts):
                    states[parts] = state
            for parts, (state, now) in (external or {}).items():
                states[parts], checks[parts] = state, is_identified(now)
            self._record(states, by_call=mark.journal is not self._shared.changes)
            self._put_back(states, checks)

    def changes_since(self, mark: HostSnapshot) -> tuple[FileChange, ...]:
        """The changes of the current tool call, by path; `mark` is what `begin_call` returned for it.

        A path that has its old content and mode again is left out. With `track_external`, the
        changes of other processes are included. If other calls have overwritten a file that the
        call changed, and have ended, this is a `StaleFilesError`.
        """
        return tuple(change(path, *both) for path, both in self.nodes_since(mark).items())

    def nodes_since(self, mark: HostSnapshot, limit: int | None = None) -> dict[str, tuple[Node | None, Node | None]]:
        """Content, then and now, of the paths in `changes_since`; of files with more than `limit` bytes, only that."""
        with self._shared.lock:
            call = mark.mark if isinstance(mark, HostSnapshot) else None
            if not isinstance(call, CallMark) or call.journal is not self._shared.changes:
                raise SnapshotError("mark must be what begin_call() of this filesystem returned in the current call")

            def current(parts: Parts) -> State:
                return self._shared.store.peek(parts, limit)

            states: dict[Parts, tuple[State, State]] = {}
            external = self._external(mark)
            for parts, pair in self._shared.changes.made_by(call, current).items():
                if external is None or parts in call.others or not self._is_tracked(parts):
                    states[parts] = pair
            for parts, (before, _) in (external or {}).items():
                states[parts] = before, current(parts)
        changed: dict[str, tuple[Node | None, Node | None]] = {}
        for parts, (before, after) in sorted(states.items(), key=lambda item: join(item[0])):
            old, new = as_node(before, limit), as_node(after, limit)
            # Two files that were not read may differ.
            is_unread = limit is not None and Node("other") in (old, new)
            if is_unread or old != new:
                changed[join(parts)] = old, new
        return changed

    def node(self, path: str, limit: int | None = None) -> Node | None:
        """The content of a path, links not followed; a file with more than `limit` bytes is not read."""
        return as_node(self._shared.store.peek(split(path), limit))

    def apply(self, changes: Iterable[FileChange]) -> None:
        """Make exactly these changes, all or none: a path that is not as it was before is a `StaleFilesError`."""
        check_fence(self.identity)
        changes = list(changes)
        # From the comparison to the last undoing: others must neither see half of it nor go on from there.
        with self._shared.lock, self._shared.exclusive_for(len(changes)):
            self._put_back_unrestored()
            before: dict[Parts, State] = {}

            def now(parts: Parts) -> Node | None:
                before[parts] = self._shared.store.current(parts)
                return as_node(before[parts])

            nodes = plan(changes, now, self.list)
            after = {parts: as_state(node, before[parts]) for parts, node in nodes.items()}
            for parts in after:
                self._shared.changes.record(parts, partial(before.__getitem__, parts))
                if not self._is_tracked(parts):
                    self._versions.record(parts, partial(before.__getitem__, parts))
            exchange = self._shared.change({parts: before[parts] for parts in after}, after)
            # Until this is done, an interrupt leaves the next snapshot or restore to put back what was there.
            self._unrestored, self._unfinished = {parts: before[parts] for parts in after}, [exchange]
            try:
                exchange.run()
            except BaseException:
                self._undo(exchange)
                raise
            if exchange.problems:
                conflicts = self._undo(exchange)
                raise _not_applied(exchange, conflicts)
            self._unrestored, self._unfinished = {}, []
            exchange.end()

    @property
    def tracks_external(self) -> bool:
        """True if restoring also undoes the changes of other processes; a branch is as its original."""
        return (self if self._origin is None else self._origin.files)._tracker is not None

    def changed_since(self, snapshot: HostSnapshot) -> tuple[str, ...]:
        """The paths that differ from a snapshot, whoever changed them; needs `track_external=True`."""
        if self._tracker is None or snapshot.tree is None:
            raise SnapshotError(f"Changes are found by HostFilesystem({self._tree.root!r}, track_external=True) alone")
        with self._shared.lock:
            return tuple(sorted(map(join, self._tracker.changes_to(snapshot.tree))))

    def close(self) -> None:
        """Discard the snapshots and what was saved for them; the files and the copies in `saved_in` are kept."""
        with self._shared.lock:
            if self._origin is None:
                self._versions = Versions()
            self._unrestored, self._unfinished, self._exported = {}, [], None

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
                    with self._changing(place):
                        place.mkdir()

    def _delete(self, place: Place, status: Status) -> None:
        is_directory = stat.S_ISDIR(status.st_mode)
        if is_directory:
            with closing(place.enter()) as folder:
                for name, inner in folder.entries():
                    self._delete(folder.place(name, (*place.parts, name)), inner)
        with translated(join(place.parts)), self._changing(place):
            if is_directory:
                place.rmdir()
            else:
                place.unlink()

    def _snapshot(self, mark: Callable[[], Mark | CallMark[State]]) -> HostSnapshot:
        self._shared.settle()
        with self._shared.lock:
            self._put_back_unrestored()
            return HostSnapshot(mark(), self._tracker.scan() if self._tracker else None)

    def _external(self, snapshot: HostSnapshot) -> dict[Parts, tuple[State, Signature | None]] | None:
        """The changes that the tracker finds, except those that other calls have made; it knows its paths best.

        None if it is not to be asked: programs of another call may be in the middle of their work.
        """
        if self._tracker is None or snapshot.tree is None or self._shared.others_run_programs():
            return None
        changes = self._tracker.changes_to(snapshot.tree)
        return {parts: change for parts, change in changes.items() if parts not in snapshot.mark.others}

    def _undo(self, exchange: Exchange) -> Iterable[Parts]:
        """Take back changes that were not applied; returns what others have changed meanwhile, which is left alone."""
        failures: dict[Parts, FilesystemError] = {}
        conflicts: set[Parts] = set()
        for parts, problem in exchange.undo().items():
            if isinstance(problem, StaleFilesError):
                conflicts.add(parts)
            else:
                failures[parts] = problem
        self._finish_restoring(failures, self._unrestored)
        return conflicts

    def _record(self, paths: Iterable[Parts], *, by_call: bool = True) -> None:
        """Record what is at paths that are about to change."""
        for parts in paths:
            save = cache(partial(self._shared.store.current, parts))
            if by_call:
                self._shared.changes.record(parts, save)
            if not self._is_tracked(parts):
                self._versions.record(parts, save)

    def _changed_states(self) -> dict[Parts, State]:
        """What was in the folder at the paths that a branch, or those that it was made of, have changed."""
        assert self._origin is not None
        return {**self._versions.since(self._origin.start), **self._origin.states}

    def _put_back_unrestored(self) -> None:
        """Put back what could not be put back before."""
        if self._unrestored:
            self._put_back(self._unrestored, {})

    def _put_back(
        self, states: dict[Parts, State], checks: Mapping[Parts, Check], ending: Ending | None = None
    ) -> None:
        """Put the states in their places, where they replace what the checks allow, else what this process left."""
        # Until this is done, all of them count as not restored: an interrupt may come at any time.
        self._unrestored = states
        exchange = self._shared.rollback(states, lambda parts: checks.get(parts) or self._shared.own_check(parts))
        self._unfinished += [exchange] if ending is None else [exchange, ending]
        exchange.run()
        self._finish_restoring(exchange.problems, states)

    def _finish_restoring(self, problems: Mapping[Parts, FilesystemError], states: Mapping[Parts, State]) -> None:
        """Keep what failed for the next attempt; it is exported, and so is what others have changed meanwhile."""
        self._versions.reached({parts: state for parts, state in states.items() if parts not in problems})
        self._unrestored = {}
        for parts, problem in problems.items():
            if not isinstance(problem, StaleFilesError):
                self._unrestored[parts] = states[parts]
        outdated, (exported, missing) = self._exported, export({parts: states[parts] for parts in problems})
        # What is still to be restored is exported again; what others have changed stays exported.
        self._exported = exported if self._unrestored else None
        if outdated is not None:
            shutil.rmtree(outdated, ignore_errors=True)
        while self._unfinished and not self._unrestored:
            self._unfinished.pop().end()
        if problems:
            raise _not_restored(problems, exported, missing, again=bool(self._unrestored))

    @contextmanager
    def _changing(self, place: Place) -> Iterator[None]:
        """Record what is at a place before the block changes it, and what is there then."""
        self._unrestored.pop(place.parts, None)
        files, parts = self._shared, place.parts
        files.tell_programs([parts])
        save = cache(lambda: files.store.save(place, place.stat()))
        files.changes.record(parts, save)
        if not self._is_tracked(parts):
            self._versions.record(parts, save)
        if files.changes.in_progress or self._versions.in_use:
            with files.noting(place):
                yield
        else:
            yield

    def _is_tracked(self, parts: Parts) -> bool:
        return self._tracker is not None and not self._tracker.ignores(parts)


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a branch comes from: the files of the folder, where it begins, and the states that it does not see there.

    `states` are those in the folder at the paths that the branches before it have changed.
    """

    files: HostFilesystem
    start: Mark
    states: Mapping[Parts, State]


@dataclass(frozen=True, slots=True)
class _ProgramFolder:
    """The files in whose folder programs run, and those that they run for: the same, or a branch."""

    files: HostFilesystem
    target: HostFilesystem

    def put_back_after_programs(
        self, states: dict[Parts, State], checks: Mapping[Parts, Check], ending: Ending
    ) -> None:
        with self.files._shared.lock:
            self.files._put_back(states, checks, ending)

    def note_kept(self, states: Mapping[Parts, State]) -> None:
        """Note what programs have changed, with the states before, as changes of the current call."""
        with self.files._shared.lock:
            for parts in states:
                self.files._shared.changes.record(parts, partial(states.__getitem__, parts))

    def take_over(self, states: Mapping[Parts, State]) -> None:
        """Change the branch as programs have changed the folder."""
        with self.target._shared.lock:
            self.target._record(states)
            self.target._put_back(dict(states), dict.fromkeys(states, anything))


def _jail_at(root: str | os.PathLike[str]) -> Jail:
    """The files below a root. If a program has removed it, whose process has died, it comes back with them."""
    path = os.path.realpath(root)
    if not os.path.lexists(path) and hasattr(os, "geteuid") and JournalFolder(path).has_leftovers():
        with suppress(OSError):
            os.mkdir(path)
    return Jail(root)


def _tracker_of(files: SharedFiles, ignore: Iterable[str]) -> Tracker:
    assert files.journals is not None
    # Nothing in memory: what it saves is needed if this process dies.
    contents = Contents(files.journals.contents_folder, small=-1)
    return Tracker(StateStore(files.tree, contents), ignore)


def _not_applied(exchange: Exchange, conflicts: Iterable[Parts]) -> FilesystemError:
    """The error for changes that were taken back, because others have changed their base, or for another reason."""
    problems = exchange.problems
    stale = {join(parts) for parts in conflicts}
    stale |= {join(parts) for parts, problem in problems.items() if isinstance(problem, StaleFilesError)}
    if stale:
        return StaleFilesError(sorted(stale))
    return FilesystemError(
        f"Could not apply the changes, so nothing was changed: {'; '.join(map(str, problems.values()))}",
        path=join(next(iter(problems))),
    )


def _not_restored(
    problems: Mapping[Parts, FilesystemError], exported: str | None, missing: Iterable[str], *, again: bool
) -> SnapshotError:
    reasons: list[str] = []
    for parts, problem in problems.items():
        is_stale = isinstance(problem, StaleFilesError)
        reasons.append(f"others have changed {join(parts)!r}, which was left alone" if is_stale else str(problem))
    message = f"Could not restore everything: {'; '.join(reasons)}"
    if exported is not None:
        message += f"; the saved files are in {exported}"
    if unsaved := list(missing):
        message += f"; {', '.join(map(repr, unsaved))} could only be kept in memory"
    if again:
        message += "; the next snapshot or restore tries again"
    return SnapshotError(message, saved_in=exported)


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
