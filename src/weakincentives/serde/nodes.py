"""Annotations turned into a small tree of nodes, which reading and schemas then walk."""

from __future__ import annotations

import collections.abc as abc
import enum
import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar, Union
from uuid import UUID

from weakincentives.errors import Problem, SerdeError
from weakincentives.serde.hints import field_types


class Node:
    """What data must look like; `name` is how messages call it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Anything(Node):
    """Any JSON value, taken as it is."""

    __slots__ = ()


class Scalar(Node):
    """A type that is one JSON string, number, boolean or null."""

    __slots__ = ("type",)

    def __init__(self, kind: type) -> None:
        super().__init__("null" if kind is type(None) else kind.__name__)
        self.type = kind


class Choice(Node):
    """One of a few values: a Literal or an Enum; `members` maps each JSON value to the Python one."""

    __slots__ = ("enum", "members")

    def __init__(self, members: tuple[tuple[Any, Any], ...], enum_type: type | None = None) -> None:
        super().__init__("one of " + ", ".join(repr(value) for value, _ in members))
        self.members = members
        self.enum = enum_type


class Array(Node):
    """Items of one kind, collected with `build`."""

    __slots__ = ("build", "item")

    def __init__(self, build: type, item: Node) -> None:
        super().__init__(f"{build.__name__}[{item.name}]")
        self.build = build
        self.item = item


class Row(Node):
    """A tuple with a fixed number of items, each of its own kind."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Node, ...]) -> None:
        super().__init__(f"tuple[{', '.join(item.name for item in items)}]")
        self.items = items


class Table(Node):
    """A mapping."""

    __slots__ = ("key", "value")

    def __init__(self, key: Node, value: Node) -> None:
        super().__init__(f"dict[{key.name}, {value.name}]")
        self.key = key
        self.value = value


class Choices(Node):
    """A union: the first option that fits wins."""

    __slots__ = ("options",)

    def __init__(self, options: tuple[Node, ...]) -> None:
        super().__init__(" | ".join(option.name for option in options))
        self.options = options


class Member:
    """One field of a dataclass that data may set."""

    __slots__ = ("default", "description", "name", "node", "required")

    def __init__(self, field: Field[Any], node: Node, description: str | None) -> None:
        self.name = field.name
        self.node = node
        self.description = description
        self.default = field.default
        self.required = field.default is MISSING and field.default_factory is MISSING


class Record(Node):
    """A dataclass. `members` is filled in after creation, so that a type may contain itself."""

    __slots__ = ("members", "plain", "type")

    def __init__(self, annotation: Any, cls: type) -> None:
        super().__init__(_title(annotation))
        self.type = cls
        self.members: dict[str, Member] = {}
        self.plain = True


def build(annotation: Any) -> Node:
    """The node of an annotation; raises `SerdeError` that names the field whose type is not supported."""
    try:
        return _Builder().build(annotation, _title(annotation))
    except RecursionError:
        message = "the type contains itself other than through a dataclass"
        raise SerdeError((Problem(_title(annotation), message),)) from None


def accepts_null(node: Node) -> bool:
    match node:
        case Anything():
            return True
        case Scalar():
            return node.type is type(None)
        case Choice():
            return any(value is None for value, _ in node.members)
        case Choices():
            return any(accepts_null(option) for option in node.options)
    return False


SCALARS = frozenset(
    {str, int, float, bool, type(None), datetime, date, time, timedelta, UUID, Decimal, bytes}
    | {Path, PurePath, PurePosixPath}
)
_ARRAYS: dict[Any, type] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    abc.Set: set,
    abc.MutableSet: set,
}
_TABLES = frozenset({dict, abc.Mapping, abc.MutableMapping})


class _Builder:
    def __init__(self) -> None:
        self.records: dict[Any, Record] = {}

    def build(self, annotation: Any, where: str) -> Node:
        if annotation is Any or annotation is object:
            return Anything("any value")
        if annotation is None:
            return Scalar(type(None))
        if isinstance(annotation, TypeVar):
            return self.build(_bound(annotation), where)
        if isinstance(annotation, typing.NewType):
            return self.build(annotation.__supertype__, where)
        if type(annotation).__name__ == "TypeAliasType":
            return self.build(annotation.__value__, where)
        origin = typing.get_origin(annotation)
        args = typing.get_args(annotation)
        if origin in (Annotated, typing.Final, typing.Required, typing.NotRequired):
            return self.build(args[0], where)
        if origin is Literal:
            return Choice(tuple(_literal(value, where) for value in args))
        if origin in (Union, types.UnionType):
            return self.union(args, where)
        cls = annotation if origin is None else origin
        if not isinstance(cls, type):
            raise _unsupported(annotation, where)
        if cls in SCALARS:
            return Scalar(cls)
        if is_dataclass(cls):
            return self.record(annotation, cls)
        if issubclass(cls, enum.Enum):
            return Choice(tuple((_plain(item.value), item) for item in cls), cls)
        if origin is tuple and args[-1:] != (Ellipsis,):
            return Row(tuple(self.build(arg, where) for arg in args))
        if cls in _ARRAYS:
            return Array(_ARRAYS[cls], self.build(args[0] if args else Any, where))
        if cls in _TABLES:
            key, value = args if args else (Any, Any)
            return Table(self.build(key, where), self.build(value, where))
        raise _unsupported(annotation, where)

    def union(self, args: tuple[Any, ...], where: str) -> Node:
        options: list[Node] = []
        for arg in args:
            option = self.build(arg, where)
            options.extend(option.options if isinstance(option, Choices) else [option])
        return options[0] if len(options) == 1 else Choices(tuple(options))

    def record(self, annotation: Any, cls: type) -> Record:
        if (known := self.records.get(annotation)) is not None:
            return known
        record = self.records[annotation] = Record(annotation, cls)
        settable = [field for field in fields(cls) if field.init]
        hints, local = field_types(annotation, cls, frozenset(field.name for field in settable))
        for field in settable:
            hint = hints[field.name]
            node = self.build(hint, f"{cls.__qualname__}.{field.name}")
            record.members[field.name] = Member(field, node, _description(field, hint))
        record.plain = not local and len(settable) == len(fields(cls)) and _has_generated_init(cls)
        return record


def _has_generated_init(cls: Any) -> bool:
    """Whether setting the fields is the same as calling the constructor: no `InitVar`, no `__init__` of the user."""
    kinds = {field._field_type.name for field in cls.__dataclass_fields__.values()}
    code = getattr(cls.__init__, "__code__", None)
    return "_FIELD_INITVAR" not in kinds and code is not None and code.co_filename == "<string>"


def _description(field: Field[Any], hint: Any) -> str | None:
    text = field.metadata.get("description")
    if text is None and typing.get_origin(hint) is Annotated:
        text = next((extra for extra in hint.__metadata__ if isinstance(extra, str)), None)
    return None if text is None else str(text)


def _literal(value: Any, where: str) -> tuple[Any, Any]:
    if isinstance(value, enum.Enum):
        return _plain(value.value), value
    if not isinstance(value, str | int | bool | None):
        raise _unsupported(Literal[value], where)
    return value, value


def _plain(value: object) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _bound(variable: TypeVar) -> Any:
    if variable.__constraints__:
        return Union[variable.__constraints__]  # noqa: UP007
    return Any if variable.__bound__ is None else variable.__bound__


def _title(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else _short(annotation)


def _short(annotation: Any) -> str:
    args = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if not args or not isinstance(origin, type) or origin is types.UnionType:
        return str(annotation).removeprefix("typing.")
    return f"{origin.__name__}[{', '.join(_title(arg) for arg in args)}]"


def _unsupported(annotation: Any, where: str) -> SerdeError:
    message = (
        f"type {_title(annotation)} is not supported; use dataclasses, str, int, float, bool, None, enums, Literal, "
        "lists, tuples, sets, mappings, datetime, date, time, timedelta, UUID, Decimal, bytes or Path"
    )
    return SerdeError((Problem(where, message),))
