"""Programs that work in the real folder, whose changes can be taken back, even if this process dies."""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from weakincentives._base.fence import current_calls
from weakincentives._base.processes import kill_marked
from weakincentives.filesystem.jail import TEMPORARY
from weakincentives.filesystem.journals import OTHERS, Journal, others_in
from weakincentives.filesystem.locks import FileLock
from weakincentives.filesystem.patch import is_same
from weakincentives.filesystem.protocol import FolderBusyError, Parts, SnapshotError, join
from weakincentives.filesystem.records import RecordWriter, new_record
from weakincentives.filesystem.recovery import KILL_SECONDS, PROGRAM_VARIABLE
from weakincentives.filesystem.shared import Ending, SharedFiles
from weakincentives.filesystem.states import LostState, Signature, State, as_node
from weakincentives.filesystem.tracking import Limits, Tracker
from weakincentives.filesystem.transition import Step, Transition, anything, at_once, is_as, is_identified
from weakincentives.filesystem.tree import Check

logger = logging.getLogger("weakincentives.filesystem")


@dataclass(frozen=True, slots=True)
class BranchChanges:
    """The changes of a branch: the states in the folder that they are based on, and those in the branch."""

    before: Mapping[Parts, State]
    after: Mapping[Parts, State]


class Folder(Protocol):
    """The filesystem in whose folder programs run, or a branch of it."""

    def put_back_after_programs(
        self, states: dict[Parts, State], checks: Mapping[Parts, Check], ending: Ending
    ) -> None: ...

    def note_kept(self, states: Mapping[Parts, State]) -> None: ...

    def take_over(self, states: Mapping[Parts, State]) -> None: ...


class ProgramRun:
    """Programs may change the folder from the beginning of this object until `keep` or `take_back`.

        with files.programs("make") as run:
            made = subprocess.run(["make"], cwd=run.folder, env={**os.environ, **run.environment})
            changed = run.take_back() if made.returncode else run.keep()

    An undo journal is on the disk before it begins. If this process dies, another one kills the programs, which are
    known by `environment`, and puts everything back. Only one `ProgramRun` works on a root at a time. What other runs
    of this library write meanwhile is theirs.

    For a branch, the folder has the branch's changes meanwhile; it is as before afterwards, and `keep` moves what the
    programs have changed into the branch.
    """

    def __init__(
        self,
        files: SharedFiles,
        tracker: Tracker,
        label: str,
        folder: Folder,
        branch: BranchChanges | None,
        *,
        wait: float,
    ) -> None:
        self.label = label
        self.folder = files.tree.root  #: the folder in which programs run
        self.calls = current_calls()
        self.others: set[Parts] = set()
        self._mark = secrets.token_hex(16)
        self._temporary = f"{TEMPORARY}{secrets.token_hex(6)}-"
        self._files = files
        self._tracker = tracker
        self._owner = folder
        self._branch = branch
        # Without it, nothing has begun, and nothing is to be put back.
        self._tree: Mapping[Parts, State] | None = None
        self._safety = _Safety()
        self._is_open = True
        self._turn = _Turn(files, self._mark)
        self._turn.take(wait)
        files.program = self
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """The variables that mark the environment of the programs, which must get them."""
        # Those of a program in which this process runs itself are inherited.
        marks = {name: value for name, value in os.environ.items() if name.startswith(PROGRAM_VARIABLE)}
        return {**marks, f"{PROGRAM_VARIABLE}{self._mark}": "1"}

    def keep(self) -> tuple[str, ...]:
        """Kill what is left of the programs, and keep what they have changed; returns the paths."""
        changes = self._changes()
        if self._branch is None:
            self._owner.note_kept({parts: state for parts, (state, _) in changes.items()})
            self._end()
            self._safety.end()
            return _joined(changes)
        states = self._states(changes)
        for parts, state in states.items():
            if isinstance(state, LostState):
                path = join(parts)
                raise SnapshotError(f"What programs have made of {path!r} cannot be kept: {state.reason}", path=path)
        self._restore(changes)
        self._owner.take_over(states)
        return self._own_paths(states)

    def take_back(self) -> tuple[str, ...]:
        """Kill what is left of the programs, and put back what they have changed; returns the paths."""
        changes = self._changes()
        paths = _joined(changes) if self._branch is None else self._own_paths(self._states(changes))
        self._restore(changes)
        return paths

    def close(self) -> None:
        """Take everything back, unless it was kept or taken back before."""
        if self._is_open and self._tree is None:
            self._end()
        elif self._is_open:
            self.take_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        """Save the folder, with its journal, and give it the changes of the branch."""
        limits = Limits(self.folder)
        tree = self._tracker.scan(limits if self._branch is not None else None)
        if limits.are_passed_by(tree):
            logger.warning("If this process dies: %s", limits.problem)
        else:
            self._safety.begin(self._files, self._record(tree))
        self._tree = tree
        if self._branch is None:
            return
        steps: list[Step] = []
        for parts, state in self._branch.after.items():
            steps.append(Step(parts, state, is_as(self._branch.before[parts])))
        transition = Transition(self._files.tree, steps, temporary=self._temporary, stops=True)
        transition.run()
        for problem in transition.problems.values():
            raise problem

    def _record(self, tree: Mapping[Parts, State]) -> RecordWriter:
        assert self._files.journals is not None
        record = new_record("program", self.folder, self._temporary)
        record.label, record.mark, record.ignore = self.label, self._mark, self._tracker.ignore
        writer = RecordWriter(record, self._files.journals.contents_folder())
        for parts, state in [*tree.items(), *self._ignored().items()]:
            writer.add(parts, state)
        return writer

    def _ignored(self) -> dict[Parts, State]:
        """What the folder has where the branch has changed something that is not tracked."""
        if self._branch is None:
            return {}
        return {parts: state for parts, state in self._branch.before.items() if self._tracker.ignores(parts)}

    def _changes(self) -> dict[Parts, tuple[State, Signature | None]]:
        """What is to be put back, with the identity of what is there now, after the programs have ended."""
        if not kill_marked(f"{PROGRAM_VARIABLE}{self._mark}", "1", KILL_SECONDS):
            logger.error("Programs of %r go on in %r, although they were killed.", self.label, self.folder)
        assert self._tree is not None
        changes = self._tracker.changes_to(self._tree)
        others = self.others | self._safety.others()
        return {parts: change for parts, change in changes.items() if parts not in others}

    def _states(self, changes: Mapping[Parts, object]) -> dict[Parts, State]:
        """What is now at the paths that programs, or the branch, have changed."""
        paths = {*changes, *(self._branch.after if self._branch is not None else ())}
        return {parts: self._files.store.current(parts) for parts in paths}

    def _own_paths(self, states: Mapping[Parts, State]) -> tuple[str, ...]:
        """The paths that programs have changed, compared to what the branch had put there."""
        assert self._branch is not None
        paths: list[Parts] = []
        for parts, state in states.items():
            if parts not in self._branch.after or not is_same(as_node(state), as_node(self._branch.after[parts])):
                paths.append(parts)
        return _joined(paths)

    def _restore(self, changes: Mapping[Parts, tuple[State, Signature | None]]) -> None:
        states = self._ignored()
        checks: dict[Parts, Check] = dict.fromkeys(states, anything)
        for parts, (state, now) in changes.items():
            states[parts], checks[parts] = state, is_identified(now)
        try:
            self._owner.put_back_after_programs(states, checks, self._safety)
        finally:
            self._end()

    def _end(self) -> None:
        self._is_open = False
        self._files.program = None
        self._turn.release()


class _Turn:
    """Keeps other runs of programs away from a root, in this process and in others."""

    def __init__(self, files: SharedFiles, mark: str) -> None:
        assert files.journals is not None
        self._files = files
        self._mark = mark
        self._lock: FileLock | None = files.journals.program_lock()
        self._is_taken = False

    def take(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        if not self._files.program_turn.acquire(timeout=max(0.0, seconds)):
            raise self._busy()
        self._is_taken = True
        assert self._lock is not None
        try:
            is_locked = self._lock.acquire(max(0.0, ends - time.monotonic()), note=self._mark)
        except BaseException:
            self._lock = None
            self.release()
            raise
        if is_locked:
            return
        holder, self._lock = self._lock.note(), None
        # Part of a program that has the lock, and puts everything back.
        if f"{PROGRAM_VARIABLE}{holder}" not in os.environ:
            self.release()
            raise self._busy()

    def release(self) -> None:
        if not self._is_taken:
            return
        self._is_taken = False
        if self._lock is not None:
            self._lock.release()
        self._files.program_turn.release()

    def _busy(self) -> FolderBusyError:
        root = self._files.tree.root
        return FolderBusyError(f"Programs of another run are working in {root!r}; try again later", path=root)


class _Safety:
    """The journal of a run of programs, and a process that puts everything back at once if this one dies."""

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._folder = ""

    def begin(self, files: SharedFiles, writer: RecordWriter) -> None:
        assert files.journals is not None
        owner = files.journals.owner()
        self._folder = owner.path
        self._journal = Journal(owner, writer.encode(), writer.segments, of_programs=True)
        at_once(self._journal.syncs())
        # Without one, whoever opens the root next does the same.
        with suppress(OSError):
            self._guard = _start_guard(files.tree.root)

    def others(self) -> set[Parts]:
        """What other processes have changed meanwhile."""
        return others_in(self._folder) if self._folder else set()

    def end(self) -> None:
        if self._journal is not None:
            self._journal.end()
            self._journal = None
            with suppress(OSError):
                os.unlink(os.path.join(self._folder, OTHERS))
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(OSError):
                self._guard.stdin.write(b"\n")
                self._guard.stdin.close()
            self._guard.wait()
            self._guard = None


def _start_guard(root: str) -> subprocess.Popen[bytes]:
    """A process that waits for a line, and puts everything back if its input ends without one: this process is dead."""
    argument = json.dumps([root, sys.path])
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _ || exec "$@"', "sh", sys.executable, "-I", "-c", _PUT_BACK, argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


_PUT_BACK = """
import json, sys
root, sys.path[:] = json.loads(sys.argv[1])
from weakincentives.filesystem.guardian import put_back
put_back(root)
"""


def _joined(paths: Iterable[Parts]) -> tuple[str, ...]:
    return tuple(sorted(map(join, paths)))
