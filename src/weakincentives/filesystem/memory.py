"""Files in memory, in a tree that can be snapshotted for free."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from weakincentives._base.fence import check_fence, current_calls
from weakincentives.filesystem.changes import CallMark, Changes
from weakincentives.filesystem.patch import FileChange, Node, change, plan
from weakincentives.filesystem.protocol import (
    GREP_TIMEOUT,
    AlreadyExistsError,
    DirectoryNotEmptyError,
    Entry,
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
    join,
    read_lines,
    split,
)
from weakincentives.filesystem.search import Files, Searchable


@dataclass(frozen=True, slots=True)
class InMemoryDirectory:
    """Entries by name: the bytes of a file, or another directory."""

    entries: Mapping[str, InMemoryDirectory | bytes] = field(default_factory=dict)  #: by name


@dataclass(frozen=True, slots=True)
class InMemorySnapshot:
    """An immutable tree. It can be serialised and restored in another process."""

    root: InMemoryDirectory  #: the tree


class InMemoryFilesystem(Searchable):
    """A filesystem in memory: `InMemoryFilesystem({"notes/today.md": "..."})`.

    A snapshot is the root of the tree, taken in O(1). The first change after it copies the directories on its path;
    directories created since the last snapshot are changed in place.
    """

    def __init__(self, files: Mapping[str, str | bytes] | None = None, *, grep_timeout: float = GREP_TIMEOUT) -> None:
        self._grep_timeout = grep_timeout
        self._changes: Changes[InMemoryDirectory | bytes | None] = Changes()
        self._lock = self._changes.lock
        self._root = InMemoryDirectory()
        self._fresh: dict[int, dict[str, InMemoryDirectory | bytes]] = {}
        for path, content in (files or {}).items():
            self.write(path, content, mode="create")

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> str:
        return read_lines(io.BytesIO(self.read_bytes(path)), path, offset=offset, limit=limit)

    def read_bytes(self, path: str) -> bytes:
        node = self._node(path)
        if isinstance(node, InMemoryDirectory):
            raise IsDirectoryError(f"{path!r} is a directory; list it instead", path=path)
        return node

    def write(self, path: str, content: str | bytes, *, mode: WriteMode = "overwrite") -> None:
        check_fence(self.identity)
        check_mode(mode)
        data = encode(content, path)
        parts = _parts(path)
        with self._lock:
            old = self._find(parts, path)
            if isinstance(old, InMemoryDirectory):
                raise IsDirectoryError(f"{path!r} is a directory", path=path)
            if old is not None and mode == "create":
                raise AlreadyExistsError(f"{path!r} already exists; use mode='overwrite' to replace it", path=path)
            entries = self._change(parts[:-1])
            self._changes.record(parts, lambda: old)
            entries[parts[-1]] = (old or b"") + data if mode == "append" else data

    def mkdir(self, path: str, *, parents: bool = False, exist_ok: bool = False) -> None:
        check_fence(self.identity)
        parts = _parts(path)
        with self._lock:
            old = self._find(parts, path)
            if old is not None:
                if exist_ok and isinstance(old, InMemoryDirectory):
                    return
                raise AlreadyExistsError(f"{path!r} already exists", path=path)
            if not parents and self._find(parts[:-1], path) is None:
                raise NotFoundError(
                    f"Cannot create {path!r}: {join(parts[:-1])!r} does not exist; pass parents=True", path=path
                )
            self._change(parts)

    def list(self, path: str = ".") -> tuple[Entry, ...]:
        with self._lock:
            node = self._node(path)
            if not isinstance(node, InMemoryDirectory):
                raise NotDirectoryError(f"{path!r} is a file, not a directory", path=path)
            children = sorted(node.entries.items())
        base = split(path)
        return tuple(
            Entry(name, join((*base, name)), "directory", 0)
            if isinstance(child, InMemoryDirectory)
            else Entry(name, join((*base, name)), "file", len(child))
            for name, child in children
        )

    def stat(self, path: str) -> Stat:
        node = self._node(path)
        name = join(split(path))
        return Stat(name, "directory", 0) if isinstance(node, InMemoryDirectory) else Stat(name, "file", len(node))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        check_fence(self.identity)
        parts = _parts(path)
        if not parts:
            raise InvalidPathError("The root cannot be deleted", path=path)
        with self._lock:
            node = self._node(path)
            if isinstance(node, InMemoryDirectory) and node.entries and not recursive:
                raise DirectoryNotEmptyError(f"{path!r} is not empty; pass recursive=True", path=path)
            self._record_changes(parts, node, None)
            del self._change(parts[:-1])[parts[-1]]

    def snapshot(self) -> InMemorySnapshot:
        with self._lock:
            self._fresh = {}
            return InMemorySnapshot(self._root)

    def branch(self) -> Self:
        """A filesystem with the same files, which keeps its changes for itself."""
        branch = copy(self)
        branch._root, branch._fresh, branch._changes = self.snapshot().root, {}, Changes()
        branch._lock = branch._changes.lock
        return branch

    @property
    def identity(self) -> object:
        """The files themselves, of which a branch has others."""
        return self

    def begin_call(self) -> InMemorySnapshot | CallMark[InMemoryDirectory | bytes | None]:
        """A snapshot for the rollback of the current tool call: restoring it undoes only what the call changed."""
        with self._lock:
            return self._changes.begin() if current_calls() else self.snapshot()

    def restore(self, snapshot: InMemorySnapshot | CallMark[InMemoryDirectory | bytes | None]) -> None:
        check_fence(self.identity)
        with self._lock:
            if isinstance(snapshot, CallMark) and snapshot.journal is self._changes:
                self._put_back(self._changes.restore(snapshot))
            elif isinstance(snapshot, InMemorySnapshot):
                self._record_changes((), self._root, snapshot.root)
                self._fresh = {}
                self._root = snapshot.root
            else:
                raise SnapshotError(f"snapshot must be an InMemorySnapshot, got {type(snapshot).__name__}")

    def changes_since(
        self, mark: InMemorySnapshot | CallMark[InMemoryDirectory | bytes | None]
    ) -> tuple[FileChange, ...]:
        """The changes of the current tool call, by path; `mark` is what `begin_call` returned for it.

        A path that has its old content again is left out. If others have overwritten a file that the call changed, and
        have ended, this is a `StaleFilesError`.
        """
        return tuple(change(path, *both) for path, both in self.nodes_since(mark).items())

    def nodes_since(
        self, mark: InMemorySnapshot | CallMark[InMemoryDirectory | bytes | None], limit: int | None = None
    ) -> dict[str, tuple[Node | None, Node | None]]:
        """Content, then and now, of the paths in `changes_since`; of files with more than `limit` bytes, only that."""
        with self._lock:
            if not isinstance(mark, CallMark) or mark.journal is not self._changes:
                raise SnapshotError("mark must be what begin_call() of this filesystem returned in the current call")
            made = self._changes.made_by(mark, self._current)
        return {
            join(parts): (_as_node(before, limit), _as_node(after, limit))
            for parts, (before, after) in sorted(made.items(), key=lambda item: join(item[0]))
            if before != after
        }

    def node(self, path: str, limit: int | None = None) -> Node | None:
        """The content of a path; a file with more than `limit` bytes is not read."""
        with self._lock:
            return _as_node(self._current(_parts(path)), limit)

    def apply(self, changes: Iterable[FileChange]) -> None:
        """Make exactly these changes, all or none: a path that is not as it was before is a `StaleFilesError`."""
        check_fence(self.identity)
        with self._lock:
            nodes = plan(changes, lambda parts: _as_node(self._current(parts)), self.list)
            states = {_parts(path := join(parts)): _as_state(node, path) for parts, node in nodes.items()}
            for parts in states:
                self._changes.record(parts, partial(self._current, parts))
            self._put_back(states)

    def __repr__(self) -> str:
        return f"InMemoryFilesystem({len(self.glob('**'))} files)"

    def _find(self, parts: Parts, path: str) -> InMemoryDirectory | bytes | None:
        node: InMemoryDirectory | bytes | None = self._root
        for depth, name in enumerate(parts):
            if not isinstance(node, InMemoryDirectory):
                raise NotDirectoryError(f"{path!r}: {join(parts[:depth])!r} is a file, not a directory", path=path)
            node = node.entries.get(name)
            if node is None:
                return None
        return node

    def _current(self, parts: Parts) -> InMemoryDirectory | bytes | None:
        """The content of a path; of a directory, only that it is one."""
        try:
            node = self._find(parts, "")
        except NotDirectoryError:
            return None
        return InMemoryDirectory() if isinstance(node, InMemoryDirectory) else node

    def _node(self, path: str) -> InMemoryDirectory | bytes:
        node = self._find(_parts(path), path)
        if node is None:
            raise NotFoundError(f"{path!r} does not exist", path=path)
        return node

    def _change(self, parts: Parts) -> dict[str, InMemoryDirectory | bytes]:
        """The entries of a directory, ready to be changed; missing directories are created."""
        self._root, entries = self._own(self._root)
        for depth, name in enumerate(parts, 1):
            child = entries.get(name)
            if child is None:
                self._changes.record(parts[:depth], lambda: None)
            entries[name], entries = self._own(child if isinstance(child, InMemoryDirectory) else InMemoryDirectory())
        return entries

    def _own(self, node: InMemoryDirectory) -> tuple[InMemoryDirectory, dict[str, InMemoryDirectory | bytes]]:
        fresh = self._fresh.get(id(node.entries))
        if fresh is not None:
            return node, fresh
        entries = dict(node.entries)
        # Keep a reference, so that no other dictionary can get the same id.
        self._fresh[id(entries)] = entries
        return InMemoryDirectory(entries), entries

    def _record_changes(
        self, base: Parts, old: InMemoryDirectory | bytes | None, new: InMemoryDirectory | bytes | None
    ) -> None:
        """Record that `new` replaces `old`. Directories that both share are not visited."""
        if old is new or not self._changes.in_progress:
            return
        before = old.entries if isinstance(old, InMemoryDirectory) else {}
        after = new.entries if isinstance(new, InMemoryDirectory) else {}
        for name in before.keys() | after.keys():
            self._record_changes((*base, name), before.get(name), after.get(name))
        if not (isinstance(old, InMemoryDirectory) and isinstance(new, InMemoryDirectory)):
            self._changes.record(base, lambda: InMemoryDirectory() if isinstance(old, InMemoryDirectory) else old)

    def _put_back(self, states: Mapping[Parts, InMemoryDirectory | bytes | None]) -> None:
        """Put the states back, except where others have put files into a directory, or a file in its place."""
        deepest_first = sorted(states, key=len, reverse=True)
        for parts in deepest_first:
            with suppress(NotDirectoryError):
                node = self._find(parts, "")
                if node is not None and not (isinstance(node, InMemoryDirectory) and node.entries):
                    del self._change(parts[:-1])[parts[-1]]
        for parts in reversed(deepest_first):
            state = states[parts]
            with suppress(NotDirectoryError):
                if state is not None and self._find(parts, "") is None:
                    self._change(parts[:-1])[parts[-1]] = state

    def _walk(self, base: Parts, depth: int | None) -> Files:
        with self._lock:
            node = self._find(base, join(base))
            files = list(_files(base, node, depth)) if node is not None else []
        for parts, content in files:
            yield parts, partial(bytes, content)


def _files(base: Parts, node: InMemoryDirectory | bytes, depth: int | None) -> Iterator[tuple[Parts, bytes]]:
    if not isinstance(node, InMemoryDirectory):
        yield base, node
    elif depth is None or depth > 0:
        for name, child in sorted(node.entries.items()):
            yield from _files((*base, name), child, None if depth is None else depth - 1)


def _parts(path: str) -> Parts:
    parts = split(path)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InvalidPathError(f"Path {path!r} is not valid Unicode", path=path) from None
    return parts


def _as_node(state: InMemoryDirectory | bytes | None, limit: int | None = None) -> Node | None:
    if state is None:
        return None
    if limit is not None and isinstance(state, bytes) and len(state) > limit:
        return Node("other")
    return Node("file", state) if isinstance(state, bytes) else Node("directory")


def _as_state(node: Node | None, path: str) -> InMemoryDirectory | bytes | None:
    if node is None:
        return None
    if node.kind == "link":
        raise FilesystemError(f"{path!r} is a symbolic link, which files in memory cannot be", path=path)
    return InMemoryDirectory() if node.kind == "directory" else node.content
