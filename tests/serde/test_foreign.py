"""JSON Schemas that others wrote: what is accepted, and what data they let through."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import jsonschema
import pytest

from weakincentives.errors import SerdeError
from weakincentives.serde import ForeignSchema, to_strict


def problems(schema: dict[str, Any], data: Any) -> dict[str, str]:
    """What the property `x` of this schema says about the data, by path."""
    try:
        ForeignSchema({"properties": {"x": schema}, "required": ["x"]}).decode(json.dumps({"x": data}))
    except SerdeError as error:
        return {problem.path: problem.message for problem in error.problems}
    return {}


CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "integer", "minimum": 1, "exclusiveMaximum": 5}, [1, 4, 2.0], [0, 5, 1.5, True, "1"]),
    ({"type": "number", "multipleOf": 0.1}, [0.3, 2], [0.35]),
    ({"type": ["string", "null"], "minLength": 2, "maxLength": 3}, ["ab", None], ["a", "abcd", 1]),
    ({"type": "string", "pattern": "^a.$"}, ["ab"], ["ab\n", "b", "cab"]),
    ({"enum": ["a", 1, None, [True]]}, ["a", 1, None, [True]], ["b", True, [1]]),
    ({"const": {"a": 1}}, [{"a": 1}, {"a": 1.0}], [{"a": True}, {}]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, [[1]], [[], [1, 2, 3], ["a"]]),
    ({"type": "array", "uniqueItems": True}, [[1, True, "1"]], [[1, 1.0], [{"a": 1}, {"a": 1}]]),
    ({"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False}, [["a", 1], ["a"]], [[1], ["a", 1, 2]]),
    ({"contains": {"type": "integer"}, "maxContains": 1}, [["a", 1]], [["a"], [1, 2]]),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
        [{"a": 1}],
        [{}, {"a": "1"}, {"a": 1, "b": 2}, []],
    ),
    (
        {"patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        [{"n": 1, "s": "x"}],
        [{"n": "x"}, {"s": 1}],
    ),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "minProperties": 1}, [{"a": 1}], [{}, {"A": 1}]),
    ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 1}, {"b": 1}], [{"a": 1}]),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, [{"a": 1, "b": 1}, {}], [{"a": 1}]),
    ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}, [1, [1]], ["a", ["a"]]),
    ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, [2, 3], [6, 5]),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, [2, "text"], [0, 4]),
    ({"not": {"type": "string"}}, [1], ["a"]),
    (
        {"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["a"]}, "else": {"required": ["b"]}},
        [{"k": 1, "a": 1}, {"k": 2, "b": 1}],
        [{"k": 1}, {"k": 2, "a": 1}],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=lambda case: str(case)[:40])
def test_each_keyword_is_enforced(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    assert [data for data in good if problems(schema, data)] == []
    assert [data for data in bad if not problems(schema, data)] == []


FORMATS: list[tuple[str, list[str], list[str]]] = [
    ("date", ["2026-11-15"], ["2026-13-01", "15.11.2026", "20261115"]),
    ("time", ["10:00:00Z", "10:00:00.5+01:00"], ["10:00", "25:00:00Z"]),
    ("date-time", ["2026-11-15T10:00:00Z", "2026-11-15T10:00:00.123456789+01:00"], ["2026-11-15T10:00:00"]),
    ("email", ["ada@example.org"], ["ada", "a b@example.org", "@example.org"]),
    ("uri", ["https://example.org/a?b#c", "urn:isbn:1"], ["example.org", "/path", "https://a b"]),
    ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567", "g23e4567-e89b-12d3-a456-426614174000"]),
    ("ipv4", ["127.0.0.1"], ["127.0.0", "127.0.0.256", "::1"]),
    ("ipv6", ["::1", "2001:db8::ff"], ["127.0.0.1", ":::1"]),
    ("unknown-to-us", ["anything"], []),
]


@pytest.mark.parametrize(("name", "good", "bad"), FORMATS, ids=lambda case: str(case)[:20])
def test_formats_are_enforced(name: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": "string", "format": name}
    assert [text for text in good if problems(schema, text)] == []
    assert [text for text in bad if not problems(schema, text)] == []


def test_references_may_lead_back_to_the_schema_itself() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "value": {"type": "integer"}}}
    tree = ForeignSchema({"properties": {"root": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}})
    assert tree.decode('{"root": {"next": {"value": 1}}}') == {"root": {"next": {"value": 1}}}
    with pytest.raises(SerdeError, match=r"\$\.root\.next\.value: expected integer, got str 'x'"):
        tree.decode('{"root": {"next": {"value": "x"}}}')


def test_definitions_of_older_drafts_are_found() -> None:
    schema = {"properties": {"a": {"$ref": "#/definitions/A"}}, "definitions": {"A": {"type": "integer"}}}
    with pytest.raises(SerdeError, match=r"\$\.a: expected integer, got str 'x'"):
        ForeignSchema(schema).decode('{"a": "x"}')


def test_problems_have_paths_and_name_what_was_meant() -> None:
    circle = {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["r"]}
    text = {"type": "string", "enum": ["none"]}
    assert problems({"anyOf": [circle, text]}, {"kind": "circle"}) == {"$.x.r": "missing"}
    assert problems({"type": "array", "items": {"maximum": 3}}, [1, 9]) == {"$.x[1]": "expected at most 3, got int 9"}
    assert problems(text, "all") == {"$.x": "expected one of 'none', got str 'all'"}


def test_null_for_what_may_be_left_out_leaves_it_out() -> None:
    schema = ForeignSchema({"properties": {"head": {"type": "integer"}, "tail": {"type": ["integer", "null"]}}})
    assert schema.decode('{"head": null, "tail": null}') == {"tail": None}


@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        ({"type": "array"}, "$.type", "must be 'object'"),
        ({"properties": {"a": {"type": "text"}}}, "$.properties.a.type", "must be one of string"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}}, "$.properties.a.$ref", "leads nowhere"),
        ({"properties": {"a": {"$ref": "https://example.org/a"}}}, "$.properties.a.$ref", "nothing is fetched"),
        ({"properties": {"a": {"pattern": "("}}}, "$.properties.a.pattern", "not a regular expression"),
        ({"properties": {"a": {"anyOf": {}}}}, "$.properties.a.anyOf", "must be a list"),
        ({"properties": {"a": {"minimum": "1"}}}, "$.properties.a.minimum", "must be a number"),
        ({"properties": {"a": 3}}, "$.properties.a", "an object or a boolean"),
    ],
)
def test_a_schema_that_is_wrong_is_refused_with_the_reason(schema: dict[str, Any], path: str, reason: str) -> None:
    with pytest.raises(SerdeError) as caught:
        ForeignSchema(schema)
    (problem,) = caught.value.problems
    assert (problem.path, reason in problem.message) == (path, True)


def test_older_and_homemade_spellings_are_understood() -> None:
    assert problems({"type": "float", "minimum": 0, "exclusiveMinimum": True}, 0)
    assert problems({"type": "string", "nullable": True, "enum": ["a"]}, None) == {}
    assert problems({"type": "array", "items": [{"type": "string"}], "additionalItems": False}, ["a", "b"])
    assert problems({"dependencies": {"a": ["b"]}}, {"a": 1}) == {"$.x.b": "missing"}
    assert problems({"dependencies": {"a": {"required": ["c"]}}}, {"a": 1}) == {"$.x.c": "missing"}
    assert ForeignSchema({"type": "dict", "properties": {"a": {"type": "any"}}}).sent == {
        "type": "object",
        "properties": {"a": {}},
    }


def test_what_is_sent_has_a_plain_object_at_the_top() -> None:
    by_name = {"properties": {"name": {"type": "string"}}, "required": ["name"]}
    by_id = {"properties": {"id": {"type": "integer"}}, "required": ["id"]}
    schema = ForeignSchema({"$schema": "https://json-schema.org/draft/2020-12/schema", "oneOf": [by_name, by_id]})
    assert schema.sent == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "id": {"type": "integer"}},
    }
    assert schema.decode('{"id": 1}') == {"id": 1}
    with pytest.raises(SerdeError, match="of the alternatives"):
        schema.decode("{}")


def test_the_validator_agrees_with_jsonschema() -> None:
    chance = random.Random(7)
    # There 0.3 is no multiple of 0.1, and `$` lets a line end through.
    cases = [case for case in CASES if case[0].get("multipleOf") != 0.1 and "pattern" not in case[0]]
    values = [value for _, good, bad in cases for value in (*good, *bad)]
    for _ in range(3_000):
        parts = chance.sample([schema for schema, _, _ in cases], 2)
        combined: Any = chance.choice(
            [
                {"anyOf": parts},
                {"oneOf": parts},
                {"allOf": parts},
                {"not": parts[0]},
                {"if": parts[0], "then": parts[1]},
            ]
        )
        value = chance.choice(values)
        schema = {"type": "object", "properties": {"x": combined}, "required": ["x"]}
        expected = jsonschema.Draft202012Validator(schema).is_valid({"x": value})
        assert (combined, value, not problems(combined, value)) == (combined, value, expected)


ODD_VALUES = [None, True, False, 1, -3.5, "a", "string", "object", "(", "#", "#/$defs/a", [], {}, ["a"]]
KEYWORDS = sorted({key for schema, _, _ in CASES for key in schema} | {"$ref", "$defs", "dependencies", "nullable"})


def odd_schema(chance: random.Random, depth: int = 0) -> Any:
    if depth > 3 or chance.random() < 0.3:
        return chance.choice(ODD_VALUES)
    if chance.random() < 0.2:
        return [odd_schema(chance, depth + 1) for _ in range(2)]
    names = KEYWORDS if chance.random() < 0.7 else ["a", "b"]
    return {chance.choice(names): odd_schema(chance, depth + 1) for _ in range(3)}


def test_no_schema_is_so_odd_that_it_breaks_the_program() -> None:
    chance = random.Random(11)
    accepted = 0
    for _ in range(3_000):
        properties = {"a": odd_schema(chance), "b": odd_schema(chance)}
        try:
            schema = ForeignSchema({"type": "object", "properties": properties})
        except SerdeError:
            continue
        accepted += 1
        to_strict(schema.sent)
        for text in ('{"a": 1}', '{"a": [1, {"a": 2}], "b": {"a": null}}', '{"a": "x", "b": null}', "[1]"):
            with suppress(SerdeError):
                schema.decode(text)
    assert accepted > 100
