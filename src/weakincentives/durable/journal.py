"""The record of durable work: values as tagged JSON, and the changes of a step, so that a replay can repeat them.

Values are readable in the database and are never pickled; their types are looked up among those the program has loaded,
and nothing is imported because a row names it. Changes are recorded as contents, not as calls: a replay runs no reducer
or handler, and whatever a failed tool rolled back does not appear.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from weakincentives.durable.work import RemoteError
from weakincentives.errors import SerdeError
from weakincentives.filesystem import InMemoryDirectory as Directory, InMemorySnapshot
from weakincentives.resources import ScopedResourceContext
from weakincentives.serde import Upgrades, dump_tagged, load_tagged, stored_name, upgrade_tagged
from weakincentives.session import Reducible, Session, Slice, Snapshot

T = TypeVar("T")

_log = logging.getLogger(__name__)
_unserializable: set[type] = set()
_EXCEPTION = "$exception"


@dataclass(frozen=True, slots=True)
class ChangedSlice:
    """A slice keeps its first `kept` items, followed by `items`."""

    slice_type: type
    kept: int
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ChangedResource:
    """A resource's new state as tagged JSON: its snapshot, or a `Patch` to the previous one."""

    protocol: type
    state: str


@dataclass(frozen=True, slots=True)
class StepChange:
    """Everything that a step changed."""

    slices: tuple[ChangedSlice, ...] = ()
    resources: tuple[ChangedResource, ...] = ()


@dataclass(frozen=True, slots=True)
class Patch:
    """The entries of a directory that were added or changed; None marks a deleted one."""

    entries: Mapping[str, Patch | Directory | bytes | None]


def record_change(
    session: Session, resources: ScopedResourceContext | None, run: Callable[[], T]
) -> tuple[T, StepChange]:
    """Call `run` and return its result with what it changed."""
    before = session.state()
    held = None if resources is None else resources.snapshot()
    result = run()
    changed = () if resources is None or held is None else _resource_changes(held, resources.snapshot())
    return result, StepChange(_slice_changes(before, session.state()), changed)


def apply_change(
    change: StepChange,
    session: Session,
    resources: ScopedResourceContext | None,
    upgrades: Upgrades = MappingProxyType({}),
) -> None:
    """Bring session and resources to the state in which the recorded step left them."""
    for slice_change in change.slices:
        target: Slice[Any] = session[slice_change.slice_type]
        if slice_change.kept == len(target):
            for item in slice_change.items:
                target.append(item)
        else:
            target.seed((*target.all()[: slice_change.kept], *slice_change.items))
    for resource_change in change.resources:
        assert resources is not None
        resource: Any = resources.get(resource_change.protocol)
        state = load_tagged(upgrade_tagged(json.loads(resource_change.state), upgrades))
        resource.restore(apply_patch(resource.snapshot(), state) if isinstance(state, Patch) else state)


def resource_states(resources: ScopedResourceContext | None) -> tuple[ChangedResource, ...]:
    """The states of all resources that can be stored."""
    return () if resources is None else _resource_changes({}, resources.snapshot())


def difference(old: InMemorySnapshot, new: InMemorySnapshot) -> Patch:
    """The patch that turns `old` into `new`. Directories that both share are not visited."""
    return _difference(old.root, new.root)


def apply_patch(old: InMemorySnapshot, patch: Patch) -> InMemorySnapshot:
    return InMemorySnapshot(_patched(old.root, patch))


def _slice_changes(before: Snapshot, after: Snapshot) -> tuple[ChangedSlice, ...]:
    changes = []
    for slice_type, (items, length) in after.marks.items():
        old, old_length = before.marks.get(slice_type, ([], 0))
        kept = min(length, old_length) if items is old else _common_prefix(old[:old_length], items[:length])
        if kept < length or kept < old_length:
            changes.append(ChangedSlice(slice_type, kept, tuple(map(_storable, items[kept:length]))))
    return tuple(changes)


def _storable(item: Any) -> Any:
    """The item; without the parts that cannot be stored, if it allows that."""
    if isinstance(item, Reducible):
        try:
            dump_tagged(item)
        except SerdeError:
            return item.reduced()
    return item


def _common_prefix(old: list[Any], new: list[Any]) -> int:
    shorter = min(len(old), len(new))
    return next((i for i in range(shorter) if old[i] is not new[i]), shorter)


def _resource_changes(before: Mapping[type, Any], after: Mapping[type, Any]) -> tuple[ChangedResource, ...]:
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
            changes.append(ChangedResource(protocol, json.dumps(dump_tagged(state), separators=(",", ":"))))
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


class TaggedSerializer:
    """Serializes requests, step outcomes, results and exceptions for the engine.

    `upgrades` are those of all loops and clients that use the database in this process.
    """

    def __init__(self) -> None:
        self.upgrades: dict[str, Any] = {}

    def name(self) -> str:
        return "wink_tagged_json"

    def serialize(self, data: Any) -> str:
        value = _dump_exception(data) if isinstance(data, BaseException) else dump_tagged(data)
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    def deserialize(self, serialized_data: str) -> Any:
        value = json.loads(serialized_data)
        if isinstance(value, dict) and value.keys() == {_EXCEPTION}:
            return _load_exception(upgrade_tagged(value[_EXCEPTION], self.upgrades))
        return load_tagged(upgrade_tagged(value, self.upgrades))


class StoredText(TaggedSerializer):
    """Leaves what is stored as text, for processes that have not loaded the program's types."""

    def deserialize(self, serialized_data: str) -> Any:
        return serialized_data


def _dump_exception(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    return {
        _EXCEPTION: {
            "type": stored_name(kind),
            "message": str(error),
            "args": [_dump_or_describe(value) for value in error.args],
            "state": {name: _dump_or_describe(value) for name, value in vars(error).items()},
        }
    }


def _dump_or_describe(value: Any) -> Any:
    try:
        return dump_tagged(value)
    except SerdeError:
        return repr(value)


def _load_exception(data: dict[str, Any]) -> BaseException:
    try:
        # Not getattr: a front of a package may import a module when it is asked for a name.
        kind: type = load_tagged({"$": "type", "v": data["type"]})
    except SerdeError:
        kind = object
    if not issubclass(kind, Exception):
        return RemoteError(f"{data['type']}: {data['message']}", type_name=data["type"])
    error = kind.__new__(kind)
    error.args = tuple(load_tagged(data["args"]))
    vars(error).update(load_tagged(data["state"]))
    return error
