"""Saving what is below a root, and putting it back."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping

from weakincentives.filesystem.contents import Contents, SavedContent
from weakincentives.filesystem.protocol import (
    DirectoryNotEmptyError,
    FilesystemError,
    NotDirectoryError,
    NotFoundError,
    Parts,
    join,
)
from weakincentives.filesystem.states import FORMATS, DirectoryState, FileState, LinkState, LostState, State
from weakincentives.filesystem.tree import Place, Status, Tree


class StateStore:
    """Saves what is below a root, and puts it back."""

    def __init__(self, tree: Tree, contents: Contents) -> None:
        self.tree = tree
        self.contents = contents

    def save(self, place: Place, status: Status | None) -> State:
        """Save what is at a place. Special files (sockets, devices) are rejected."""
        if status is None:
            return None
        state = place.state()
        if state is not None:
            return state
        if stat.S_ISDIR(status.st_mode):
            return DirectoryState(stat.S_IMODE(status.st_mode))
        if stat.S_ISLNK(status.st_mode):
            return LinkState(place.readlink())
        if not stat.S_ISREG(status.st_mode):
            path = join(place.parts)
            raise FilesystemError(f"{path!r} is neither a file nor a directory", path=path)
        with place.open() as source:
            content = self.contents.save(source, status.st_size)
        return FileState(content, stat.S_IMODE(status.st_mode), status.st_mtime_ns)

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

    def put_back(self, states: Mapping[Parts, State]) -> dict[Parts, str]:
        """Put every state back at its path, even if some fail; returns the reasons for the failures."""
        failures = {parts: state.reason for parts, state in states.items() if isinstance(state, LostState)}

        def attempt(put: Callable[[Parts], None], order: Iterable[Parts]) -> None:
            for parts in order:
                if parts not in failures:
                    try:
                        put(parts)
                    except FilesystemError as error:
                        failures[parts] = str(error)

        self.tree.make_root()
        deepest_first = sorted(states, key=len, reverse=True)
        attempt(lambda parts: self._clear(parts, states[parts]), deepest_first)
        attempt(lambda parts: self._put(parts, states[parts]), reversed(deepest_first))
        attempt(lambda parts: self._finish(parts, states[parts]), deepest_first)
        return failures

    def export(self, states: Mapping[Parts, State]) -> tuple[str | None, list[str]]:
        """Write the files among these states to a new folder that outlives the process.

        Returns the folder, None if there was nothing or no room to write, and the paths for which there was no room.
        """
        folder: str | None = None
        missing: list[str] = []
        for parts, state in states.items():
            if isinstance(state, FileState):
                try:
                    folder = folder or tempfile.mkdtemp(prefix="wink-unrestored-")
                    target = os.path.join(folder, *parts)
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    state.content.export(target)
                except OSError:
                    missing.append(join(parts))
        return folder, missing

    def _clear(self, parts: Parts, state: State) -> None:
        """Remove what is at the path, unless it is already of the kind to be put there."""
        try:
            with self.tree.locate(parts, join(parts), follow=False, links=False) as place:
                status = place.stat()
                if status is None or stat.S_IFMT(status.st_mode) == FORMATS.get(type(state)):
                    return
                if stat.S_ISDIR(status.st_mode):
                    place.rmdir()
                else:
                    place.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return
        except DirectoryNotEmptyError:
            # A directory into which others put files is kept, unless a file has to take its place.
            if state is not None:
                raise

    def _put(self, parts: Parts, state: State) -> None:
        if state is None:
            return
        path = join(parts)
        self._make_parents(parts[:-1])
        with self.tree.locate(parts, path, follow=False, links=False) as place:
            if isinstance(state, FileState):
                place.replace(state.content, state.mode, state.modified_ns)
            elif isinstance(state, LinkState):
                place.symlink(state.target)
            elif isinstance(state, DirectoryState):
                if place.stat() is None:
                    place.mkdir()
                if state.mode is not None:
                    place.set_directory_mode(state.mode | stat.S_IRWXU)

    def _finish(self, parts: Parts, state: State) -> None:
        """Restore a directory's mode, last, because it may forbid what had to be done inside."""
        if isinstance(state, DirectoryState) and state.mode is not None:
            with self.tree.locate(parts, join(parts), follow=False, links=False) as place:
                place.set_directory_mode(state.mode)

    def _make_parents(self, parts: Parts) -> None:
        for depth in range(1, len(parts) + 1):
            with self.tree.locate(parts[:depth], join(parts), follow=False, links=False) as place:
                if place.stat() is None:
                    place.mkdir()
