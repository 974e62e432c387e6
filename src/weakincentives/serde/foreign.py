"""JSON Schemas from outside: checked once, sent as they are, and used to validate data.

This is our own validator because tools from outside need one wherever they run, and the core depends on msgspec alone:
jsonschema would add five packages and 130 ms of import time, and hostile schemas freeze it; jsonschema-rs is a 15 MB
binary. Formats other than `FORMATS`, the `unevaluated...` keywords and `$dynamicRef` are not enforced. Nothing is
fetched.

Neither the schema nor the data is trusted: schemas have a maximum size, patterns are matched in bounded time, and
reading data takes at most `MAX_STEPS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, datetime, time
from ipaddress import IPv4Address, IPv6Address
from itertools import islice
from typing import Annotated, Any

import msgspec

from weakincentives._base.display import shortened
from weakincentives.errors import FieldProblem, SerdeError
from weakincentives.serde.codecs import loads
from weakincentives.serde.constraints import describe, field_path, holds, quote, words
from weakincentives.serde.pattern import MAX_STEPS, BoundedPattern, PatternError, Steps, TooManyStepsError
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
# The keywords whose schemas apply to the same value as the schema they stand in.
_SAME_VALUE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})
MAX_VALUES = 50_000
"""The largest schema that is accepted, in JSON values."""
MAX_DEPTH = 100
CHECK_STEPS = 10
"""The steps that applying one schema to one value counts."""
MAX_PROBLEMS = 20
MAX_CHOICES = 20


class ForeignSchema:
    """The schema of an object: `decode` reads text that must match it, `sent` is what providers get."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Raises a `SerdeError` that says why the schema cannot be used."""
        reader = _SchemaReader()
        try:
            self.schema: JsonSchema = reader.read(schema)
        except RecursionError:
            raise SerdeError((FieldProblem("$", "the schema is nested too deeply"),)) from None
        self._patterns = reader.patterns

    def decode(self, text: str | bytes) -> dict[str, Any]:
        """Read JSON text. Models often write null for a property that should be omitted, so such a null omits it."""
        data = loads(text)
        steps = Steps(MAX_STEPS)
        try:
            data = from_strict(self.schema, data, self.schema, steps.take)
            check = _Check(self.schema, self._patterns, steps.take)
            problems = tuple(dict.fromkeys(islice(check.problems(self.schema, data, "$"), MAX_PROBLEMS)))
        except RecursionError:
            problems = (FieldProblem("$", "the data is nested too deeply for its schema"),)
        except TooManyStepsError:
            problems = (FieldProblem("$", f"checking this against its schema takes more than {MAX_STEPS:,} steps"),)
        except (TypeError, AttributeError) as error:
            # A keyword with a value of the wrong kind, which was not looked at before.
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
        found: dict[str, dict[str, Any]] = {}
        for option in _options(self.schema, self.schema, set()):
            for name, declared in option.get("properties", {}).items():
                found.setdefault(name, {}).setdefault(json.dumps(declared, sort_keys=True, default=repr), declared)
        properties = {
            name: next(iter(options.values())) if len(options) == 1 else {"anyOf": [*options.values()]}
            for name, options in found.items()
        }
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


class _SchemaReader:
    """Copies a schema, with current keywords and JSON's names for types, and collects the errors in it."""

    def __init__(self) -> None:
        self.patterns: dict[str, BoundedPattern] = {}
        self._problems: list[FieldProblem] = []
        self._references: list[tuple[str, str]] = []
        # The schemas that have been checked, by identity.
        self._checked: dict[int, JsonSchema] = {}
        self._chains: dict[int, int] = {}
        self._values = 0

    def read(self, schema: Mapping[str, Any]) -> JsonSchema:
        root: JsonSchema = self._check(self._copy(schema, 0), "$")
        kinds = root.get("type", "object")
        if not self._problems and "object" not in kinds:
            self._problems.append(FieldProblem("$.type", f"must be 'object', got {quote(kinds)}"))
        root["type"] = "object"
        # The list grows while it is read: what a reference leads to may have references too.
        for path, reference in self._references:
            if not self._problems:
                self._resolve(root, f"{path}.$ref", reference)
        for checked in [] if self._problems else list(self._checked.values()):
            self._chain(checked, root)
        if self._problems:
            raise SerdeError(tuple(self._problems[:MAX_PROBLEMS]))
        return root

    def _copy(self, value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise SerdeError((FieldProblem("$", f"the schema is nested more than {MAX_DEPTH} levels deep"),))
        self._count(1)
        if isinstance(value, Mapping):
            return {key: self._copy(each, depth + 1) for key, each in value.items()}
        return [self._copy(each, depth + 1) for each in value] if isinstance(value, list) else value

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            what = f"more than {MAX_VALUES:,} values and characters in patterns"
            raise SerdeError((FieldProblem("$", f"the schema has {what}; only smaller ones are accepted"),))

    def _resolve(self, root: JsonSchema, path: str, reference: str) -> None:
        try:
            target = look_up(root, reference)
        except LookupError as error:
            self._problems.append(FieldProblem(path, str(error.args[0])))
            return
        if isinstance(target, dict) and id(target) not in self._checked:
            # It stands at a place that is no schema's, such as `components`.
            written = self._check(target, path)
            target.clear()
            target.update(written)
            self._checked[id(target)] = target
        elif not isinstance(target, dict | bool):
            self._problems.append(FieldProblem(path, f"{reference!r} leads to {describe(target)}, not to a schema"))

    def _chain(self, schema: Any, root: JsonSchema) -> int:
        """The number of schemas that apply to one value, one behind the other; rejects references in a circle."""
        if not isinstance(schema, dict):
            return 0
        if id(schema) not in self._chains:
            # Until it is known, its chain counts as the longest, so that one in a circle is too long.
            self._chains[id(schema)] = MAX_DEPTH
            inner = [look_up(root, schema["$ref"])] if "$ref" in schema else []
            for key in schema.keys() & _SAME_VALUE:
                value = schema[key]
                inner += value if key in _LISTED else value.values() if key in _NAMED else [value]
            self._chains[id(schema)] = 1 + max((self._chain(each, root) for each in inner), default=0)
        if self._chains[id(schema)] > MAX_DEPTH:
            message = f"references lead in a circle, or through more than {MAX_DEPTH} schemas for one value"
            raise SerdeError((FieldProblem("$", message),))
        return self._chains[id(schema)]

    def _check(self, schema: Any, path: str) -> Any:
        problems = self._problems
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        if not isinstance(schema, Mapping):
            problems.append(FieldProblem(path, f"a JSON Schema is an object or a boolean, got {describe(schema)}"))
            return {}
        written = _in_todays_words(schema)
        self._checked[id(written)] = written
        for key, value in written.items():
            where = field_path(path, key)
            wanted, called = _VALUES.get(key, (object, ""))
            if not isinstance(value, wanted):
                problems.append(FieldProblem(where, f"must be {called}, got {describe(value)}"))
            elif key in _NAMED:
                written[key] = {name: self._check(each, field_path(where, str(name))) for name, each in value.items()}
            elif key in _LISTED:
                written[key] = [self._check(each, f"{where}[{index}]") for index, each in enumerate(value)]
            elif key in _ONE and not (isinstance(value, bool) and key in ("additionalProperties", "items")):
                written[key] = self._check(value, where)
            elif key == "$ref":
                self._references.append((path, value))
            elif key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
                problems.append(FieldProblem(where, f"must be a number, got {describe(value)}"))
            elif key == "multipleOf" and not value > 0:
                problems.append(FieldProblem(where, f"must be more than 0, got {describe(value)}"))
        kinds = written.get("type", [])
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind not in KINDS:
                problems.append(FieldProblem(f"{path}.type", f"must be one of {', '.join(KINDS)}, got {quote(kind)}"))
        if not problems:
            found = {"pattern": [written["pattern"]] if "pattern" in written else []}
            found["patternProperties"] = list(written.get("patternProperties", ()))
            for key, patterns in found.items():
                self._compile(patterns, f"{path}.{key}")
        return written

    def _compile(self, patterns: list[str], path: str) -> None:
        for pattern in [each for each in patterns if each not in self.patterns]:
            self._count(len(pattern))
            try:
                made = self.patterns[pattern] = BoundedPattern(pattern)
                self._count(made.classes >> 6)
            except PatternError as error:
                self._problems.append(FieldProblem(path, f"{quote(pattern)} {error}"))


def _in_todays_words(schema: Mapping[str, Any]) -> JsonSchema:
    names = {"definitions": "$defs"}
    written = {names.get(key, key): value for key, value in schema.items() if key not in ("$schema", "$id")}
    if isinstance(reference := written.get("$ref"), str):
        written["$ref"] = reference.replace("/definitions/", "/$defs/")
    kinds = written.get("type", [])
    named = [str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])]
    kinds = list(dict.fromkeys(_PYTHON_KINDS.get(kind, kind) for kind in named))
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
        required = {name: needed for name, needed in needs.items() if isinstance(needed, list)}
        schemas = {name: needed for name, needed in needs.items() if name not in required}
        written |= {"dependentRequired": required, "dependentSchemas": schemas}
    # A property that declares itself required, as in draft 3; the object's list decides.
    if isinstance(written.get("required"), bool):
        del written["required"]
    return written


class _Check:
    """One check of data against a schema. Every method yields or counts problems lazily, and takes steps."""

    def __init__(self, root: JsonSchema, patterns: Mapping[str, BoundedPattern], take: Callable[[int], None]) -> None:
        self._root = root
        self._patterns = patterns
        self._take = take
        # Only references can apply a schema to the same value twice, in numbers that double with each of them.
        self._referenced: dict[tuple[str, str, int], list[FieldProblem]] = {}

    def problems(self, schema: Any, data: Any, path: str) -> Iterator[FieldProblem]:
        """The places where data does not match a schema, with paths."""
        self._take(CHECK_STEPS)
        if isinstance(schema, bool) or not schema:
            if schema is False:
                yield FieldProblem(path, f"not allowed, got {describe(data)}")
            return
        if "$ref" in schema:
            yield from self._reference_problems(schema["$ref"], data, path)
        kinds = schema.get("type")
        allowed = [kinds] if isinstance(kinds, str) else kinds
        if allowed is not None and not any(kind in allowed for kind in kinds_of(data)):
            yield FieldProblem(path, f"expected {' or '.join(allowed)}, got {describe(data)}")
            return
        for choices in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
            if choices is not None:
                given = self._hashable(data)
                if not any(self._hashable(choice) == given for choice in choices):
                    yield FieldProblem(path, f"expected one of {_listed(choices)}, got {describe(data)}")
        kind = kinds_of(data)[-1]
        if kind in ("number", *_LENGTHS):
            yield from self._limit_problems(schema, data, kind, path)
        if kind == "object":
            yield from self._object_problems(schema, data, path)
        elif kind == "array":
            yield from self._array_problems(schema, data, path)
        yield from self._combined_problems(schema, data, path)

    def _reference_problems(self, reference: str, data: Any, path: str) -> list[FieldProblem]:
        key = (reference, path, id(data))
        if key not in self._referenced:
            self._referenced[key] = self._first_problems(look_up(self._root, reference), data, path)
        return self._referenced[key]

    def _first_problems(self, schema: Any, data: Any, path: str) -> list[FieldProblem]:
        return list(islice(self.problems(schema, data, path), MAX_PROBLEMS))

    def _limit_problems(self, schema: JsonSchema, data: Any, kind: str, path: str) -> Iterator[FieldProblem]:
        noun, unit = _LENGTHS.get(kind, ("", ""))
        keywords = {"min_length": f"min{noun}", "max_length": f"max{noun}"} if noun else KEYWORDS
        limits = {name: schema[key] for name, key in keywords.items() if key in schema and name != "pattern"}
        if limits and not holds(limits, data):
            yield FieldProblem(path, f"expected {words(limits, unit)}, got {describe(data)}")
        elif kind == "string":
            if "pattern" in schema and not self._patterns[schema["pattern"]].search(data, self._take):
                pattern = shortened(schema["pattern"], 200)
                yield FieldProblem(path, f"expected text matching {pattern}, got {describe(data)}")
            form = FORMATS.get(str(schema.get("format")))
            if form is not None and not _has_form(form, data):
                yield FieldProblem(path, f"expected text in the format {schema['format']}, got {describe(data)}")

    def _object_problems(self, schema: JsonSchema, data: Any, path: str) -> Iterator[FieldProblem]:
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        further = schema.get("additionalProperties", True)
        self._take(len(schema.get("dependentRequired", ())))
        dependent = (
            name for key, names in schema.get("dependentRequired", {}).items() if key in data for name in names
        )
        for name in dict.fromkeys((*schema.get("required", ()), *dependent)):
            self._take(1)
            if name not in data:
                yield FieldProblem(field_path(path, name), "missing")
        for name, value in data.items():
            where = field_path(path, name)
            for problem in self.problems(schema.get("propertyNames", True), name, where):
                yield FieldProblem(where, f"name: {problem.message}")
            matching = [
                inner for pattern, inner in patterns.items() if self._patterns[pattern].search(name, self._take)
            ]
            matching += [properties[name]] if name in properties else []
            if not matching and further is False:
                yield FieldProblem(where, f"unknown property (there are: {_listed(properties, str) or 'none'})")
                continue
            for inner in matching or [further]:
                yield from self.problems(inner, value, where)
        for name, inner in schema.get("dependentSchemas", {}).items():
            self._take(1)
            if name in data:
                yield from self.problems(inner, data, path)

    def _array_problems(self, schema: JsonSchema, data: Any, path: str) -> Iterator[FieldProblem]:
        first = schema.get("prefixItems", [])
        unique = schema.get("uniqueItems") is True
        seen = set[Any]()
        for index, item in enumerate(data):
            inner = first[index] if index < len(first) else schema.get("items", True)
            yield from self.problems(inner, item, f"{path}[{index}]")
            if unique:
                if (key := self._hashable(item)) in seen:
                    yield FieldProblem(f"{path}[{index}]", f"given twice: {describe(item)}")
                seen.add(key)
        if "contains" in schema:
            count = sum(self._matches(schema["contains"], item, f"{path}[{index}]") for index, item in enumerate(data))
            if not schema.get("minContains", 1) <= count <= schema.get("maxContains", len(data)):
                yield FieldProblem(path, f"{count} of its items are of the kind it must contain")

    def _combined_problems(self, schema: JsonSchema, data: Any, path: str) -> Iterator[FieldProblem]:
        for option in schema.get("allOf", ()):
            yield from self.problems(option, data, path)
        for key in schema.keys() & {"anyOf", "oneOf"}:
            failures = [self._first_problems(option, data, path) for option in schema[key]]
            fitting = sum(not found for found in failures)
            if not fitting:
                # The alternative that was probably meant.
                likely = [found for found in failures if not any(problem.path == path for problem in found)]
                shown = "; or ".join(
                    ", ".join(f"{where}: {shortened(text, 200)}" for where, text in found[:5]) for found in failures[:5]
                )
                every = [FieldProblem(path, f"matches none of the alternatives, got {describe(data)}: {shown}")]
                yield from likely[0] if len(likely) == 1 else every
            elif fitting > 1 and key == "oneOf":
                yield FieldProblem(path, f"matches {fitting} of the alternatives of which it must match one")
        if "not" in schema and self._matches(schema["not"], data, path):
            yield FieldProblem(path, f"must not be what its schema excludes, got {describe(data)}")
        if "if" in schema:
            branch = "then" if self._matches(schema["if"], data, path) else "else"
            yield from self.problems(schema.get(branch, True), data, path)

    def _matches(self, schema: Any, data: Any, path: str) -> bool:
        return next(self.problems(schema, data, path), None) is None

    def _hashable(self, value: Any) -> Any:
        """Equal for values that are the same in JSON, where true is not 1."""
        self._take(1)
        if isinstance(value, list):
            return tuple(map(self._hashable, value))
        if isinstance(value, dict):
            return frozenset((name, self._hashable(each)) for name, each in value.items())
        return (bool, value) if isinstance(value, bool) else value


def _listed(choices: Collection[Any], shown: Callable[[Any], str] = quote) -> str:
    more = f" and {len(choices) - MAX_CHOICES} more" if len(choices) > MAX_CHOICES else ""
    return ", ".join(map(shown, islice(choices, MAX_CHOICES))) + more


def _has_form(kind: Any, text: str) -> bool:
    try:
        msgspec.convert(text, kind, dec_hook=lambda cls, data: cls(data))
    except msgspec.ValidationError:
        return False
    return True


FORMATS: Mapping[str, Any] = {
    "date": date,
    "time": Annotated[time, msgspec.Meta(tz=True)],
    "date-time": Annotated[datetime, msgspec.Meta(tz=True)],
    "email": Annotated[str, msgspec.Meta(pattern=r"^[^@\s]+@[^@\s]+\Z")],
    "uri": Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]+\Z")],
    "uuid": Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")],
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
}
"""The formats that are enforced, as types that are read from such text."""
