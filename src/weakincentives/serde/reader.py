"""Reading data one value at a time, to find every problem and its path.

The reader defines what is valid: the msgspec decoders that run first accept nothing that it would refuse.
"""

from __future__ import annotations

import collections.abc as abc
import re
from typing import Any

import msgspec

from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde.constraints import describe, field_path, holds
from weakincentives.serde.nodes import (
    AnyOf,
    Array,
    Enumeration,
    FixedTuple,
    Map,
    Model,
    Node,
    Record,
    Scalar,
    accepts_null,
)

MAX_PROBLEMS = 100
_INVALID: Any = object()
_INTEGER = re.compile(r"-?[0-9]{1,4000}")
_OTHER_FIELDS = ("missing", "unknown field")
_NOTATIONS = {
    "datetime": "an ISO 8601 date and time",
    "date": "an ISO 8601 date",
    "time": "an ISO 8601 time",
    "timedelta": "an ISO 8601 duration",
    "UUID": "a UUID",
    "Decimal": "a decimal number",
    "bytes": "base64 text",
}


def read(node: Node, data: Any, *, allow_extra: bool = False) -> Any:
    """Convert `data`, or raise a `SerdeError` with every problem found."""
    reader = _Reader(allow_extra)
    try:
        value = reader.read(node, data, "$")
    except RecursionError:
        raise SerdeError((FieldProblem("$", "nested too deeply"),)) from None
    if not reader.problems:
        return value
    problems = reader.problems[:MAX_PROBLEMS]
    if len(reader.problems) > MAX_PROBLEMS:
        problems.append(FieldProblem("$", f"and {len(reader.problems) - MAX_PROBLEMS} more problems"))
    raise SerdeError(tuple(problems))


class _Reader:
    def __init__(self, allow_extra: bool) -> None:
        self.allow_extra = allow_extra
        self.problems: list[FieldProblem] = []

    def problem(self, path: str, message: str) -> Any:
        self.problems.append(FieldProblem(path, message))
        return _INVALID

    def read(self, node: Node, data: Any, path: str) -> Any:
        match node:
            case Scalar():
                return self.scalar(node, data, path)
            case Record():
                return self.record(node, data, path)
            case Array():
                return self.array(node, data, path)
            case AnyOf():
                return self.any_of(node, data, path)
            case Enumeration():
                return self.enumeration(node, data, path)
            case Map():
                return self.map(node, data, path)
            case FixedTuple():
                return self.fixed_tuple(node, data, path)
            case Model():
                return self.model(node, data, path)
        return data

    def scalar(self, node: Scalar, data: Any, path: str) -> Any:
        value = self.plain_scalar(node, data, path)
        if not node.constraints or value is _INVALID or holds(node.constraints, value):
            return value
        long = isinstance(value, str) and "pattern" not in node.constraints
        return self.problem(path, f"expected {node.name}, got {f'{len(value)} characters' if long else describe(data)}")

    def plain_scalar(self, node: Scalar, data: Any, path: str) -> Any:
        expected = node.cls
        if type(data) is expected:
            return data
        if expected in (str, int, bool, type(None)):
            return self.problem(path, f"expected {node.name}, got {describe(data)}")
        if expected is float and type(data) is int:
            try:
                return float(data)
            except OverflowError:
                return self.problem(path, "expected float, got a number that is too large")
        if expected.__module__.startswith("pathlib"):
            if isinstance(data, str | expected) and "\0" not in str(data):
                return expected(data)
            return self.problem(path, f"expected a path, got {describe(data)}")
        try:
            return msgspec.convert(data, expected)
        except (msgspec.ValidationError, ValueError, OverflowError, ArithmeticError):
            notation = _NOTATIONS.get(node.plain_name)
            wanted = f"{node.name} ({notation})" if notation else node.name
            return self.problem(path, f"expected {wanted}, got {describe(data)}")

    def enumeration(self, node: Enumeration, data: Any, path: str) -> Any:
        for value, member in node.members:
            if data is member or (type(data) is type(value) and data == value):
                return member
        return self.problem(path, f"expected {node.name}, got {describe(data)}")

    def array(self, node: Array, data: Any, path: str) -> Any:
        if not isinstance(data, list | tuple | set | frozenset):
            return self.problem(path, f"expected {node.name}, got {describe(data)}")
        items: Any = [self.read(node.item, item, f"{path}[{index}]") for index, item in enumerate(data)]
        if node.build is not list:
            try:
                items = node.build(items)
            except TypeError as error:
                return self.problem(path, f"expected {node.name}: {error}")
        if node.constraints and not holds(node.constraints, items):
            return self.problem(path, f"expected {node.name}, got {len(items)} items")
        return items

    def fixed_tuple(self, node: FixedTuple, data: Any, path: str) -> Any:
        if not isinstance(data, list | tuple):
            return self.problem(path, f"expected {node.name}, got {describe(data)}")
        if len(data) != len(node.items):
            return self.problem(path, f"expected {node.name}, got {len(data)} items")
        pairs = enumerate(zip(node.items, data, strict=True))
        return tuple(self.read(item, value, f"{path}[{index}]") for index, (item, value) in pairs)

    def map(self, node: Map, data: Any, path: str) -> Any:
        found: list[tuple[Any, Any, str]]
        if isinstance(data, abc.Mapping):
            found = [(key, value, field_path(path, str(key))) for key, value in data.items()]
        elif isinstance(data, list) and all(_is_entry(item) for item in data):
            found = [(item["key"], item["value"], f"{path}[{i}].value") for i, item in enumerate(data)]
        else:
            return self.problem(path, f"expected {node.name}, got {describe(data)}")
        result = {}
        for key, value, where in found:
            read_key = self.key(node.key, key, where)
            try:
                result[read_key] = self.read(node.value, value, where)
            except TypeError as error:
                self.problem(where, f"the key is not hashable: {error}")
        if node.constraints and not holds(node.constraints, result):
            return self.problem(path, f"expected {node.name}, got {len(result)} entries")
        return result

    def key(self, node: Node, key: Any, path: str) -> Any:
        """Read a key. JSON keys are always text, so numbers may be written as text."""
        attempt = _Reader(self.allow_extra)
        value = attempt.read(node, key, path)
        if not attempt.problems:
            return value
        if isinstance(key, str):
            for option in node.options if isinstance(node, AnyOf) else (node,):
                number = _number(option, key)
                if number is not None:
                    return number
            if isinstance(node, Enumeration) and _INTEGER.fullmatch(key):
                return self.key(node, int(key), path)
        return self.problem(path, f"key: {attempt.problems[0].message}")

    def any_of(self, node: AnyOf, data: Any, path: str) -> Any:
        options = node.options
        if type(data) is int:
            options = tuple(sorted(options, key=lambda option: not _is_scalar(option, int)))
        failures: list[tuple[Node, list[FieldProblem]]] = []
        for option in options:
            attempt = _Reader(self.allow_extra)
            value = attempt.read(option, data, path)
            if not attempt.problems:
                return value
            failures.append((option, attempt.problems))
        likely = [(option, problems) for option, problems in failures if _same_shape(option, data)]
        tagged = [(option, problems) for option, problems in likely if _tag_matches(option, data)]
        named = [each for each in likely if not any(message.startswith(_OTHER_FIELDS) for _, message in each[1])]
        likely = next((found for found in (tagged, named) if len(found) == 1), likely)
        if len(likely) == 1:
            self.problems.extend(likely[0][1])
            return _INVALID
        details = "".join(
            f"; as {option.name}: " + ", ".join(f"{where} {message}" for where, message in problems[:5])
            for option, problems in likely
        )
        return self.problem(path, f"expected {node.name}, got {describe(data)}{details}")

    def model(self, node: Model, data: Any, path: str) -> Any:
        try:
            return node.source.read(data, allow_extra=self.allow_extra)
        except SerdeError as error:
            for problem in error.problems:
                self.problem(path + problem.path[1:], problem.message)
            return _INVALID

    def record(self, node: Record, data: Any, path: str) -> Any:
        if not isinstance(data, abc.Mapping):
            if isinstance(data, node.cls):
                return data
            return self.problem(path, f"expected {node.name} (an object), got {describe(data)}")
        before = len(self.problems)
        known = 0
        arguments = {}
        for name, field in node.fields.items():
            if name in data:
                value = data[name]
                known += 1
                if value is not None or field.column.required or accepts_null(field.node):
                    arguments[field.column.name] = self.read(field.node, value, field_path(path, name))
            elif field.column.required:
                self.problem(field_path(path, name), f"missing, expected {field.node.name}")
        if (node.closed or not self.allow_extra) and len(data) > known:
            allowed = ", ".join(node.fields) or "none"
            for name in data:
                if name not in node.fields:
                    self.problem(field_path(path, str(name)), f"unknown field ({node.name} has {allowed})")
        if len(self.problems) > before:
            return _INVALID
        # The tag of a Struct is part of the data and not of the value.
        arguments.pop("", None)
        try:
            return node.cls(**arguments)
        except RecursionError:
            raise
        except Exception as error:
            return self.problem(path, f"{node.name} rejected it: {str(error) or type(error).__name__}")


def _is_entry(item: object) -> bool:
    """True for one entry of a mapping in strict form; strict schemas cannot express arbitrary keys."""
    return isinstance(item, dict) and item.keys() == {"key", "value"}


def _is_scalar(node: Node, expected: type) -> bool:
    return isinstance(node, Scalar) and node.cls is expected


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
    if isinstance(node, Model):
        return node.source.has_fields == isinstance(data, abc.Mapping)
    if isinstance(data, abc.Mapping):
        return isinstance(node, Record | Map)
    if isinstance(data, list | tuple):
        return isinstance(node, Array | FixedTuple)
    return isinstance(node, Scalar | Enumeration) and not accepts_null(node)


def _tag_matches(node: Node, data: Any) -> bool:
    """True if a Literal field such as `kind: Literal["circle"]` has the value that the data gives."""
    if not isinstance(node, Record) or not isinstance(data, abc.Mapping):
        return False
    return any(
        data.get(field.column.key) in [value for value, _ in field.node.members]
        for field in node.fields.values()
        if isinstance(field.node, Enumeration) and not field.node.enum
    )
