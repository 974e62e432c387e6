"""JSON Schemas that others wrote: checked once, sent as they are, and data validated against them.

This is a validator of our own because tools from outside need one wherever they run, and the core depends on msgspec
alone: jsonschema would bring five packages and 130 ms of import, jsonschema-rs 15 MB of binary. What is not asserted:
formats other than `FORMATS`, and `unevaluatedItems`. Nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde.codecs import loads
from weakincentives.serde.constraints import holds, words
from weakincentives.serde.problems import describe, field_path, quote
from weakincentives.serde.strict import (
    KEYWORDS,
    JsonSchema,
    from_strict,
    is_strict,
    kinds_of,
    look_up,
    options_of,
    resolved,
)

KINDS = ("string", "number", "integer", "boolean", "object", "array", "null")
# How tools that were described by hand in Python spell them.
_PYTHON_KINDS = {"str": "string", "float": "number", "int": "integer", "bool": "boolean", "dict": "object"}
_PYTHON_KINDS |= {"list": "array", "tuple": "array", "None": "null"}
_SCHEMA, _SCHEMAS, _NAMED = "schema", "list of schemas", "schemas by name"
_INNER = {
    **dict.fromkeys(("additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"), _SCHEMA),
    **dict.fromkeys(("unevaluatedProperties", "additionalItems", "items"), _SCHEMA),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"), _NAMED),
}
_LENGTHS = {"string": ("Length", "character"), "array": ("Items", "item"), "object": ("Properties", "entry")}
_TOP_ONLY = frozenset({"$schema", "$id", "id", "$comment"})
_UNIONS = ("anyOf", "oneOf", "allOf")
_CONDITIONS = frozenset({"not", "if", "then", "else", "dependentSchemas", "dependentRequired", "unevaluatedProperties"})
_PATTERN_PIECE = re.compile(r"\\[pP]\{\^?(\w+)(?:=\w+)?\}|\\.|\[\^?\]?(?:\\.|[^]\\])*\]|\(\?<(?=\w)|\$", re.DOTALL)


class ForeignSchema:
    """A schema of an object: `decode` reads text that must match it, `sent` is what providers get."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Raises a `SerdeError` that says why the schema cannot be used."""
        if not isinstance(schema, Mapping):
            raise SerdeError((FieldProblem("$", f"a JSON Schema is an object, got {describe(schema)}"),))
        self.schema: JsonSchema = _normal({"type": "object", **schema})
        if self.schema["type"] != "object":
            raise SerdeError((FieldProblem("$.type", f"must be 'object', got {self.schema['type']!r}"),))
        try:
            problems = tuple(_check(self.schema, "$", self.schema))
        except RecursionError:
            problems = (FieldProblem("$", "the schema is nested too deeply"),)
        if problems:
            raise SerdeError(problems)

    def decode(self, text: str | bytes) -> dict[str, Any]:
        """Read JSON text. Null for a property that has to be left out leaves it out: models often write it."""
        data = loads(text)
        try:
            data = from_strict(self.schema, data, self.schema)
            problems = tuple(_problems(self.schema, data, "$", self.schema))
        except RecursionError:
            problems = (FieldProblem("$", "the data is nested too deeply for its schema"),)
        if problems:
            raise SerdeError(problems)
        found: dict[str, Any] = data
        return found

    @property
    def sent(self) -> JsonSchema:
        """The schema with a plain object at the top, as providers require.

        What stands beside its properties is left out, and properties of a union's options become optional ones.
        """
        top = {key: value for key, value in self.schema.items() if key not in _TOP_ONLY}
        if is_strict(top):
            return top
        properties: dict[str, Any] = {}
        for option in _all_options(top, self.schema):
            for name, declared in option.get("properties", {}).items():
                known = properties.get(name, declared)
                properties[name] = known if known == declared else {"anyOf": [known, declared]}
        kept = {key: value for key, value in top.items() if key not in (*_UNIONS, "$ref", *_CONDITIONS)}
        return {**kept, "properties": {**properties, **top.get("properties", {})}}


def _all_options(schema: JsonSchema, root: JsonSchema, depth: int = 0) -> Iterator[JsonSchema]:
    found = [*(schema[key] for key in ("then", "else") if key in schema), *schema.get("dependentSchemas", {}).values()]
    found += [{"$ref": schema["$ref"]}] if "$ref" in schema else []
    for option in [*found, *(option for key in _UNIONS for option in schema.get(key, ()))]:
        inner = resolved(option, root)
        yield inner
        if depth < 10:
            yield from _all_options(inner, root, depth + 1)


def _normal(schema: Any) -> Any:
    """The schema in today's keywords, with JSON's names for types."""
    if isinstance(schema, list):
        return [_normal(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    written = dict(schema)
    for key, kind in _INNER.items():
        if key in written:
            value = written[key]
            named = kind == _NAMED and isinstance(value, Mapping)
            written[key] = {name: _normal(inner) for name, inner in value.items()} if named else _normal(value)
    kinds = written.get("type")
    if isinstance(kinds, list):
        written["type"] = [_PYTHON_KINDS.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    elif isinstance(kinds, str):
        written["type"] = _PYTHON_KINDS.get(kinds, kinds)
        if kinds == "any":
            del written["type"]
    if written.pop("nullable", False) is True and isinstance(written.get("type"), str):
        written["type"] = [written["type"], "null"]
        if "enum" in written and None not in written["enum"]:
            written["enum"] = [*written["enum"], None]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(written.get(exclusive), bool) and written.pop(exclusive) and bound in written:
            written[exclusive] = written.pop(bound)
    if isinstance(written.get("items"), list):
        written["prefixItems"], further = written.pop("items"), written.pop("additionalItems", True)
        written |= {} if further is True else {"items": further}
    # A property that says of itself that it is required, as in draft 3; the object's list decides.
    if isinstance(written.get("required"), bool):
        del written["required"]
    return written


def _check(schema: Any, path: str, root: JsonSchema) -> Iterator[FieldProblem]:
    """What is wrong with a schema itself."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield FieldProblem(path, f"a JSON Schema is an object or a boolean, got {describe(schema)}")
        return
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in KINDS:
            yield FieldProblem(f"{path}.type", f"must be one of {', '.join(KINDS)}, got {quote(kind)}")
    for key in ("$ref", "$dynamicRef"):
        if key in schema:
            try:
                look_up(root, str(schema[key]))
            except LookupError as error:
                yield FieldProblem(f"{path}.{key}", str(error.args[0]))
    for pattern in [*([schema["pattern"]] if "pattern" in schema else ()), *_keys(schema, "patternProperties")]:
        try:
            _compiled(pattern)
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            yield FieldProblem(f"{path}.pattern", f"{quote(pattern)} is not a regular expression: {error}")
    for key in ("required", "enum"):
        if not isinstance(schema.get(key, []), list):
            yield FieldProblem(f"{path}.{key}", f"must be a list, got {describe(schema[key])}")
    for key in (*KEYWORDS.values(), *(f"{end}{noun}" for noun, _ in _LENGTHS.values() for end in ("min", "max"))):
        limit = schema.get(key, 0)
        if key != "pattern" and (isinstance(limit, bool) or not isinstance(limit, int | float)):
            yield FieldProblem(f"{path}.{key}", f"must be a number, got {describe(limit)}")
    for key, kind in _INNER.items():
        if key not in schema:
            continue
        value, where = schema[key], field_path(path, key)
        if kind == _SCHEMA:
            yield from _check(value, where, root)
        elif isinstance(value, dict if kind == _NAMED else list):
            named = value.items() if isinstance(value, dict) else enumerate(value)
            for name, inner in named:
                yield from _check(inner, field_path(where, str(name)), root)
        else:
            yield FieldProblem(where, f"must be a {kind}, got {describe(value)}")


def _keys(schema: JsonSchema, key: str) -> list[str]:
    found = schema.get(key)
    return list(found) if isinstance(found, dict) else []


def _problems(schema: Any, data: Any, path: str, root: JsonSchema) -> Iterator[FieldProblem]:
    """Where data does not match a schema, with paths."""
    if schema is True or schema == {}:
        return
    if schema is False:
        yield FieldProblem(path, f"not allowed, got {describe(data)}")
        return
    for key in ("$ref", "$dynamicRef"):
        if key in schema:
            yield from _problems(look_up(root, schema[key]), data, path, root)
    kinds = schema.get("type")
    allowed = [kinds] if isinstance(kinds, str) else kinds
    if allowed is not None and not any(kind in allowed for kind in kinds_of(data)):
        yield FieldProblem(path, f"expected {' or '.join(allowed)}, got {describe(data)}")
        return
    for choices in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if choices is not None and not any(_same(choice, data) for choice in choices):
            yield FieldProblem(path, f"expected one of {', '.join(map(quote, choices))}, got {describe(data)}")
    kind = kinds_of(data)[-1]
    yield from _limit_problems(schema, data, kind, path)
    if kind == "object":
        yield from _object_problems(schema, data, path, root)
    elif kind == "array":
        yield from _array_problems(schema, data, path, root)
    yield from _combined_problems(schema, data, path, root)


def _limit_problems(schema: JsonSchema, data: Any, kind: str, path: str) -> Iterator[FieldProblem]:
    limits: dict[str, Any] = {}
    unit = ""
    if kind == "number":
        limits = {name: schema[key] for name, key in KEYWORDS.items() if key in schema and name != "pattern"}
    elif kind in _LENGTHS:
        noun, unit = _LENGTHS[kind]
        limits = {f"{end}_length": schema[key] for end in ("min", "max") if (key := f"{end}{noun}") in schema}
    if limits and not holds(limits, data):
        got = describe(data) if kind in ("number", "string") else f"{len(data)}"
        yield FieldProblem(path, f"expected {words(limits, unit)}, got {got}")
    if kind == "string":
        pattern, form = schema.get("pattern"), str(schema.get("format"))
        if pattern is not None and not _compiled(pattern).search(data):
            yield FieldProblem(path, f"expected text matching {pattern}, got {describe(data)}")
        if form in FORMATS and not FORMATS[form](data):
            yield FieldProblem(path, f"expected text in the format {form}, got {describe(data)}")


def _object_problems(schema: JsonSchema, data: Any, path: str, root: JsonSchema) -> Iterator[FieldProblem]:
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    needed = dict.fromkeys(schema.get("required", ()))
    for name, others in schema.get("dependentRequired", {}).items():
        needed |= dict.fromkeys(others) if name in data else {}
    for name in needed:
        if name not in data:
            yield FieldProblem(field_path(path, name), "missing")
    further = schema.get("additionalProperties", True)
    closed = schema.get("unevaluatedProperties", True)
    evaluated = _evaluated(schema, data, root) if closed is not True else data.keys()
    for name, value in data.items():
        where = field_path(path, name)
        matching = [inner for pattern, inner in patterns.items() if _compiled(pattern).search(name)]
        matching += [properties[name]] if name in properties else []
        if "propertyNames" in schema:
            for problem in _problems(schema["propertyNames"], name, where, root):
                yield FieldProblem(where, f"name: {problem.message}")
        if (not matching and further is False) or (name not in evaluated and closed is False):
            known = ", ".join(properties) or "none"
            yield FieldProblem(where, f"unknown property (there are: {known})")
            continue
        for inner in matching or ([further] if name in evaluated else [further, closed]):
            yield from _problems(inner, value, where, root)
    for name, inner in schema.get("dependentSchemas", {}).items():
        if name in data:
            yield from _problems(inner, data, path, root)


def _array_problems(schema: JsonSchema, data: Any, path: str, root: JsonSchema) -> Iterator[FieldProblem]:
    first = schema.get("prefixItems", [])
    for index, item in enumerate(data):
        inner = first[index] if index < len(first) else schema.get("items", True)
        yield from _problems(inner, item, f"{path}[{index}]", root)
    if schema.get("uniqueItems") is True:
        for index, item in enumerate(data):
            if any(_same(item, other) for other in data[:index]):
                yield FieldProblem(f"{path}[{index}]", f"given twice: {describe(item)}")
    if "contains" in schema:
        count = sum(_matches(schema["contains"], item, root) for item in data)
        if not schema.get("minContains", 1) <= count <= schema.get("maxContains", len(data)):
            yield FieldProblem(path, f"{count} of its items are of the kind it must contain")


def _combined_problems(schema: JsonSchema, data: Any, path: str, root: JsonSchema) -> Iterator[FieldProblem]:
    for option in schema.get("allOf", ()):
        yield from _problems(option, data, path, root)
    for key, most in (("anyOf", None), ("oneOf", 1)):
        if key not in schema:
            continue
        failures = [list(_problems(option, data, path, root)) for option in schema[key]]
        fitting = sum(not found for found in failures)
        if fitting > 1 and most == 1:
            yield FieldProblem(path, f"matches {fitting} of the alternatives of which it must match one")
        elif not fitting:
            yield from _closest(failures, path, data)
    if "not" in schema and _matches(schema["not"], data, root):
        yield FieldProblem(path, f"must not be what its schema excludes, got {describe(data)}")
    if "if" in schema:
        branch = "then" if _matches(schema["if"], data, root) else "else"
        yield from _problems(schema.get(branch, True), data, path, root)


def _closest(failures: list[list[FieldProblem]], path: str, data: Any) -> Iterator[FieldProblem]:
    """The problems of the one alternative that was meant, as far as that can be told, or of all in one line."""
    likely = [found for found in failures if not any(problem.path == path for problem in found)]
    if len(likely) == 1:
        yield from likely[0]
        return
    shown = "; or ".join(", ".join(f"{where} {message}" for where, message in found[:5]) for found in failures[:5])
    yield FieldProblem(path, f"matches none of the alternatives, got {describe(data)}: {shown}")


def _matches(schema: Any, data: Any, root: JsonSchema) -> bool:
    return next(_problems(schema, data, "$", root), None) is None


def _evaluated(schema: Any, data: Any, root: JsonSchema) -> set[str]:
    """The properties that a schema speaks about, itself or through those that apply to the same object."""
    if not isinstance(schema, dict):
        return set()
    if "additionalProperties" in schema:
        return set(data)
    patterns = [_compiled(pattern) for pattern in schema.get("patternProperties", ())]
    names = {name for name in data if name in schema.get("properties", ()) or any(p.search(name) for p in patterns)}
    inner = [look_up(root, schema["$ref"])] if "$ref" in schema else []
    inner += [*schema.get("allOf", ()), *(option for option in options_of(schema) if _matches(option, data, root))]
    inner += [each for name, each in schema.get("dependentSchemas", {}).items() if name in data]
    if "if" in schema:
        met = _matches(schema["if"], data, root)
        inner += [schema["if"], schema.get("then", True)] if met else [schema.get("else", True)]
    return names.union(*(_evaluated(each, data, root) for each in inner))


def _same(one: Any, other: Any) -> bool:
    """Equality as JSON has it, where true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    return bool(one == other)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of JavaScript as one of Python: the end is the very end, letters and digits are named otherwise."""
    letters = {"L": r"[^\W\d_]", "Letter": r"[^\W\d_]", "N": r"\d", "Nd": r"\d"}

    def piece(found: re.Match[str]) -> str:
        text = found[0]
        if found[1] is not None:
            if found[1] not in letters or text.startswith(("\\P", "\\p{^")):
                raise re.error(f"{text} has no equivalent")
            return letters[found[1]]
        return {"$": r"\Z", "(?<": "(?P<", r"\/": "/"}.get(text, text)

    return re.compile(_PATTERN_PIECE.sub(piece, pattern))


def _parses(read: Callable[[str], object], shape: str) -> Callable[[str], bool]:
    form = re.compile(shape, re.ASCII)

    def check(text: str) -> bool:
        try:
            return form.fullmatch(text) is not None and read(text) is not None
        except ValueError:
            return False

    return check


_DATE, _TIME = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d(\.\d+)?([zZ]|[+-]\d\d:\d\d)"
FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date": _parses(date.fromisoformat, _DATE),
    "time": _parses(lambda text: datetime.fromisoformat(_seconds(f"2000-01-01T{text}")), _TIME),
    "date-time": _parses(lambda text: datetime.fromisoformat(_seconds(text)), f"{_DATE}[Tt ]{_TIME}"),
    "email": _parses(str, r"[^@\s]+@[^@\s]+"),
    "uri": _parses(str, r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]+"),
    "uuid": _parses(str, r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "ipv4": _parses(IPv4Address, r"[\d.]+"),
    "ipv6": _parses(IPv6Address, r"[0-9a-fA-F:.]+"),
}


def _seconds(text: str) -> str:
    """A time as Python reads it: at most six digits after the point, capital letters, and no leap second."""
    return re.sub(r"(\.\d{6})\d+", r"\1", text.upper().replace(":60", ":59"))
