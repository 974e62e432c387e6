"""Saving what is below a root."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping

from weakincentives.filesystem.contents import Contents, SavedContent
from weakincentives.filesystem.protocol import FilesystemError, NotDirectoryError, NotFoundError, Parts, join
from weakincentives.filesystem.states import FORMATS, FileState, LostState, State, Status
from weakincentives.filesystem.tree import Place, Tree


class StateStore:
    """Saves what is below a root."""

    def __init__(self, tree: Tree, contents: Contents) -> None:
        self.tree = tree
        self.contents = contents

    def save(self, place: Place, status: Status | None) -> State:
        """Save what is at a place. Special files (sockets, devices) are rejected."""
        if status is None:
            return None
        if stat.S_IFMT(status.st_mode) not in FORMATS.values():
            path = join(place.parts)
            raise FilesystemError(f"{path!r} is neither a file nor a directory", path=path)
        return place.save(status, self.contents)

    def current(self, parts: Parts) -> State:
        """Save what is at a path."""
        try:
            with self.tree.locate(parts, join(parts), follow=False, links=False) as place:
                return self.save(place, place.stat())
        except (NotFoundError, NotDirectoryError):
            return None
        except FilesystemError as error:
            return LostState(f"{error}, so it was not saved")

    def peek(self, parts: Parts, limit: int | None) -> State:
        """The content of a path, for a moment: nothing is written to disk, and a file of more bytes is not read."""
        try:
            with self.tree.locate(parts, join(parts), follow=False, links=False) as place:
                status = place.stat()
                if status is None or not stat.S_ISREG(status.st_mode):
                    return self.save(place, status)
                if limit is not None and status.st_size > limit:
                    return LostState("it is too large")
                with place.open() as source:
                    return FileState(SavedContent(source.read()), stat.S_IMODE(status.st_mode))
        except (NotFoundError, NotDirectoryError):
            return None
        except FilesystemError as error:
            return LostState(f"{error}, so it was not read")


def export(states: Mapping[Parts, State], inside: str | None = None) -> tuple[str | None, list[str]]:
    """Write the files among these states to a new folder that outlives the process, among the temporary ones.

    Returns the folder, None if there was nothing or no room to write, and the paths for which there was no room.
    """
    folder: str | None = None
    missing: list[str] = []
    for parts, state in states.items():
        if not isinstance(state, FileState):
            continue
        try:
            folder = folder or tempfile.mkdtemp(prefix="wink-unrestored-", dir=inside)
            target = os.path.join(folder, *parts)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            state.content.export(target)
        except OSError:
            missing.append(join(parts))
    return folder, missing
