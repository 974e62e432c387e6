"""The kinds of types: how each reads data, what its JSON Schema is, and which msgspec type accepts the same data.

Data is read one value at a time, to find every problem and its path. That defines what is valid: the decoders that
`codecs.py` builds from msgspec types accept nothing that would be rejected here.
"""

from __future__ import annotations

import collections.abc as abc
import re
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING
from typing import Annotated, Any, ClassVar, ForwardRef, Literal, NamedTuple, Union

import msgspec

from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde.constraints import Constraints, describe, field_path, holds, merge, words
from weakincentives.serde.records import Column, dump
from weakincentives.serde.strict import (
    JSON_VALUE,
    KEYWORDS,
    JsonSchema,
    any_of,
    described,
    is_entry,
    object_schema,
    to_strict,
)

MAX_PROBLEMS = 100
INVALID: Any = object()
_INTEGER = re.compile(r"-?[0-9]{1,4000}")
_OTHER_FIELDS = ("missing", "unknown field")
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


# The types that are written as text: their formats in JSON Schema, and their names in messages.
_NOTATIONS = {
    "datetime": ("date-time", "an ISO 8601 date and time"),
    "date": ("date", "an ISO 8601 date"),
    "time": ("time", "an ISO 8601 time"),
    "timedelta": ("duration", "an ISO 8601 duration"),
    "UUID": ("uuid", "a UUID"),
    "Decimal": ("decimal", "a decimal number"),
    "bytes": ("base64", "base64 text"),
}
_PATH = ("path", "a path")


def read(node: Node, data: Any, *, allow_extra: bool = False) -> Any:
    """Convert `data`, or raise a `SerdeError` with every problem found."""
    reader = Reader(allow_extra)
    try:
        value = node.read(reader, data, "$")
    except RecursionError:
        raise SerdeError((FieldProblem("$", "nested too deeply"),)) from None
    if not reader.problems:
        return value
    problems = reader.problems[:MAX_PROBLEMS]
    if len(reader.problems) > MAX_PROBLEMS:
        problems.append(FieldProblem("$", f"and {len(reader.problems) - MAX_PROBLEMS} more problems"))
    raise SerdeError(tuple(problems))


def schema(node: Node, *, strict: bool = True) -> JsonSchema:
    """A new schema of `node`; a type with fields is written in place at the top, others go under `$defs`."""
    writer = SchemaWriter()
    written = node.schema(writer)
    while "$ref" in written:
        name = written["$ref"].rpartition("/")[2]
        written = writer.definitions[name] if name in writer.repeated else writer.definitions.pop(name)
    if writer.definitions:
        written = {**written, "$defs": writer.definitions}
    return to_strict(written) if strict else written


class Reader:
    """The problems found so far."""

    __slots__ = ("allow_extra", "problems")

    def __init__(self, allow_extra: bool) -> None:
        self.allow_extra = allow_extra
        self.problems: list[FieldProblem] = []

    def problem(self, path: str, message: str) -> Any:
        self.problems.append(FieldProblem(path, message))
        return INVALID


class SchemaWriter:
    """The definitions of one schema, and the names of those that are referred to more than once."""

    def __init__(self) -> None:
        self.definitions: dict[str, JsonSchema] = {}
        self.repeated: set[str] = set()
        self._names: dict[Node, str] = {}

    def reference(self, node: Node, write: Callable[[], JsonSchema]) -> JsonSchema:
        """A reference to the definition of a node, which is written on the first call."""
        name = self._names.get(node)
        if name is None:
            name = self._names[node] = self.free_name(node.name)
            self.definitions[name] = write()
        else:
            self.repeated.add(name)
        return {"$ref": f"#/$defs/{name}"}

    def free_name(self, title: str) -> str:
        name = base = re.sub(r"\W+", "_", title).strip("_")
        count = 1
        while name in self.definitions or name == JSON_VALUE:
            count += 1
            name = f"{base}_{count}"
        self.definitions[name] = {}
        return name


class StrictTypes:
    """The msgspec types created so far, with a struct in place of each dataclass, and with all constraints.

    msgspec ignores unknown fields of dataclasses and constraints that are not its own, so strict input is decoded
    twice: against these types, then as the dataclass. The two passes together take less time than `json.loads`.
    """

    def __init__(self, allow_extra: bool) -> None:
        self.allow_extra = allow_extra
        self.constrained = False
        self.started: dict[Record, str] = {}
        self.structs: dict[str, Any] = {}

    def build(self, node: Node) -> Any:
        strict = node.strict_type(self)
        for struct in self.structs.values():
            for name, other in self.structs.items():
                setattr(struct, name, other)
        return strict


class Node(msgspec.Struct, eq=False, kw_only=True):
    """A kind of data; `name` is how messages refer to it. If it `has_fields`, its JSON is an object with these."""

    shape: ClassVar[tuple[type, ...]] = ()
    name: str = ""
    accepts_null: bool = False
    has_fields: bool = False

    @abstractmethod
    def read(self, reader: Reader, data: Any, path: str) -> Any:
        """The value of `data`, or `INVALID` after adding problems to the reader."""

    @abstractmethod
    def schema(self, writer: SchemaWriter) -> JsonSchema:
        """The JSON Schema of the type."""

    @abstractmethod
    def strict_type(self, types: StrictTypes) -> Any:
        """A type with which msgspec accepts what `read` does, or less; raises `TypeError` if there is none."""

    def resembles(self, data: Any) -> bool:
        """True if the data may be meant for this option of a union, judging by its outer shape."""
        if self.shape:
            return isinstance(data, self.shape)
        return not self.accepts_null and not isinstance(data, abc.Mapping | list | tuple)


class AnyValue(Node):
    """Any JSON value, unchanged."""

    name: str = "any value"
    accepts_null: bool = True

    def read(self, reader: Reader, data: Any, path: str) -> Any:
        return data

    def schema(self, writer: SchemaWriter) -> JsonSchema:
        return {}

    def strict_type(self, types: StrictTypes) -> Any:
        return Any


class Constrained(Node, kw_only=True):
    """A node whose values may have to satisfy constraints; `plain_name` is its name without them."""

    unit: ClassVar[str] = "item"
    plain_name: str = ""
    constraints: Constraints = {}

    def constrain(self, constraints: Constraints) -> None:
        self.constraints = merge(self.constraints, constraints)
        self.name = f"{self.plain_name} ({words(self.constraints, self.unit)})"

    def strict_type(self, types: StrictTypes) -> Any:
        plain = self.plain_type(types)
        if not self.constraints:
            return plain
        types.constrained = True
        return Annotated[plain, msgspec.Meta(**self.constraints)]

    @abstractmethod
    def plain_type(self, types: StrictTypes) -> Any:
        """`strict_type` without the constraints."""

    def lengths(self, noun: str) -> JsonSchema:
        """The length constraints as keywords: `minItems`, `maxLength` and so on."""
        keywords = {"min_length": f"min{noun}", "max_length": f"max{noun}"}
        return {keywords[name]: limit for name, limit in self.constraints.items() if name in keywords}


class Scalar(Constrained):
    """A type written as one JSON string, number, boolean or null."""

    unit: ClassVar[str] = "character"
    cls: type

    def __post_init__(self) -> None:
        self.accepts_null = self.cls is type(None)
        self.name = self.plain_name = "null" if self.accepts_null else self.cls.__name__

    def read(self, reader: Reader, data: Any, path: str) -> Any:
        value: Any = data
        if type(data) is not self.cls:
            value = self._converted(reader, data, path)
        if not self.constraints or value is INVALID or holds(self.constraints, value):
            return value
        long = isinstance(value, str) and "pattern" not in self.constraints
        got = f"{len(value)} characters" if long else describe(data)
        return reader.problem(path, f"expected {self.name}, got {got}")

    def _converted(self, reader: Reader, data: Any, path: str) -> Any:
        expected, wanted = self.cls, self.name
        if expected is float and type(data) is int:
            try:
                return float(data)
            except OverflowError:
                return reader.problem(path, "expected float, got a number that is too large")
        if expected.__module__.startswith("pathlib"):
            if isinstance(data, str | expected) and "\0" not in str(data):
                return expected(data)
            wanted = _PATH[1]
        elif expected is float or expected not in _TYPES:
            try:
                return msgspec.convert(data, expected)
            except (msgspec.ValidationError, ValueError, OverflowError, ArithmeticError):
                if (notation := _NOTATIONS.get(self.plain_name)) is not None:
                    wanted = f"{self.name} ({notation[1]})"
        return reader.problem(path, f"expected {wanted}, got {describe(data)}")

    def schema(self, writer: SchemaWriter) -> JsonSchema:
        kind = _TYPES.get(self.cls)
        if kind is None:
            return {"type": "string", "format": _NOTATIONS.get(self.plain_name, _PATH)[0]}
        bounds = {KEYWORDS[name]: limit for name, limit in self.constraints.items() if name in KEYWORDS}
        return {"type": kind, **bounds, **self.lengths("Length")}

    def plain_type(self, types: StrictTypes) -> Any:
        return None if self.cls is type(None) else self.cls


class Enumeration(Node):
    """A Literal or an Enum; `members` pairs each JSON value with the Python one."""

    members: tuple[tuple[Any, Any], ...]
    enum: type | None = None

    def __post_init__(self) -> None:
        self.name = "one of " + ", ".join(repr(value) for value, _ in self.members)
        self.accepts_null = any(value is None for value, _ in self.members)

    def read(self, reader: Reader, data: Any, path: str) -> Any:
        for value, member in self.members:
            if data is member or (type(data) is type(value) and data == value):
                return member
        return reader.problem(path, f"expected {self.name}, got {describe(data)}")

    def schema(self, writer: SchemaWriter) -> JsonSchema:
        values = [dump(value) for value, _ in self.members]
        if not all(type(value) in _TYPES for value in values):
            return {"enum": values}
        groups: dict[str, list[Any]] = {}
        for value in values:
            groups.setdefault(_TYPES[type(value)], []).append(value)
        return any_of(
            [{"type": kind} if kind == "null" else {"type": kind, "enum": found} for kind, found in groups.items()]
        )

    def strict_type(self, types: StrictTypes) -> Any:
        return self.enum or Literal[tuple(value for value, _ in self.members)]


class Array(Constrained):
    """Items of one type, collected with `build`."""

    shape: ClassVar[tuple[type, ...]] = (list, tuple)
    build: type
    item: Node

    def __post_init__(self) -> None:
        self.name = self.plain_name = f"{self.build.__name__}[{self.item.name}]"

    def read(self, reader: Reader, data: Any, path: str) -> Any:
        if not isinstance(data, list | tuple | set | frozenset):
            return reader.problem(path, f"expected {self.name}, got {describe(data)}")
        items: Any = [self.item.read(reader, item, f"{path}[{index}]") for index, item in enumerate(data)]
        if self.build is not list:
            try:
                items = self.build(items)
            except TypeError as error:
                return reader.problem(path, f"expected {self.name}: {error}")
        if self.constraints and not holds(self.constraints, items):
            return reader.problem(path, f"expected {self.name}, got {len(items)} items")
        return items

    def schema(self, writer: SchemaWriter) -> JsonSchema:
        array: JsonSchema = {"type": "array", "items": self.item.schema(writer)}
        if self.build in (set, frozenset):
            array["uniqueItems"] = True
        return array | self.lengths("Items")

    def plain_type(self, types: StrictTypes) -> Any:
        if self.constraints and self.build in (set, frozenset):
            raise TypeError("msgspec counts the items of a set before it removes duplicates")
        item, container = self.item.strict_type(types), self.build
        return container[item, ...] if container is tuple else container[item]  # type: ignore[index]


class FixedTuple(Node):
    """A tuple with a fixed number of items, each with its own type."""

    shape: ClassVar[tuple[type, ...]] = (list, tuple)
    items: tuple[Node, ...]

    def __post_init__(self) -> None:
        self.name = f"tuple[{', '.join(item.name for item in self.items)}]"

    def read(self, reader: Reader, data: Any, path: str) -> Any:
        if not isinstance(data, list | tuple):
            return reader.problem(path, f"expected {self.name}, got {describe(data)}")
        if len(data) != len(self.items):
            return reader.problem(path, f"expected {self.name}, got {len(data)} items")
        pairs = enumerate(zip(self.items, data, strict=True))
        return tuple(item.read(reader, value, f"{path}[{index}]") for index, (item, value) in pairs)

    def schema(self, writer: SchemaWriter) -> JsonSchema:
        items = [item.schema(writer) for item in self.items]
        size = len(items)
        return {"type": "array", "prefixItems": items, "items": False, "minItems": size, "maxItems": size}

    def strict_type(self, types: StrictTypes) -> Any:
        return tuple[tuple(item.strict_type(types) for item in self.items)]  # type: ignore[misc]


class Map(Constrained):
    """A mapping, or the list of entries that strict schemas use instead."""

    unit: ClassVar[str] = "entry"
    shape: ClassVar[tuple[type, ...]] = (abc.Mapping,)
    key: Node
    value: Node

    def __post_init__(self) -> None:
        self.name = self.plain_name = f"dict[{self.key.name}, {self.value.name}]"

    def read(self, reader: Reader, data: Any, path: str) -> Any:
        found: list[tuple[Any, Any, str]]
        if isinstance(data, abc.Mapping):
            found = [(key, value, field_path(path, str(key))) for key, value in data.items()]
        elif isinstance(data, list) and all(map(is_entry, data)):
            found = [(item["key"], item["value"], f"{path}[{i}].value") for i, item in enumerate(data)]
        else:
            return reader.problem(path, f"expected {self.name}, got {describe(data)}")
        result = {}
        for key, value, where in found:
            read_key = _read_key(self.key, reader, key, where)
            try:
                result[read_key] = self.value.read(reader, value, where)
            except TypeError as error:
                reader.problem(where, f"the key is not hashable: {error}")
        if self.constraints and not holds(self.constraints, result):
            return reader.problem(path, f"expected {self.name}, got {len(result)} entries")
        return result

    def schema(self, writer: SchemaWriter) -> JsonSchema:
        names = self.key.schema(writer)
        kind = names.pop("type", None)
        if kind != "string":
            names = {"pattern": "^-?[0-9]+$"} if kind == "integer" else {}
        written: JsonSchema = {"type": "object", "additionalProperties": self.value.schema(writer)}
        return written | ({"propertyNames": names} if names else {}) | self.lengths("Properties")

    def plain_type(self, types: StrictTypes) -> Any:
        return dict[self.key.strict_type(types), self.value.strict_type(types)]  # type: ignore[misc]


def _read_key(node: Node, reader: Reader, key: Any, path: str) -> Any:
    """Read a key. JSON keys are always text, so numbers may be written as text."""
    attempt = Reader(reader.allow_extra)
    value = node.read(attempt, key, path)
    if not attempt.problems:
        return value
    if isinstance(key, str):
        for option in node.options if isinstance(node, AnyOf) else (node,):
            if _is_scalar(option, int) and _INTEGER.fullmatch(key):
                return int(key)
            if _is_scalar(option, float):
                with suppress(ValueError):
                    return float(key)
        if isinstance(node, Enumeration) and _INTEGER.fullmatch(key):
            return _read_key(node, reader, int(key), path)
    return reader.problem(path, f"key: {attempt.problems[0].message}")


def _is_scalar(node: Node, expected: type) -> bool:
    return isinstance(node, Scalar) and node.cls is expected


class AnyOf(Node):
    """A union: the first option that matches wins."""

    options: tuple[Node, ...]

    def __post_init__(self) -> None:
        self.name = " | ".join(option.name for option in self.options)
        self.accepts_null = any(option.accepts_null for option in self.options)

    def read(self, reader: Reader, data: Any, path: str) -> Any:
        options = self.options
        if type(data) is int:
            options = tuple(sorted(options, key=lambda option: not _is_scalar(option, int)))
        failures: list[tuple[Node, list[FieldProblem]]] = []
        for option in options:
            attempt = Reader(reader.allow_extra)
            value = option.read(attempt, data, path)
            if not attempt.problems:
                return value
            failures.append((option, attempt.problems))
        likely = [(option, problems) for option, problems in failures if option.resembles(data)]
        tagged = [(option, problems) for option, problems in likely if _tag_matches(option, data)]
        named = [each for each in likely if not any(message.startswith(_OTHER_FIELDS) for _, message in each[1])]
        likely = next((found for found in (tagged, named) if len(found) == 1), likely)
        if len(likely) == 1:
            reader.problems.extend(likely[0][1])
            return INVALID
        details = "".join(
            f"; as {option.name}: " + ", ".join(f"{where} {message}" for where, message in problems[:5])
            for option, problems in likely
        )
        return reader.problem(path, f"expected {self.name}, got {describe(data)}{details}")

    def schema(self, writer: SchemaWriter) -> JsonSchema:
        return any_of([option.schema(writer) for option in self.options])

    def strict_type(self, types: StrictTypes) -> Any:
        options = (
            option.struct(types) if isinstance(option, Record) else option.strict_type(types) for option in self.options
        )
        return Union[tuple(options)]  # noqa: UP007


def _tag_matches(node: Node, data: Any) -> bool:
    """True if a Literal field such as `kind: Literal["circle"]` matches the value in the data."""
    if not isinstance(node, Record) or not isinstance(data, abc.Mapping):
        return False
    return any(
        data.get(key) in [value for value, _ in field.node.members]
        for key, field in node.fields.items()
        if isinstance(field.node, Enumeration) and not field.node.enum
    )


class RecordField(NamedTuple):
    """A field that data may set; the `column` of a Struct's tag has no name in Python.

    `step` is what it adds to the path of its record.
    """

    column: Column
    node: Node
    step: str
    description: str | None = None

    def schema(self, writer: SchemaWriter) -> JsonSchema:
        written = described(self.node.schema(writer), self.description, [])
        default, factory = self.column.default, self.column.default_factory
        if factory in (list, dict, tuple, set, frozenset):
            default = factory()
        if default is not MISSING:
            with suppress(SerdeError):
                written = {**written, "default": dump(default)}
        return written


class Record(Node):
    """A type with named fields. `fields` is filled in after creation, so a type may contain itself.

    `settable` is True if msgspec builds the value as the constructor would. A `closed` record never accepts unknown
    fields.
    """

    shape: ClassVar[tuple[type, ...]] = (abc.Mapping,)
    cls: type
    fields: dict[str, RecordField] = {}
    settable: bool = True
    closed: bool = False

    def read(self, reader: Reader, data: Any, path: str) -> Any:
        if type(data) is not dict and not isinstance(data, abc.Mapping):
            if isinstance(data, self.cls):
                return data
            return reader.problem(path, f"expected {self.name} (an object), got {describe(data)}")
        before = len(reader.problems)
        known = 0
        arguments = {}
        for name, (column, node, step, _) in self.fields.items():
            if name in data:
                value = data[name]
                known += 1
                if value is not None or column.required or node.accepts_null:
                    arguments[column.name] = node.read(reader, value, path + step)
            elif column.required:
                reader.problem(path + step, f"missing, expected {node.name}")
        if (self.closed or not reader.allow_extra) and len(data) > known:
            allowed = ", ".join(self.fields) or "none"
            for name in data:
                if name not in self.fields:
                    reader.problem(field_path(path, str(name)), f"unknown field ({self.name} has {allowed})")
        if len(reader.problems) > before:
            return INVALID
        # The tag of a Struct is part of the data but not of the value.
        arguments.pop("", None)
        try:
            return self.cls(**arguments)
        except RecursionError:
            raise
        except Exception as error:
            return reader.problem(path, f"{self.name} rejected it: {str(error) or type(error).__name__}")

    def schema(self, writer: SchemaWriter) -> JsonSchema:
        required = [name for name, field in self.fields.items() if field.column.required]
        return writer.reference(
            self, lambda: object_schema({name: field.schema(writer) for name, field in self.fields.items()}, required)
        )

    def strict_type(self, types: StrictTypes) -> Any:
        if any(not field.column.name for field in self.fields.values()):
            raise TypeError("msgspec requires a tag only in unions")
        return self.struct(types)

    def struct(self, types: StrictTypes) -> Any:
        if not self.settable:
            raise TypeError(f"{self.name} must be built by its own constructor")
        if (name := types.started.get(self)) is not None:
            # msgspec resolves the name when it makes the decoder, among the attributes that `build` sets.
            return types.structs.get(name, ForwardRef(name))
        name = types.started[self] = f"Strict{len(types.started)}"
        fields: list[Any] = []
        keys, tag = {}, {}
        for column, node, *_ in self.fields.values():
            strict = node.strict_type(types)
            if not column.name:
                tag = {"tag_field": column.key, "tag": node.members[0][0]}  # type: ignore[attr-defined]
                continue
            keys[column.name] = column.key
            fields.append((column.name, strict) if column.required else (column.name, strict, msgspec.UNSET))
        closed = self.closed or not types.allow_extra
        struct = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=closed, rename=keys, **tag)
        types.structs[name] = struct
        return struct
