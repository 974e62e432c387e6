"""Putting back what a process left behind that died while it worked on the files."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from weakincentives.filesystem.journals import JournalFolder, journals_in, read_journal
from weakincentives.filesystem.protocol import (
    DirectoryNotEmptyError,
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
    decode_record,
    digest_of_place,
    key_of,
    loaded_state,
)
from weakincentives.filesystem.states import State, Status, identity
from weakincentives.filesystem.store import export
from weakincentives.filesystem.transition import Step, Transition
from weakincentives.filesystem.tree import Check, Place, Tree

logger = logging.getLogger("weakincentives.filesystem")
MAX_NAMED = 10


@dataclass(frozen=True, slots=True)
class Recovery:
    """Files that were put back because a process died while it changed them.

    `kind` is "apply" for changes that are undone by this, and "rollback" for those of a failed call, whose rollback is
    completed. What others have changed since is left alone; the contents that it should have got are in `saved_in`.
    """

    kind: JournalKind  #: what the process was doing
    began: datetime  #: when it began
    paths: tuple[str, ...]  #: the paths that were put back
    left_alone: tuple[str, ...] = ()  #: the paths that others have changed since
    saved_in: str | None = None  #: the folder with what could not be put back

    def __str__(self) -> str:
        done = {"apply": "undid changes", "rollback": "completed the rollback"}[self.kind]
        text = f"A process died while it changed files at {self.began:%Y-%m-%d %H:%M:%S}: {done} of {named(self.paths)}"
        if self.left_alone:
            text += f"; left alone, because others have changed it since: {named(self.left_alone)}"
        if self.saved_in:
            text += f"; what it should have been is in {self.saved_in}"
        return text


def named(paths: Iterable[str]) -> str:
    """The first few of these paths."""
    listed = list(paths)
    more = f" and {len(listed) - MAX_NAMED} more" if len(listed) > MAX_NAMED else ""
    return (", ".join(map(repr, listed[:MAX_NAMED])) or "nothing") + more


def recover(tree: Tree, journals: JournalFolder) -> list[Recovery]:
    """Put back what processes that have died left behind; to be called while others are kept out."""
    reports: list[Recovery] = []
    for folder in journals.abandoned():
        for path in journals_in(folder):
            data = read_journal(path)
            if data is not None:
                report = _put_back(tree, _decoded(data, path), folder)
                logger.warning("%s (in %s)", report, tree.root)
                reports.append(report)
            os.unlink(path)
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


def _put_back(tree: Tree, record: Record, folder: str) -> Recovery:
    status = os.stat(tree.root) if os.path.isdir(tree.root) else None
    is_same_root = status is None or record.root_id == (status.st_dev, status.st_ino)
    steps: list[Step] = []
    states: dict[Parts, State] = {}
    for stored in record.steps:
        parts = tuple(os.fsdecode(stored.path).split("/"))
        states[parts] = loaded_state(stored.final, folder)
        replaceable = frozenset(stored.replaceable) if is_same_root else frozenset()
        steps.append(Step(parts, states[parts], _is_one_of(replaceable)))
    _drop_temporary(tree, record.temporary, states)
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
    saved_in, _ = export({parts: states[parts] for parts in conflicts})
    began = datetime.fromtimestamp(record.began, UTC)
    restored = tuple(sorted(join(parts) for parts in transition.changed))
    return Recovery(record.kind, began, restored, tuple(sorted(map(join, conflicts))), saved_in)


def _is_one_of(digests: frozenset[bytes]) -> Check:
    def check(place: Place, status: Status | None) -> bool:
        return key_of(identity(status)) in digests or digest_of_place(place, status) in digests

    return check


def _drop_temporary(tree: Tree, prefix: str, paths: Iterable[Parts]) -> None:
    """Delete the files that were being prepared."""
    for parts in {path[:-1] for path in paths}:
        try:
            with tree.locate(parts, join(parts), follow=False, links=False) as place, closing(place.enter()) as folder:
                for name in folder.names():
                    if name.startswith(prefix):
                        folder.place(name, (*parts, name)).unlink()
        except (NotFoundError, NotDirectoryError):
            continue
