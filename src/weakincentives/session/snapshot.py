"""Snapshots of a session, in memory and as text."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from weakincentives.errors import SerdeError, SessionError
from weakincentives.serde import dump_tagged, load_tagged
from weakincentives.session.slices import Mark

T = TypeVar("T")

FORMAT = "weakincentives.session/1"


class Snapshot:
    """The contents of every slice at one moment; `session.restore` goes back to it. Taking one copies no item."""

    __slots__ = ("marks", "session_id")

    def __init__(self, session_id: str, marks: dict[type, Mark]) -> None:
        self.session_id = session_id
        self.marks = marks

    @property
    def slices(self) -> tuple[type, ...]:
        """The types of the slices that are not empty."""
        return tuple(slice_type for slice_type, (_, length) in self.marks.items() if length)

    def __getitem__(self, slice_type: type[T]) -> tuple[T, ...]:
        items, length = self.marks.get(slice_type, ([], 0))
        return tuple(items[:length])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        return self.session_id == other.session_id and self._contents() == other._contents()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        counts = ", ".join(f"{slice_type.__name__}: {self.marks[slice_type][1]}" for slice_type in self.slices)
        return f"<Snapshot of session {self.session_id!r} ({counts})>"

    def to_json(self) -> str:
        """The snapshot as JSON text, each item with its type."""
        slices = []
        for slice_type, items in self._contents().items():
            try:
                slices.append([dump_tagged(slice_type), [dump_tagged(item) for item in items]])
            except SerdeError as error:
                raise SessionError(f"Slice '{slice_type.__qualname__}' cannot be written as JSON: {error}") from error
        return json.dumps({"format": FORMAT, "session_id": self.session_id, "slices": slices}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Snapshot:
        """Read what `to_json` wrote. Types are looked up among those the program has defined; nothing is imported."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise SessionError(f"The text is not a session snapshot: {error}") from error
        match document:
            case {"format": str(found), "session_id": str(session_id), "slices": list(slices)} if found == FORMAT:
                return cls(session_id, dict(_parse_slice(entry) for entry in slices))
        raise SessionError(f"The text is not a session snapshot: expected an object with format {FORMAT!r}")

    def _contents(self) -> dict[type, tuple[Any, ...]]:
        return {slice_type: self[slice_type] for slice_type in self.slices}


def _parse_slice(entry: object) -> tuple[type, Mark]:
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list)):
        raise SessionError("The text is not a session snapshot: each slice must be a type and a list of items")
    try:
        slice_type = load_tagged(entry[0])
        items = [load_tagged(item) for item in entry[1]]
    except SerdeError as error:
        raise SessionError(f"The snapshot cannot be read: {error}") from error
    if not isinstance(slice_type, type):
        raise SessionError(f"The text is not a session snapshot: a slice type must be a class, got {slice_type!r}")
    for item in items:
        if not isinstance(item, slice_type):
            raise SessionError(f"The snapshot is invalid: slice '{slice_type.__qualname__}' contains {item!r}")
    return slice_type, (items, len(items))
