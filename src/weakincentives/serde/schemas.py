"""JSON Schema of a node, in the strict form that providers require or in plain form.

Strict means that every property is required, none may be added, and keywords that providers reject are left out. The
reader understands what takes their place: null for a field with a default, a list of entries for a mapping.
"""

from __future__ import annotations

import re
from dataclasses import MISSING
from typing import Any

from weakincentives.errors import SerdeError
from weakincentives.serde.constraints import BOUNDS, LENGTHS, words
from weakincentives.serde.nodes import (
    AnyOf,
    Array,
    Constrained,
    Enumeration,
    FixedTuple,
    Map,
    Node,
    Record,
    RecordField,
    Scalar,
    accepts_null,
)
from weakincentives.serde.writer import dump, encode

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
_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
}
_BOUND_KEYWORDS = {name: _KEYWORDS[name] for name in BOUNDS} | {"min_length": "minItems", "max_length": "maxItems"}
_JSON_VALUE = "JsonValue"
MAX_DEFAULT_LENGTH = 60


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
                return array | _lengths(node, "Items")
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
        if (known := _TYPES.get(node.plain_name)) is not None:
            bounds = {_KEYWORDS[name]: limit for name, limit in node.constraints.items() if name in _KEYWORDS}
            lengths = {name: limit for name, limit in node.constraints.items() if name in LENGTHS}
            if not lengths:
                return {"type": known, **bounds}
            if self.strict:
                return {"type": known, **bounds, "description": words(lengths, node.unit)}
            return {"type": known, **bounds, **_lengths(node, "Length")}
        if self.strict:
            note = _NOTES.get(node.plain_name, "file path")
            return {"type": "string", "description": note}
        extra = _FORMATS.get(node.plain_name)
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
            return {"type": "object", "additionalProperties": value, **_lengths(node, "Properties")}
        entry = _object({"key": self.write(node.key), "value": value}, ["key", "value"])
        return {"type": "array", "items": entry, **_lengths(node, "Items"), "description": "one entry for each key"}

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
        required = [
            name
            for name, field in node.fields.items()
            if field.required or (self.strict and not _may_be_omitted(field))
        ]
        return _object(properties, required)

    def field(self, field: RecordField) -> JsonSchema:
        written = self.write(field.node)
        notes = []
        if self.strict and not field.required:
            if not accepts_null(field.node):
                written = _any_of([written, {"type": "null"}])
                notes.append(f"null for the default{_default_text(field)}")
            elif _may_be_omitted(field):
                notes.append(f"leave out for the default{_default_text(field)}")
        elif field.default is not MISSING:
            written = {**written, "default": dump(field.default)}
        if "description" in written:
            notes.insert(0, written["description"])
        text = "; ".join(notes)
        if field.description is not None:
            text = f"{field.description} ({text})" if text else field.description
        if not text:
            return written
        # Strict mode allows no other keyword next to a reference.
        return {**({"anyOf": [written]} if "$ref" in written else written), "description": text}


def is_strict(schema: JsonSchema) -> bool:
    """True if every object in the schema requires all of its properties, as strict modes demand."""
    properties = schema.get("properties", {})
    nested = [*properties.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    if isinstance(schema.get("items"), dict):
        nested.append(schema["items"])
    return set(schema.get("required", ())) == set(properties) and all(map(is_strict, nested))


def describe_bounds(schema: JsonSchema) -> JsonSchema:
    """The schema with bounds as words in descriptions, for providers that reject the keywords."""
    written = {key: _described(key, value) for key, value in schema.items()}
    moved = {name: written.pop(keyword) for name, keyword in _BOUND_KEYWORDS.items() if keyword in written}
    if not moved:
        return written
    text = words(moved)
    return {**written, "description": f"{written['description']} ({text})" if "description" in written else text}


def _described(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: describe_bounds(inner) for name, inner in value.items()}
    if key == "anyOf":
        return [describe_bounds(option) for option in value]
    return describe_bounds(value) if key == "items" and isinstance(value, dict) else value


def _may_be_omitted(field: RecordField) -> bool:
    """True if null is a value of the field and not its default: then only leaving it out gives the default."""
    return not field.required and accepts_null(field.node) and field.default is not None


def _default_text(field: RecordField) -> str:
    """The default as part of a description; empty if it is computed or too long."""
    if field.default is not MISSING:
        default = field.default
    elif field.default_factory in (list, dict, tuple, set, frozenset):
        default = field.default_factory()
    else:
        return ""
    try:
        text = encode(default).decode()
    except SerdeError:
        return ""
    return f", {text}" if len(text) <= MAX_DEFAULT_LENGTH else ""


def _lengths(node: Constrained, noun: str) -> JsonSchema:
    """The length constraints as keywords: `minItems`, `maxLength` and so on."""
    keywords = {"min_length": f"min{noun}", "max_length": f"max{noun}"}
    return {keywords[name]: limit for name, limit in node.constraints.items() if name in keywords}


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
