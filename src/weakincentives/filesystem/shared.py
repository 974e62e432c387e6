"""What all filesystems with the same root share: the changes of tool calls, and how paths are brought to states."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Protocol

from weakincentives._base.fence import current_calls
from weakincentives.filesystem.changes import Changes
from weakincentives.filesystem.contents import Contents
from weakincentives.filesystem.jail import TEMPORARY, Jail
from weakincentives.filesystem.journals import Journal, JournalFolder
from weakincentives.filesystem.protocol import FilesystemError, Parts, join
from weakincentives.filesystem.records import JournalKind, RecordWriter, digest_of_state, key_of, new_record
from weakincentives.filesystem.recovery import Recovery, left_reports, recover
from weakincentives.filesystem.states import FORMATS, Signature, State, Status, identity
from weakincentives.filesystem.store import StateStore
from weakincentives.filesystem.transition import Step, Transition, anything, is_as, is_at, is_identified
from weakincentives.filesystem.tree import Check, Place, Tree


class Ending(Protocol):
    """Something to end once everything is put back."""

    def end(self) -> None: ...


class RunningProgram(Protocol):
    """A program that works in the folder: the calls that it works for, and the paths that others have changed."""

    calls: tuple[object, ...]
    others: set[Parts]


class SharedFiles:
    """The files below one root in this process, or those of one branch, which has no journals.

    `identities` are the files that this process left at the paths that it changed since the first call or snapshot to
    which it can go back; a rollback replaces nothing else.
    """

    def __init__(self, tree: Tree, contents: Contents, journals: JournalFolder | None) -> None:
        self.tree = tree
        self.journals = journals
        self.store = StateStore(tree, contents)
        self.changes: Changes[State] = Changes()
        self.identities: dict[Parts, Signature | None] = {}
        self.recoveries: list[Recovery] = []
        self.program: RunningProgram | None = None
        self.program_turn = threading.Lock()

    @property
    def lock(self) -> threading.RLock:
        return self.changes.lock

    def settle(self, *, thoroughly: bool = False) -> None:
        """Put back what processes left behind that died while they changed files; thoroughly, tidy up as well."""
        journals = self.journals
        if journals is not None and (journals.is_used() if thoroughly else journals.has_leftovers()):
            with self.lock, self.exclusive():
                assert isinstance(self.tree, Jail)
                self.recoveries += recover(self.tree, journals)
                if journals.has_programs():
                    self._cleared_programs()
                if thoroughly:
                    self.recoveries += left_reports(self.tree, journals)

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep out other processes that exchange files."""
        return nullcontext() if self.journals is None else self.journals.exclusive()

    @contextmanager
    def exclusive_for(self, count: int) -> Iterator[None]:
        """Settle, and keep out other processes while this many paths are changed; a single one changes at once."""
        self.settle()
        if count < 2:
            yield
            return
        with self.exclusive():
            # A process may have died since, in the middle of its changes.
            self.settle()
            yield

    @contextmanager
    def noting(self, place: Place) -> Iterator[None]:
        """Note what is at a place after the block, as left there by this process."""
        try:
            yield
        finally:
            with suppress(OSError):
                self.identities[place.parts] = identity(place.stat())

    def tell_programs(self, paths: Iterable[Parts]) -> None:
        """Note paths that are about to change, and not by the programs that run in the folder."""
        if self.program is not None and not self._is_own_program(self.program):
            self.program.others.update(paths)
        if self.journals is not None:
            self.journals.tell_programs(paths)

    def others_run_programs(self) -> bool:
        """True if programs are changing the folder that do not work for the current call."""
        if self.program is not None:
            return not self._is_own_program(self.program)
        return self.journals is not None and self.journals.has_programs() and not self._cleared_programs()

    def _cleared_programs(self) -> bool:
        """True if no programs are running, also none that are about to begin in this process."""
        assert self.journals is not None
        if not self.program_turn.acquire(blocking=False):
            return False
        try:
            return self.journals.clear_programs()
        finally:
            self.program_turn.release()

    def _is_own_program(self, program: RunningProgram) -> bool:
        return current_calls()[: len(program.calls)] == program.calls

    def own_check(self, parts: Parts) -> Check:
        """A check for what this process left at a path."""
        return is_identified(self.identities[parts]) if parts in self.identities else anything

    def change(self, before: Mapping[Parts, State], after: Mapping[Parts, State]) -> Exchange:
        """Paths to bring from the states before to those after, up to the first problem.

        Its journal says how to undo that, and what may be replaced then: what it has put there, or nothing where a
        file takes the place of a directory or the other way round.
        """
        steps = [Step(parts, state, is_as(before[parts])) for parts, state in after.items()]
        replaceable: dict[Parts, list[bytes]] = {}
        for parts, state in after.items():
            replaceable[parts] = [digest_of_state(state)]
            if FORMATS.get(type(state)) != FORMATS.get(type(before[parts])):
                replaceable[parts].append(digest_of_state(None))
        return Exchange(self, "apply", steps, before, replaceable)

    def rollback(self, states: Mapping[Parts, State], check_of: Callable[[Parts], Check]) -> Exchange:
        """Paths to bring to their states, as many as possible. Its journal says how to complete that."""
        steps = [Step(parts, state, check_of(parts)) for parts, state in states.items()]
        replaceable: dict[Parts, list[bytes]] = {}
        for step in steps:
            replaceable[step.parts] = [digest_of_state(None), *self._keys(step)]
        return Exchange(self, "rollback", steps, states, replaceable)

    def _keys(self, step: Step) -> Iterator[bytes]:
        """The key of what is at a path, if it may be replaced."""
        path = join(step.parts)
        with suppress(FilesystemError), self.tree.locate(step.parts, path, follow=False, links=False) as place:
            status = place.stat()
            if status is not None and step.check(place, status):
                yield key_of(identity(status))


class Exchange:
    """Steps to make; several of them with a journal, so that all or none are made if this process dies.

    The journal stays until `end`: somebody who finds it after this process has died brings the paths to their `final`
    states.
    """

    def __init__(
        self,
        files: SharedFiles,
        kind: JournalKind,
        steps: Iterable[Step],
        final: Mapping[Parts, State],
        replaceable: Mapping[Parts, Iterable[bytes]],
    ) -> None:
        self._files = files
        self._final = final
        self._journal: Journal | None = None
        temporary, steps = _temporary(), list(steps)
        if files.journals is not None and len(steps) > 1:
            files.tree.make_root()
            owner = files.journals.owner()
            writer = RecordWriter(new_record(kind, files.tree.root, temporary), owner.path)
            for parts, state in final.items():
                writer.add(parts, state, replaceable[parts])
            self._journal = Journal(owner, writer.encode(), writer.segments)
        syncs = () if self._journal is None else self._journal.syncs()
        stops = kind == "apply"
        self._transition = Transition(files.tree, steps, temporary=temporary, stops=stops, syncs=syncs)

    @property
    def problems(self) -> dict[Parts, FilesystemError]:
        """What went wrong, by path; a `StaleFilesError` where others have changed it."""
        return self._transition.problems

    def run(self) -> None:
        self._files.tell_programs(self._transition.steps)
        try:
            with self._files.exclusive() if self._journal is not None else nullcontext():
                self._transition.run()
        finally:
            self._files.identities |= self._transition.changed

    def undo(self) -> dict[Parts, FilesystemError]:
        """Bring the paths to their final states after all; returns what went wrong."""
        steps = [Step(parts, state, self._undo_check(parts)) for parts, state in self._final.items()]
        transition = Transition(self._files.tree, steps, temporary=_temporary())
        try:
            transition.run()
        finally:
            self._files.identities |= transition.changed
        return transition.problems

    def end(self) -> None:
        """Delete the journal."""
        if self._journal is not None:
            self._journal.end()
            self._journal = None

    def _undo_check(self, parts: Parts) -> Check:
        """A check for what the transition left at a path; it may have been interrupted before it noted that."""
        changed, state = self._transition.changed, self._transition.steps[parts].after

        def check(place: Place, status: Status | None) -> bool:
            if parts in changed and identity(status) == changed[parts]:
                return True
            return status is None or is_at(state, place, status)

        return check


def _temporary() -> str:
    return f"{TEMPORARY}{secrets.token_hex(6)}-"
