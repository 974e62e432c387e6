"""A session's slices at one moment."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from weakincentives.errors import SerdeError
from weakincentives.serde import dump_tagged, load_tagged
from weakincentives.session.column import Mark
from weakincentives.session.errors import SessionError

T = TypeVar("T")

FORMAT = "weakincentives.session/1"


class Snapshot:
    """What every slice held when it was taken. Taking one copies no item; `session.restore` brings it back."""

    __slots__ = ("marks", "session_id")

    def __init__(self, session_id: str, marks: dict[type, Mark]) -> None:
        self.session_id = session_id
        self.marks = marks

    @property
    def slices(self) -> tuple[type, ...]:
        """The types of the slices that hold anything."""
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
        """The snapshot as text, every item with its type."""
        slices = []
        for slice_type, items in self._contents().items():
            try:
                slices.append([dump_tagged(slice_type), [dump_tagged(item) for item in items]])
            except SerdeError as error:
                raise SessionError(f"Slice '{slice_type.__qualname__}' cannot be written as text: {error}") from error
        return json.dumps({"format": FORMAT, "session_id": self.session_id, "slices": slices}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Snapshot:
        """The snapshot that `to_json` wrote. Types are found among those the program has; nothing is imported."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise SessionError(f"This is no session snapshot: {error}") from error
        match document:
            case {"format": str(found), "session_id": str(session_id), "slices": list(slices)} if found == FORMAT:
                return cls(session_id, dict(_slice_of(entry) for entry in slices))
        raise SessionError(f"This is no session snapshot: expected an object with format {FORMAT!r}")

    def _contents(self) -> dict[type, tuple[Any, ...]]:
        return {slice_type: self[slice_type] for slice_type in self.slices}


def _slice_of(entry: object) -> tuple[type, Mark]:
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list)):
        raise SessionError("This is no session snapshot: a slice is not a type and its items")
    try:
        slice_type = load_tagged(entry[0])
        items = [load_tagged(item) for item in entry[1]]
    except SerdeError as error:
        raise SessionError(f"The snapshot cannot be read here: {error}") from error
    if not isinstance(slice_type, type):
        raise SessionError(f"This is no session snapshot: {slice_type!r} is no slice type")
    for item in items:
        if not isinstance(item, slice_type):
            raise SessionError(f"The snapshot has {item!r} in the slice of {slice_type.__qualname__}")
    return slice_type, (items, len(items))
