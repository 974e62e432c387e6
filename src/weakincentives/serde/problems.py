"""How problems with data are worded: where they are, and what was there."""

from __future__ import annotations

import collections.abc as abc
from typing import Any

from weakincentives.errors import FieldProblem

_OWN_WORDS = ("Value error, ", "Assertion failed, ")


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


def pydantic_problem(error: Any, data: Any) -> FieldProblem:
    """What Pydantic found in the data, in our words."""
    path, option, kind = "$", "", error["type"]
    for index, step in enumerate(error["loc"]):
        if isinstance(step, int) and isinstance(data, list):
            path, data = f"{path}[{step}]", data[step] if step < len(data) else None
        elif isinstance(data, dict) and (step in data or (kind == "missing" and index == len(error["loc"]) - 1)):
            path, data = field_path(path, str(step)), data.get(step)
        else:
            option = f"as {step}: "
    message = {"missing": "missing", "extra_forbidden": "unknown field"}.get(kind)
    if message is None:
        message = error["msg"]
        own = next((message.removeprefix(start) for start in _OWN_WORDS if message.startswith(start)), None)
        message = own or f"{message}, got {describe(error['input'])}"
    return FieldProblem(path, option + message)
