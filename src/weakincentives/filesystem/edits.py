"""The files that tool calls have written, as a journal by which they go back, where nobody else has changed them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from weakincentives.filesystem.patch import FileChange, Node, change
from weakincentives.filesystem.protocol import StaleFilesError

MAX_RESTORABLE = 10_000_000
"""The bytes of a file up to which its content is kept, so that it can go back."""
CHANGED = "something else has changed it since"
TOO_LARGE = f"it has more than {MAX_RESTORABLE:,} bytes, or cannot be read, so its content was not kept"


@dataclass(frozen=True, slots=True)
class FileEdit:
    """A path that a tool call changed: what was there before, and a digest of what the call left there.

    `lost` says why it cannot go back, if it cannot.
    """

    path: str  #: relative to the root
    before: Node | None  #: the state before; None if there was nothing
    after: str  #: a digest of the state after
    lost: str = ""


def edits_of(nodes: Mapping[str, tuple[Node | None, Node | None]]) -> Iterator[FileEdit]:
    """The edits that brought these paths from one node to the other; one that was not read is lost."""
    for path, (old, new) in nodes.items():
        if any(node is not None and node.kind == "other" for node in (old, new)):
            yield FileEdit(path, None, "", TOO_LARGE)
        else:
            yield FileEdit(path, old, digest(new))


def digest(node: Node | None) -> str:
    """A digest of what is at a path; of nothing, it is empty."""
    if node is None:
        return ""
    return blake2b(f"{node.kind} {node.mode} ".encode() + node.content, digest_size=16).hexdigest()


@dataclass(slots=True)
class Retreat:
    """The way back over some edits: the changes to make, and the paths that are left alone, each with the reason."""

    changes: list[FileChange] = field(default_factory=list)  #: the changes to make
    left_alone: dict[str, str] = field(default_factory=dict)  #: reasons by path
    _undo: dict[str, FileEdit] = field(default_factory=dict)

    @property
    def files(self) -> tuple[FileChange, ...]:
        """The changes of files and links."""
        return tuple(each for each in self.changes if each.kind != "directory")

    def make(self, files: Any) -> tuple[FileEdit, ...]:
        """Go back on the filesystem, all or nothing; returns the edits by which this is undone.

        What another process changes at this moment is left alone too, and so is a directory into which others have put
        something.
        """
        while self.changes:
            try:
                files.apply(self.changes)
                break
            except StaleFilesError as error:
                stale = [change for change in self.changes if _is_related(change.path, error.paths)]
                if not stale:
                    raise
                self.left_alone.update((change.path, CHANGED) for change in stale if change.kind != "directory")
                self.changes = [change for change in self.changes if change not in stale]
        changed_paths = {change.path for change in self.changes}
        return tuple(edit for path, edit in self._undo.items() if path in changed_paths)


def retreat(edits: Iterable[FileEdit], node: Callable[[str], Node | None]) -> Retreat:
    """The way back over these edits, oldest first; `node` returns what is at a path now."""
    first: dict[str, FileEdit] = {}
    last: dict[str, FileEdit] = {}
    found = Retreat()
    for edit in edits:
        known = last.get(edit.path)
        if edit.lost or (known is not None and known.after != digest(edit.before)):
            found.left_alone[edit.path] = edit.lost or CHANGED
        first.setdefault(edit.path, edit)
        last[edit.path] = edit
    for path, edit in first.items():
        if path in found.left_alone:
            continue
        now = node(path)
        if digest(now) == digest(edit.before):
            continue
        if digest(now) != last[path].after or (now is not None and now.kind == "other"):
            if not _directories(now, edit.before):
                found.left_alone[path] = CHANGED
            continue
        found.changes.append(change(path, now, edit.before))
        found._undo[path] = FileEdit(path, now, digest(edit.before))
    return found


def _directories(now: Node | None, before: Node | None) -> bool:
    """True if nothing but directories is concerned, which hold nothing that could be lost."""
    return all(node is None or node.kind == "directory" for node in (now, before))


def _is_related(path: str, others: Iterable[str]) -> bool:
    """True if a path is one of these, or above or below one of them."""
    return any(_is_within(path, other) or _is_within(other, path) for other in others)


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}/")
