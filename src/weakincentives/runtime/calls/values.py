"""Values taken apart for people to check: by what is stored of them, never by their own `__repr__` or `__eq__`.

A value is an atom, which has a text, or it has parts: fields, pairs or items. Two atoms are the same if their types and
texts are.
"""

from __future__ import annotations

import enum
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from pathlib import PurePath
from types import EllipsisType, NoneType
from typing import Any, TypeAlias
from uuid import UUID

from weakincentives.content import Blob
from weakincentives.errors import SerdeError
from weakincentives.serde import columns, dump_tagged, field_value, is_record

MAX_BYTES = 64
"""The longest bytes that are shown; of more, their size and digest are."""
MAX_PARTS = 500_000
"""The parts of values that one comparison looks at."""


class TooLarge(Exception):
    """The values have too many parts to be compared."""


class Work:
    """The parts that may still be looked at."""

    def __init__(self, parts: int = MAX_PARTS) -> None:
        self._left = parts

    def spend(self, parts: int = 1) -> None:
        self._left -= parts
        if self._left < 0:
            raise TooLarge


@dataclass(frozen=True, slots=True)
class Atom:
    """A value without parts, as text; `problem` says what the text leaves out, if it is not all.

    `key` is then what atoms are compared by.
    """

    type_name: str
    text: str
    problem: str = ""
    key: Any = None

    @property
    def identity(self) -> tuple[str, Any]:
        """What equal atoms have in common, and no others."""
        return self.type_name, self.text if self.key is None else self.key


@dataclass(frozen=True, slots=True)
class Record:
    """A value with named fields."""

    type_name: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pairs:
    """A mapping; the order of its keys counts if it is `ordered`."""

    type_name: str
    pairs: list[tuple[Any, Any]]
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """A sequence."""

    type_name: str
    items: list[Any]


@dataclass(frozen=True, slots=True)
class Elements:
    """A set."""

    type_name: str
    items: list[Any]


Shape: TypeAlias = Atom | Record | Pairs | Items | Elements


class _NotSet:
    """In place of a field that has no value."""


NOT_SET = _NotSet()


def shape_of(value: Any) -> Shape:
    """The value taken apart; one that cannot be is an atom with a problem."""
    # Not isinstance, which believes what an object says of its class.
    cls = type(value)
    try:
        return _shape_of(value, cls)
    except TooLarge:
        raise
    except (Exception, SystemExit) as error:
        problem = f"a {cls.__qualname__} that cannot be read ({type(error).__name__})"
        return Atom(cls.__qualname__, f"<{cls.__qualname__}>", problem, id(value))


def _shape_of(value: Any, cls: Any) -> Shape:
    name = cls.__qualname__
    if issubclass(cls, enum.Enum):
        member = value._name_
        return Atom(name, f"{name}({value._value_!r})" if member is None else f"{name}.{member}")
    if hasattr(cls, "get_secret_value"):
        return Atom(name, "a secret", "a secret", value.get_secret_value())
    if is_record(cls) and not issubclass(cls, dict):
        return Record(name, _fields_of(value, cls))
    if issubclass(cls, dict):
        return Pairs(name, list(dict.items(value)), ordered=issubclass(cls, OrderedDict))
    if issubclass(cls, Mapping):
        return Pairs(name, _listed(value.items()))
    if issubclass(cls, bytes | bytearray | memoryview | Blob):
        return _binary(value, cls)
    for kind, written in _TEXTS:
        if issubclass(cls, kind):
            text = written(value)
            return Atom(name, text if cls in _BARE else f"{name}({text})")
    if issubclass(cls, Set):
        return Elements(name, _listed(value))
    if issubclass(cls, Sequence) or name == "deque":
        return Items(name, _listed(value))
    return _stored(value, cls)


def is_text(value: Any) -> bool:
    """True if the value is a text; an object is not asked for its class, which it may lie about."""
    return issubclass(type(value), str)


def _listed(items: Iterable[Any]) -> list[Any]:
    items = list(islice(items, MAX_PARTS + 1))
    if len(items) > MAX_PARTS:
        raise TooLarge
    return items


def _fields_of(value: Any, cls: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if hasattr(cls, "__pydantic_validator__"):
        state = object.__getattribute__(value, "__dict__")
        for name in cls.model_fields:
            fields[name] = state.get(name, NOT_SET)
        for more in ("__pydantic_extra__", "__pydantic_private__"):
            fields.update(getattr(value, more, None) or {})
        return fields
    for column in columns(cls):
        try:
            fields[column.name] = field_value(value, column.name)
        except AttributeError:
            fields[column.name] = NOT_SET
    return fields


def _binary(value: Any, cls: Any) -> Atom:
    name = cls.__qualname__
    data = value.data if issubclass(cls, Blob) else bytes(value)
    if len(data) <= MAX_BYTES:
        text = bytes.__repr__(data)
        return Atom(name, text if cls is bytes else f"{name}({text})")
    digest = hashlib.sha256(data).hexdigest()
    return Atom(name, f"{len(data):,} bytes, sha256 {digest[:12]}", f"{len(data):,} bytes of binary data", digest)


def _written_moment(value: Any) -> str:
    """A date or time, with the name of its zone, which says more than the offset."""
    text: str = value.isoformat()
    zone = getattr(getattr(value, "tzinfo", None), "key", "")
    fold = " (the second time)" if getattr(value, "fold", 0) else ""
    return f"{text} {zone}{fold}".rstrip() if zone or fold else text


def _written_class(value: type) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _nothing(text: str) -> Callable[[Any], str]:
    return lambda value: text


# How the text of a value is made that is of one of these types, or of a subclass.
_TEXTS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (NoneType, _nothing("None")),
    (EllipsisType, _nothing("...")),
    (_NotSet, _nothing("not set")),
    (bool, bool.__repr__),
    (int, int.__repr__),
    (float, float.__repr__),
    (complex, complex.__repr__),
    (str, str.__repr__),
    (datetime, _written_moment),
    (date, date.isoformat),
    (time, _written_moment),
    (timedelta, timedelta.__str__),
    (Decimal, Decimal.__str__),
    (Fraction, Fraction.__str__),
    (UUID, UUID.__str__),
    (PurePath, PurePath.__str__),
    (range, range.__repr__),
    (type, _written_class),
)
# Types that are clear from the text.
_BARE = frozenset({NoneType, EllipsisType, _NotSet, bool, int, float, complex, str, datetime, date, time, range})


def _stored(value: Any, cls: Any) -> Shape:
    """A value of another class, by what is stored of it."""
    name = cls.__qualname__
    try:
        data = dump_tagged(value)
    except SerdeError:
        return Atom(name, f"<{name}>", f"a {name}, whose content is not known", id(value))
    if isinstance(data, dict) and set(data) == {"$", "v"}:
        data = data["v"]
    if isinstance(data, str | int | float | None):
        return Atom(name, f"{name}({data!r})")
    return Items(name, [data])


def fingerprint(value: Any, work: Work) -> bytes:
    """A digest of the value; two values have the same if they have equal types and contents, and else not."""
    digest = hashlib.blake2b(digest_size=16)
    stack: list[Any] = [value]
    open_ids: list[int] = []
    while stack:
        item = stack.pop()
        if item is _END:
            open_ids.pop()
            digest.update(b")")
            continue
        work.spend()
        shape = shape_of(item)
        if isinstance(shape, Atom):
            written = repr(shape.identity).encode("utf-8", "surrogatepass")
            digest.update(b"%d:%s;" % (len(written), written))
        elif id(item) in open_ids:
            digest.update(b"itself %d;" % open_ids.index(id(item)))
        else:
            open_ids.append(id(item))
            parts = _parts_in_order(shape, work)
            digest.update(f"{type(shape).__name__} {shape.type_name} {len(parts)}(".encode("utf-8", "surrogatepass"))
            stack.append(_END)
            stack.extend(reversed(parts))
    return digest.digest()


_END = object()


def _parts_in_order(shape: Record | Pairs | Items | Elements, work: Work) -> list[Any]:
    """The parts of a value, in an order that does not depend on how it was made."""
    if isinstance(shape, Items):
        return shape.items
    if isinstance(shape, Elements):
        return sorted(shape.items, key=lambda item: fingerprint(item, work))
    parts: list[Any] = []
    if isinstance(shape, Record):
        for name, value in shape.fields.items():
            parts += [name, value]
        return parts
    pairs = shape.pairs
    if not shape.ordered:
        pairs = sorted(pairs, key=lambda pair: fingerprint(pair[0], work))
    for key, value in pairs:
        parts += [key, value]
    return parts
