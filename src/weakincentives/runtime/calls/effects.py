"""The effects of a tool call as data: captured when its handler has run, taken back, and applied as they were shown.

They are what the call changed in the session and in snapshotable resources, such as filesystems. Log entries are not
among them: they tell what happened, and stay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weakincentives._base.display import shortened
from weakincentives.errors import UnshownChangeError, WinkError
from weakincentives.filesystem import FileChange, StaleFilesError
from weakincentives.prompt import Tool
from weakincentives.redaction import KnownSecrets
from weakincentives.resources import ResourceChange, ScopedResourceContext, StaleResourceError
from weakincentives.serde import dump_tagged
from weakincentives.session import LogEntry, Session, Snapshot

MAX_SHOWN = 2_000
"""The longest description of one changed item, in characters."""


class StaleEffectsError(WinkError):
    """The base of the effects has changed since, so they cannot be applied as they were shown."""


class UndeclaredChangesError(UnshownChangeError):
    """A call that asks with its effects has changed more than its tool declares, and was undone."""

    def __init__(self, tool: Tool[Any, Any], undeclared: Sequence[type]) -> None:
        changed = ", ".join(names_of(undeclared))
        declared = ", ".join(names_of((*(tool.changes or ()), *undeclared)))
        super().__init__(
            f"Tool '{tool.name}' was undone: it changed {changed}, which it does not declare, so a person could not be "
            f"asked. Write changes=({declared}), or approval='call' if it acts outside."
        )
        self.tool = tool.name
        self.undeclared = tuple(undeclared)


@dataclass(frozen=True, slots=True)
class SliceChange:
    """A slice of the session: its items before and after."""

    slice_type: type
    before: tuple[Any, ...]
    after: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Effects:
    """The changes of one tool call, to be shown, stored and applied.

    `events` were appended to the slices of their types, `slices` were changed in another way, and `resources` are
    snapshotable ones.
    """

    events: tuple[Any, ...] = ()
    slices: tuple[SliceChange, ...] = ()
    resources: tuple[ResourceChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.events or self.slices or self.resources)

    def check_stored(self) -> None:
        """Raise a `SerdeError` unless all of it can be stored, as files always can."""
        for part in self._parts():
            if not isinstance(part, FileChange):
                dump_tagged(part)

    def _parts(self) -> Iterator[Any]:
        """All changes, one by one."""
        yield from self.events
        yield from self.slices
        for resource in self.resources:
            yield replace(resource, changes=())
            yield from resource.changes

    def undeclared(self, declared: Collection[type]) -> tuple[type, ...]:
        """The classes of what was changed without being declared; an event's own entry needs no declaration."""
        changed = [*(change.slice_type for change in self.slices), *(change.protocol for change in self.resources)]
        return tuple(kind for kind in changed if kind not in declared)

    @property
    def files(self) -> tuple[FileChange, ...]:
        """The files that the call changed: path, before, after, and the difference as text."""
        changes = (change for each in self.resources for change in each.changes)
        return tuple(change for change in changes if isinstance(change, FileChange))

    @property
    def text(self) -> str:
        """The effects for people to read; secrets of the environment are replaced."""
        known = KnownSecrets()
        return "\n".join(known.text(line) for line in self._lines(known))

    @property
    def digest(self) -> str:
        """A digest of the whole, with nothing replaced: two calls with the same digest change the same."""
        # In small pieces, so that other threads are not kept waiting.
        total = hashlib.sha256()
        for part in self._parts():
            is_file = isinstance(part, FileChange)
            total.update(part.digest.encode() if is_file else _digest_of(part))
        return total.hexdigest()

    def _lines(self, known: KnownSecrets) -> Iterator[str]:
        def shown(value: Any) -> str:
            # Replaced before it is cut, so that no part of a secret is left.
            return shortened(known.text(repr(value)), MAX_SHOWN)

        def items(values: tuple[Any, ...]) -> str:
            return shown(values[0]) if len(values) == 1 else f"{len(values)} items"

        for file in self.files:
            yield file.diff.rstrip("\n")
        for event in self.events:
            yield f"+ {shown(event)}"
        for each in self.slices:
            yield f"{_name(each.slice_type)}: {items(each.before)} -> {items(each.after)}"
        for resource in self.resources:
            if not resource.changes:
                yield f"{_name(resource.protocol)}: {shown(resource.before)} -> {shown(resource.after)}"


def capture(session: Session, before: Snapshot, resources: Iterable[ResourceChange]) -> Effects:
    """The changes of the session since a snapshot, with those of resources."""
    events: list[Any] = []
    slices: list[SliceChange] = []
    for slice_type, (items, length) in session.state().marks.items():
        old, old_length = before.marks.get(slice_type) or session.initial(slice_type)
        if issubclass(slice_type, LogEntry) or (items is old and length == old_length):
            continue
        added = items[old_length:length]
        grown = old_length <= length and (items is old or items[:old_length] == old[:old_length])
        if grown and all(type(item) is slice_type for item in added):
            events.extend(added)
        elif old[:old_length] != items[:length]:
            slices.append(SliceChange(slice_type, tuple(old[:old_length]), tuple(items[:length])))
    return Effects(tuple(events), tuple(slices), tuple(resources))


def apply(effects: Effects, session: Session, resources: ScopedResourceContext) -> None:
    """Make the changes, byte for byte as they were shown; raises if what they are based on is no longer there.

    To be called in a transaction, which undoes what was applied before the error.
    """
    changed = [each.slice_type.__qualname__ for each in effects.slices if session[each.slice_type].all() != each.before]
    if changed:
        raise StaleEffectsError(f"{', '.join(changed)} changed since")
    try:
        resources.apply(effects.resources)
    except (StaleResourceError, StaleFilesError) as error:
        raise StaleEffectsError(str(error)) from error
    for event in effects.events:
        session[type(event)].append(event)
    for each in effects.slices:
        session[each.slice_type].seed(each.after)
    for event in effects.events:
        # Those who observe the session hear of it now that it counts.
        session.announce(event)


def _digest_of(value: Any) -> bytes:
    """A digest of a value; a `SerdeError` if it cannot be stored."""
    return hashlib.sha256(json.dumps(dump_tagged(value), sort_keys=True).encode()).digest()


def names_of(kinds: Iterable[type]) -> tuple[str, ...]:
    return tuple(kind.__qualname__ for kind in kinds)


def _name(cls: Any) -> str:
    """The name of a class; a recording of a process with other classes has a stand-in for it."""
    return str(getattr(cls, "__qualname__", None) or getattr(cls, "type", cls))
