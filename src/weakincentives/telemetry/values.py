"""Recorded values: placeholders for those that cannot be written or read, and all of them as plain JSON."""

from __future__ import annotations

import enum
import math
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from weakincentives.serde import columns, is_record

_PAIRS = frozenset({"dict", "OrderedDict", "mappingproxy"})
MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Unserialisable:
    """A value without a serialised form; `text` is the beginning of its repr."""

    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An event of a damaged file: its kind, and why it cannot be read."""

    kind: str
    problem: str


@dataclass(frozen=True, slots=True)
class UnknownType:
    """A value of a class that this process has not imported; `value` is what was recorded of it.

    For a dataclass that is a mapping of its fields.
    """

    type: str
    value: Any


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
    """Tagged data of classes this process does not have, or of a damaged file."""
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
        if tag in _PAIRS:
            return {_key(_untagged(key, depth + 1)): _untagged(item, depth + 1) for key, item in inner or ()}
        if tag == "str":
            return b64decode(inner or "").decode("utf-8", "surrogatepass")
        if tag in ("bytes", "bytearray"):
            return f"<{len(b64decode(inner or '')):,} bytes>"
    except (TypeError, ValueError):
        return f"<{tag}>"
    return _untagged(inner, depth + 1)
