"""The states of paths, and their form as data."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import Protocol

from weakincentives.filesystem.contents import SavedContent
from weakincentives.filesystem.patch import Node

SETTLED_NS = 50_000_000
"""File times can be coarse: within this interval two changes may get the same time."""

Signature = tuple[int, ...]


class Status(Protocol):
    """The fields of `os.stat_result` that every tree knows."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime(self) -> float: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime_ns(self) -> int: ...
    @property
    def st_ino(self) -> int: ...


def identity(status: Status | None) -> Signature | None:
    """The file that is at a place, as it was written; other names for it, and a new name, do not count."""
    if status is None:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


def signature(status: Status) -> Signature:
    """All that shows a change of a file without reading it."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode, status.st_ctime_ns


def is_settled(status: Status, now_ns: int, *, renamed: bool = False) -> bool:
    """True if a change after this moment would show in the times; renaming a file sets one of them."""
    changed_ns = status.st_mtime_ns if renamed else max(status.st_mtime_ns, status.st_ctime_ns)
    return now_ns - changed_ns > SETTLED_NS


@dataclass(frozen=True, slots=True)
class FileState:
    """A file; `signature` is what it had when it was read, if a later change would show in it."""

    content: SavedContent
    mode: int | None
    modified_ns: int | None = None
    signature: Signature | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DirectoryState:
    mode: int | None


@dataclass(frozen=True, slots=True)
class LinkState:
    target: str


@dataclass(frozen=True, slots=True)
class LostState:
    """A state that could not be saved, so it cannot be put back."""

    reason: str


SPECIAL = LostState("it is neither a file nor a directory, so it cannot be put back")

State = FileState | DirectoryState | LinkState | LostState | None
"""None means that nothing is there."""

FORMATS: dict[type, int] = {FileState: stat.S_IFREG, DirectoryState: stat.S_IFDIR, LinkState: stat.S_IFLNK}


def as_node(state: State, limit: int | None = None) -> Node | None:
    """A state as data; a file with more than `limit` bytes is not read."""
    match state:
        case None:
            return None
        case FileState() if limit is None or len(state.content) <= limit:
            return Node("file", state.content.read(), state.mode)
        case DirectoryState():
            return Node("directory", mode=state.mode)
        case LinkState():
            return Node("link", os.fsencode(state.target))
    return Node("other")


def as_state(node: Node | None, before: State) -> State:
    """The state to put in place of the one before; a file without a mode of its own keeps the mode."""
    match node:
        case None:
            return None
        case Node("file"):
            mode = node.mode
            if mode is None and isinstance(before, FileState):
                mode = before.mode
            return FileState(SavedContent(node.content), mode)
        case Node("directory"):
            return DirectoryState(node.mode)
    return LinkState(os.fsdecode(node.content))
