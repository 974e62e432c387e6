"""JSON Schema of a node, in the strict form that providers require (see `strict.py`) or in plain form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from weakincentives.serde.constraints import LENGTHS, words
from weakincentives.serde.models import PydanticType
from weakincentives.serde.nodes import (
    AnyOf,
    Array,
    Constrained,
    Enumeration,
    FixedTuple,
    Map,
    Model,
    Node,
    Record,
    RecordField,
    Scalar,
    accepts_null,
)
from weakincentives.serde.strict import (
    JSON_VALUE,
    KEYWORDS,
    JsonSchema,
    any_of,
    default_note,
    described,
    entries,
    json_value,
    object_schema,
    to_strict,
    tuple_schema,
)
from weakincentives.serde.writer import dump

_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "null": "null"}
_FORMATS = {"datetime": "date-time", "date": "date", "time": "time", "timedelta": "duration", "UUID": "uuid"}
_NOTES = {
    "datetime": "ISO 8601 date and time",
    "date": "ISO 8601 date",
    "time": "ISO 8601 time",
    "timedelta": "ISO 8601 duration",
    "UUID": "UUID",
    "Decimal": "decimal number as text",
    "bytes": "base64",
}


def schema(node: Node, *, strict: bool = True) -> JsonSchema:
    """A new schema of `node`; a type with fields is written in place at the top, others go under `$defs`."""
    writer = _Writer(strict)
    top = writer.record(node) if isinstance(node, Record) else writer.write(node)
    while isinstance(node, Model) and "$ref" in top:
        top = writer.definitions[top["$ref"].rpartition("/")[2]]
    return {**top, "$defs": writer.definitions} if writer.definitions else top


class _Writer:
    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.definitions: dict[str, JsonSchema] = {}
        self.names: dict[Record, str] = {}
        self.models: dict[PydanticType, JsonSchema] = {}

    def write(self, node: Node) -> JsonSchema:
        match node:
            case Scalar():
                return self.scalar(node)
            case Enumeration():
                return _enumeration(node)
            case Array():
                array: JsonSchema = {"type": "array", "items": self.write(node.item)}
                if node.build in (set, frozenset) and not self.strict:
                    array["uniqueItems"] = True
                return array | _lengths(node, "Items")
            case FixedTuple():
                return self.fixed_tuple(node)
            case Map():
                return self.map(node)
            case AnyOf():
                return any_of([self.write(option) for option in node.options])
            case Record():
                return {"$ref": f"#/$defs/{self.define(node)}"}
            case Model():
                return self.model(node)
        return self.anything()

    def scalar(self, node: Scalar) -> JsonSchema:
        if (known := _TYPES.get(node.plain_name)) is not None:
            bounds = {KEYWORDS[name]: limit for name, limit in node.constraints.items() if name in KEYWORDS}
            lengths = {name: limit for name, limit in node.constraints.items() if name in LENGTHS}
            if lengths and self.strict:
                return {"type": known, **bounds, "description": words(lengths, node.unit)}
            return {"type": known, **bounds, **_lengths(node, "Length")}
        if self.strict:
            return {"type": "string", "description": _NOTES.get(node.plain_name, "file path")}
        extra = _FORMATS.get(node.plain_name)
        return {"type": "string", "format": extra} if extra else {"type": "string"}

    def fixed_tuple(self, node: FixedTuple) -> JsonSchema:
        items = [self.write(item) for item in node.items]
        size = len(items)
        if not self.strict:
            return {"type": "array", "prefixItems": items, "items": False, "minItems": size, "maxItems": size}
        return tuple_schema(items, [item.name for item in node.items])

    def map(self, node: Map) -> JsonSchema:
        value = self.write(node.value)
        if not self.strict:
            return {"type": "object", "additionalProperties": value, **_lengths(node, "Properties")}
        return entries(self.write(node.key), value, **_lengths(node, "Items"))

    def anything(self) -> JsonSchema:
        if not self.strict:
            return {}
        self.definitions.setdefault(JSON_VALUE, json_value())
        return {"$ref": f"#/$defs/{JSON_VALUE}"}

    def model(self, node: Model) -> JsonSchema:
        """A Pydantic type's own schema, its definitions moved to where the others are."""
        if (known := self.models.get(node.source)) is not None:
            return known
        own = to_strict(node.source.schema) if self.strict else node.source.schema
        inner = own.get("$defs", {})
        moved = {
            name: name if self.definitions.get(name, definition) == definition else self.free_name(name)
            for name, definition in inner.items()
        }
        for name, definition in inner.items():
            self.definitions[moved[name]] = _with_references(definition, moved)
        top: JsonSchema = _with_references({key: value for key, value in own.items() if key != "$defs"}, moved)
        if "properties" in top:
            name = self.free_name(node.name)
            self.definitions[name] = top
            top = {"$ref": f"#/$defs/{name}"}
        self.models[node.source] = top
        return top

    def define(self, node: Record) -> str:
        if (known := self.names.get(node)) is not None:
            return known
        name = self.names[node] = self.free_name(node.name)
        self.definitions[name] = self.record(node)
        return name

    def free_name(self, title: str) -> str:
        name = base = re.sub(r"\W+", "_", title).strip("_")
        count = 1
        while name in self.definitions or name == JSON_VALUE:
            count += 1
            name = f"{base}_{count}"
        self.definitions[name] = {}
        return name

    def record(self, node: Record) -> JsonSchema:
        properties = {name: self.field(field) for name, field in node.fields.items()}
        required = [
            name
            for name, field in node.fields.items()
            if field.column.required or (self.strict and not _may_be_omitted(field))
        ]
        return object_schema(properties, required)

    def field(self, field: RecordField) -> JsonSchema:
        written = self.write(field.node)
        notes = []
        if self.strict and not field.column.required:
            if not accepts_null(field.node):
                written = any_of([written, {"type": "null"}])
                notes.append(f"null for the default{_default_text(field)}")
            elif _may_be_omitted(field):
                notes.append(f"leave out for the default{_default_text(field)}")
        elif field.column.default is not MISSING:
            written = {**written, "default": dump(field.column.default)}
        return described(written, field.description, notes)


def _may_be_omitted(field: RecordField) -> bool:
    """True if null is a value of the field and not its default: then only leaving it out gives the default."""
    return not field.column.required and accepts_null(field.node) and field.column.default is not None


def _default_text(field: RecordField) -> str:
    """The default as part of a description; empty if it is computed or too long."""
    computed = field.column.default_factory not in (list, dict, tuple, set, frozenset)
    return default_note(field.column.default if computed else field.column.default_factory())


def _lengths(node: Constrained, noun: str) -> JsonSchema:
    """The length constraints as keywords: `minItems`, `maxLength` and so on."""
    keywords = {"min_length": f"min{noun}", "max_length": f"max{noun}"}
    return {keywords[name]: limit for name, limit in node.constraints.items() if name in keywords}


def _enumeration(node: Enumeration) -> JsonSchema:
    values = [dump(value) for value, _ in node.members]
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    if not all(type(value) in kinds for value in values):
        return {"enum": values}
    groups: dict[str, list[Any]] = {}
    for value in values:
        groups.setdefault(kinds[type(value)], []).append(value)
    return any_of(
        [{"type": kind} if kind == "null" else {"type": kind, "enum": found} for kind, found in groups.items()]
    )


def _with_references(schema: Any, moved: Mapping[str, str]) -> Any:
    """The schema with its references to definitions under their new names."""
    if isinstance(schema, list):
        return [_with_references(item, moved) for item in schema]
    if not isinstance(schema, dict):
        return schema
    written = {key: _with_references(value, moved) for key, value in schema.items()}
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.removeprefix("#/$defs/")
        written["$ref"] = f"#/$defs/{moved.get(name, name)}"
    return written
