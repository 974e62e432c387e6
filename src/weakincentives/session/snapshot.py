"""Snapshots of a session, in memory and as text."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from weakincentives.content import Blob
from weakincentives.errors import SerdeError, SessionError
from weakincentives.filesystem import InMemoryDirectory, InMemorySnapshot
from weakincentives.serde import (
    OWN_NAMES,
    Upgrades,
    check_tagged,
    columns,
    dump_tagged,
    is_declared,
    is_record,
    load_checked,
    load_tagged,
    named_types,
    own_constructors,
    undeclared,
    upgrade_tagged,
)
from weakincentives.session.moments import LOST, Moment, Pool, Reducible, fill
from weakincentives.session.slices import Mark

T = TypeVar("T")

FORMAT = "weakincentives.session/3"
# A part of an item that takes more bytes than this is written once, however many items have it.
LONG = 200


class Snapshot:
    """The contents of every slice at one moment; `session.restore` goes back to it. Taking one copies no item.

    `files` are those of `session.workspace`, None if the snapshot does not say. `problems` lists what
    `from_json(..., lenient=True)` has left out, each with its place.
    """

    __slots__ = ("files", "marks", "problems", "session_id")

    def __init__(
        self,
        session_id: str,
        marks: dict[type, Mark],
        problems: tuple[str, ...] = (),
        files: InMemorySnapshot | None = None,
    ) -> None:
        self.session_id = session_id
        self.marks = marks
        self.problems = problems
        self.files = files

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
        same_files = (self.files or _NO_FILES) == (other.files or _NO_FILES)
        return self.session_id == other.session_id and self._contents() == other._contents() and same_files

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        counts = ", ".join(f"{slice_type.__name__}: {self.marks[slice_type][1]}" for slice_type in self.slices)
        return f"<Snapshot of session {self.session_id!r} ({counts})>"

    def to_json(self) -> str:
        """The snapshot as JSON text, each item with its type.

        What `from_json` could not read is a `SessionError` here: a value that its field does not declare, or one that
        the constructor of its class refuses.
        """
        blobs: dict[str, Blob] = {}
        parts, pool = _Parts(), Pool(self.marks)

        def written(kind: type, items: list[Any]) -> list[Any]:
            try:
                return [_each_field(parts.share, item) for item in _dumped(kind, items, pool, blobs)]
            except SerdeError as error:
                raise SessionError(f"Slice '{kind.__qualname__}' cannot be written as JSON: {error}") from error

        slices = [[dump_tagged(kind), written(kind, items)] for kind, items in pool.entries()]
        document: dict[str, Any] = {"format": FORMAT, "session_id": self.session_id, "slices": slices}
        if pool.past:
            known = {kind: number for number, kind in enumerate(pool.types[: len(slices)])}
            named = ((known.get(kind, dump_tagged(kind)), kind) for kind in _in_order(pool))
            document["past"] = [[name, written(kind, pool.past[kind])] for name, kind in named]
        if self.files is not None and self.files.root.entries:
            document["files"] = dump_tagged(self.files)
        if parts.values:
            document["parts"] = parts.values
        if blobs:
            document["blobs"] = [b64encode(blob.data).decode() for blob in blobs.values()]
        return json.dumps(document, ensure_ascii=False)

    @classmethod
    def from_json(
        cls,
        text: str | bytes,
        *,
        types: Iterable[type] = (),
        upgrades: Upgrades = MappingProxyType({}),
        lenient: bool = False,
    ) -> Snapshot:
        """Read what `to_json` wrote. Classes are looked up among those the program has defined; nothing is imported.

        Only classes that the program has declared as data are built: slices with `@reducer` and their events, log
        entries, params, outputs, and the params and results of tools; and those in `types`. For text that you trust,
        `types=[object]` allows every class of the program. Every value must match the declaration of its field.

        If a class has changed since, `upgrades` maps the name it was stored under to its new class, or to a function
        from the stored fields to those of today: `{"shop:Refunded": lambda fields: {"cents": fields["amount"]}}`. With
        `lenient=True`, what cannot be read is left out and listed in `problems`; the conversation survives.
        """
        try:
            document = json.loads(text)
        except RecursionError:
            raise SessionError("The text is not a session snapshot: it is nested too deeply") from None
        except ValueError as error:
            raise SessionError(f"The text is not a session snapshot: {error}") from error
        match document:
            case {"format": str(found), "session_id": str(session_id), "slices": list(slices)} if found == FORMAT:
                reader = _Reader(frozenset((*types, *named_types(upgrades))), upgrades, lenient)
                marks = reader.read(document, slices, lambda marks: cls(session_id, marks))
                return cls(session_id, marks, tuple(reader.problems), reader.read_files(document.get("files")))
            case {"format": str(found)} if found.startswith(FORMAT.partition("/")[0]):
                raise SessionError(
                    f"The snapshot was written by another release ({found}; this one reads {FORMAT}); "
                    "use the release that wrote it, or start a new session."
                )
        raise SessionError(f"The text is not a session snapshot: expected an object with format {FORMAT!r}")

    def _contents(self) -> dict[type, tuple[Any, ...]]:
        return {slice_type: self[slice_type] for slice_type in self.slices}


_NO_FILES = InMemorySnapshot(InMemoryDirectory())


def _in_order(pool: Pool) -> list[type]:
    """The types that have past items: types that have no others come last, in the order of their numbers."""
    return sorted(pool.past, key=pool.types.index)


def _dumped(kind: type, items: list[Any], pool: Pool, blobs: dict[str, Blob]) -> list[Any]:
    """Items as data that `from_json` can read; without the parts of them that cannot be stored, if they allow that."""
    flat = [replace(item, state=pool.text_of(item)) for item in items] if issubclass(kind, Moment) else items
    try:
        dumped = [dump_tagged(item, blobs) for item in flat]
        check_tagged(list[kind], dumped)  # type: ignore[valid-type]
        if _mentions(dumped, own_constructors()):
            load_tagged(dumped, blobs)
        return dumped
    except SerdeError:
        if not issubclass(kind, Reducible) or (len(flat) == 1 and flat[0] is flat[0].reduced()):
            raise
        if len(flat) == 1:
            return [dump_tagged(flat[0].reduced(), blobs)]
        return [dumped for item in items for dumped in _dumped(kind, [item], pool, blobs)]


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


def _mentions(dumped: list[Any], names: list[str]) -> bool:
    text = msgspec.json.encode(dumped) if names else b""
    return any(name.encode() in text for name in names)


class _Reader:
    """Reads the slices of a document; a problem is raised, or if it is lenient, noted."""

    def __init__(self, types: frozenset[type], upgrades: Upgrades, lenient: bool) -> None:
        self.problems: list[str] = []
        self._types = None if object in types else types
        self._upgrades = upgrades
        self._lenient = lenient
        self._blobs: dict[str, Blob] = {}

    def read(
        self, document: dict[str, Any], slices: list[Any], make: Callable[[dict[type, Mark]], Snapshot]
    ) -> dict[type, Mark]:
        self._read_blobs(document.get("blobs", []))
        parts = _with_texts(document.get("parts", []))
        found: dict[type, list[Any]] = {}
        pools: list[tuple[type, list[Any]]] = []
        for index, entry in enumerate(slices):
            kind, items = self._read_entry(entry, parts, f"$.slices[{index}]")
            pools.append((kind, items))
            if kind is LOST:
                continue
            # Two classes may have become one.
            if kind in found and not self._upgrades:
                raise SessionError(f"The snapshot is invalid: slice '{kind.__qualname__}' appears twice")
            found.setdefault(kind, []).extend(item for item in items if item is not LOST)
        self._read_past(document.get("past", []), parts, pools)
        try:
            fill([(kind, items) for kind, items in pools], found, make)
        except (AttributeError, IndexError, ValueError) as error:
            self._note("$.slices", f"an earlier state cannot be read: {error}", error)
            found = {kind: items for kind, items in found.items() if not issubclass(kind, Moment)}
        return {kind: (items, len(items)) for kind, items in found.items()}

    def read_files(self, data: Any) -> InMemorySnapshot | None:
        """The in-memory files of the session."""
        try:
            return None if data is None else load_checked(InMemorySnapshot, data)
        except SerdeError as error:
            self._note_error("$.files", error)
            return None

    def _read_past(self, entries: Any, parts: Any, pools: list[tuple[type, list[Any]]]) -> None:
        """Read the items of earlier states alone: they follow those of the same slice, or have a slice of their own."""
        for index, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            path = f"$.past[{index}]"
            match entry:
                case [int(number), list()] if 0 <= number < len(pools):
                    pools[number][1].extend(self._read_items(pools[number][0], _unshared(entry, parts)[1], path))
                case _:
                    pools.append(self._read_entry(entry, parts, path))

    def _read_entry(self, entry: Any, parts: Any, path: str) -> tuple[Any, list[Any]]:
        entry = _unshared(entry, parts)
        if not (isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[1], list)):
            raise SessionError(f"The text is not a session snapshot: {path} must be a type and a list of items")
        kind = self._read_type(entry[0], path) or LOST
        return kind, self._read_items(kind, entry[1], path)

    def _read_items(self, kind: Any, items: list[Any], path: str) -> list[Any]:
        if kind is LOST:
            return [LOST] * len(items)
        return [next(self._read_item(kind, item, f"{path}[1][{place}]"), LOST) for place, item in enumerate(items)]

    def _read_blobs(self, entries: Any) -> None:
        for index, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            try:
                blob = Blob(b64decode(entry, validate=True))
                self._blobs[blob.digest] = blob
            except (TypeError, ValueError) as error:
                self._note(f"$.blobs[{index}]", str(error), error)

    def _read_type(self, data: Any, path: str) -> type | None:
        try:
            found: type = load_checked(type, upgrade_tagged(data, self._upgrades))
        except SerdeError as error:
            self._note_error(f"{path}[0]", error)
            return None
        if self._types is None or found in self._types or is_declared(found):
            return found
        self._note(path, undeclared(found))
        return None

    def _read_item(self, slice_type: type, data: Any, path: str) -> Iterator[Any]:
        """The item, if it can be read; of an unreadable value in one of our own, the rest of that."""
        try:
            data = upgrade_tagged(data, self._upgrades, self._blobs, self._types)
            yield load_checked(slice_type, data, self._blobs, self._types)
        except SerdeError as error:
            if not self._lenient or not _is_ours(data):
                self._note_error(path, error)
                return
            try:
                yield load_checked(slice_type, self._readable(data, path), self._blobs, self._types)
            except SerdeError as rest:
                self._note_error(path, rest)

    def _readable(self, data: Any, path: str) -> Any:
        """One of our records, with the default or None for each field that cannot be read."""
        known = {column.name: column for column in columns(load_tagged({"$": "type", "v": data["$"]}))}
        fields = {}
        for name, value in data["v"].items():
            try:
                load_checked(Any, value, self._blobs, self._types)
            except SerdeError as error:
                if _is_ours(value):
                    fields[name] = self._readable(value, f"{path}.{name}")
                    continue
                self._note_error(f"{path}.{name}", error)
                if name in known and known[name].required:
                    fields[name] = None
            else:
                if name in known:
                    fields[name] = value
                else:
                    self._note(path, f"{data['$']} has no field {name!r}")
        return {**data, "v": fields}

    def _note_error(self, path: str, error: SerdeError) -> None:
        where, message = error.problems[0]
        self._note(f"{path}{where.removeprefix('$')}", message, error)

    def _note(self, path: str, message: str, error: Exception | None = None) -> None:
        if not self._lenient:
            raise SessionError(f"The snapshot cannot be read: {path}: {message}") from error
        self.problems.append(f"{path}: {message}")


def _is_ours(data: Any) -> bool:
    """True for a record of this library, in tagged JSON."""
    tag = data.get("$") if isinstance(data, dict) else None
    if not isinstance(tag, str) or not tag.startswith(OWN_NAMES) or not isinstance(data.get("v"), dict):
        return False
    try:
        return is_record(load_tagged({"$": "type", "v": tag}))
    except SerdeError:
        return False
