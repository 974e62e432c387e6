"""What one step did to the session and the resources, so that a replay can do it again without running the step.

Changes are kept as contents, not as calls: a replay runs no reducer and no handler, and what a failed tool had rolled
back is simply not there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from weakincentives.durable.files import Patch, difference, patched
from weakincentives.errors import SerdeError
from weakincentives.filesystem import InMemorySnapshot
from weakincentives.resources import ScopedResourceContext
from weakincentives.serde import dump_tagged, load_tagged
from weakincentives.session import Session, Slice, Snapshot

T = TypeVar("T")

_log = logging.getLogger(__name__)
_not_data: set[type] = set()


@dataclass(frozen=True, slots=True)
class SliceChange:
    """A slice now holds its first `kept` old items and then `items`."""

    slice_type: type
    kept: int
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """A resource now holds `state`: its own snapshot, or a `Patch` of it, as tagged JSON text."""

    protocol: type
    state: str


@dataclass(frozen=True, slots=True)
class Change:
    """All that a step changed."""

    slices: tuple[SliceChange, ...] = ()
    resources: tuple[ResourceChange, ...] = ()


def recording(session: Session, resources: ScopedResourceContext | None, run: Callable[[], T]) -> tuple[T, Change]:
    """Run something and say what it changed."""
    before = session.snapshot()
    held = None if resources is None else resources.snapshot()
    result = run()
    changed = () if resources is None or held is None else _resource_changes(held, resources.snapshot())
    return result, Change(_slice_changes(before, session.snapshot()), changed)


def replay(change: Change, session: Session, resources: ScopedResourceContext | None) -> None:
    """Bring session and resources to where the recorded step left them."""
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
        resource.restore(patched(resource.snapshot(), state) if isinstance(state, Patch) else state)


def _slice_changes(before: Snapshot, after: Snapshot) -> tuple[SliceChange, ...]:
    changes = []
    for slice_type, (items, length) in after.marks.items():
        old, old_length = before.marks.get(slice_type, ([], 0))
        kept = min(length, old_length) if items is old else _common(old, old_length, items, length)
        if kept < length or kept < old_length:
            changes.append(SliceChange(slice_type, kept, tuple(items[kept:length])))
    return tuple(changes)


def _common(old: list[Any], old_length: int, new: list[Any], length: int) -> int:
    shorter = min(old_length, length)
    return next((i for i in range(shorter) if old[i] is not new[i]), shorter)


def _resource_changes(before: Mapping[type, Any], after: Mapping[type, Any]) -> tuple[ResourceChange, ...]:
    changes = []
    for protocol, state in after.items():
        if protocol in before and (before[protocol] is state or before[protocol] == state):
            continue
        if type(state) in _not_data:
            continue
        old = before.get(protocol)
        if isinstance(state, InMemorySnapshot) and isinstance(old, InMemorySnapshot):
            state = difference(old, state)
        try:
            changes.append(ResourceChange(protocol, json.dumps(dump_tagged(state), separators=(",", ":"))))
        except SerdeError:
            _not_data.add(type(state))
            _log.info("The state of %s stays on this machine; its snapshot is not plain data.", protocol.__qualname__)
    return tuple(changes)
