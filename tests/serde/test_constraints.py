"""Bounds, lengths and patterns: in schemas, enforced on what is read, refused where they cannot be."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, make_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType

import annotated_types as at
import pytest
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator
from msgspec import Meta

from weakincentives import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    ScriptedAdapter,
    Session,
    tool,
)
from weakincentives.adapters.scripted import call
from weakincentives.errors import OutputParseError, SerdeError
from weakincentives.prompt import parse_structured_output
from weakincentives.runtime import Message
from weakincentives.serde import codec, describe_bounds, encode, is_strict, parse, schema
from weakincentives.serde.nodes import read

Age = NewType("Age", int)


@dataclass(frozen=True)
class Person:
    age: Annotated[int, Meta(ge=0, le=150, description="in years")]
    name: Annotated[str, at.MinLen(1), at.MaxLen(5)]
    code: str = field(metadata={"pattern": "^[A-Z]{3}$"})
    score: Annotated[float, at.Interval(gt=0, lt=1)] = 0.5
    tags: Annotated[list[Annotated[str, Meta(pattern="^#")]], at.Len(1, 2)] = field(default_factory=lambda: ["#a"])
    rooms: dict[str, int] = field(default_factory=dict, metadata={"max_length": 1})
    step: int | None = field(default=None, metadata={"multiple_of": 5, "ge": 5})
    years: Annotated[Age, at.Ge(1)] | None = None


GOOD: dict[str, Any] = {"age": 3, "name": "Ann", "code": "ABC"}
AGE = "expected int (at least 0, at most 150)"
NAME = "expected str (at least 1 character, at most 5 characters)"
CODE = "expected str (matching ^[A-Z]{3}$)"


def problems(data: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SerdeError) as caught:
        parse(Person, data)
    return dict(caught.value.problems)


def test_constraints_are_keywords_of_a_plain_schema() -> None:
    properties = schema(Person, strict=False)["properties"]
    assert properties["age"] == {"type": "integer", "minimum": 0, "maximum": 150, "description": "in years"}
    assert properties["name"] == {"type": "string", "minLength": 1, "maxLength": 5}
    assert properties["code"] == {"type": "string", "pattern": "^[A-Z]{3}$"}
    assert properties["score"] == {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.5}
    assert properties["tags"] == {
        "type": "array",
        "items": {"type": "string", "pattern": "^#"},
        "minItems": 1,
        "maxItems": 2,
    }
    rooms = {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1, "default": {}}
    assert properties["rooms"] == rooms


def test_a_strict_schema_says_lengths_of_text_in_words() -> None:
    properties = schema(Person)["properties"]
    assert properties["age"] == {"type": "integer", "minimum": 0, "maximum": 150, "description": "in years"}
    assert properties["name"] == {"type": "string", "description": "at least 1 character, at most 5 characters"}
    assert properties["step"] == {"anyOf": [{"type": "integer", "minimum": 5, "multipleOf": 5}, {"type": "null"}]}
    assert properties["rooms"]["anyOf"][0]["maxItems"] == 1


def test_a_provider_that_rejects_bounds_gets_them_in_words() -> None:
    properties = describe_bounds(schema(Person))["properties"]
    assert properties["age"] == {"type": "integer", "description": "in years (at least 0, at most 150)"}
    assert properties["step"]["anyOf"][0] == {"type": "integer", "description": "at least 5, a multiple of 5"}
    assert properties["code"] == {"type": "string", "pattern": "^[A-Z]{3}$"}
    refused = re.compile(r'"(minimum|maximum|exclusiveM\w+|multipleOf|minItems|maxItems)"')
    assert not refused.search(encode(describe_bounds(schema(Person))).decode())


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"age": -1}, {"$.age": f"{AGE}, got int -1"}),
        ({"age": 151}, {"$.age": f"{AGE}, got int 151"}),
        ({"name": ""}, {"$.name": f"{NAME}, got 0 characters"}),
        ({"name": "Annabel"}, {"$.name": f"{NAME}, got 7 characters"}),
        ({"code": "ABCD"}, {"$.code": f"{CODE}, got str 'ABCD'"}),
        ({"score": 1}, {"$.score": "expected float (more than 0, less than 1), got int 1"}),
        ({"tags": []}, {"$.tags": "expected list[str (matching ^#)] (at least 1 item, at most 2 items), got 0 items"}),
        ({"tags": ["#a", "b"]}, {"$.tags[1]": "expected str (matching ^#), got str 'b'"}),
        ({"rooms": {"a": 1, "b": 2}}, {"$.rooms": "expected dict[str, int] (at most 1 entry), got 2 entries"}),
        ({"step": 7}, {"$.step": "expected int (at least 5, a multiple of 5), got int 7"}),
        ({"years": 0}, {"$.years": "expected int (at least 1), got int 0"}),
        ({"age": -1, "code": "x"}, {"$.age": f"{AGE}, got int -1", "$.code": f"{CODE}, got str 'x'"}),
    ],
)
def test_a_value_outside_its_constraints_is_refused_with_its_path(
    change: dict[str, Any], found: dict[str, str]
) -> None:
    assert problems(GOOD | change) == found


@pytest.mark.parametrize("change", [{}, {"age": 0}, {"age": 150}, {"step": None}, {"step": 10}, {"rooms": {}}])
def test_a_value_within_its_constraints_is_read(change: dict[str, Any]) -> None:
    assert parse(Person, GOOD | change) == Person(**(GOOD | change))


def test_a_decimal_fraction_is_a_multiple_of_one() -> None:
    Price = make_dataclass("Price", [("amount", Annotated[float, Meta(multiple_of=0.01)])])
    assert parse(Price, {"amount": 0.29}) == Price(0.29)
    with pytest.raises(SerdeError, match=r"a multiple of 0\.01"):
        parse(Price, {"amount": 0.295})


@pytest.mark.parametrize("multiple", [3, 0.1, 1e-300, 2**60])
def test_extreme_numbers_are_read_or_refused(multiple: float) -> None:
    Number = make_dataclass("Number", [("n", Annotated[int | float, Meta(ge=-1e301), at.MultipleOf(multiple)])])
    for value in (10**5000, 10**5000 + 1, 1e300, -1e300, 2.0**70, float("inf"), float("nan")):
        try:
            assert parse(Number, {"n": value}).n == value
        except SerdeError as error:
            assert error.problems[0].path == "$.n"
    assert parse(Number, {"n": multiple * 4}).n == multiple * 4


def test_constraints_hold_with_extra_keys_allowed_too() -> None:
    Limited = make_dataclass("Limited", [("n", Annotated[int, at.Le(3)])])
    for data in ({"n": 4}, {"n": 4, "more": 1}):
        with pytest.raises(SerdeError, match="at most 3"):
            codec(Limited).decode(encode(data), allow_extra=True)
    assert codec(Limited).decode(b'{"n": 3, "more": 1}', allow_extra=True) == Limited(3)


@pytest.mark.parametrize(
    ("annotation", "metadata", "message"),
    [
        (str, {"ge": 1}, "ge does not apply to str"),
        (int, {"min_length": 1}, "min_length does not apply to int"),
        (bool, {"ge": 0}, "ge does not apply to bool"),
        (Decimal, {"ge": 0}, "ge does not apply to Decimal"),
        (bytes, {"max_length": 1}, "max_length does not apply to bytes"),
        (list[int], {"pattern": "x"}, r"pattern does not apply to list\[int\]"),
        (Literal["a"], {"min_length": 1}, "min_length does not apply to one of 'a'"),
        (Any, {"ge": 1}, "ge does not apply to any value"),
        (int | str, {"multiple_of": 0}, "multiple_of must be positive, got 0"),
        (int, {"ge": "1"}, "ge must be a number, got '1'"),
        (int, {"ge": True}, "ge must be a number, got True"),
        (str, {"min_length": 1.5}, "min_length must be an integer, got 1.5"),
        (str, {"min_length": -1}, "min_length must be zero or more, got -1"),
        (int, {"ge": 5, "le": 4}, "no value is at least 5, at most 4"),
        (str, {"min_length": 5, "max_length": 4}, "no value is at least 5 items, at most 4"),
        (str, {"pattern": "("}, r"pattern '\(' is not a regular expression: missing \)"),
        (str, {"pattern": b"x"}, "pattern must be text, got b'x'"),
        (str, {"pattern": "(?=a)"}, r"uses '\(\?', but JSON Schema has no lookaround"),
        (str, {"pattern": r"(a)\1"}, "back-references"),
        (str, {"pattern": r"a\Z"}, r"uses '\\\\Z'"),
        (str, {"pattern": "a++"}, "possessive"),
        (Annotated[int, at.Predicate(bool)], {}, "has no form in JSON Schema; check it in __post_init__"),
        (Annotated[datetime, Meta(tz=True)], {}, "tz has no form in JSON Schema"),
        (Annotated[str, Meta(pattern="a")], {"pattern": "b"}, "pattern is given twice: 'a' and 'b'"),
    ],
)
def test_a_constraint_that_cannot_be_honoured_is_refused_with_its_type(
    annotation: Any, metadata: dict[str, Any], message: str
) -> None:
    Declared = make_dataclass("Declared", [("value", annotation, field(metadata=metadata))])
    with pytest.raises(SerdeError, match=rf"^Declared\.value: constraint cannot be honoured: .*{message}"):
        codec(Declared)
    with pytest.raises(PromptValidationError, match="Declared"):
        PromptTemplate[Declared](ns="t", key="t", sections=[])


@pytest.mark.parametrize("pattern", [r"^\+?[*+]+\\1[\]+]+$", r"^(?:a|b){2,}?\d$", r"\\Z", "[(?=)]"])
def test_patterns_that_json_schema_has_are_taken(pattern: str) -> None:
    Declared = make_dataclass("Declared", [("value", str, field(metadata={"pattern": pattern}))])
    assert schema(Declared)["properties"]["value"] == {"type": "string", "pattern": pattern}


def test_other_metadata_is_left_alone() -> None:
    value = Annotated[int, "how many", object(), at.Unit("m"), ("ge", 1)]
    Declared = make_dataclass("Declared", [("value", value, field(metadata={"column": "v", "GE": 3}))])
    assert schema(Declared)["properties"]["value"] == {"type": "integer", "description": "how many"}


def test_of_two_bounds_the_tighter_one_holds() -> None:
    Declared = make_dataclass("Declared", [("value", Annotated[int, at.Ge(1), Meta(ge=3)], field(metadata={"ge": 2}))])
    assert schema(Declared)["properties"]["value"] == {"type": "integer", "minimum": 3}


@given(
    st.fixed_dictionaries(
        {
            "age": st.integers(-5, 160),
            "name": st.text("ab\u00fc", max_size=7),
            "code": st.sampled_from(["ABC", "abc", "AB"]),
        },
        optional={
            "score": st.sampled_from([0, 0.0, 0.5, 1, 1.5, "x"]),
            "tags": st.lists(st.sampled_from(["#a", "b"]), max_size=3),
            "rooms": st.dictionaries(st.sampled_from("ab"), st.integers(0, 3)),
            "step": st.sampled_from([None, 0, 5, 7, 10]),
            "years": st.sampled_from([None, 0, 1]),
        },
    ),
    st.booleans(),
)
def test_both_passes_and_the_schema_agree(data: dict[str, Any], allow_extra: bool) -> None:
    person = codec(Person)

    def outcome(work: Any) -> Any:
        try:
            return work()
        except SerdeError as error:
            return error.problems

    careful = outcome(lambda: read(person.node, data, allow_extra=allow_extra))
    assert outcome(lambda: person.parse(data, allow_extra=allow_extra)) == careful
    assert outcome(lambda: person.decode(encode(data), allow_extra=allow_extra)) == careful
    given = {name: value for name, value in data.items() if value is not None or name in ("step", "years")}
    assert Draft202012Validator(schema(Person, strict=False)).is_valid(given) == isinstance(careful, Person)


@dataclass(frozen=True)
class Defaults:
    plain: int = 5
    nullable: int | None = 5
    empty: str | None = None
    items: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=lambda: ["x"])
    anything: Any = 7
    long: str = "x" * 100


def test_a_strict_schema_says_how_to_get_each_default() -> None:
    strict = schema(Defaults)
    integer, null = {"type": "integer"}, {"type": "null"}
    assert strict["properties"]["plain"] == {"anyOf": [integer, null], "description": "null for the default, 5"}
    assert strict["properties"]["nullable"] == {"anyOf": [integer, null], "description": "leave out for the default, 5"}
    assert strict["properties"]["empty"] == {"anyOf": [{"type": "string"}, null]}
    assert strict["properties"]["items"]["description"] == "null for the default, []"
    assert strict["properties"]["made"]["description"] == "null for the default"
    assert strict["properties"]["long"]["description"] == "null for the default"
    assert strict["required"] == ["plain", "empty", "items", "made", "long"]


def test_every_default_can_be_reached_through_the_strict_schema() -> None:
    data = dict.fromkeys(schema(Defaults)["required"])
    Draft202012Validator(schema(Defaults)).validate(data)
    assert parse(Defaults, data) == Defaults()
    assert parse(Defaults, data | {"nullable": None}).nullable is None


def test_a_schema_with_a_property_that_may_be_left_out_is_not_strict() -> None:
    Nested = make_dataclass("Nested", [("inner", list[Defaults])])
    assert (is_strict(schema(Person)), is_strict(schema(Defaults)), is_strict(schema(Nested))) == (True, False, False)


@tool
def book(seats: Annotated[int, at.Interval(ge=1, le=8)]) -> str:
    "Book seats."
    return f"Booked {seats}."


def test_arguments_outside_their_constraints_never_reach_the_handler() -> None:
    template = PromptTemplate(
        ns="t", key="t", sections=[MarkdownSection(key="t", title="T", template="Book.", tools=[book])]
    )
    session = Session()
    adapter = ScriptedAdapter([call("book", seats=9), call("book", seats=8), "Done."])
    adapter.evaluate(Prompt(template), session=session)
    answers = [message.text for message in session[Message].all() if message.role == "tool"]
    assert answers[1] == "Booked 8."
    assert "seats: expected int (at least 1, at most 8), got int 9" in answers[0]
    assert book.schema["properties"]["seats"] == {"type": "integer", "minimum": 1, "maximum": 8}


def test_an_answer_outside_its_constraints_is_an_output_error_with_its_path() -> None:
    rendered = PromptTemplate[Person](ns="t", key="t", sections=[]).render()
    with pytest.raises(OutputParseError, match="at most 150") as caught:
        parse_structured_output(encode(GOOD | {"age": 200}).decode(), rendered)
    assert caught.value.path == "$.age"
    assert parse_structured_output(encode(GOOD).decode(), rendered) == Person(**GOOD)
