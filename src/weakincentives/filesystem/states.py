"""The states of paths, and their form as data."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from weakincentives.filesystem.contents import SavedContent
from weakincentives.filesystem.patch import Node


@dataclass(frozen=True, slots=True)
class FileState:
    content: SavedContent
    mode: int | None
    modified_ns: int | None = None


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


State = FileState | DirectoryState | LinkState | LostState | None
"""None means that nothing is there."""

FORMATS: dict[type, int] = {FileState: stat.S_IFREG, DirectoryState: stat.S_IFDIR, LinkState: stat.S_IFLNK}


def as_node(state: State, limit: int | None = None) -> Node | None:
    """A state as data; a file with more than `limit` bytes is not read."""
    match state:
        case None:
            return None
        case FileState() if limit is None or len(state.content) <= limit:
            with state.content.open() as source:
                return Node("file", source.read(), state.mode)
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
