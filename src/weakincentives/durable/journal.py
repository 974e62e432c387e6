"""What a step changed in the session and the resources, so that a replay can repeat it without running the step.

Changes are recorded as contents, not as calls: a replay runs no reducer and no handler, and whatever a failed tool
rolled back does not appear.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from weakincentives.errors import SerdeError
from weakincentives.filesystem import InMemoryDirectory as Directory, InMemorySnapshot
from weakincentives.resources import ScopedResourceContext
from weakincentives.serde import dump_tagged, load_tagged
from weakincentives.session import Session, Slice, Snapshot

T = TypeVar("T")

_log = logging.getLogger(__name__)
_unserializable: set[type] = set()


@dataclass(frozen=True, slots=True)
class SliceChange:
    """A slice keeps its first `kept` items; `items` follow."""

    slice_type: type
    kept: int
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """A resource's new state as tagged JSON: its snapshot, or a `Patch` to the previous one."""

    protocol: type
    state: str


@dataclass(frozen=True, slots=True)
class Change:
    """Everything that a step changed."""

    slices: tuple[SliceChange, ...] = ()
    resources: tuple[ResourceChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Patch:
    """The entries of a directory that were added or changed; None marks a deleted one."""

    entries: Mapping[str, Patch | Directory | bytes | None]


def record_change(session: Session, resources: ScopedResourceContext | None, run: Callable[[], T]) -> tuple[T, Change]:
    """Call `run` and return its result with what it changed."""
    before = session.snapshot()
    held = None if resources is None else resources.snapshot()
    result = run()
    changed = () if resources is None or held is None else _resource_changes(held, resources.snapshot())
    return result, Change(_slice_changes(before, session.snapshot()), changed)


def apply_change(change: Change, session: Session, resources: ScopedResourceContext | None) -> None:
    """Bring session and resources to the state in which the recorded step left them."""
    for slice_change in change.slices:
        target: Slice[Any] = session[slice_change.slice_type]
        if slice_change.kept == len(target):
            for item in slice_change.items:
                target.append(item)
        else:
            target.seed((*target.all()[: slice_change.kept], *slice_change.items))
    for each in change.resources:
        assert resources is not None
        resource: Any = resources.get(each.protocol)
        state = load_tagged(json.loads(each.state))
        resource.restore(apply_patch(resource.snapshot(), state) if isinstance(state, Patch) else state)


def difference(old: InMemorySnapshot, new: InMemorySnapshot) -> Patch:
    """The patch that turns `old` into `new`. Directories that both share are not visited."""
    return _difference(old.root, new.root)


def apply_patch(old: InMemorySnapshot, patch: Patch) -> InMemorySnapshot:
    return InMemorySnapshot(_patched(old.root, patch))


def _slice_changes(before: Snapshot, after: Snapshot) -> tuple[SliceChange, ...]:
    changes = []
    for slice_type, (items, length) in after.marks.items():
        old, old_length = before.marks.get(slice_type, ([], 0))
        kept = min(length, old_length) if items is old else _common_prefix(old[:old_length], items[:length])
        if kept < length or kept < old_length:
            changes.append(SliceChange(slice_type, kept, tuple(items[kept:length])))
    return tuple(changes)


def _common_prefix(old: list[Any], new: list[Any]) -> int:
    shorter = min(len(old), len(new))
    return next((i for i in range(shorter) if old[i] is not new[i]), shorter)


def _resource_changes(before: Mapping[type, Any], after: Mapping[type, Any]) -> tuple[ResourceChange, ...]:
    changes = []
    for protocol, state in after.items():
        if protocol in before and (before[protocol] is state or before[protocol] == state):
            continue
        if type(state) in _unserializable:
            continue
        old = before.get(protocol)
        if isinstance(state, InMemorySnapshot) and isinstance(old, InMemorySnapshot):
            state = difference(old, state)
        try:
            changes.append(ResourceChange(protocol, json.dumps(dump_tagged(state), separators=(",", ":"))))
        except SerdeError:
            _unserializable.add(type(state))
            _log.info("%s is not recorded: its snapshot cannot be serialised.", protocol.__qualname__)
    return tuple(changes)


def _difference(old: Directory, new: Directory) -> Patch:
    entries: dict[str, Patch | Directory | bytes | None] = dict.fromkeys(old.entries.keys() - new.entries.keys())
    for name, entry in new.entries.items():
        before = old.entries.get(name)
        if entry is before or (isinstance(entry, bytes) and entry == before):
            continue
        both = isinstance(entry, Directory) and isinstance(before, Directory)
        entries[name] = _difference(before, entry) if both else entry  # type: ignore[arg-type]
    return Patch(entries)


def _patched(old: Directory, patch: Patch) -> Directory:
    entries = {name: entry for name, entry in old.entries.items() if name not in patch.entries}
    for name, change in patch.entries.items():
        if isinstance(change, Patch):
            before = old.entries[name]
            assert isinstance(before, Directory)
            entries[name] = _patched(before, change)
        elif change is not None:
            entries[name] = change
    return Directory(dict(sorted(entries.items())))
