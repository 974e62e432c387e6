"""JSON Schemas from outside: checked once, sent as they are, and used to validate data.

This is our own validator because tools from outside need one wherever they run, and the core depends on msgspec alone:
jsonschema would add five packages and 130 ms of import time, jsonschema-rs a 15 MB binary. Formats other than
`FORMATS`, the `unevaluated...` keywords and `$dynamicRef` are not enforced. Nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde.codecs import loads
from weakincentives.serde.constraints import describe, field_path, holds, quote, words
from weakincentives.serde.strict import KEYWORDS, JsonSchema, from_strict, is_strict, kinds_of, look_up

KINDS = ("string", "number", "integer", "boolean", "object", "array", "null")
# How these types are spelled in tools described by hand in Python.
_PYTHON_KINDS = {"str": "string", "float": "number", "int": "integer", "bool": "boolean", "dict": "object"}
_PYTHON_KINDS |= {"list": "array", "tuple": "array", "None": "null"}
_ONE = frozenset({"additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else"})
_LISTED = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs"})
_VALUES: dict[str, tuple[Any, str]] = {
    **dict.fromkeys((*_NAMED, "dependentRequired", "dependencies"), (Mapping, "an object")),
    **dict.fromkeys((*_LISTED, "enum", "required"), (list, "a list")),
    **dict.fromkeys(("$ref", "pattern"), (str, "text")),
}
_LENGTHS = {"string": ("Length", "character"), "array": ("Items", "item"), "object": ("Properties", "entry")}
_NUMBERS = frozenset(KEYWORDS.values()) - {"pattern"}
_NUMBERS |= {f"{end}{noun}" for noun in ("Length", "Items", "Properties", "Contains") for end in ("min", "max")}
_NOT_SENT = frozenset({"$schema", "$id", "$ref", "anyOf", "oneOf", "allOf", "not", "if", "then", "else"})
_NOT_SENT |= {"dependentSchemas", "dependentRequired"}


class ForeignSchema:
    """The schema of an object: `decode` reads text that must match it, `sent` is what providers get."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Raises a `SerdeError` that says why the schema cannot be used."""
        problems: list[FieldProblem] = []
        references: list[tuple[str, str]] = []
        try:
            self.schema: JsonSchema = _checked(schema, "$", problems, references)
        except RecursionError:
            raise SerdeError((FieldProblem("$", "the schema is nested too deeply"),)) from None
        kinds = self.schema.get("type", "object")
        if not problems and "object" not in kinds:
            problems.append(FieldProblem("$.type", f"must be 'object', got {quote(kinds)}"))
        self.schema["type"] = "object"
        for path, reference in references if not problems else ():
            try:
                look_up(self.schema, reference)
            except LookupError as error:
                problems.append(FieldProblem(f"{path}.$ref", str(error.args[0])))
        if problems:
            raise SerdeError(tuple(problems))

    def decode(self, text: str | bytes) -> dict[str, Any]:
        """Read JSON text. Models often write null for a property that should be omitted, so such a null omits it."""
        data = loads(text)
        try:
            data = from_strict(self.schema, data, self.schema)
            problems = tuple(_problems(self.schema, data, "$", self.schema))
        except RecursionError:
            problems = (FieldProblem("$", "the data is nested too deeply for its schema"),)
        except (TypeError, AttributeError) as error:
            # A keyword with a value of the wrong kind, which `_checked` did not look at.
            problems = (FieldProblem("$", f"the schema cannot be applied: {error}"),)
        if problems:
            raise SerdeError(problems)
        found: dict[str, Any] = data
        return found

    @property
    def sent(self) -> JsonSchema:
        """The schema with a plain object at the top, as providers require.

        Conditions at the top are left out, and the properties of a union's options become optional.
        """
        if is_strict(self.schema):
            return self.schema
        properties: dict[str, Any] = {}
        for option in _options(self.schema, self.schema, set()):
            for name, declared in option.get("properties", {}).items():
                known = properties.setdefault(name, declared)
                properties[name] = known if known == declared else {"anyOf": [known, declared]}
        kept = {key: value for key, value in self.schema.items() if key not in _NOT_SENT}
        return {**kept, "properties": properties | self.schema.get("properties", {})}


def _options(schema: JsonSchema, root: JsonSchema, seen: set[int]) -> Iterator[JsonSchema]:
    """The schemas that apply, or may apply, to the same object as this one."""
    found = [schema[key] for key in ("then", "else") if key in schema] + [*schema.get("dependentSchemas", {}).values()]
    found += [look_up(root, schema["$ref"])] if "$ref" in schema else []
    for option in [*found, *(option for key in ("anyOf", "oneOf", "allOf") for option in schema.get(key, ()))]:
        if isinstance(option, dict) and id(option) not in seen:
            seen.add(id(option))
            yield option
            yield from _options(option, root, seen)


def _checked(schema: Any, path: str, problems: list[FieldProblem], references: list[tuple[str, str]]) -> Any:
    """The schema with current keywords and JSON's names for types.

    Errors in the schema are added to `problems`, its references to `references`, each with its path.
    """

    def inner(schema: Any, name: str) -> Any:
        return _checked(schema, name, problems, references)

    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, Mapping):
        problems.append(FieldProblem(path, f"a JSON Schema is an object or a boolean, got {describe(schema)}"))
        return {}
    written = _in_todays_words(schema)
    for key, value in written.items():
        where = field_path(path, key)
        wanted, called = _VALUES.get(key, (object, ""))
        if not isinstance(value, wanted):
            problems.append(FieldProblem(where, f"must be {called}, got {describe(value)}"))
        elif key in _NAMED:
            written[key] = {name: inner(each, field_path(where, str(name))) for name, each in value.items()}
        elif key in _LISTED:
            written[key] = [inner(each, f"{where}[{index}]") for index, each in enumerate(value)]
        elif key in _ONE and not (isinstance(value, bool) and key in ("additionalProperties", "items")):
            written[key] = inner(value, where)
        elif key == "$ref":
            references.append((path, value))
        elif key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            problems.append(FieldProblem(where, f"must be a number, got {describe(value)}"))
    kinds = written.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in KINDS:
            problems.append(FieldProblem(f"{path}.type", f"must be one of {', '.join(KINDS)}, got {quote(kind)}"))
    if problems:
        return written
    for pattern in [*([written["pattern"]] if "pattern" in written else ()), *written.get("patternProperties", ())]:
        try:
            _compiled(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            problems.append(FieldProblem(f"{path}.pattern", f"{quote(pattern)} is not a regular expression: {error}"))
    return written


def _in_todays_words(schema: Mapping[str, Any]) -> JsonSchema:
    names = {"definitions": "$defs"}
    written = {names.get(key, key): value for key, value in schema.items() if key not in ("$schema", "$id")}
    if isinstance(reference := written.get("$ref"), str):
        written["$ref"] = reference.replace("/definitions/", "/$defs/")
    kinds = written.get("type", [])
    kinds = [_PYTHON_KINDS.get(str(kind), kind) for kind in (kinds if isinstance(kinds, list) else [kinds])]
    if written.pop("nullable", False) is True and kinds:
        kinds.append("null")
        written |= {"enum": [*written["enum"], None]} if isinstance(written.get("enum"), list) else {}
    if "type" in written:
        written["type"] = kinds[0] if len(kinds) == 1 else kinds
        if "any" in kinds:
            del written["type"]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(written.get(exclusive), bool) and written.pop(exclusive) and bound in written:
            written[exclusive] = written.pop(bound)
    if isinstance(written.get("items"), list):
        written["prefixItems"] = written.pop("items")
        written |= {"items": written.pop("additionalItems")} if "additionalItems" in written else {}
    if isinstance(needs := written.get("dependencies"), Mapping):
        named = {name: needed for name, needed in needs.items() if isinstance(needed, list)}
        schemas = {name: needed for name, needed in needs.items() if name not in named}
        written |= {"dependentRequired": named, "dependentSchemas": schemas}
    # A property that declares itself required, as in draft 3; the object's list decides.
    if isinstance(written.get("required"), bool):
        del written["required"]
    return written


def _problems(schema: Any, data: Any, path: str, root: JsonSchema) -> Iterator[FieldProblem]:
    """Where data does not match a schema, with paths."""
    if isinstance(schema, bool) or not schema:
        if schema is False:
            yield FieldProblem(path, f"not allowed, got {describe(data)}")
        return
    if "$ref" in schema:
        yield from _problems(look_up(root, schema["$ref"]), data, path, root)
    kinds = schema.get("type")
    allowed = [kinds] if isinstance(kinds, str) else kinds
    if allowed is not None and not any(kind in allowed for kind in kinds_of(data)):
        yield FieldProblem(path, f"expected {' or '.join(allowed)}, got {describe(data)}")
        return
    for choices in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if choices is not None and not any(_same(choice, data) for choice in choices):
            yield FieldProblem(path, f"expected one of {', '.join(map(quote, choices))}, got {describe(data)}")
    kind = kinds_of(data)[-1]
    if kind in ("number", *_LENGTHS):
        yield from _limit_problems(schema, data, kind, path)
    if kind == "object":
        yield from _object_problems(schema, data, path, root)
    elif kind == "array":
        yield from _array_problems(schema, data, path, root)
    yield from _combined_problems(schema, data, path, root)


def _limit_problems(schema: JsonSchema, data: Any, kind: str, path: str) -> Iterator[FieldProblem]:
    noun, unit = _LENGTHS.get(kind, ("", ""))
    keywords = {"min_length": f"min{noun}", "max_length": f"max{noun}"} if noun else KEYWORDS
    limits = {name: schema[key] for name, key in keywords.items() if key in schema and name != "pattern"}
    if limits and not holds(limits, data):
        yield FieldProblem(path, f"expected {words(limits, unit)}, got {describe(data)}")
    if kind == "string":
        if "pattern" in schema and not _compiled(schema["pattern"]).search(data):
            yield FieldProblem(path, f"expected text matching {schema['pattern']}, got {describe(data)}")
        check = FORMATS.get(str(schema.get("format")))
        if check is not None and not check(data):
            yield FieldProblem(path, f"expected text in the format {schema['format']}, got {describe(data)}")


def _object_problems(schema: JsonSchema, data: Any, path: str, root: JsonSchema) -> Iterator[FieldProblem]:
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    further = schema.get("additionalProperties", True)
    dependent = (name for key, names in schema.get("dependentRequired", {}).items() if key in data for name in names)
    for name in dict.fromkeys((*schema.get("required", ()), *dependent)):
        if name not in data:
            yield FieldProblem(field_path(path, name), "missing")
    for name, value in data.items():
        where = field_path(path, name)
        for problem in _problems(schema.get("propertyNames", True), name, where, root):
            yield FieldProblem(where, f"name: {problem.message}")
        matching = [inner for pattern, inner in patterns.items() if _compiled(pattern).search(name)]
        matching += [properties[name]] if name in properties else []
        if not matching and further is False:
            yield FieldProblem(where, f"unknown property (there are: {', '.join(properties) or 'none'})")
            continue
        for inner in matching or [further]:
            yield from _problems(inner, value, where, root)
    for name, inner in schema.get("dependentSchemas", {}).items():
        if name in data:
            yield from _problems(inner, data, path, root)


def _array_problems(schema: JsonSchema, data: Any, path: str, root: JsonSchema) -> Iterator[FieldProblem]:
    first = schema.get("prefixItems", [])
    for index, item in enumerate(data):
        inner = first[index] if index < len(first) else schema.get("items", True)
        yield from _problems(inner, item, f"{path}[{index}]", root)
        if schema.get("uniqueItems") is True and any(_same(item, other) for other in data[:index]):
            yield FieldProblem(f"{path}[{index}]", f"given twice: {describe(item)}")
    if "contains" in schema:
        count = sum(_matches(schema["contains"], item, root) for item in data)
        if not schema.get("minContains", 1) <= count <= schema.get("maxContains", len(data)):
            yield FieldProblem(path, f"{count} of its items are of the kind it must contain")


def _combined_problems(schema: JsonSchema, data: Any, path: str, root: JsonSchema) -> Iterator[FieldProblem]:
    for option in schema.get("allOf", ()):
        yield from _problems(option, data, path, root)
    for key in schema.keys() & {"anyOf", "oneOf"}:
        failures = [list(_problems(option, data, path, root)) for option in schema[key]]
        fitting = sum(not found for found in failures)
        if not fitting:
            # The alternative that was probably meant.
            likely = [found for found in failures if not any(problem.path == path for problem in found)]
            shown = "; or ".join(", ".join(map(": ".join, found[:5])) for found in failures[:5])
            every = [FieldProblem(path, f"matches none of the alternatives, got {describe(data)}: {shown}")]
            yield from likely[0] if len(likely) == 1 else every
        elif fitting > 1 and key == "oneOf":
            yield FieldProblem(path, f"matches {fitting} of the alternatives of which it must match one")
    if "not" in schema and _matches(schema["not"], data, root):
        yield FieldProblem(path, f"must not be what its schema excludes, got {describe(data)}")
    if "if" in schema:
        branch = "then" if _matches(schema["if"], data, root) else "else"
        yield from _problems(schema.get(branch, True), data, path, root)


def _matches(schema: Any, data: Any, root: JsonSchema) -> bool:
    return next(_problems(schema, data, "$", root), None) is None


def _same(one: Any, other: Any) -> bool:
    """Equality as JSON defines it, where true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    return bool(one == other)


_PATTERN_PIECE = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^]\\])*\]|\(\?<(?=\w)|\$", re.DOTALL)
_PYTHON_PIECES = {"$": r"\Z", "(?<": "(?P<", r"\p{L}": r"[^\W\d_]", r"\p{N}": r"\d", r"\p{Nd}": r"\d"}


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """A JavaScript pattern as a Python one, which writes the end, groups and letters differently."""
    return re.compile(_PATTERN_PIECE.sub(lambda piece: _PYTHON_PIECES.get(piece[0], piece[0]), pattern))


def _has_form(shape: str, read: Callable[[str], object], text: str) -> bool:
    try:
        return re.fullmatch(shape, text, re.ASCII) is not None and read(text) is not None
    except ValueError:
        return False


def _moment(text: str) -> datetime:
    """Python reads at most six digits after the point, and no leap second."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.upper().replace(":60", ":59")))


_DATE, _TIME = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d(\.\d+)?([zZ]|[+-]\d\d:\d\d)"
FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date": partial(_has_form, _DATE, date.fromisoformat),
    "time": partial(_has_form, _TIME, lambda text: _moment(f"2000-01-01T{text}")),
    "date-time": partial(_has_form, f"{_DATE}[Tt ]{_TIME}", _moment),
    "email": partial(_has_form, r"[^@\s]+@[^@\s]+", str),
    "uri": partial(_has_form, r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]+", str),
    "uuid": partial(_has_form, r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", str),
    "ipv4": partial(_has_form, r"[\d.]+", IPv4Address),
    "ipv6": partial(_has_form, r"[0-9a-fA-F:.]+", IPv6Address),
}
