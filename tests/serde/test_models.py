"""Pydantic models: Pydantic reads them, from data in the form that strict modes make models write."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    PrivateAttr,
    RootModel,
    SecretStr,
    computed_field,
    model_validator,
)

from weakincentives.errors import SerdeError
from weakincentives.serde import ForeignSchema, decode, dump_tagged, encode, is_strict, load_tagged, schema


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Extra(BaseModel):
    name: str
    price: Decimal = Decimal("1.5")


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(9, ge=1)


class Dog(BaseModel):
    kind: Literal["dog"]


class Order(BaseModel):
    """Everything at once."""

    model_config = ConfigDict(str_strip_whitespace=True)
    item: str = Field(min_length=2, description="what to bring")
    when: datetime
    day: date | None = None
    size: Size = Size.SMALL
    extras: dict[str, Extra] = {}
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None
    pair: tuple[int, str] = (1, "a")
    numbers: set[int] = set()
    link: HttpUrl | None = None
    count: int = Field(1, alias="how-many", le=12)
    _seen: int = PrivateAttr(0)

    @model_validator(mode="after")
    def is_lucky(self) -> Order:
        if self.count == 12:
            raise ValueError("a dozen brings no luck")
        return self


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


STRICT = {
    "item": " tea ",
    "when": "2026-11-15T10:00:00Z",
    "day": None,
    "size": None,
    "extras": [{"key": "sugar", "value": {"name": "sugar", "price": None}}],
    "pet": {"kind": "cat", "lives": None},
    "pair": [2, "b"],
    "numbers": [1, 1],
    "link": "https://example.org/",
    "how-many": None,
}
WHEN = datetime(2026, 11, 15, 10, tzinfo=UTC)


def problems(cls: Any, data: Any) -> list[tuple[str, str]]:
    with pytest.raises(SerdeError) as caught:
        decode(cls, json.dumps(data))
    return [tuple(problem) for problem in caught.value.problems]


def test_what_a_strict_mode_writes_becomes_what_the_model_takes() -> None:
    order = decode(Order, json.dumps(STRICT))
    assert order == Order(
        item="tea",
        when=WHEN,
        extras={"sugar": Extra(name="sugar")},
        pet=Cat(kind="cat"),
        pair=(2, "b"),
        numbers={1},
        link=HttpUrl("https://example.org/"),
    )


@pytest.mark.parametrize("cls", [Order, Tree, list[Order], Cat | Dog])
def test_the_schema_of_a_model_is_strict(cls: Any) -> None:
    written = schema(cls)
    assert is_strict(written, root=written.get("type") == "object")


def test_descriptions_and_defaults_are_in_the_schema() -> None:
    properties = schema(Order)["properties"]
    assert properties["item"] == {"type": "string", "description": "what to bring (at least 2 characters)"}
    assert properties["how-many"] == {
        "anyOf": [{"type": "integer", "maximum": 12}, {"type": "null"}],
        "description": "null for the default, 1",
    }
    assert properties["extras"]["anyOf"][0]["items"]["required"] == ["key", "value"]


class Line(BaseModel):
    unit: Literal["piece", "kilo"] = "piece"


class Card(BaseModel):
    kind: Literal["card", "debit"] = "card"


class Wire(BaseModel):
    kind: Literal["wire"] = "wire"


class Purchase(BaseModel):
    line: Line | None = None
    by: Annotated[Card | Wire, Field(discriminator="kind")] = Card()


def test_null_for_a_default_is_read_within_an_optional_model_too() -> None:
    written = '{"line": {"unit": null}, "by": null}'
    assert decode(Purchase, written) == Purchase(line=Line(), by=Card())
    assert ForeignSchema(Purchase.model_json_schema()).decode(written) == {"line": {}}


def test_the_tag_of_a_union_is_never_null() -> None:
    assert schema(Purchase)["$defs"]["Card"]["properties"] == {"kind": {"type": "string", "enum": ["card", "debit"]}}
    assert schema(Purchase)["$defs"]["Wire"]["properties"] == {"kind": {"type": "string", "enum": ["wire"]}}


def test_a_schema_has_each_model_once() -> None:
    assert schema(Purchase)["$defs"].keys() == {"Line", "Card", "Wire"}
    assert "$defs" not in schema(Line)


def test_problems_are_those_of_pydantic_with_our_paths() -> None:
    data = {**STRICT, "item": "t", "pet": {"kind": "cow"}, "extras": {"a": {"name": 1}}, "other": 1}
    assert problems(Order, data) == [
        ("$.item", "String should have at least 2 characters, got str 't'"),
        ("$.extras.a.name", "Input should be a valid string, got int 1"),
        (
            "$.pet",
            "Input tag 'cow' found using 'kind' does not match any of the expected tags: 'cat', 'dog', got an object",
        ),
        ("$.other", "unknown field"),
    ]
    assert problems(Order, {**STRICT, "how-many": 12}) == [("$", "a dozen brings no luck")]
    assert problems(Tree, {"value": 1, "children": [{}]}) == [("$.children[0].value", "missing")]


def test_a_model_that_takes_other_fields_gets_them() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    assert decode(Open, '{"a": 1, "b": 2}').model_extra == {"b": 2}
    assert not is_strict(schema(Open))


def test_a_root_model_is_what_it_holds() -> None:
    class Names(RootModel[list[str]]):
        pass

    assert decode(Names, '["a"]') == Names(["a"])
    assert schema(Names) == {"type": "array", "items": {"type": "string"}}


def test_a_model_is_written_by_its_aliases_and_kept_with_its_state() -> None:
    order = decode(Order, json.dumps(STRICT))
    order._seen = 3
    again = load_tagged(dump_tagged(order))
    assert (again, again._seen, again.model_fields_set) == (order, 3, order.model_fields_set)
    assert json.loads(encode(order))["how-many"] == 1


class Parcel(BaseModel):
    model_config = ConfigDict(extra="allow")
    sender: str = Field(validation_alias=AliasChoices("from", "by"), serialization_alias="shown")
    label: bytes = b"fragile"
    inner: list[Parcel] = []
    code: SecretStr = SecretStr("hush")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def size(self) -> int:
        return len(self.inner)


def test_a_model_can_be_written_as_it_is_read() -> None:
    parcel = Parcel.model_validate({"from": "Ann", "inner": [{"by": "Bob"}], "more": 1})
    assert list(json.loads(encode(parcel, as_input=True))) == ["from", "label", "inner", "code", "more"]
    assert decode(Parcel, encode(parcel, as_input=True)) == parcel
    tree = RootModel[dict[str, Parcel]]({"a": parcel})
    assert decode(RootModel[dict[str, Parcel]], encode(tree, as_input=True)) == tree


def test_a_secret_is_not_stored_without_being_asked_for() -> None:
    with pytest.raises(SerdeError, match=r"SecretStr cannot be serialised; use str, or store it as text: serde\.regi"):
        dump_tagged(Parcel.model_validate({"from": "Ann"}))


def test_pydantic_is_not_imported_by_the_library() -> None:
    code = "import sys, weakincentives.prompt, weakincentives.runtime; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_validator_works_before_any_model_was_defined() -> None:
    code = (
        "from typing import Annotated; from pydantic import AfterValidator; from weakincentives import serde; "
        "print(serde.schema(Annotated[int, AfterValidator(abs)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'type': 'integer'}"


def test_a_key_that_cannot_be_one_is_a_problem_of_the_data() -> None:
    class Counts(BaseModel):
        counts: dict[str, int]

    with pytest.raises(SerdeError, match=r"\$: Counts rejected it: .*unhashable type: 'list'"):
        decode(Counts, '{"counts": [{"key": [1], "value": 2}]}')
