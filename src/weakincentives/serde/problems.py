"""How problems with data are worded: where they are, and what was there."""

from __future__ import annotations

import collections.abc as abc


def field_path(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() and len(name) <= 100 else f"{path}[{quote(name)}]"


def quote(value: object) -> str:
    """A value as messages show it, always short."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a very large number"
    return repr(value)


def describe(value: object) -> str:
    """What messages call a value of the wrong type."""
    match value:
        case None:
            return "null"
        case bool() | int() | float() | str():
            return f"{type(value).__name__} {quote(value)}"
        case abc.Mapping():
            return "an object"
        case list() | tuple() | set() | frozenset():
            return "an array"
    return type(value).__name__
