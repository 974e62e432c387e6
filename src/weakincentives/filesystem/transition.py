"""Bringing paths from one state to another: each compared directly before it is replaced."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from weakincentives.filesystem.protocol import (
    DirectoryNotEmptyError,
    FilesystemError,
    InvalidPathError,
    NotDirectoryError,
    NotFoundError,
    Parts,
    join,
)
from weakincentives.filesystem.states import (
    FORMATS,
    DirectoryState,
    FileState,
    LinkState,
    LostState,
    Signature,
    State,
    Status,
    identity,
    signature,
)
from weakincentives.filesystem.tree import Check, Place, Tree

SYNC_THREADS = 8
"""How many files are flushed at once: the disk then writes its own journal once for all of them."""


@dataclass(frozen=True, slots=True)
class Step:
    """A path to bring to a state, if the check allows to replace what is there."""

    parts: Parts
    after: State
    check: Check


def is_as(state: State) -> Check:
    """A check for a state that was read before: by its signature if that cannot deceive, else by content."""

    def check(place: Place, status: Status | None) -> bool:
        known = state.signature if isinstance(state, FileState) else None
        if known is not None and status is not None and known == signature(status):
            return True
        return is_at(state, place, status)

    return check


def is_identified(known: Signature | None) -> Check:
    """A check for the file, or nothing, that was seen at a place before."""

    def check(place: Place, status: Status | None) -> bool:
        return identity(status) == known

    return check


def anything(place: Place, status: Status | None) -> bool:
    """A check that allows to replace whatever is there."""
    return True


def is_at(state: State, place: Place, status: Status | None) -> bool:
    """True if a state is what is at a place; a mode that is not known may be any."""
    if state is None or status is None:
        return state is None and status is None
    if stat.S_IFMT(status.st_mode) != FORMATS.get(type(state)):
        return False
    if isinstance(state, LinkState):
        return place.readlink() == state.target
    if not isinstance(state, DirectoryState | FileState) or state.mode not in (None, stat.S_IMODE(status.st_mode)):
        return False
    if isinstance(state, DirectoryState):
        return True
    if status.st_size != len(state.content):
        return False
    with place.open() as stream:
        return state.content.equals(stream)


class Transition:
    """One run over steps, each of which is made, not needed, or has a problem.

    `stops` ends it at the first problem. `temporary` begins the names of files that are being prepared. With `syncs`,
    these functions have ended, and new files are on the disk, before any path is changed, and what was changed is on
    the disk before the transition ends.
    """

    def __init__(
        self,
        tree: Tree,
        steps: Iterable[Step],
        *,
        temporary: str,
        stops: bool = False,
        syncs: Iterable[Callable[[], None]] = (),
    ) -> None:
        self.tree = tree
        self.steps = {step.parts: step for step in steps}
        self.problems: dict[Parts, FilesystemError] = {}
        # What is at each changed path now.
        self.changed: dict[Parts, Signature | None] = {}
        self._temporary = temporary
        self._stops = stops
        self._syncs = list(syncs)
        self._is_first_sync = True
        self._prepared: dict[Parts, str] = {}
        self._names = 0

    def run(self) -> None:
        """Bring each path to its state: what must go first, then directories, files, and the modes of directories."""
        self.tree.make_root()
        top_down = sorted(self.steps, key=len)
        bottom_up = top_down[::-1]
        try:
            self._prepare_where_possible(top_down)
            self._sync(set(self._prepared))
            self._each(bottom_up, self._clear)
            self._each(top_down, self._make_directory)
            ready = set(self._prepared)
            if self._stops:
                self._each(top_down, self._prepare)
            else:
                # There may be room for the rest once other files have taken the places of larger ones.
                self._prepare_where_possible(top_down)
            self._sync(self._prepared.keys() - ready)
            self._each(top_down, self._put)
            self._each(bottom_up, self._finish)
            self._sync_folders()
        except _Stopped:
            return
        finally:
            self._drop_prepared()

    def _each(self, order: list[Parts], act: Callable[[Step], None]) -> None:
        for parts in order:
            if parts in self.problems:
                continue
            try:
                act(self.steps[parts])
            except FilesystemError as error:
                self.problems[parts] = error
                if self._stops:
                    raise _Stopped from error

    def _clear(self, step: Step) -> None:
        """Remove what is at the path, unless it is already of the kind to be put there."""
        if isinstance(step.after, LostState):
            raise FilesystemError(step.after.reason, path=join(step.parts))
        try:
            with self.tree.locate(step.parts, join(step.parts), follow=False, links=False) as place:
                status = place.stat()
                if status is None or stat.S_IFMT(status.st_mode) == FORMATS.get(type(step.after)):
                    return
                if stat.S_ISDIR(status.st_mode):
                    place.rmdir()
                else:
                    place.remove(self._next_name(), step.check)
                self.changed[step.parts] = None
        except (NotFoundError, NotDirectoryError):
            return
        except DirectoryNotEmptyError:
            # A directory into which others put files stays, unless a file has to take its place.
            if step.after is not None:
                raise

    def _make_directory(self, step: Step) -> None:
        self._make_parents(step)
        if not isinstance(step.after, DirectoryState):
            return
        with self.tree.locate(step.parts, join(step.parts), follow=False, links=False) as place:
            if place.stat() is None:
                place.mkdir()
                self._note(place)
            if step.after.mode is not None:
                # The mode that it gets in the end may forbid what has to be done inside.
                place.set_directory_mode(step.after.mode | stat.S_IRWXU)
                self._note(place)

    def _prepare_where_possible(self, order: list[Parts]) -> None:
        for parts in order:
            try:
                self._prepare(self.steps[parts])
            except FilesystemError:
                # Its directory is not there yet, or cannot be written before it has another mode.
                continue

    def _prepare(self, step: Step) -> None:
        """Write a new file beside the place that it is going to take."""
        if not isinstance(step.after, FileState) or step.parts in self._prepared:
            return
        with self.tree.locate(step.parts, join(step.parts), follow=False, links=False) as place:
            if not self._is_needed(step, place):
                return
            name = self._next_name()
            if place.prepare(name, step.after.content, step.after.mode, step.after.modified_ns):
                self._prepared[step.parts] = name

    def _put(self, step: Step) -> None:
        state = step.after
        if state is None or isinstance(state, DirectoryState):
            return
        with self.tree.locate(step.parts, join(step.parts), follow=False, links=False) as place:
            if not self._is_needed(step, place):
                return
            check = self._check_now(step)
            if isinstance(state, LinkState):
                place.symlink(state.target, self._next_name(), check)
            elif isinstance(state, FileState):
                name = self._prepared.pop(step.parts, None) or self._prepare_now(place, state)
                if name is None:
                    place.replace(state.content, state.mode, state.modified_ns)
                else:
                    place.put(name, check)
            self._note(place)

    def _prepare_now(self, place: Place, state: FileState) -> str | None:
        name = self._next_name()
        return name if place.prepare(name, state.content, state.mode, state.modified_ns) else None

    def _finish(self, step: Step) -> None:
        """Restore a directory's mode, last, because it may forbid what had to be done inside."""
        if isinstance(step.after, DirectoryState) and step.after.mode is not None:
            with self.tree.locate(step.parts, join(step.parts), follow=False, links=False) as place:
                place.set_directory_mode(step.after.mode)

    def _is_needed(self, step: Step, place: Place) -> bool:
        """False if the path is as it should be already, whoever made it so."""
        status, state = place.stat(), step.after
        if not is_at(state, place, status):
            return True
        if not isinstance(state, FileState) or status is None:
            return False
        return state.modified_ns not in (None, status.st_mtime_ns) and self._check_now(step)(place, status)

    def _check_now(self, step: Step) -> Check:
        """The check of a step, after what was there may have been removed."""
        return is_identified(None) if step.parts in self.changed else step.check

    def _make_parents(self, step: Step) -> None:
        if step.after is None:
            return
        for depth in range(1, len(step.parts)):
            parts = step.parts[:depth]
            if parts not in self.steps:
                with self.tree.locate(parts, join(step.parts), follow=False, links=False) as place:
                    if place.stat() is None:
                        place.mkdir()

    def _note(self, place: Place) -> None:
        self.changed[place.parts] = identity(place.stat())

    def _next_name(self) -> str:
        self._names += 1
        return f"{self._temporary}{self._names}"

    def _sync(self, prepared: Iterable[Parts]) -> None:
        if not self._syncs:
            return
        waiting: list[Callable[[], None]] = []
        if self._is_first_sync:
            waiting += self._syncs
            self._is_first_sync = False
        for parts in prepared:
            waiting.append(partial(self._sync_path, (*parts[:-1], self._prepared[parts])))
        at_once(waiting)

    def _sync_folders(self) -> None:
        if self._syncs:
            at_once([partial(self._sync_folder, parts) for parts in {parts[:-1] for parts in self.changed}])

    def _sync_folder(self, parts: Parts) -> None:
        # One that was removed, also for a link, is an entry of the one above, which has changed as well.
        with suppress(NotFoundError, NotDirectoryError, InvalidPathError):
            self._sync_path(parts)

    def _sync_path(self, parts: Parts) -> None:
        with self.tree.locate(parts, join(parts), follow=False, links=False) as place:
            place.sync()

    def _drop_prepared(self) -> None:
        for parts, name in self._prepared.items():
            try:
                with self.tree.locate(parts, join(parts), follow=False, links=False) as place:
                    place.drop(name)
            except FilesystemError:
                continue


def at_once(syncs: Sequence[Callable[[], None]]) -> None:
    """Wait until all of these are on the disk."""
    if len(syncs) == 1:
        syncs[0]()
    elif syncs:
        with ThreadPoolExecutor(min(SYNC_THREADS, len(syncs)), "wink-sync") as pool:
            futures = [pool.submit(sync) for sync in syncs]
        for future in futures:
            future.result()


class _Stopped(Exception):
    """Ends a transition at its first problem."""
