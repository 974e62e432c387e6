"""The form of JSON Schema that providers' strict modes require, and conversion of other schemas to it.

Strict means that every property is required, none may be added, and keywords that providers reject are left out. The
substitutes are undone when the data comes back: null for a property with a default, a list of entries for a mapping
with arbitrary keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING
from typing import Any

from weakincentives.errors import SerdeError
from weakincentives.serde.constraints import BOUNDS, words
from weakincentives.serde.records import encode

JsonSchema = dict[str, Any]

JSON_VALUE = "JsonValue"
MAX_DEFAULT_LENGTH = 60
KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
}
_BOUND_KEYWORDS = {name: KEYWORDS[name] for name in BOUNDS} | {"min_length": "minItems", "max_length": "maxItems"}
_ENDS = ("min", "max")
_LENGTHS = {"min_length": "minLength", "max_length": "maxLength"}
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_NOTES = frozenset({"title", "description", "default", "examples", "deprecated"})
_KEPT = frozenset({*KEYWORDS.values(), "minItems", "maxItems"})
_STRICT = _KEPT | {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf"}
_STRICT |= {"$ref", "$defs", "description", "title", "format"}


def object_schema(properties: dict[str, JsonSchema], required: list[str]) -> JsonSchema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def any_of(options: list[JsonSchema]) -> JsonSchema:
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
        return {**any_of(bare), "description": notes[0]}
    return {"anyOf": distinct}


def is_entry(item: object) -> bool:
    """True for one entry of a mapping in strict form."""
    return isinstance(item, dict) and item.keys() == {"key", "value"}


def described(schema: JsonSchema, description: str | None, notes: list[str]) -> JsonSchema:
    """The schema with a description, and notes about it in brackets."""
    if schema.get("description", description) != description:
        notes = [schema["description"], *notes]
    text = "; ".join(notes)
    if description is not None:
        text = f"{description} ({text})" if text else description
    if not text:
        return schema
    # Strict mode allows no other keyword next to a reference.
    return {**({"anyOf": [schema]} if "$ref" in schema else schema), "description": text}


def default_note(default: Any) -> str:
    """A default as part of a description; empty if there is none, it is too long, or it has no JSON form."""
    if default is MISSING:
        return ""
    try:
        text = encode(default).decode()
    except SerdeError:
        return ""
    return f", {text}" if len(text) <= MAX_DEFAULT_LENGTH else ""


def is_strict(schema: Any, *, root: bool = True) -> bool:
    """True if strict modes accept the schema as it is: all objects closed, with all of their properties required."""
    if not isinstance(schema, dict) or not schema.keys() <= _STRICT or schema.get("format") not in (None, *_FORMATS):
        return False
    if root and (schema.get("type") != "object" or "anyOf" in schema):
        return False
    kind = schema.get("type")
    if isinstance(kind, list) or (kind == "array" and "items" not in schema):
        return False
    properties = schema.get("properties", {})
    if kind == "object" and (
        schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties)
    ):
        return False
    if not str(schema.get("$ref", "#")).startswith("#"):
        return False
    nested = [*properties.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    nested += [schema["items"]] if "items" in schema else []
    return bool(schema) and all(is_strict(each, root=False) for each in nested)


def describe_bounds(schema: JsonSchema) -> JsonSchema:
    """The schema with bounds spelled out in descriptions, for providers that reject the keywords."""
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


TakeSteps = Callable[[int], None]
"""Called with the amount of work that is about to be done for a schema from outside; may raise."""


def _uncounted(steps: int) -> None:
    """The `TakeSteps` of trusted schemas."""


def accepts_null(schema: Any, root: JsonSchema, take_steps: TakeSteps = _uncounted) -> bool:
    return any(map(_accepts_null, _alternatives(schema, root, take_steps)))


def _accepts_null(schema: JsonSchema) -> bool:
    kinds = schema.get("type")
    if kinds == "null" or (isinstance(kinds, list) and "null" in kinds) or None in schema.get("enum", ()):
        return True
    return not schema.keys() - _NOTES or ("const" in schema and schema["const"] is None)


def _alternatives(schema: Any, root: JsonSchema, take_steps: TakeSteps) -> Iterator[JsonSchema]:
    """A schema, the options of its unions, their options, and so on, each once however often it is referred to."""
    seen = set[int]()
    pending = [schema]
    while pending:
        if id(schema := pending.pop()) not in seen:
            seen.add(id(schema))
            found = resolved(schema, root)
            take_steps(_size(found))
            yield found
            pending += reversed(options_of(found))


def is_covered_by(schema: JsonSchema, other: JsonSchema, *, allow_extra: bool) -> bool:
    """True if another schema can also read all objects of a schema, with all of their properties."""
    mine, theirs = resolved(schema, schema), resolved(other, other)
    if "properties" not in mine or "properties" not in theirs:
        return False
    own, known = mine["properties"], theirs["properties"]
    closed = theirs.get("additionalProperties") is False and not allow_extra
    if (closed and own.keys() - known.keys()) or set(theirs.get("required", ())) - own.keys():
        return False
    shared = own.keys() & known.keys()
    return not any(_disjoint(resolved(own[name], schema), resolved(known[name], other)) for name in shared)


def _disjoint(one: JsonSchema, other: JsonSchema) -> bool:
    """True if no value fits both, judging by their outer shapes."""
    choices = [set(map(encode, each["enum"])) for each in (one, other) if "enum" in each]
    choices += [{encode(each["const"])} for each in (one, other) if "const" in each]
    if len(choices) == 2:
        return choices[0].isdisjoint(choices[1])
    kinds = [each.get("type") for each in (one, other)]
    return None not in kinds and kinds[0] != kinds[1] and set(kinds) != {"integer", "number"}


def resolved(schema: Any, root: JsonSchema) -> JsonSchema:
    """The schema with a reference to another place in `root` resolved; a boolean becomes an object."""
    seen = 0
    while isinstance(schema, dict) and "$ref" in schema and seen < 100:
        schema, seen = look_up(root, schema["$ref"]), seen + 1
    if isinstance(schema, dict) and len(schema.get("allOf", ())) == 1:
        rest = {key: value for key, value in schema.items() if key != "allOf"}
        return {**resolved(schema["allOf"][0], root), **rest}
    return schema if isinstance(schema, dict) else {} if schema else {"not": {}}


def look_up(root: JsonSchema, reference: str) -> Any:
    """The schema that a reference such as `#/$defs/Name` points to; raises `LookupError` if there is none."""
    found: Any = root
    if reference != "#" and not reference.startswith("#/"):
        raise LookupError(f"{reference!r} is not a path in the schema, and nothing is fetched")
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(step) if isinstance(found, list) else step]
        except (LookupError, TypeError, ValueError):
            raise LookupError(f"{reference!r} leads nowhere in the schema") from None
    return found


def with_references(schema: Any, moved: Mapping[str, str]) -> Any:
    """The schema with its references to definitions under their new names."""
    if isinstance(schema, list):
        return [with_references(item, moved) for item in schema]
    if not isinstance(schema, dict):
        return schema
    written = {key: with_references(value, moved) for key, value in schema.items()}
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.removeprefix("#/$defs/")
        written["$ref"] = f"#/$defs/{moved.get(name, name)}"
    return written


def to_strict(schema: JsonSchema) -> JsonSchema:
    """A schema in strict form; parts without one are left as they are, which `is_strict` detects."""
    writer = _StrictWriter(schema)
    definitions = {name: writer.write(inner) for name, inner in schema.get("$defs", {}).items()}
    written = writer.write({key: value for key, value in schema.items() if key != "$defs"})
    if writer.uses_json_value:
        # Any JSON except objects, whose keys strict modes require to be declared.
        plain = [{"type": kind} for kind in ("string", "number", "boolean", "null")]
        definitions[JSON_VALUE] = {"anyOf": [*plain, {"type": "array", "items": {"$ref": f"#/$defs/{JSON_VALUE}"}}]}
    return {**written, "$defs": definitions} if definitions else written


def _tags(schema: Any) -> set[str]:
    """The names of the properties that distinguish the options of unions in a schema."""
    if isinstance(schema, list):
        return set[str]().union(*map(_tags, schema))
    if not isinstance(schema, dict):
        return set()
    own = {tag} if isinstance(tag := schema.get("propertyName"), str) else set()
    return own.union(*map(_tags, schema.values()))


class _StrictWriter:
    def __init__(self, root: JsonSchema) -> None:
        self.root = root
        self.tags = _tags(root)
        self.uses_json_value = False

    def write(self, schema: Any, *, default: str = "", omitted: bool = False) -> JsonSchema:
        """The strict form; null means the `default`, or leaving the value out does if it may be `omitted`."""
        declared: JsonSchema = schema if isinstance(schema, dict) else {} if schema else {"not": {}}
        written = self.form({key: value for key, value in declared.items() if key not in _NOTES})
        if written is None:
            return declared
        notes = [f"such as {encode(example).decode()}" for example in declared.get("examples", ())[:1]]
        if default:
            written = written if omitted else any_of([written, {"type": "null"}])
            notes.append(f"leave out for {default}" if omitted else f"null for {default}")
        return described(written, declared.get("description"), notes)

    def form(self, schema: JsonSchema) -> JsonSchema | None:
        """The strict form of a schema without its notes; None if it has none."""
        if not schema:
            self.uses_json_value = True
            return {"$ref": f"#/$defs/{JSON_VALUE}"}
        if schema.keys() == {"$ref"}:
            return schema
        if len(schema.get("allOf", ())) == 1:
            return self.write({**schema["allOf"][0], **{key: schema[key] for key in schema if key != "allOf"}})
        options = options_of(schema)
        if options and not schema.keys() - {"anyOf", "oneOf", "discriminator"}:
            return any_of([self.write(option) for option in options])
        kind = schema.get("type")
        if isinstance(kind, list):
            return any_of([self.write({**schema, "type": each}) for each in kind])
        if "enum" in schema or "const" in schema:
            return {**({"type": kind} if kind else {}), "enum": schema.get("enum", [schema.get("const")])}
        if kind == "object":
            return self.object(schema)
        if kind == "array":
            return self.array(schema)
        return self.scalar(schema) if isinstance(kind, str) else None

    def scalar(self, schema: JsonSchema) -> JsonSchema | None:
        moved = {name: schema[keyword] for name, keyword in _LENGTHS.items() if keyword in schema}
        notes = [words(moved, "character")] if moved else []
        written = {key: value for key, value in schema.items() if key in _KEPT or key == "type"}
        if schema.get("format") in _FORMATS:
            written["format"] = schema["format"]
        elif "format" in schema:
            notes.append(str(schema["format"]))
        return described(written, None, notes)

    def array(self, schema: JsonSchema) -> JsonSchema | None:
        if "prefixItems" in schema:
            items = schema["prefixItems"]
            kinds = [str(resolved(item, self.root).get("type", "any value")) for item in items]
            # An array in strict form has one type for all items.
            written = any_of([self.write(item) for item in items]) if items else {"type": "null"}
            note = f"exactly {len(items)} items: {', '.join(kinds)}"
            return {"type": "array", "items": written, "description": note}
        lengths: dict[str, int] = {key: schema[key] for key in ("minItems", "maxItems") if key in schema}
        return {"type": "array", "items": self.write(schema.get("items", {})), **lengths}

    def object(self, schema: JsonSchema) -> JsonSchema | None:
        properties, further = schema.get("properties"), schema.get("additionalProperties", True)
        if properties is None and further is not False:
            key = {"type": "string", **schema.get("propertyNames", {})}
            lengths = {f"{end}Items": schema[f"{end}Properties"] for end in _ENDS if f"{end}Properties" in schema}
            entry = object_schema({"key": self.write(key), "value": self.write(further)}, ["key", "value"])
            return {"type": "array", "items": entry, **lengths, "description": "one entry for each key"}
        if schema.get("additionalProperties") or schema.keys() & {"patternProperties", "propertyNames"}:
            return None
        required = schema.get("required", ())
        written, needed = {}, []
        for name, declared in (properties or {}).items():
            stated = name in required or (name in self.tags and declared.keys() & {"const", "enum"})
            note = "" if stated else f"the default{default_note(declared.get('default', MISSING))}"
            nullable = accepts_null(declared, self.root)
            # Where null is a valid value, only omitting the property gives the default.
            omitted = bool(note) and nullable and declared.get("default", MISSING) is not None
            written[name] = self.write(declared, default="" if nullable and not omitted else note, omitted=omitted)
            needed += [] if omitted else [name]
        return object_schema(written, needed)


def from_strict(schema: Any, data: Any, root: JsonSchema, take_steps: TakeSteps = _uncounted) -> Any:
    """Convert data written in a schema's strict form to the schema's own form."""

    def inner(schema: Any, data: Any) -> Any:
        return from_strict(schema, data, root, take_steps)

    schema = resolved(schema, root)
    take_steps(_size(schema))
    if "properties" not in schema and (options := options_of(schema)):
        take_steps(len(options))
        entries = [option for option in options if isinstance(data, list) and _is_mapping(resolved(option, root))]
        fits = (option for option in options if _fits(option, data, root, take_steps))
        fitting = next(fits, next(iter(entries), None))
        return data if fitting is None else inner(fitting, data)
    if isinstance(data, list):
        if _is_mapping(schema) and all(map(is_entry, data)):
            data = {item["key"]: item["value"] for item in data}
        else:
            first = schema.get("prefixItems", ())
            items = [*first, *([schema.get("items", True)] * (len(data) - len(first)))]
            return [inner(item, value) for item, value in zip(items, data, strict=False)]
    if not isinstance(data, dict):
        return data
    properties, required = schema.get("properties", {}), set(schema.get("required", ()))
    further = schema.get("additionalProperties", True)
    return {
        name: inner(properties.get(name, further), value)
        for name, value in data.items()
        if value is not None
        or name in required
        or name not in properties
        or accepts_null(properties[name], root, take_steps)
    }


def _fits(option: Any, data: Any, root: JsonSchema, take_steps: TakeSteps) -> bool:
    """True if the data may be meant for this option of a union, judging by its outer shape."""
    found = _alternatives(option, root, take_steps)
    return any(not options_of(schema) and _has_shape(schema, data, root) for schema in found)


def _has_shape(schema: JsonSchema, data: Any, root: JsonSchema) -> bool:
    if "const" in schema or "enum" in schema:
        return data in schema.get("enum", [schema.get("const")])
    if isinstance(data, dict) and "properties" in schema:
        properties, required = schema["properties"], set(schema.get("required", ()))
        known = data.keys() <= properties.keys() or schema.get("additionalProperties") not in (None, False)
        # Null for a property that is not required stands for its default.
        given = ((name, value) for name, value in data.items() if value is not None or name in required)
        tags = ((resolved(properties[name], root), value) for name, value in given if name in properties)
        return (
            known
            and required <= data.keys()
            and all(value in tag.get("enum", [tag.get("const", value)]) for tag, value in tags)
        )
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return kinds is None or any(kind in kinds for kind in kinds_of(data))


def _size(schema: JsonSchema) -> int:
    """The work of comparing a value with a schema, without the schemas within."""
    return 1 + len(schema) + sum(len(schema.get(key, ())) for key in ("enum", "required", "prefixItems"))


def options_of(schema: JsonSchema) -> list[Any]:
    return [*schema.get("anyOf", ()), *schema.get("oneOf", ())]


def _is_mapping(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and "properties" not in schema


def kinds_of(data: Any) -> tuple[str, ...]:
    """The JSON Schema types that a value has, the widest last."""
    if type(data) is int or (type(data) is float and data.is_integer()):
        return "integer", "number"
    return ({bool: "boolean", float: "number", str: "string", list: "array", dict: "object"}.get(type(data), "null"),)
