"""Snapshots of a session, in memory and as text."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from weakincentives.content import Blob
from weakincentives.errors import SerdeError, SessionError
from weakincentives.serde import check_tagged, dump_tagged, is_declared, load_checked
from weakincentives.session.slices import Mark

T = TypeVar("T")

FORMAT = "weakincentives.session/3"
# A part of an item that takes more bytes than this is written once, however many items have it.
LONG = 200


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
        """The snapshot as JSON text, each item with its type.

        A value that its field does not declare is a `SessionError` here, since `from_json` could not read it.
        """
        slices = []
        blobs: dict[str, Blob] = {}
        parts = _Parts()
        for slice_type, items in self._contents().items():
            try:
                dumped = [dump_tagged(item, blobs) for item in items]
                check_tagged(list[slice_type], dumped)  # type: ignore[valid-type]
                slices.append([dump_tagged(slice_type), [_each_field(parts.share, item) for item in dumped]])
            except SerdeError as error:
                raise SessionError(f"Slice '{slice_type.__qualname__}' cannot be written as JSON: {error}") from error
        document: dict[str, Any] = {"format": FORMAT, "session_id": self.session_id, "slices": slices}
        if parts.values:
            document["parts"] = parts.values
        if blobs:
            document["blobs"] = [b64encode(blob.data).decode() for blob in blobs.values()]
        return json.dumps(document, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes, *, types: Iterable[type] | None = None) -> Snapshot:
        """Read what `to_json` wrote. Classes are looked up among those the program has defined; nothing is imported.

        Every value must match the declaration of its field. The text chooses the classes of slices, and of values in
        fields declared as `Any` or as a base class. For text from a source you do not trust, pass `types`: then only
        these classes are built, and those your program has declared as data: slices with `@reducer` and their events,
        log entries, params, outputs, and the params and results of tools.
        """
        known = None if types is None else frozenset(types)
        try:
            document = json.loads(text)
        except RecursionError:
            raise SessionError("The text is not a session snapshot: it is nested too deeply") from None
        except ValueError as error:
            raise SessionError(f"The text is not a session snapshot: {error}") from error
        match document:
            case {"format": str(found), "session_id": str(session_id), "slices": list(slices)} if found == FORMAT:
                marks: dict[type, Mark] = {}
                blobs, parts = _parse_blobs(document.get("blobs", [])), _with_texts(document.get("parts", []))
                for index, entry in enumerate(slices):
                    slice_type, items = _parse_slice(_unshared(entry, parts), f"$.slices[{index}]", blobs, known)
                    if slice_type in marks:
                        raise SessionError(f"The snapshot is invalid: slice '{slice_type.__qualname__}' appears twice")
                    marks[slice_type] = (items, len(items))
                return cls(session_id, marks)
            case {"format": str(found)} if found.startswith(FORMAT.partition("/")[0]):
                raise SessionError(
                    f"The snapshot was written by another release ({found}; this one reads {FORMAT}); "
                    "use the release that wrote it, or start a new session."
                )
        raise SessionError(f"The text is not a session snapshot: expected an object with format {FORMAT!r}")

    def _contents(self) -> dict[type, tuple[Any, ...]]:
        return {slice_type: self[slice_type] for slice_type in self.slices}


class _Parts:
    """The long parts of items, each once; an item has references in their place."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._positions: dict[bytes, int] = {}

    def share(self, part: Any) -> Any:
        """The part, or a reference to it if it is long; so are long texts inside it, such as that of a tool result."""
        encoded = msgspec.json.encode(part) if isinstance(part, str | list | dict) else b""
        if len(encoded) < LONG:
            return part
        if not isinstance(part, str):
            part = _each_text(self.share, part)
            encoded = msgspec.json.encode(part)
        position = self._positions.setdefault(encoded, len(self.values))
        if position == len(self.values):
            self.values.append(part)
        return {"$": "part", "v": position}


def _unshared(entry: Any, parts: Any) -> Any:
    """A slice with its long parts in place of the references to them."""

    def whole(part: Any) -> Any:
        return parts[part["v"]] if _is_reference(part) else part

    try:
        slice_type, items = entry
        return slice_type, [_each_field(whole, item) for item in items]
    except (KeyError, IndexError, TypeError, ValueError):
        return entry


def _with_texts(parts: Any) -> Any:
    """The parts with their long texts. Only a text may stand in another part, so that no snapshot grows without end."""

    def text(part: Any) -> Any:
        found = parts[part["v"]]
        return found if isinstance(found, str) else part

    try:
        return [part if isinstance(part, str) else _each_text(text, part, reading=True) for part in parts]
    except (KeyError, IndexError, TypeError, RecursionError):
        return parts


def _is_reference(part: Any) -> bool:
    return isinstance(part, dict) and part.get("$") == "part"


def _each_text(change: Callable[[Any], Any], part: Any, *, reading: bool = False) -> Any:
    """A part with each text in it changed; or, when reading, each reference."""
    if isinstance(part, list):
        return [_each_text(change, each, reading=reading) for each in part]
    if isinstance(part, dict):
        if reading and _is_reference(part):
            return change(part)
        return {name: _each_text(change, each, reading=reading) for name, each in part.items()}
    return change(part) if isinstance(part, str) and not reading else part


def _each_field(change: Callable[[Any], Any], item: Any) -> Any:
    """A dumped item with each of its fields changed."""
    fields = item.get("v") if isinstance(item, dict) else None
    return {**item, "v": {name: change(part) for name, part in fields.items()}} if isinstance(fields, dict) else item


def _parse_blobs(entries: object) -> dict[str, Blob]:
    try:
        blobs = [Blob(b64decode(entry, validate=True)) for entry in entries]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise SessionError(f"The snapshot cannot be read: $.blobs: {error}") from error
    return {blob.digest: blob for blob in blobs}


def _parse_slice(
    entry: object, path: str, blobs: dict[str, Blob], types: frozenset[type] | None
) -> tuple[type, list[Any]]:
    if not (isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[1], list)):
        raise SessionError(f"The text is not a session snapshot: {path} must be a type and a list of items")
    slice_type = _load(type, entry[0], f"{path}[0]", blobs)
    if types is not None and slice_type not in types and not is_declared(slice_type):
        name = f"{slice_type.__module__}:{slice_type.__qualname__}"
        raise SessionError(f"The snapshot cannot be read: {path}: {name} is not declared as data; pass it in types=")
    items = [_load(slice_type, item, f"{path}[1][{index}]", blobs, types) for index, item in enumerate(entry[1])]
    return slice_type, items


def _load(expected: type, data: object, path: str, blobs: dict[str, Blob], types: frozenset[type] | None = None) -> Any:
    try:
        return load_checked(expected, data, blobs, types)
    except SerdeError as error:
        where, message = error.problems[0]
        raise SessionError(f"The snapshot cannot be read: {path}{where.removeprefix('$')}: {message}") from error
