"""Freezes events when they happen, defines placeholders for what cannot be written or read, and makes plain JSON.

An immutable event is kept as it is; any other is turned into data at once.
"""

from __future__ import annotations

import enum
import math
import reprlib
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter
from pathlib import PurePath
from types import NoneType
from typing import Any, get_args
from uuid import UUID

from weakincentives._base.display import shortened
from weakincentives.content import Blob
from weakincentives.errors import SerdeError
from weakincentives.prompt import DisclosureRequest, OpenSectionsResult, ReadSectionResult, VisibilityChange
from weakincentives.runtime import HostedToolInvoked, Message, ParamsBound, PendingCall, Question, RunEnded, ToolInvoked
from weakincentives.runtime.spi import RUN_EVENTS
from weakincentives.serde import check_tagged, columns, dump_tagged, is_record, register_type, stored_name

# The events of runs; they are validated when read.
EVENTS: tuple[type, ...] = (Message, *get_args(VisibilityChange), *RUN_EVENTS)
MAPPINGS = frozenset({"dict", "OrderedDict", "mappingproxy"})
MAX_DEPTH = 100
REPR_LENGTH = 400
MAX_PARTS = 500


@dataclass(frozen=True, slots=True)
class Unserialisable:
    """A value that cannot be serialised; `text` is the beginning of its repr."""

    type: str  #: the name of its class
    text: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An event in a damaged file: its kind, and why it cannot be read."""

    kind: str  #: the kind of the event
    problem: str  #: why it cannot be read


@dataclass(frozen=True, slots=True, repr=False)
class UnknownType:
    """A value of a class that this process has not imported; `value` is its recorded data.

    For a dataclass, that is a mapping of its fields.
    """

    type: str  #: the name of the class
    value: Any

    def __repr__(self) -> str:
        # As that of the class would be: people read it in the question about a call.
        if not isinstance(self.value, Mapping):
            return f"{self.type}({self.value!r})"
        fields = ", ".join(f"{name}={value!r}" for name, value in self.value.items())
        return f"{self.type.rpartition(':')[2]}({fields})"


def asked_question(call: PendingCall) -> Question:
    """The question about a recorded call; only its name if the question is damaged."""
    question: Any = call.question
    try:
        check_tagged(Question, dump_tagged(question))
    except SerdeError:
        return Question(id="", call_id=str(call.call_id), tool=str(call.tool), missing=("The question is damaged.",))
    return question  # type: ignore[no-any-return]


def plain(value: Any, depth: int = 0) -> Any:
    """The value as JSON for a person to read: no type tags, and nothing that JSON cannot express."""
    if depth > MAX_DEPTH:
        return "…"
    match value:
        case None | bool() | int() | str() if not isinstance(value, enum.Enum):
            return value
        case float():
            return value if math.isfinite(value) else repr(value)
        case enum.Enum():
            return plain(value.value, depth + 1)
        case UnknownType():
            return _untagged(value.value, depth + 1)
        case Unserialisable():
            return f"<{value.type}> {value.text}"
        case Mapping():
            return {_key(key): plain(item, depth + 1) for key, item in value.items()}
        case _ if is_record(type(value)):
            return {column.name: plain(getattr(value, column.name), depth + 1) for column in columns(type(value))}
        case list() | tuple() | set() | frozenset():
            return [plain(item, depth + 1) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray():
            return f"<{len(value):,} bytes>"
    return str(value)


def _key(key: Any) -> str:
    if isinstance(key, tuple):
        return ".".join(map(str, key))
    return str(key.value if isinstance(key, enum.Enum) else key)


def _untagged(data: Any, depth: int) -> Any:
    """Plain JSON of tagged data whose classes this process has not imported, or that is damaged."""
    if depth > MAX_DEPTH:
        return "…"
    if isinstance(data, list):
        return [_untagged(item, depth + 1) for item in data]
    if not isinstance(data, dict):
        return plain(data, depth)
    tag, inner = data.get("$"), data.get("v")
    if not isinstance(tag, str):
        return {str(key): _untagged(item, depth + 1) for key, item in data.items()}
    try:
        if tag in MAPPINGS:
            return {_key(_untagged(key, depth + 1)): _untagged(item, depth + 1) for key, item in inner or ()}
        if tag == "str":
            return b64decode(inner or "").decode("utf-8", "surrogatepass")
        if tag in ("bytes", "bytearray"):
            return f"<{len(b64decode(inner or '')):,} bytes>"
    except (TypeError, ValueError):
        return f"<{tag}>"
    return _untagged(inner, depth + 1)


class FrozenEvent:
    """An event turned into data at once, because something in it may change later."""

    __slots__ = ("blobs", "data", "event")

    def __init__(self, event: object) -> None:
        self.event = event
        self.blobs: dict[str, Blob] = {}
        self.data = dump(event, self.blobs)


def freeze(event: object) -> object:
    """The event itself if nothing in it can change, else its data as it is now."""
    if type(event) in _UNCHANGING:
        return event
    try:
        return event if _is_immutable(event) else FrozenEvent(event)
    except Exception:  # The value's own code fails when inspected; `dump` finds out which part.
        return FrozenEvent(event)


def dump(value: Any, blobs: dict[str, Blob] | None = None) -> Any:
    """`dump_tagged`, with an `Unserialisable` for each part that cannot be serialised."""
    try:
        return dump_tagged(value, blobs)
    except Exception:
        return _Parts().dump(value)


def placeholder(value: Any) -> Any:
    """The data that represents a value that cannot be serialised."""
    cls, text = type(value), shortened(_SHORT.repr(value), REPR_LENGTH)
    return dump_tagged(Unserialisable(stored_name(cls), text))


class _Parts:
    """Dumps a value part by part if it cannot be dumped whole; stops where it contains itself or is too large."""

    def __init__(self) -> None:
        self._left = MAX_PARTS
        self._within: set[int] = set()

    def dump(self, value: Any) -> Any:
        self._left -= 1
        if id(value) in self._within or len(self._within) >= MAX_DEPTH or self._left <= 0:
            return placeholder(value)
        try:
            return dump_tagged(value)
        except Exception:
            self._within.add(id(value))
            dumped = self._parts(value)
            self._within.discard(id(value))
            return dumped

    def _parts(self, value: Any) -> Any:
        cls = type(value)
        if is_dataclass(value) and not isinstance(value, type):
            register_type(cls)
            names = [field.name for field in fields(value)]
            return {
                "$": stored_name(cls),
                "v": {name: self.dump(getattr(value, name, None)) for name in names},
            }
        if cls is list:
            return [self.dump(item) for item in value]
        if cls in (tuple, set, frozenset):
            return {"$": cls.__name__, "v": [self.dump(item) for item in value]}
        if isinstance(value, Mapping):
            return {"$": "dict", "v": [[self.dump(key), self.dump(item)] for key, item in list(value.items())]}
        return placeholder(value)


_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = REPR_LENGTH
# The loop builds every other event from immutable parts.
_UNCHANGING = frozenset(EVENTS) - {HostedToolInvoked, ParamsBound, RunEnded, ToolInvoked}
# A disclosure contains mappings, but nothing changes them after the view has created them.
_DISCLOSURE = {DisclosureRequest, OpenSectionsResult, ReadSectionResult}
_ATOMS: frozenset[type] = frozenset(
    {str, int, float, bool, NoneType, bytes, complex, date, datetime, timedelta, Decimal, UUID, *_DISCLOSURE}
)
_CHECKS: dict[type, Callable[[Any], bool]] = {}


def _is_immutable(value: Any) -> bool:
    cls = type(value)
    if cls in _ATOMS:
        return True
    check = _CHECKS.get(cls)
    if check is None:
        check = _CHECKS[cls] = _check_for(cls)
    return check(value)


def _all_immutable(values: Iterable[Any]) -> bool:
    # Not `all` with a generator, which takes twice as long in the agent's thread.
    for value in values:  # noqa: SIM110
        if type(value) not in _ATOMS and not _is_immutable(value):
            return False
    return True


def _check_for(cls: type) -> Callable[[Any], bool]:
    if cls in (tuple, frozenset):
        return _all_immutable
    if issubclass(cls, enum.Enum | PurePath | type):
        return lambda value: True
    parameters = getattr(cls, "__dataclass_params__", None)
    if parameters is not None and parameters.frozen and is_dataclass(cls):
        names = [field.name for field in fields(cls)]
        if not names:
            return lambda value: True
        of = attrgetter(*names)
        if len(names) == 1:
            return lambda value: _is_immutable(of(value))
        return lambda value: _all_immutable(of(value))
    return lambda value: False
