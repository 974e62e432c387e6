"""Annotations as nodes, and the node for types that Pydantic reads: models, its own types, and its metadata.

Pydantic is never imported here: a program that uses such a type has already imported it.
"""

from __future__ import annotations

import collections.abc as abc
import enum
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated, Any, Literal, TypeGuard, Union
from uuid import UUID

import msgspec

from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde.constraints import BOUNDS, LENGTHS, InvalidConstraint, collect, describe, field_path
from weakincentives.serde.nodes import (
    INVALID,
    AnyOf,
    AnyValue,
    Array,
    Constrained,
    Enumeration,
    FixedTuple,
    Map,
    Node,
    Reader,
    Record,
    RecordField,
    Scalar,
    SchemaWriter,
    StrictTypes,
)
from weakincentives.serde.records import (
    Column,
    UnresolvedType,
    bare,
    columns,
    field_types,
    is_named_tuple,
    is_record,
    is_struct,
    is_typed_dict,
)
from weakincentives.serde.strict import JsonSchema, accepts_null, from_strict, resolved, with_references

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
_OWN_WORDS = ("Value error, ", "Assertion failed, ")


def build(annotation: Any) -> Node:
    """The node of an annotation; raises a `SerdeError` that names the field if a type is not supported."""
    try:
        return _Builder().build(annotation, _title(annotation))
    except RecursionError:
        message = "the type contains itself other than through the fields of a class"
        raise SerdeError((FieldProblem(_title(annotation), message),)) from None


class Model(Node):
    """A type that Pydantic reads, with the validator and the JSON Schema that Pydantic derives from it.

    Fields that the schema does not declare are rejected, unless a model in it sets `extra` in its own configuration.
    """

    annotation: Any
    adapter: Any
    written: JsonSchema
    closed: bool

    def __post_init__(self) -> None:
        self.accepts_null = accepts_null(self.written, self.written)
        self.has_fields = "properties" in resolved(self.written, self.written)

    def read(self, reader: Reader, data: Any, path: str) -> Any:
        if isinstance(self.annotation, type) and isinstance(data, self.annotation):
            return data
        extra = "forbid" if self.closed and not reader.allow_extra else None
        given = data
        try:
            given = from_strict(self.written, data, self.written)
            # As JSON, since strict models accept text for dates and the like only from JSON.
            return self.adapter.validate_json(msgspec.json.encode(given), extra=extra)
        except RecursionError:
            raise
        except sys.modules["pydantic"].ValidationError as error:
            reader.problems += [_problem(each, given, path) for each in error.errors(include_url=False)]
        except Exception as error:
            name = getattr(self.annotation, "__name__", self.annotation)
            reader.problem(path, f"{name} rejected it: {str(error) or type(error).__name__}")
        return INVALID

    def schema(self, writer: SchemaWriter) -> JsonSchema:
        if "properties" in self.written:
            return writer.reference(self, lambda: self.joined(writer))
        return self.joined(writer)

    def joined(self, writer: SchemaWriter) -> JsonSchema:
        """Pydantic's schema, with its definitions moved to join the others."""
        inner = self.written.get("$defs", {})
        moved = {
            name: name if writer.definitions.get(name, definition) == definition else writer.free_name(name)
            for name, definition in inner.items()
        }
        for name, definition in inner.items():
            writer.definitions[moved[name]] = with_references(definition, moved)
        writer.repeated.update(moved.values())
        top: JsonSchema = with_references({key: value for key, value in self.written.items() if key != "$defs"}, moved)
        return top

    def strict_type(self, types: StrictTypes) -> Any:
        raise TypeError(f"{self.name} is read by Pydantic")

    def resembles(self, data: Any) -> bool:
        return self.has_fields == isinstance(data, abc.Mapping)


def is_pydantic(cls: type) -> bool:
    """True if Pydantic knows how to read the class."""
    return "pydantic" in sys.modules and (
        hasattr(cls, "__pydantic_validator__") or hasattr(cls, "__get_pydantic_core_schema__")
    )


def pydantic_model(annotation: Any) -> Model:
    """The node of a type that Pydantic reads; if there is none, Pydantic's exception says why."""
    pydantic: Any = sys.modules["pydantic"]
    says_extra: list[type] = []
    # First, because this imports `pydantic.json_schema`.
    adapter = pydantic.TypeAdapter(annotation)

    class Generator(pydantic.json_schema.GenerateJsonSchema):  # type: ignore[misc]
        def model_schema(self, schema: Any) -> Any:
            written = super().model_schema(schema)
            model = schema["cls"]
            if "extra" in model.model_config:
                says_extra.append(model)
            elif "properties" in written:
                written.setdefault("additionalProperties", False)
            if written.get("title") == model.__name__:
                del written["title"]
            return written

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    written = adapter.json_schema(schema_generator=Generator)
    return Model(annotation, adapter, written, not says_extra, name=_title(annotation))


def _problem(error: Any, data: Any, path: str) -> FieldProblem:
    """The problem Pydantic found at a path in the data, in our words."""
    option, kind = "", error["type"]
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


class _Builder:
    def __init__(self) -> None:
        self.records: dict[Any, Record] = {}

    def build(self, annotation: Any, where: str) -> Node:
        annotation = bare(annotation)
        if annotation is Any or annotation is object:
            return AnyValue()
        if annotation is None:
            return Scalar(type(None))
        origin = typing.get_origin(annotation)
        args = typing.get_args(annotation)
        if origin is Annotated and any(map(_is_of_pydantic, annotation.__metadata__)):
            return self.model(annotation, where)
        if origin is Annotated:
            return self.constrained(self.build(args[0], where), annotation.__metadata__, {}, where)
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
            if _ARRAYS[cls] in (set, frozenset) and args:
                _check_hashable(args[0], where)
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
        built = dict if is_typed_dict(cls) else cls
        record = self.records[annotation] = Record(built, name=_title(annotation), has_fields=True)
        if is_struct(cls):
            self.add_tag(record, cls)
        arguments = [column for column in columns(cls) if column.init]
        hints, local = field_types(annotation, cls, frozenset(column.name for column in arguments))
        for column in arguments:
            hint = hints.get(column.name, Any)
            where = f"{cls.__name__}.{column.name}"
            node = self.constrained(self.build(hint, where), (), column.metadata, where)
            step = field_path("", column.key)
            record.fields[column.key] = RecordField(column, node, step, _description(column, hint))
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
            key = config.tag_field
            record.fields[key] = RecordField(Column("", key), tag, field_path("", key))

    def model(self, annotation: Any, where: str) -> Model:
        try:
            return pydantic_model(annotation)
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


def _is_of_pydantic(metadata: object) -> bool:
    return type(metadata).__module__.partition(".")[0] == "pydantic"


def _takes(node: Node, constraint: str) -> TypeGuard[Constrained]:
    if isinstance(node, Scalar):
        return node.cls in (int, float) if constraint in BOUNDS else node.cls is str
    return isinstance(node, Array | Map) and constraint in LENGTHS


def _is_built_by_fields(cls: Any) -> bool:
    """True if msgspec builds the class as its constructor would.

    msgspec reads a named tuple from an array, and skips an `__init__` that `dataclass` did not generate or that has an
    `InitVar`.
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


def _title(annotation: Any) -> str:
    args, origin = typing.get_args(annotation), typing.get_origin(annotation)
    if args and isinstance(origin, type) and origin is not types.UnionType:
        return f"{origin.__name__}[{', '.join(map(_title, args))}]"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")


def _check_hashable(item: Any, where: str) -> None:
    """Reject the items of a set that no set can hold."""
    while typing.get_origin(item) is Annotated:
        item = typing.get_args(item)[0]
    cls = typing.get_origin(item) or item
    if isinstance(cls, type) and getattr(cls, "__hash__", None) is None:
        message = (
            f"a set cannot hold {_title(item)}, which has no hash; use a list, or, for a dataclass, "
            "@dataclass(frozen=True)"
        )
        raise SerdeError((FieldProblem(where, message),))


def _unsupported(annotation: Any, where: str) -> SerdeError:
    message = (
        f"type {_title(annotation)} is not supported; use dataclasses, msgspec Structs, Pydantic models, TypedDict, "
        "NamedTuple, str, int, float, bool, None, enums, Literal, lists, tuples, sets, mappings, datetime, date, time, "
        "timedelta, UUID, Decimal, bytes or Path"
    )
    return SerdeError((FieldProblem(where, message),))
