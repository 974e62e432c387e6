"""Annotations as a small tree of nodes, which the reader and the JSON Schema writer walk."""

from __future__ import annotations

import collections.abc as abc
import enum
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from inspect import get_annotations
from pathlib import Path, PurePath, PurePosixPath
from types import FrameType
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeGuard, TypeVar, Union
from uuid import UUID

import msgspec

from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde import strict
from weakincentives.serde.constraints import BOUNDS, LENGTHS, Constraints, InvalidConstraint, collect, merge, words
from weakincentives.serde.models import PydanticType, has_pydantic_metadata, is_pydantic, pydantic_type
from weakincentives.serde.records import Column, columns, is_named_tuple, is_record, is_struct, is_typed_dict


class UnresolvedType(SerdeError):
    """An annotation names something that is not defined, or not yet."""


class Node(msgspec.Struct, eq=False, kw_only=True):
    """What data must look like; `name` is how messages refer to it."""

    name: str = ""


class AnyValue(Node):
    """Any JSON value, taken as it is."""

    name: str = "any value"


class Constrained(Node, kw_only=True):
    """A node whose values may have to satisfy constraints; `plain_name` is its name without them."""

    unit: ClassVar[str] = "item"
    plain_name: str = ""
    constraints: Constraints = {}

    def constrain(self, constraints: Constraints) -> None:
        self.constraints = merge(self.constraints, constraints)
        self.name = f"{self.plain_name} ({words(self.constraints, self.unit)})"


class Scalar(Constrained):
    """A type written as one JSON string, number, boolean or null."""

    unit: ClassVar[str] = "character"
    cls: type

    def __post_init__(self) -> None:
        self.name = self.plain_name = "null" if self.cls is type(None) else self.cls.__name__


class Enumeration(Node):
    """A Literal or an Enum; `members` pairs each JSON value with the Python one."""

    members: tuple[tuple[Any, Any], ...]
    enum: type | None = None

    def __post_init__(self) -> None:
        self.name = "one of " + ", ".join(repr(value) for value, _ in self.members)


class Array(Constrained):
    """Items of one type, collected with `build`."""

    build: type
    item: Node

    def __post_init__(self) -> None:
        self.name = self.plain_name = f"{self.build.__name__}[{self.item.name}]"


class FixedTuple(Node):
    """A tuple with a fixed number of items, each with its own type."""

    items: tuple[Node, ...]

    def __post_init__(self) -> None:
        self.name = f"tuple[{', '.join(item.name for item in self.items)}]"


class Map(Constrained):
    """A mapping."""

    unit: ClassVar[str] = "entry"
    key: Node
    value: Node

    def __post_init__(self) -> None:
        self.name = self.plain_name = f"dict[{self.key.name}, {self.value.name}]"


class AnyOf(Node):
    """A union: the first option that matches wins."""

    options: tuple[Node, ...]

    def __post_init__(self) -> None:
        self.name = " | ".join(option.name for option in self.options)


class RecordField(NamedTuple):
    """A field that data may set; the `column` of a Struct's tag has no name in Python."""

    column: Column
    node: Node
    description: str | None = None


class Record(Node):
    """A type with named fields. `fields` is filled in after creation, so a type may contain itself.

    `settable` is True if msgspec builds the value as the constructor would. `closed` ones never take unknown fields.
    """

    cls: type
    fields: dict[str, RecordField] = {}
    settable: bool = True
    closed: bool = False


class Model(Node):
    """A type that Pydantic reads."""

    source: PydanticType


def build(annotation: Any) -> Node:
    """The node of an annotation; raises a `SerdeError` that names the field if a type is not supported."""
    try:
        return _Builder().build(annotation, _title(annotation))
    except RecursionError:
        message = "the type contains itself other than through the fields of a class"
        raise SerdeError((FieldProblem(_title(annotation), message),)) from None


def accepts_null(node: Node) -> bool:
    match node:
        case AnyValue():
            return True
        case Scalar():
            return node.cls is type(None)
        case Enumeration():
            return any(value is None for value, _ in node.members)
        case AnyOf():
            return any(accepts_null(option) for option in node.options)
        case Model():
            return strict.accepts_null(node.source.schema, node.source.schema)
    return False


def field_types(annotation: Any, cls: type, names: frozenset[str]) -> tuple[dict[str, Any], bool]:
    """The types of the named fields of `cls` (or `Cls[Arg]`), and whether one came from a caller's local scope."""
    types: dict[str, Any] = {}
    arguments = _arguments_by_class(annotation, cls)
    local = False
    for base in reversed(cls.__mro__):
        for name, hint in get_annotations(base).items():
            if name not in names:
                continue
            resolved, from_caller = _resolve(base, name, hint)
            local = local or from_caller
            types[name] = _substitute(resolved, arguments.get(base, {}))
    return types, local


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
_MAPS = frozenset({dict, abc.Mapping, abc.MutableMapping})


class _Builder:
    def __init__(self) -> None:
        self.records: dict[Any, Record] = {}

    def build(self, annotation: Any, where: str) -> Node:
        if annotation is Any or annotation is object:
            return AnyValue()
        if annotation is None:
            return Scalar(type(None))
        if isinstance(annotation, TypeVar):
            return self.build(bound_of(annotation), where)
        if isinstance(annotation, typing.NewType):
            return self.build(annotation.__supertype__, where)
        if type(annotation).__name__ == "TypeAliasType":
            return self.build(annotation.__value__, where)
        origin = typing.get_origin(annotation)
        args = typing.get_args(annotation)
        if origin is Annotated and has_pydantic_metadata(annotation.__metadata__):
            return self.model(annotation, where)
        if origin is Annotated:
            return self.constrained(self.build(args[0], where), annotation.__metadata__, {}, where)
        if origin in (typing.Final, typing.Required, typing.NotRequired) or str(origin).endswith(".ReadOnly"):
            return self.build(args[0], where)
        if origin is Literal:
            return Enumeration(tuple(_literal(value, where) for value in args))
        if origin in (Union, types.UnionType):
            return self.union(args, where)
        cls = annotation if origin is None else origin
        if not isinstance(cls, type):
            raise _unsupported(annotation, where)
        if cls in SCALARS:
            return Scalar(cls)
        if is_pydantic(cls):
            return self.model(annotation, where)
        if is_record(cls):
            return self.record(annotation, cls)
        if issubclass(cls, enum.Enum):
            return Enumeration(tuple((_json_value(item.value), item) for item in cls), cls)
        if origin is tuple and args[-1:] != (Ellipsis,):
            return FixedTuple(tuple(self.build(arg, where) for arg in args))
        if cls in _ARRAYS:
            return Array(_ARRAYS[cls], self.build(args[0] if args else Any, where))
        if cls in _MAPS:
            key, value = args if args else (Any, Any)
            return Map(self.build(key, where), self.build(value, where))
        raise _unsupported(annotation, where)

    def union(self, args: tuple[Any, ...], where: str) -> Node:
        options: list[Node] = []
        for arg in args:
            if arg is msgspec.UnsetType:
                continue
            option = self.build(arg, where)
            options.extend(option.options if isinstance(option, AnyOf) else [option])
        return options[0] if len(options) == 1 else AnyOf(tuple(options))

    def record(self, annotation: Any, cls: type) -> Record:
        if (known := self.records.get(annotation)) is not None:
            return known
        record = self.records[annotation] = Record(dict if is_typed_dict(cls) else cls, name=_title(annotation))
        if is_struct(cls):
            self.add_tag(record, cls)
        arguments = [column for column in columns(cls) if column.init]
        hints, local = field_types(annotation, cls, frozenset(column.name for column in arguments))
        for column in arguments:
            hint = hints.get(column.name, Any)
            where = f"{cls.__qualname__}.{column.name}"
            node = self.constrained(self.build(hint, where), (), column.metadata, where)
            record.fields[column.key] = RecordField(column, node, _description(column, hint))
        record.settable = not local and len(arguments) == len(columns(cls)) and _is_built_by_fields(cls)
        return record

    def add_tag(self, record: Record, cls: Any) -> None:
        config = cls.__struct_config__
        if config.array_like:
            message = "it is array_like, and its JSON has no field names for the model to see; drop array_like"
            raise SerdeError((FieldProblem(record.name, message),))
        record.closed = config.forbid_unknown_fields
        if config.tag is not None:
            tag = Enumeration(((config.tag, config.tag),))
            record.fields[config.tag_field] = RecordField(Column("", config.tag_field), tag)

    def model(self, annotation: Any, where: str) -> Model:
        try:
            return Model(pydantic_type(annotation), name=_title(annotation))
        except Exception as error:
            unresolved = "undefined-annotation" in str(error) or "not fully defined" in str(error)
            kind = UnresolvedType if unresolved else SerdeError
            message = f"Pydantic cannot read {_title(annotation)}: {str(error).splitlines()[0]}"
            raise kind((FieldProblem(where, message),)) from error

    def constrained(self, node: Node, annotated: Iterable[object], metadata: Mapping[Any, Any], where: str) -> Node:
        """The node with the constraints of its annotation or field. In a union they go to the options they apply to."""
        try:
            constraints = collect(annotated, metadata)
            options = node.options if isinstance(node, AnyOf) else (node,)
            for name, value in constraints.items():
                taking = [option for option in options if _takes(option, name)]
                if not taking:
                    raise InvalidConstraint(f"{name} does not apply to {node.name}")
                for option in taking:
                    option.constrain({name: value})
        except InvalidConstraint as error:
            raise SerdeError((FieldProblem(where, f"constraint cannot be honoured: {error}"),)) from None
        if isinstance(node, AnyOf):
            node.__post_init__()
        return node


def _takes(node: Node, constraint: str) -> TypeGuard[Constrained]:
    if isinstance(node, Scalar):
        return node.cls in (int, float) if constraint in BOUNDS else node.cls is str
    return isinstance(node, Array | Map) and constraint in LENGTHS


def _resolve(cls: type, field: str, hint: Any) -> tuple[Any, bool]:
    holder = type("Holder", (), {"__annotations__": {field: hint}})
    known: dict[str, Any] = {cls.__name__: cls, **vars(cls)}
    module = sys.modules.get(cls.__module__)
    names = vars(module) if module is not None else {}
    from_caller = isinstance(hint, str) and cls.__name__ in hint and names.get(cls.__name__) is not cls
    while True:
        try:
            hints = typing.get_type_hints(holder, globalns=names, localns=known, include_extras=True)
            return hints[field], from_caller
        except NameError as error:
            frame = _frame_with_local(error.name, names)
            if frame is None:
                message = (
                    f"annotation {hint!r} cannot be resolved: {error}; define the type at module level or "
                    "remove 'from __future__ import annotations'"
                )
                raise UnresolvedType((FieldProblem(f"{cls.__qualname__}.{field}", message),)) from None
            known[str(error.name)] = frame.f_locals[str(error.name)]
            from_caller = True
        except Exception as error:
            message = f"annotation {hint!r} cannot be resolved: {error}"
            raise SerdeError((FieldProblem(f"{cls.__qualname__}.{field}", message),)) from error


def _frame_with_local(name: str | None, module: dict[str, Any]) -> FrameType | None:
    """The nearest caller in `module` with a local variable `name`: a function that defines classes inside itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_globals is not module or name not in frame.f_locals):
        frame = frame.f_back
    return frame


def _arguments_by_class(annotation: Any, cls: type) -> dict[type, dict[TypeVar, Any]]:
    """The type arguments of each generic class that `cls` inherits from."""
    found: dict[type, dict[TypeVar, Any]] = {}

    def visit(origin: type, args: tuple[Any, ...]) -> None:
        parameters = getattr(origin, "__parameters__", ())
        filled = dict(zip(parameters, args, strict=False))
        found.setdefault(origin, filled)
        for base in origin.__dict__.get("__orig_bases__", ()):
            base_origin = typing.get_origin(base)
            if isinstance(base_origin, type) and base_origin is not Generic:
                visit(base_origin, tuple(_substitute(arg, filled) for arg in typing.get_args(base)))

    visit(cls, typing.get_args(annotation))
    for base in cls.__mro__:
        if base not in found and "__orig_bases__" in base.__dict__:
            visit(base, ())
    return found


def _substitute(hint: Any, filled: dict[TypeVar, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return filled.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type) or not filled:
        return hint
    return hint[tuple(filled.get(parameter, parameter) for parameter in parameters)]


def _is_built_by_fields(cls: Any) -> bool:
    """True if msgspec builds the class as its constructor would.

    It reads a named tuple from an array, and skips an `__init__` that `dataclass` did not write or with `InitVar`.
    """
    if is_named_tuple(cls) or not hasattr(cls, "__dataclass_fields__"):
        return not is_named_tuple(cls)
    kinds = {field._field_type.name for field in cls.__dataclass_fields__.values()}
    code = getattr(cls.__init__, "__code__", None)
    return "_FIELD_INITVAR" not in kinds and code is not None and code.co_filename == "<string>"


def _description(column: Column, hint: Any) -> str | None:
    text = column.metadata.get("description")
    while text is None and typing.get_origin(hint) in (Annotated, typing.Required, typing.NotRequired):
        found = (getattr(extra, "description", extra) for extra in getattr(hint, "__metadata__", ()))
        text = next((each for each in found if isinstance(each, str)), None)
        hint = typing.get_args(hint)[0]
    return None if text is None else str(text)


def _literal(value: Any, where: str) -> tuple[Any, Any]:
    if isinstance(value, enum.Enum):
        return _json_value(value.value), value
    if not isinstance(value, str | int | bool | None):
        raise _unsupported(Literal[value], where)
    return value, value


def _json_value(value: object) -> Any:
    return list(value) if isinstance(value, tuple) else value


def bound_of(variable: TypeVar) -> Any:
    """The bound of a type variable; a union of its constraints if it has them."""
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
        f"type {_title(annotation)} is not supported; use dataclasses, msgspec Structs, Pydantic models, TypedDict, "
        "NamedTuple, str, int, float, bool, None, enums, Literal, lists, tuples, sets, mappings, datetime, date, time, "
        "timedelta, UUID, Decimal, bytes or Path"
    )
    return SerdeError((FieldProblem(where, message),))
