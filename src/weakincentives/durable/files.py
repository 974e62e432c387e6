"""What changed between two snapshots of an in-memory filesystem, so that a step records no more than that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weakincentives.filesystem import InMemoryDirectory as Directory, InMemorySnapshot


@dataclass(frozen=True, slots=True)
class Patch:
    """The entries of a directory that are new or other than before; None is for those that are gone."""

    entries: Mapping[str, Patch | Directory | bytes | None]


def difference(old: InMemorySnapshot, new: InMemorySnapshot) -> Patch:
    """What leads from one to the other. What they share is not looked at."""
    return _difference(old.root, new.root)


def patched(old: InMemorySnapshot, patch: Patch) -> InMemorySnapshot:
    return InMemorySnapshot(_patched(old.root, patch))


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
