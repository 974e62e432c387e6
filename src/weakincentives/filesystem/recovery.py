"""Putting back what a process left behind that died while it worked on the files, or while its programs did."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from weakincentives._base.processes import kill_marked
from weakincentives.filesystem.contents import Contents
from weakincentives.filesystem.jail import Jail
from weakincentives.filesystem.journals import JournalFolder, journals_in, others_in, read_journal
from weakincentives.filesystem.protocol import (
    DirectoryNotEmptyError,
    FilesystemError,
    JournalError,
    NotDirectoryError,
    NotFoundError,
    Parts,
    StaleFilesError,
    join,
)
from weakincentives.filesystem.records import (
    FORMAT,
    JournalKind,
    Record,
    boot_id,
    decode_record,
    digest_of_place,
    key_of,
    loaded_state,
)
from weakincentives.filesystem.states import FileState, State, Status, identity
from weakincentives.filesystem.store import StateStore, export
from weakincentives.filesystem.tracking import Tracker
from weakincentives.filesystem.transition import Step, Transition, anything, is_identified
from weakincentives.filesystem.tree import Check, Place, Tree

logger = logging.getLogger("weakincentives.filesystem")
MAX_NAMED = 10
PROGRAM_VARIABLE = "WINK_PROGRAM_"
"""How the variable begins that marks the environment of programs."""
KILL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """Files that were put back because a process died while it changed them, or while its programs ran.

    `kind` is "apply" for changes that are undone by this, "rollback" for those of a failed call, whose rollback is
    completed, and "program" for what the program `label` has changed. What others have changed since is left alone; the
    contents that it should have got are in `saved_in`. For a program, nobody knows what others have changed: what was
    replaced is in `saved_in`.
    """

    kind: JournalKind  #: what the process was doing
    began: datetime  #: when it began
    paths: tuple[str, ...]  #: the paths that were put back
    left_alone: tuple[str, ...] = ()  #: the paths that others have changed since
    saved_in: str | None = None  #: the folder with what could not be put back, or what was replaced
    label: str = ""  #: the program

    def __str__(self) -> str:
        what = {
            "apply": "changed files",
            "rollback": "undid the changes of a failed call",
            "program": f"ran {self.label!r}",
        }[self.kind]
        text = f"A process died while it {what}, at {self.began:%Y-%m-%d %H:%M:%S} UTC; put back: {_named(self.paths)}"
        if self.left_alone:
            text += f"; left alone, because others have changed it since: {_named(self.left_alone)}"
        if self.saved_in and self.kind == "program":
            text += f"; what was replaced is in {self.saved_in}"
        elif self.saved_in:
            text += f"; what it should have been is in {self.saved_in}"
        return text


def recover(jail: Jail, journals: JournalFolder) -> list[Recovery]:
    """Put back what processes that have died left behind; to be called while others are kept out."""
    reports: list[Recovery] = []
    for folder in journals.abandoned():
        for path in journals_in(folder):
            data = read_journal(path)
            if data is not None:
                record = _decoded(data, path)
                if record.kind == "program":
                    reports.append(_put_back_program(jail, record, folder, journals.kept_folder()))
                else:
                    reports.append(_put_back(jail, record, folder, journals.kept_folder()))
                logger.warning("%s (in %s)", reports[-1], jail.root)
            os.unlink(path)
    return reports


def left_reports(jail: Jail, journals: JournalFolder) -> list[Recovery]:
    """The reports of processes that have put something back for others."""
    reports: list[Recovery] = []
    for data in journals.take_reports():
        try:
            reports.append(msgspec.json.decode(data, type=Recovery))
        except msgspec.DecodeError:
            continue
        logger.warning("%s (in %s)", reports[-1], jail.root)
    return reports


def _decoded(data: bytes, path: str) -> Record:
    try:
        record = decode_record(data)
    except msgspec.DecodeError as error:
        raise JournalError(f"The undo journal {path!r} cannot be read: {error}", path=path) from None
    if record.format != FORMAT:
        raise JournalError(
            f"The undo journal {path!r} was written by another version of the library (format {record.format}); "
            "open the files with that version once",
            path=path,
        )
    return record


def _put_back(jail: Jail, record: Record, folder: str, kept: str) -> Recovery:
    """Bring the paths to their final states, where nobody else has changed them."""
    status = os.stat(jail.root)
    is_same_root = record.root_id == (status.st_dev, status.st_ino)
    states = _states(record, folder)
    steps: list[Step] = []
    for stored, (parts, state) in zip(record.steps, states.items(), strict=True):
        replaceable = frozenset(stored.replaceable) if is_same_root else frozenset()
        steps.append(Step(parts, state, _is_one_of(replaceable)))
    _drop_temporary(jail, record.temporary, states)
    changed, conflicts = _made(jail, steps, record)
    saved_in, _ = export({parts: states[parts] for parts in conflicts}, kept)
    return Recovery(record.kind, _began(record), _joined(changed), _joined(conflicts), saved_in)


def _put_back_program(jail: Jail, record: Record, folder: str, kept: str) -> Recovery:
    """Bring the whole tree to the state before the program, whose processes are killed."""
    variable = f"{PROGRAM_VARIABLE}{record.mark}"
    if variable in os.environ:
        raise JournalError(
            f"This process was started by {record.label!r}, whose own process has died; it cannot work on {jail.root!r}"
        )
    if not kill_marked(variable, "1", KILL_SECONDS):
        raise JournalError(f"The processes of {record.label!r}, which work on {jail.root!r}, cannot be killed")
    states, others = _states(record, folder), others_in(folder)
    store = StateStore(jail, Contents(lambda: folder, small=-1))
    tracker = Tracker(store, record.ignore)
    tracked = {parts: state for parts, state in states.items() if not tracker.ignores(parts)}
    steps: list[Step] = []
    replaced: dict[Parts, State] = {}
    left_alone: list[Parts] = []
    for parts, (state, now) in tracker.changes_to(tracked).items():
        if parts in others or _is_newer(jail, parts, record):
            left_alone.append(parts)
            continue
        steps.append(Step(parts, state, is_identified(now)))
        replaced[parts] = store.current(parts)
    ignored = {parts: state for parts, state in states.items() if parts not in tracked}
    _drop_temporary(jail, record.temporary, ignored)
    for parts, state in ignored.items():
        # A branch had changed it before the program began.
        steps.append(Step(parts, state, anything))
    saved_in, _ = export({parts: state for parts, state in replaced.items() if isinstance(state, FileState)}, kept)
    changed, conflicts = _made(jail, steps, record)
    paths, left_alone = _joined(changed), [*left_alone, *conflicts]
    return Recovery("program", _began(record), paths, _joined(left_alone), saved_in, record.label)


def _is_newer(tree: Tree, parts: Parts, record: Record) -> bool:
    """True if what is at a path was written after the machine was started anew, when the program had ended."""
    if record.boot == boot_id():
        return False
    path = join(parts)
    with suppress(FilesystemError, OSError), tree.locate(parts, path, follow=False, links=False) as place:
        status = place.stat()
        return status is not None and status.st_ctime_ns > _boot_time_ns()
    return False


def _boot_time_ns() -> int:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) * 1_000_000_000
    return time.time_ns()


def _states(record: Record, folder: str) -> dict[Parts, State]:
    states: dict[Parts, State] = {}
    for stored in record.steps:
        states[tuple(os.fsdecode(stored.path).split("/"))] = loaded_state(stored.final, folder)
    return states


def _made(tree: Tree, steps: list[Step], record: Record) -> tuple[list[Parts], list[Parts]]:
    """Make the steps; returns the paths that have changed by that, and those that others have changed before."""
    transition = Transition(tree, steps, temporary=f"{record.temporary}again-", syncs=[lambda: None])
    transition.run()
    conflicts: list[Parts] = []
    failures: dict[Parts, str] = {}
    for parts, error in transition.problems.items():
        if isinstance(error, StaleFilesError | DirectoryNotEmptyError):
            conflicts.append(parts)
        else:
            failures[parts] = str(error)
    if failures:
        raise JournalError(
            f"What a process that died left in {tree.root!r} cannot be put back: {'; '.join(failures.values())}",
            path=join(next(iter(failures))),
        )
    return list(transition.changed), conflicts


def _is_one_of(digests: frozenset[bytes]) -> Check:
    def check(place: Place, status: Status | None) -> bool:
        return key_of(identity(status)) in digests or digest_of_place(place, status) in digests

    return check


def _drop_temporary(tree: Tree, prefix: str, paths: Mapping[Parts, State]) -> None:
    """Delete the files that were being prepared."""
    for parts in {path[:-1] for path in paths}:
        try:
            with tree.locate(parts, join(parts), follow=False, links=False) as place, closing(place.enter()) as folder:
                for name in folder.names():
                    if name.startswith(prefix):
                        folder.place(name, (*parts, name)).unlink()
        except (NotFoundError, NotDirectoryError):
            continue


def _began(record: Record) -> datetime:
    return datetime.fromtimestamp(record.began, UTC)


def _joined(paths: Iterable[Parts]) -> tuple[str, ...]:
    return tuple(sorted(map(join, paths)))


def _named(paths: Iterable[str]) -> str:
    """The first few of these paths."""
    listed = list(paths)
    more = f" and {len(listed) - MAX_NAMED} more" if len(listed) > MAX_NAMED else ""
    return (", ".join(map(repr, listed[:MAX_NAMED])) or "nothing") + more
