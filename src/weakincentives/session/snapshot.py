"""A session's slices at one moment."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from weakincentives.errors import SerdeError
from weakincentives.session.column import Mark
from weakincentives.session.errors import SessionError

T = TypeVar("T")

FORMAT = "weakincentives.session/1"


class Snapshot:
    """What every slice held when it was taken. Taking one copies no item; `session.restore` brings it back."""

    __slots__ = ("_marks", "session_id")

    def __init__(self, session_id: str, marks: dict[type, Mark]) -> None:
        self.session_id = session_id
        self._marks = marks

    @property
    def marks(self) -> dict[type, Mark]:
        return self._marks

    @property
    def slices(self) -> tuple[type, ...]:
        """The types of the slices that hold anything."""
        return tuple(slice_type for slice_type, (_, length) in self._marks.items() if length)

    def __getitem__(self, slice_type: type[T]) -> tuple[T, ...]:
        items, length = self._marks.get(slice_type, ([], 0))
        return tuple(items[:length])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        return self.session_id == other.session_id and self._contents() == other._contents()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        counts = ", ".join(f"{slice_type.__name__}: {self._marks[slice_type][1]}" for slice_type in self.slices)
        return f"<Snapshot of session {self.session_id!r} ({counts})>"

    def to_json(self) -> str:
        """The snapshot as text, every item with its type."""
        from weakincentives.serde import tagged

        return json.dumps(
            {"format": FORMAT, "session_id": self.session_id, "slices": tagged.dump(self._contents())},
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Snapshot:
        """The snapshot that `to_json` wrote. Types are found among those the program has; nothing is imported."""
        from weakincentives.serde import tagged

        try:
            document = json.loads(text)
        except ValueError as error:
            raise SessionError(f"This is no session snapshot: {error}") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise SessionError(f"This is no session snapshot: expected an object with format {FORMAT!r}")
        try:
            contents = tagged.load(document.get("slices"))
        except SerdeError as error:
            raise SessionError(f"The snapshot cannot be read here: {error}") from error
        return cls(str(document.get("session_id", "")), _marks_of(contents))

    def _contents(self) -> dict[type, tuple[Any, ...]]:
        return {slice_type: self[slice_type] for slice_type in self.slices}


def _marks_of(contents: object) -> dict[type, Mark]:
    if not isinstance(contents, dict):
        raise SessionError("This is no session snapshot: its slices are no mapping")
    marks: dict[type, Mark] = {}
    for slice_type, items in contents.items():
        if not isinstance(slice_type, type) or not isinstance(items, tuple):
            raise SessionError(f"This is no session snapshot: {slice_type!r} is no slice")
        for item in items:
            if not isinstance(item, slice_type):
                raise SessionError(f"The snapshot has {item!r} in the slice of {slice_type.__qualname__}")
        marks[slice_type] = (list(items), len(items))
    return marks
