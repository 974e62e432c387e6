"""Data checked against nodes one value at a time, so that every problem is found and has a path.

This is the pass that decides: the msgspec decoder in front of it accepts only what this one accepts.
"""

from __future__ import annotations

import collections.abc as abc
import re
from typing import Any

import msgspec

from weakincentives.errors import Problem, SerdeError
from weakincentives.serde.nodes import (
    Array,
    Choice,
    Choices,
    Node,
    Record,
    Row,
    Scalar,
    Table,
    accepts_null,
)

MAX_PROBLEMS = 100
_MISFIT: Any = object()
_INTEGER = re.compile(r"-?[0-9]{1,4000}")
_FORMS = {
    "datetime": "an ISO 8601 date and time",
    "date": "an ISO 8601 date",
    "time": "an ISO 8601 time",
    "timedelta": "an ISO 8601 duration",
    "UUID": "a UUID",
    "Decimal": "a decimal number",
    "bytes": "base64 text",
}


def read(node: Node, data: Any, *, allow_extra: bool = False) -> Any:
    """The value that `data` stands for; raises `SerdeError` with every problem found."""
    reader = _Reader(allow_extra)
    try:
        value = reader.read(node, data, "$")
    except RecursionError:
        raise SerdeError((Problem("$", "nested too deeply"),)) from None
    if not reader.problems:
        return value
    problems = reader.problems[:MAX_PROBLEMS]
    if len(reader.problems) > MAX_PROBLEMS:
        problems.append(Problem("$", f"and {len(reader.problems) - MAX_PROBLEMS} more problems"))
    raise SerdeError(tuple(problems))


def member_path(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() and len(name) <= 100 else f"{path}[{shown(name)}]"


def shown(value: object) -> str:
    """A value as messages quote it: short, whatever it is."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a very large number"
    return repr(value)


def kind(value: object) -> str:
    """What a message says was found."""
    match value:
        case None:
            return "null"
        case bool() | int() | float() | str():
            return f"{type(value).__name__} {shown(value)}"
        case abc.Mapping():
            return "an object"
        case list() | tuple() | set() | frozenset():
            return "an array"
    return type(value).__name__


class _Reader:
    def __init__(self, allow_extra: bool) -> None:
        self.allow_extra = allow_extra
        self.problems: list[Problem] = []

    def problem(self, path: str, message: str) -> Any:
        self.problems.append(Problem(path, message))
        return _MISFIT

    def read(self, node: Node, data: Any, path: str) -> Any:
        match node:
            case Scalar():
                return self.scalar(node, data, path)
            case Record():
                return self.record(node, data, path)
            case Array():
                return self.array(node, data, path)
            case Choices():
                return self.choices(node, data, path)
            case Choice():
                return self.choice(node, data, path)
            case Table():
                return self.table(node, data, path)
            case Row():
                return self.row(node, data, path)
        return data

    def scalar(self, node: Scalar, data: Any, path: str) -> Any:
        expected = node.type
        if type(data) is expected:
            return data
        if expected in (str, int, bool, type(None)):
            return self.problem(path, f"expected {node.name}, got {kind(data)}")
        if expected is float and type(data) is int:
            try:
                return float(data)
            except OverflowError:
                return self.problem(path, "expected float, got a number that is too large")
        if expected.__module__.startswith("pathlib"):
            if isinstance(data, str | expected) and "\0" not in str(data):
                return expected(data)
            return self.problem(path, f"expected a path, got {kind(data)}")
        try:
            return msgspec.convert(data, expected)
        except (msgspec.ValidationError, ValueError, OverflowError, ArithmeticError):
            form = _FORMS.get(node.name)
            wanted = f"{node.name} ({form})" if form else node.name
            return self.problem(path, f"expected {wanted}, got {kind(data)}")

    def choice(self, node: Choice, data: Any, path: str) -> Any:
        for value, member in node.members:
            if data is member or (type(data) is type(value) and data == value):
                return member
        return self.problem(path, f"expected {node.name}, got {kind(data)}")

    def array(self, node: Array, data: Any, path: str) -> Any:
        if not isinstance(data, list | tuple | set | frozenset):
            return self.problem(path, f"expected {node.name}, got {kind(data)}")
        items = [self.read(node.item, item, f"{path}[{index}]") for index, item in enumerate(data)]
        if node.build is list:
            return items
        try:
            return node.build(items)
        except TypeError as error:
            return self.problem(path, f"expected {node.name}: {error}")

    def row(self, node: Row, data: Any, path: str) -> Any:
        if not isinstance(data, list | tuple):
            return self.problem(path, f"expected {node.name}, got {kind(data)}")
        if len(data) != len(node.items):
            return self.problem(path, f"expected {node.name}, got {len(data)} items")
        pairs = enumerate(zip(node.items, data, strict=True))
        return tuple(self.read(item, value, f"{path}[{index}]") for index, (item, value) in pairs)

    def table(self, node: Table, data: Any, path: str) -> Any:
        found: list[tuple[Any, Any, str]]
        if isinstance(data, abc.Mapping):
            found = [(key, value, member_path(path, str(key))) for key, value in data.items()]
        elif isinstance(data, list) and all(_is_entry(item) for item in data):
            found = [(item["key"], item["value"], f"{path}[{i}].value") for i, item in enumerate(data)]
        else:
            return self.problem(path, f"expected {node.name}, got {kind(data)}")
        table = {}
        for key, value, where in found:
            read_key = self.key(node.key, key, where)
            try:
                table[read_key] = self.read(node.value, value, where)
            except TypeError as error:
                self.problem(where, f"key cannot be used: {error}")
        return table

    def key(self, node: Node, key: Any, path: str) -> Any:
        """A key as its own type; JSON objects have only text keys, so numbers may be written as text."""
        attempt = _Reader(self.allow_extra)
        value = attempt.read(node, key, path)
        if not attempt.problems:
            return value
        if isinstance(key, str):
            for option in node.options if isinstance(node, Choices) else (node,):
                number = _number(option, key)
                if number is not None:
                    return number
            if isinstance(node, Choice) and _INTEGER.fullmatch(key):
                return self.key(node, int(key), path)
        return self.problem(path, f"key: {attempt.problems[0].message}")

    def choices(self, node: Choices, data: Any, path: str) -> Any:
        options = node.options
        if type(data) is int:
            options = tuple(sorted(options, key=lambda option: not _is_scalar(option, int)))
        misfits: list[tuple[Node, list[Problem]]] = []
        for option in options:
            attempt = _Reader(self.allow_extra)
            value = attempt.read(option, data, path)
            if not attempt.problems:
                return value
            misfits.append((option, attempt.problems))
        near = [(option, problems) for option, problems in misfits if _same_shape(option, data)]
        tagged = [(option, problems) for option, problems in near if _tag_matches(option, data)]
        if len(tagged) == 1:
            near = tagged
        if len(near) == 1:
            self.problems.extend(near[0][1])
            return _MISFIT
        details = "".join(
            f"; as {option.name}: " + ", ".join(f"{where} {message}" for where, message in problems[:5])
            for option, problems in near
        )
        return self.problem(path, f"expected {node.name}, got {kind(data)}{details}")

    def record(self, node: Record, data: Any, path: str) -> Any:
        if not isinstance(data, abc.Mapping):
            if isinstance(data, node.type):
                return data
            return self.problem(path, f"expected {node.name} (an object), got {kind(data)}")
        before = len(self.problems)
        arguments = {}
        for name, member in node.members.items():
            if name in data:
                value = data[name]
                if value is not None or member.required or accepts_null(member.node):
                    arguments[name] = self.read(member.node, value, member_path(path, name))
            elif member.required:
                self.problem(member_path(path, name), f"missing, expected {member.node.name}")
        if not self.allow_extra and len(data) > len(arguments):
            allowed = ", ".join(node.members) or "none"
            for name in data:
                if name not in node.members:
                    self.problem(member_path(path, str(name)), f"unknown field ({node.name} has {allowed})")
        if len(self.problems) > before:
            return _MISFIT
        try:
            return node.type(**arguments)
        except RecursionError:
            raise
        except Exception as error:
            return self.problem(path, f"{node.name} refused it: {str(error) or type(error).__name__}")


def _is_entry(item: object) -> bool:
    """Strict schemas cannot say "any keys", so there a mapping is a list of key and value pairs."""
    return isinstance(item, dict) and item.keys() == {"key", "value"}


def _is_scalar(node: Node, expected: type) -> bool:
    return isinstance(node, Scalar) and node.type is expected


def _number(node: Node, key: str) -> int | float | None:
    if _is_scalar(node, int) and _INTEGER.fullmatch(key):
        return int(key)
    if _is_scalar(node, float):
        try:
            return float(key)
        except ValueError:
            return None
    return None


def _same_shape(node: Node, data: Any) -> bool:
    if isinstance(data, abc.Mapping):
        return isinstance(node, Record | Table)
    if isinstance(data, list | tuple):
        return isinstance(node, Array | Row)
    return isinstance(node, Scalar | Choice) and not accepts_null(node)


def _tag_matches(node: Node, data: Any) -> bool:
    """Whether a Literal field of a dataclass, such as `kind: Literal["circle"]`, agrees with the data."""
    if not isinstance(node, Record) or not isinstance(data, abc.Mapping):
        return False
    return any(
        data.get(member.name) in [value for value, _ in member.node.members]
        for member in node.members.values()
        if isinstance(member.node, Choice) and not member.node.enum
    )
