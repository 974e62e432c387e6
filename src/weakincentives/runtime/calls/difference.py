"""The differences of two values, for people to read: what was changed, added, removed and moved, each with its path.

Every change is shown whole, or named as missing: there are no counts in place of changes and no cut texts. Only what is
unchanged is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from weakincentives.runtime.calls.alignment import aligned, in_order
from weakincentives.runtime.calls.values import (
    Atom,
    Elements,
    Items,
    Pairs,
    Record,
    Shape,
    TooLarge,
    Work,
    fingerprint,
    is_text,
    shape_of,
)

DifferenceKind = Literal["changed", "added", "removed", "moved", "stated"]
ListedKind = Literal["added", "removed", "stated"]
LineKind = Literal["heading", "same", "added", "removed", "changed", "note"]

MAX_CHARACTERS = 200_000
"""The characters that the differences of two values may have; what is beyond them is named as missing."""
MAX_IN_LINE = 100
"""The longest value that is shown on one line; of longer ones, each part has its own."""
MAX_NAME = 60
MAX_KEY = 1_000
MAX_DEPTH = 60
MAX_MOVES = 20
CONTEXT = 3
AROUND = 30
"""The characters that are shown around a change inside a long line."""
IDENTIFYING = ("id", "key", "name", "uid", "uuid", "slug", "code", "sku")
_MARKS: dict[ListedKind, str] = {"added": "+", "removed": "-", "stated": " "}
_LINE_KINDS: dict[ListedKind, LineKind] = {"added": "added", "removed": "removed", "stated": "changed"}
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Line:
    """A line for people, with a mark such as + or - where it has one; `kind` says how to draw it."""

    kind: LineKind
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: where it is, and the values there as text, empty where there is none.

    What is `stated` was not compared, such as a change that a resource names itself. Of long texts, `before` and
    `after` have what differs, with a part of what is around it.
    """

    kind: DifferenceKind  #: how the value differs
    path: str  #: such as services.checkout.restarts
    before: str = ""  #: the value before
    after: str = ""  #: the value after
    lines: tuple[Line, ...] = field(default=(), repr=False)  #: how it is shown


@dataclass(frozen=True, slots=True)
class Differences:
    """All differences of two values."""

    items: tuple[Difference, ...] = ()  #: in the order of the values
    missing: tuple[str, ...] = ()  #: what is not shown, in sentences

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def lines(self) -> tuple[Line, ...]:
        lines: list[Line] = []
        for difference in self.items:
            lines += difference.lines
        return tuple(lines)

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)


def differences(before: Any, after: Any, *, name: str = "", characters: int = MAX_CHARACTERS) -> Differences:
    """The differences of two values; `name` is what sentences call the value."""
    comparison = _Comparison(name, characters)
    comparison.run(lambda: comparison.compare("", before, after, 0))
    return comparison.result()


def listing(kind: ListedKind, value: Any, *, name: str = "", characters: int = MAX_CHARACTERS) -> Differences:
    """A whole value, as a difference to nothing."""
    comparison = _Comparison(name, characters)
    comparison.run(lambda: comparison.list_value(kind, "", value, 0))
    return comparison.result()


class _Full(Exception):
    """There is no room for further differences."""


class _Place(NamedTuple):
    """Where a listed value stands, and what begins its line."""

    kind: ListedKind
    path: str
    head: str


class _Comparison:
    """Compares two values part by part."""

    def __init__(self, name: str, characters: int) -> None:
        self._name = name or "the value"
        self._room = characters
        self._work = Work()
        self._items: list[Difference] = []
        self._missing: dict[str, None] = {}
        self._open: list[tuple[int, int]] = []
        self._listed: list[int] = []

    def run(self, compare: Callable[[], None]) -> None:
        try:
            compare()
        except TooLarge:
            self._miss(f"{self._name} is too large to be compared, so that not all its changes are shown.")
        except _Full:
            self._miss(f"There are more changes of {self._name} than can be shown.")
        except RecursionError:
            self._miss(f"{self._name} is nested too deeply to be compared, so that not all its changes are shown.")

    def result(self) -> Differences:
        return Differences(tuple(self._items), tuple(self._missing))

    def compare(self, path: str, before: Any, after: Any, depth: int) -> None:
        """Add the differences of two values at a path."""
        if before is after:
            return
        self._work.spend()
        old, new = shape_of(before), shape_of(after)
        if isinstance(old, Atom) and isinstance(new, Atom):
            self._compare_atoms(path, before, after, old, new)
            return
        if type(old) is not type(new) or old.type_name != new.type_name:
            self._replace(path, before, after, depth)
            return
        self._check_depth(path, depth)
        place = (id(before), id(after))
        if place in self._open:
            self._miss(f"{self._at(path)} contains itself.")
            return
        self._open.append(place)
        self._compare_parts(path, old, new, depth + 1)
        self._open.pop()

    def _compare_parts(self, path: str, old: Shape, new: Shape, depth: int) -> None:
        if isinstance(old, Record) and isinstance(new, Record):
            self._compare_fields(path, old.fields, new.fields, depth)
        elif isinstance(old, Pairs) and isinstance(new, Pairs):
            self._compare_pairs(path, old, new, depth)
        elif isinstance(old, Elements) and isinstance(new, Elements):
            self._compare_elements(path, old, new, depth)
        elif isinstance(old, Items) and isinstance(new, Items):
            self._compare_items(path, old.items, new.items, depth)

    def _compare_atoms(self, path: str, before: Any, after: Any, old: Atom, new: Atom) -> None:
        if old.identity == new.identity:
            if old.problem and old.key == id(before):
                # Two objects that cannot be read may differ.
                self._miss(f"{self._at(path)} has {old.problem}.")
            return
        for atom in (old, new):
            if atom.problem:
                self._miss(f"{self._at(path)} has {atom.problem}, which cannot be shown.")
        if type(before) is type(after) and is_text(before):
            self._change_text(path, str.__str__(before), str.__str__(after))
        else:
            self._change(path, old.text, new.text)

    def _compare_fields(self, path: str, old: dict[str, Any], new: dict[str, Any], depth: int) -> None:
        for name, value in old.items():
            if name in new:
                self.compare(_field(path, name), value, new[name], depth)
            else:
                self.list_value("removed", _field(path, name), value, depth)
        for name, value in new.items():
            if name not in old:
                self.list_value("added", _field(path, name), value, depth)

    def _compare_pairs(self, path: str, old: Pairs, new: Pairs, depth: int) -> None:
        old_pairs = self._by_key(old)
        new_pairs = self._by_key(new)
        for digest, (key, value) in old_pairs.items():
            if digest in new_pairs:
                self.compare(self._key(path, key), value, new_pairs[digest][1], depth)
            else:
                self.list_value("removed", self._key(path, key), value, depth)
        for digest, (key, value) in new_pairs.items():
            if digest not in old_pairs:
                self.list_value("added", self._key(path, key), value, depth)
        if old.ordered:
            common = [digest for digest in old_pairs if digest in new_pairs]
            places = {digest: at for at, digest in enumerate(new_pairs)}
            self._show_moves(path, [(at, places[digest]) for at, digest in enumerate(common)], {})

    def _by_key(self, shape: Pairs) -> dict[bytes, tuple[Any, Any]]:
        by_key: dict[bytes, tuple[Any, Any]] = {}
        for key, value in shape.pairs:
            by_key[fingerprint(key, self._work)] = (key, value)
        return by_key

    def _compare_items(self, path: str, old: list[Any], new: list[Any], depth: int) -> None:
        labels = self._labels(old, new)
        if labels is None:
            self._compare_places(path, old, new, depth)
            return
        old_labels, new_labels = labels
        places = {label: at for at, label in enumerate(new_labels)}
        pairs: list[tuple[int, int]] = []
        for at, label in enumerate(old_labels):
            if label in places:
                pairs.append((at, places[label]))
                self.compare(f"{path}{label}", old[at], new[places[label]], depth)
            else:
                self.list_value("removed", f"{path}[{at}]", old[at], depth)
        known_labels = set(old_labels)
        for at, label in enumerate(new_labels):
            if label not in known_labels:
                self.list_value("added", f"{path}[{at}]", new[at], depth)
        self._show_moves(path, pairs, dict(enumerate(old_labels)))

    def _labels(self, old: list[Any], new: list[Any]) -> tuple[list[str], list[str]] | None:
        """Labels of the items, before and after, by a field whose values all differ; None if there is no such field."""
        self._work.spend(len(old) + len(new))
        old_fields = _fields_of_all(old)
        new_fields = _fields_of_all(new)
        if not old_fields or not new_fields:
            return None
        names = [name for name in IDENTIFYING if name in old_fields[0]]
        names += [name for name in list(old_fields[0])[:2] if name not in names]
        for name in names:
            old_labels = _labels_by(name, old_fields)
            new_labels = _labels_by(name, new_fields)
            if old_labels is not None and new_labels is not None:
                return old_labels, new_labels
        return None

    def _compare_places(self, path: str, old: list[Any], new: list[Any], depth: int) -> None:
        """Compare items that have no names: by what they are, and where they stand."""
        old_digests = [fingerprint(item, self._work) for item in old]
        new_digests = [fingerprint(item, self._work) for item in new]
        anchors = aligned(old_digests, new_digests)
        moves = _moved(old_digests, new_digests, anchors)
        self._show_moves(path, [*anchors, *moves], {})
        gone = set(range(len(old))) - {at for at, _ in anchors} - {at for at, _ in moves}
        come = set(range(len(new))) - {at for _, at in anchors} - {at for _, at in moves}
        start = new_start = 0
        for end, new_end in [*anchors, (len(old), len(new))]:
            removed = [at for at in range(start, end) if at in gone]
            added = [at for at in range(new_start, new_end) if at in come]
            start, new_start = end + 1, new_end + 1
            if len(removed) == len(added):
                for at, new_at in zip(removed, added, strict=True):
                    place = f"[{at}]" if at == new_at else f"[{at} -> {new_at}]"
                    self.compare(f"{path}{place}", old[at], new[new_at], depth)
                continue
            for at in removed:
                self.list_value("removed", f"{path}[{at}]", old[at], depth)
            for at in added:
                self.list_value("added", f"{path}[{at}]", new[at], depth)

    def _compare_elements(self, path: str, old: Elements, new: Elements, depth: int) -> None:
        old_items = {fingerprint(item, self._work): item for item in old.items}
        new_items = {fingerprint(item, self._work): item for item in new.items}
        removed = [item for digest, item in old_items.items() if digest not in new_items]
        added = [item for digest, item in new_items.items() if digest not in old_items]
        for item in sorted(removed, key=self._text_order):
            self.list_value("removed", _element(path), item, depth)
        for item in sorted(added, key=self._text_order):
            self.list_value("added", _element(path), item, depth)

    def _text_order(self, item: Any) -> str:
        return self._in_line(item) or ""

    def _replace(self, path: str, before: Any, after: Any, depth: int) -> None:
        old, new = self._in_line(before), self._in_line(after)
        if old is not None and new is not None:
            self._change(path, old, new)
            return
        self.list_value("removed", path, before, depth)
        self.list_value("added", path, after, depth)

    def list_value(self, kind: ListedKind, path: str, value: Any, depth: int, label: str | None = None) -> None:
        """Add a whole value, on one line if it fits, else with a line for each of its parts below it.

        The lines of a part have its `label` in place of the path.
        """
        self._work.spend()
        shape = shape_of(value)
        place = _Place(kind, path, f"{'  ' * len(self._listed)}{_shown_path(path if label is None else label)}")
        if isinstance(shape, Atom):
            if shape.problem:
                self._miss(f"{self._at(path)} has {shape.problem}, which cannot be shown.")
            if is_text(value) and len(shape.text) > MAX_IN_LINE and "\n" in str.__str__(value):
                self._list_text(place, str.__str__(value))
            else:
                self._list(place, shape.text)
            return
        text = self._in_line(value)
        if text is not None:
            self._list(place, text)
            return
        self._check_depth(path, depth)
        if id(value) in self._listed:
            self._list(place, f"{shape.type_name} (itself)")
            self._miss(f"{self._at(path)} contains itself.")
            return
        self._list(place, _headed(shape))
        self._listed.append(id(value))
        for part_path, part in self._parts(path, shape):
            self.list_value(kind, part_path, part, depth + 1, part_path[len(path) :].lstrip("."))
        self._listed.pop()

    def _parts(self, path: str, shape: Shape) -> Iterator[tuple[str, Any]]:
        if isinstance(shape, Record):
            for name, value in shape.fields.items():
                yield _field(path, name), value
        elif isinstance(shape, Pairs):
            for key, value in shape.pairs:
                yield self._key(path, key), value
        elif isinstance(shape, Items):
            for at, item in enumerate(shape.items):
                yield f"{path}[{at}]", item
        elif isinstance(shape, Elements):
            for item in sorted(shape.items, key=self._text_order):
                yield _element(path), item

    def _key(self, path: str, key: Any) -> str:
        if type(key) is str and _is_plain(key):
            return _field(path, key)
        text = self._in_line(key, MAX_KEY)
        if text is None:
            self._miss(f"{self._at(path)} has a key that is too long to be shown.")
            text = "..."
        return f"{path}[{text}]"

    def _in_line(self, value: Any, characters: int = MAX_IN_LINE) -> str | None:
        """The value on one line; None if it is too long for that, or cannot be shown whole."""
        writer = _Writer(characters, self._work)
        try:
            writer.write(value, 0)
        except _Full:
            return None
        return "".join(writer.pieces)

    def _change(self, path: str, before: str, after: str) -> None:
        if len(before) + len(after) <= MAX_IN_LINE:
            lines = [Line("changed", f"  {_shown_path(path)}{before} -> {after}")]
        else:
            lines = [
                Line("removed", f"- {_shown_path(path)}{before}"),
                Line("added", f"+ {_shown_path(path)}{after}"),
            ]
        self._add(Difference("changed", path, before, after, tuple(lines)))

    def _change_text(self, path: str, before: str, after: str) -> None:
        """A changed text: as a diff of lines if there are several, else without what is the same at both ends."""
        if "\n" in before or "\n" in after:
            self._work.spend(before.count("\n") + after.count("\n"))
            lines = text_lines(before, after)
            old = [line.text for line in lines if line.kind in ("same", "removed")]
            new = [line.text for line in lines if line.kind in ("same", "added")]
            heading = Line("changed", f"  {_shown_path(path)}".rstrip())
            self._add(Difference("changed", path, "\n".join(old), "\n".join(new), (heading, *lines)))
            return
        start, end = common_ends(before, after)
        if start <= 2 * AROUND:
            start = 0
        else:
            start -= AROUND
        end = 0 if end <= 2 * AROUND else end - AROUND
        self._change(path, _part(before, start, end), _part(after, start, end))

    def _list(self, place: _Place, text: str) -> None:
        self._add_listed(place, text, [f"{place.head}{text}"])

    def _list_text(self, place: _Place, text: str) -> None:
        """A long text, line by line."""
        indent = "  " * len(self._listed)
        self._add_listed(place, text, [place.head.rstrip(), *(f"{indent}  {line}" for line in text.split("\n"))])

    def _add_listed(self, place: _Place, text: str, texts: Sequence[str]) -> None:
        mark, line_kind = _MARKS[place.kind], _LINE_KINDS[place.kind]
        lines = tuple(Line(line_kind, f"{mark} {line}") for line in texts)
        before, after = (text, "") if place.kind == "removed" else ("", text)
        self._add(Difference(place.kind, place.path, before, after, lines))

    def _move(self, path: str, text: str) -> None:
        self._add(Difference("moved", path, after=text, lines=(Line("changed", f"  {_shown_path(path)}{text}"),)))

    def _show_moves(self, path: str, pairs: list[tuple[int, int]], labels: dict[int, str]) -> None:
        """Say which items stand elsewhere, of pairs of places before and after."""
        pairs = sorted(pairs)
        staying = set(in_order(pairs))
        moved = [pair for pair in pairs if pair not in staying]
        if len(moved) > MAX_MOVES:
            order = sorted(pairs, key=lambda pair: pair[1])
            listed = ", ".join(labels.get(at, f"[{at}]") for at, _ in order)
            self._move(path, f"in another order, by their places before: {listed}")
            return
        for at, new_at in moved:
            self._move(f"{path}{labels.get(at, f'[{at}]')}", f"moved from place {at} to {new_at}")

    def _add(self, difference: Difference) -> None:
        self._room -= sum(len(line.text) for line in difference.lines)
        if self._room < 0:
            raise _Full
        self._items.append(difference)

    def _miss(self, sentence: str) -> None:
        self._missing.setdefault(sentence[:1].upper() + sentence[1:])

    def _at(self, path: str) -> str:
        return f"{self._name} {path}" if path else self._name

    def _check_depth(self, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise RecursionError(path)


class _Writer:
    """Writes a value on one line, of so many characters at most."""

    def __init__(self, characters: int, work: Work) -> None:
        self.pieces: list[str] = []
        self._room = characters
        self._work = work

    def write(self, value: Any, depth: int) -> None:
        self._work.spend()
        shape = shape_of(value)
        if isinstance(shape, Atom):
            if shape.problem:
                raise _Full
            self._put(shape.text)
        elif isinstance(shape, Record):
            self._put(f"{shape.type_name}(")
            for number, (name, part) in enumerate(shape.fields.items()):
                self._put(f"{', ' if number else ''}{name}=")
                self.write(part, depth + 1)
            self._put(")")
        elif isinstance(shape, Pairs):
            self._open(shape.type_name, "dict", "{")
            for number, (key, part) in enumerate(shape.pairs):
                self._put(", " if number else "")
                self.write(key, depth + 1)
                self._put(": ")
                self.write(part, depth + 1)
            self._close(shape.type_name, "dict", "}")
        elif isinstance(shape, Items):
            first, last = ("(", ")") if shape.type_name == "tuple" else ("[", "]")
            self._open(shape.type_name, "list tuple", first)
            self._write_all(shape.items, depth)
            self._put("," if first == "(" and len(shape.items) == 1 else "")
            self._close(shape.type_name, "list tuple", last)
        elif not shape.items:
            self._put(f"{shape.type_name}()")
        else:
            self._open(shape.type_name, "set", "{")
            self._write_all(self._sorted(shape.items), depth)
            self._close(shape.type_name, "set", "}")

    def _write_all(self, items: Sequence[Any], depth: int) -> None:
        for number, item in enumerate(items):
            self._put(", " if number else "")
            self.write(item, depth + 1)

    def _sorted(self, items: Sequence[Any]) -> list[Any]:
        return sorted(items, key=lambda item: fingerprint(item, self._work))

    def _open(self, type_name: str, bare: str, bracket: str) -> None:
        self._put(bracket if type_name in bare.split() else f"{type_name}({bracket}")

    def _close(self, type_name: str, bare: str, bracket: str) -> None:
        self._put(bracket if type_name in bare.split() else f"{bracket})")

    def _put(self, text: str) -> None:
        self._room -= len(text)
        if self._room < 0:
            raise _Full
        self.pieces.append(text)


def text_lines(before: str, after: str) -> list[Line]:
    """The difference of two texts, line by line, with some unchanged lines around each change."""
    old, new = before.split("\n"), after.split("\n")
    whole = _all_lines(old, new)
    shown = set[int]()
    for at, line in enumerate(whole):
        if line.kind != "same":
            shown.update(range(at - CONTEXT, at + CONTEXT + 1))
    lines: list[Line] = []
    skipped = 0
    for at, line in enumerate(whole):
        if at in shown:
            lines += _skipped(skipped)
            lines.append(line)
            skipped = 0
        else:
            skipped += 1
    return [*lines, *_skipped(skipped)]


def _all_lines(old: list[str], new: list[str]) -> list[Line]:
    lines: list[Line] = []
    start = new_start = 0
    for end, new_end in [*aligned(old, new), (len(old), len(new))]:
        for text in old[start:end]:
            lines.append(Line("removed", f"-   {text}"))
        for text in new[new_start:new_end]:
            lines.append(Line("added", f"+   {text}"))
        if end < len(old):
            lines.append(Line("same", f"    {old[end]}"))
        start, new_start = end + 1, new_end + 1
    return lines


def _skipped(number: int) -> list[Line]:
    if not number:
        return []
    return [Line("note", f"    ({number:,} unchanged {'line' if number == 1 else 'lines'})")]


def common_ends(before: str, after: str) -> tuple[int, int]:
    """The number of characters that two texts have in common at their beginning and, of the rest, at their end."""
    most = min(len(before), len(after))
    start = _common(most, lambda size: before[:size] == after[:size])
    most -= start
    end = _common(most, lambda size: before[len(before) - size :] == after[len(after) - size :])
    return start, end


def _common(most: int, is_same: Callable[[int], bool]) -> int:
    """The largest size up to which two texts are the same; by halving, as slices compare faster than characters."""
    same, too_large = 0, most + 1
    while too_large - same > 1:
        middle = (same + too_large) // 2
        if is_same(middle):
            same = middle
        else:
            too_large = middle
    return same


def _part(text: str, start: int, end: int) -> str:
    """A text without what is the same at its ends."""
    written = repr(text[start : len(text) - end])
    first = f"({start:,} characters unchanged) " if start else ""
    last = f" ({end:,} characters unchanged)" if end else ""
    return f"{first}{written}{last}"


def _moved(old_digests: list[bytes], new_digests: list[bytes], anchors: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The places of equal items that are not in order."""
    taken = {at for at, _ in anchors}
    new_taken = {at for _, at in anchors}
    places: dict[bytes, list[int]] = {}
    for at in range(len(new_digests) - 1, -1, -1):
        if at not in new_taken:
            places.setdefault(new_digests[at], []).append(at)
    moves: list[tuple[int, int]] = []
    for at, digest in enumerate(old_digests):
        if at not in taken and places.get(digest):
            moves.append((at, places[digest].pop()))
    return moves


def _fields_of_all(items: list[Any]) -> list[dict[str, Any]]:
    """The fields of each item, if all are records of one type or mappings with names; else nothing."""
    fields: list[dict[str, Any]] = []
    type_names = set[str]()
    for item in items:
        shape = shape_of(item)
        type_names.add(shape.type_name)
        if isinstance(shape, Record):
            fields.append(shape.fields)
        elif isinstance(shape, Pairs) and all(type(key) is str for key, _ in shape.pairs):
            fields.append(dict(shape.pairs))
        else:
            return []
    return fields if len(type_names) == 1 else []


def _labels_by(name: str, fields: list[dict[str, Any]]) -> list[str] | None:
    """A label for each item by one of its fields; None if two would have the same, or one has none."""
    labels: list[str] = []
    for item in fields:
        shape = shape_of(item.get(name))
        if not isinstance(shape, Atom) or shape.type_name not in _IDENTIFIERS or len(shape.text) > MAX_NAME:
            return None
        labels.append(f"[{name}={shape.text}]")
    return labels if len(set(labels)) == len(labels) else None


_IDENTIFIERS = frozenset({"str", "int", "UUID"})


def _is_plain(name: str) -> bool:
    return len(name) <= MAX_NAME and _PLAIN_NAME.fullmatch(name) is not None


def _field(path: str, name: str) -> str:
    if not _is_plain(name):
        return f"{path}[{name!r}]"
    return f"{path}.{name}" if path else name


def _element(path: str) -> str:
    """The path of an element of a set, which is not that of an item at this place."""
    return f"{path}{{}}" if path else ""


def _headed(shape: Shape) -> str:
    """What begins the lines of a value's parts."""
    if isinstance(shape, Items | Elements):
        return f"{shape.type_name} of {len(shape.items):,}"
    if isinstance(shape, Pairs):
        return f"{shape.type_name} of {len(shape.pairs):,}"
    return shape.type_name


def _shown_path(path: str) -> str:
    return f"{path}: " if path else ""
