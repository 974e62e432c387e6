from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

import pytest
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator

from weakincentives.serde import dump, parse, schema

T = TypeVar("T")

STRICT_KEYWORDS = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "anyOf",
    "$ref",
    "$defs",
    "description",
    "format",
    "pattern",
}


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Step:
    """Docstrings are for programmers and stay out of the schema."""

    title: str = field(metadata={"description": "what to do"})
    minutes: int = field(default=5, metadata={"description": "how long"})


@dataclass(frozen=True)
class Node:
    name: str
    children: list[Node] = field(default_factory=list)
    parent: Node | None = field(default=None, metadata={"description": "above"})


@dataclass(frozen=True)
class Wide:
    steps: tuple[Step, ...]
    lead: Step = field(metadata={"description": "goes first"})
    color: Color
    when: datetime
    day: Annotated[date, "the day"]
    key: UUID
    pair: tuple[int, str]
    scores: dict[str, float]
    counts: dict[int, int]
    file: Path
    anything: Any
    shape: Step | Node
    number: int | str | None
    kind: Literal["a", 1, None] = None
    tags: frozenset[str] = frozenset()


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside a schema."""
    yield value
    for key in ("properties", "$defs"):
        for inner in value.get(key, {}).values():
            yield from walk(inner)
    for inner in value.get("anyOf", []):
        yield from walk(inner)
    if isinstance(value.get("items"), dict):
        yield from walk(value["items"])


def test_a_strict_schema_requires_everything_and_makes_defaults_nullable() -> None:
    assert schema(Step) == {
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "what to do"},
            "minutes": {
                "anyOf": [{"type": "integer"}, {"type": "null"}],
                "description": "how long (null for the default, 5)",
            },
        },
        "required": ["title", "minutes"],
        "additionalProperties": False,
    }


def test_a_plain_schema_keeps_defaults_and_requires_the_rest() -> None:
    assert schema(Step, strict=False) == {
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "what to do"},
            "minutes": {"type": "integer", "default": 5, "description": "how long"},
        },
        "required": ["title"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("cls", [Step, Node, Wide])
def test_a_strict_schema_follows_the_rules_of_the_providers(cls: type) -> None:
    written = schema(cls)
    Draft202012Validator.check_schema(written)
    assert written["type"] == "object"
    for part in walk(written):
        assert part.keys() <= STRICT_KEYWORDS
        assert isinstance(part.get("type", ""), str)
        assert "$ref" not in part or part.keys() == {"$ref"}
        if part.get("type") == "object":
            assert part["additionalProperties"] is False
            assert part["required"] == list(part["properties"])
        else:
            assert part.keys() & {"type", "anyOf", "$ref", "enum"}


@pytest.mark.parametrize("cls", [Step, Node, Wide])
def test_a_plain_schema_is_valid(cls: type) -> None:
    Draft202012Validator.check_schema(schema(cls, strict=False))


def test_a_default_without_a_form_in_json_is_left_out() -> None:
    @dataclass
    class Odd:
        value: Any = print

    assert schema(Odd, strict=False)["properties"] == {"value": {}}
    assert schema(Odd)["required"] == []


def test_a_recursive_type_refers_to_its_definition() -> None:
    written = schema(Node)
    assert written["properties"]["parent"] == {
        "anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}],
        "description": "above",
    }
    assert {**written["$defs"]["Node"], "$defs": written["$defs"]} == written


def test_what_strict_mode_cannot_say_is_said_in_words() -> None:
    properties = schema(Wide)["properties"]
    assert properties["when"] == {"type": "string", "format": "date-time"}
    assert properties["day"] == {"type": "string", "format": "date", "description": "the day"}
    assert properties["pair"] == {
        "type": "array",
        "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "description": "exactly 2 items: integer, string",
    }
    assert properties["file"] == {"type": "string", "description": "path"}
    assert properties["counts"]["items"]["properties"]["key"] == {"type": "string", "pattern": "^-?[0-9]+$"}
    assert properties["lead"] == {"anyOf": [{"$ref": "#/$defs/Step"}], "description": "goes first"}
    assert schema(Wide, strict=False)["properties"]["when"] == {"type": "string", "format": "date-time"}


def test_enums_and_literals_list_their_values() -> None:
    assert schema(Color) == {"type": "string", "enum": ["red", "blue"]}
    assert schema(Wide)["properties"]["kind"] == {
        "anyOf": [{"type": "string", "enum": ["a"]}, {"type": "integer", "enum": [1]}, {"type": "null"}]
    }


@dataclass
class Page(Generic[T]):
    items: list[T]


def test_generic_dataclasses_have_one_definition_for_each_argument() -> None:
    @dataclass
    class Both:
        steps: Page[Step]
        numbers: Page[int]

    assert schema(Both)["$defs"].keys() == {"Page_Step", "Step", "Page_int"}


def test_two_classes_of_one_name_get_two_definitions() -> None:
    one = make_dataclass("Item", [("value", int)])
    two = make_dataclass("Item", [("value", str)])
    pair = make_dataclass("Pair", [("one", one), ("two", two)])
    assert schema(pair)["$defs"].keys() == {"Item", "Item_2"}


def test_a_schema_is_made_anew_and_may_be_changed() -> None:
    schema(Step)["properties"].clear()
    assert schema(Step)["properties"]


steps = st.builds(Step, st.text(), st.integers())
nodes = st.recursive(
    st.builds(Node, st.text(max_size=3)),
    lambda inner: st.builds(Node, st.text(max_size=3), st.lists(inner, max_size=2), st.none() | inner),
    max_leaves=4,
)


@given(steps | nodes)
def test_dumped_values_fit_both_schemas(value: Step | Node) -> None:
    for strict in (True, False):
        Draft202012Validator(schema(type(value), strict=strict)).validate(dump(value))
    assert parse(type(value), dump(value)) == value
