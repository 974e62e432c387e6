"""JSON Schema of a node, in the strict form that providers require or in plain form.

Strict means that every property is required, none may be added, and keywords that providers reject are left out. The
reader understands what takes their place: null for a field with a default, a list of entries for a mapping.
"""

from __future__ import annotations

import re
from dataclasses import MISSING
from typing import Any

from weakincentives.serde.nodes import (
    AnyOf,
    Array,
    Enumeration,
    FixedTuple,
    Map,
    Node,
    Record,
    RecordField,
    Scalar,
    accepts_null,
)
from weakincentives.serde.writer import dump

JsonSchema = dict[str, Any]

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
_JSON_VALUE = "JsonValue"


def schema(node: Node, *, strict: bool = True) -> JsonSchema:
    """A new schema of `node`; a dataclass at the top is written in place, others go under `$defs`."""
    writer = _Writer(strict)
    top = writer.record(node) if isinstance(node, Record) else writer.write(node)
    return {**top, "$defs": writer.definitions} if writer.definitions else top


class _Writer:
    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.definitions: dict[str, JsonSchema] = {}
        self.names: dict[Record, str] = {}

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
                return array
            case FixedTuple():
                return self.fixed_tuple(node)
            case Map():
                return self.map(node)
            case AnyOf():
                return _any_of([self.write(option) for option in node.options])
            case Record():
                return {"$ref": f"#/$defs/{self.define(node)}"}
        return self.anything()

    def scalar(self, node: Scalar) -> JsonSchema:
        if (known := _TYPES.get(node.name)) is not None:
            return {"type": known}
        if self.strict:
            note = _NOTES.get(node.name, "file path")
            return {"type": "string", "description": note}
        extra = _FORMATS.get(node.name)
        return {"type": "string", "format": extra} if extra else {"type": "string"}

    def fixed_tuple(self, node: FixedTuple) -> JsonSchema:
        items = [self.write(item) for item in node.items]
        size = len(items)
        if not self.strict:
            return {"type": "array", "prefixItems": items, "items": False, "minItems": size, "maxItems": size}
        note = f"exactly {size} items: {', '.join(item.name for item in node.items)}"
        return {"type": "array", "items": _any_of(items) if items else {"type": "null"}, "description": note}

    def map(self, node: Map) -> JsonSchema:
        value = self.write(node.value)
        if not self.strict:
            return {"type": "object", "additionalProperties": value}
        entry = _object({"key": self.write(node.key), "value": value}, ["key", "value"])
        return {"type": "array", "items": entry, "description": "one entry for each key"}

    def anything(self) -> JsonSchema:
        if not self.strict:
            return {}
        if _JSON_VALUE not in self.definitions:
            reference = {"$ref": f"#/$defs/{_JSON_VALUE}"}
            plain = [{"type": kind} for kind in ("string", "number", "boolean", "null")]
            self.definitions[_JSON_VALUE] = {"anyOf": [*plain, {"type": "array", "items": reference}]}
        return {"$ref": f"#/$defs/{_JSON_VALUE}"}

    def define(self, node: Record) -> str:
        if (known := self.names.get(node)) is not None:
            return known
        name = base = re.sub(r"\W+", "_", node.name).strip("_")
        count = 1
        while name in self.definitions or name == _JSON_VALUE:
            count += 1
            name = f"{base}_{count}"
        self.names[node] = name
        self.definitions[name] = {}
        self.definitions[name] = self.record(node)
        return name

    def record(self, node: Record) -> JsonSchema:
        properties = {name: self.field(field) for name, field in node.fields.items()}
        required = [name for name, field in node.fields.items() if self.strict or field.required]
        return _object(properties, required)

    def field(self, field: RecordField) -> JsonSchema:
        written = self.write(field.node)
        if self.strict:
            if not field.required and not accepts_null(field.node):
                written = _any_of([written, {"type": "null"}])
        elif field.default is not MISSING:
            written = {**written, "default": dump(field.default)}
        if field.description is None:
            return written
        note = written.get("description")
        text = f"{field.description} ({note})" if note else field.description
        # Strict mode allows no other keyword beside a reference.
        return {**({"anyOf": [written]} if "$ref" in written else written), "description": text}


def _object(properties: dict[str, JsonSchema], required: list[str]) -> JsonSchema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _enumeration(node: Enumeration) -> JsonSchema:
    values = [dump(value) for value, _ in node.members]
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    if not all(type(value) in kinds for value in values):
        return {"enum": values}
    groups: dict[str, list[Any]] = {}
    for value in values:
        groups.setdefault(kinds[type(value)], []).append(value)
    return _any_of(
        [{"type": kind} if kind == "null" else {"type": kind, "enum": found} for kind, found in groups.items()]
    )


def _any_of(options: list[JsonSchema]) -> JsonSchema:
    """A flat union. Never a list under `type`: not every provider's client supports it."""
    distinct: list[JsonSchema] = []
    for option in options:
        for part in option["anyOf"] if option.keys() == {"anyOf"} else [option]:
            if part not in distinct:
                distinct.append(part)
    if len(distinct) == 1:
        return distinct[0]
    notes = [option["description"] for option in distinct if "description" in option]
    if len(notes) == 1 and len(distinct) == 2:
        bare = [{key: value for key, value in option.items() if key != "description"} for option in distinct]
        return {**_any_of(bare), "description": notes[0]}
    return {"anyOf": distinct}
