from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar
from uuid import UUID

import pytest

from weakincentives.errors import SerdeError
from weakincentives.serde import MalformedJson, codec, decode, dump, encode, parse

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    minutes: int = 5


@dataclass
class Plan:
    title: str
    steps: list[Step]
    lead: Step | None = None


@dataclass(frozen=True, kw_only=True)
class Everything:
    text: str
    number: int
    ratio: float
    flag: bool
    color: Color
    level: Level
    size: Literal["s", "m"]
    tags: frozenset[str]
    pair: tuple[int, str]
    row: tuple[int, ...]
    scores: Mapping[str, float]
    by_number: dict[int, str]
    names: Sequence[str]
    when: datetime
    day: date
    key: UUID
    price: Decimal
    blob: bytes
    where: Path
    anything: Any
    maybe: int | None
    either: int | str


EVERYTHING: dict[str, Any] = {
    "text": "t",
    "number": 3,
    "ratio": 3,
    "flag": True,
    "color": "red",
    "level": 2,
    "size": "m",
    "tags": ["a", "b"],
    "pair": [1, "x"],
    "row": [1, 2],
    "scores": {"a": 1},
    "by_number": {"7": "seven"},
    "names": ["n"],
    "when": "2026-01-02T03:04:05Z",
    "day": "2026-01-02",
    "key": "12345678-1234-5678-1234-567812345678",
    "price": "1.10",
    "blob": "aGk=",
    "where": "a/b.txt",
    "anything": {"k": [1, None]},
    "maybe": None,
    "either": "e",
}


def problems(cls: Any, data: Any, **options: bool) -> dict[str, str]:
    with pytest.raises(SerdeError) as caught:
        parse(cls, data, **options)
    return {problem.path: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize("read", [parse, lambda cls, data: decode(cls, encode(data))])
def test_every_supported_type_is_read(read: Any) -> None:
    value = read(Everything, EVERYTHING)
    assert value == Everything(
        text="t",
        number=3,
        ratio=3.0,
        flag=True,
        color=Color.RED,
        level=Level.HIGH,
        size="m",
        tags=frozenset({"a", "b"}),
        pair=(1, "x"),
        row=(1, 2),
        scores={"a": 1.0},
        by_number={7: "seven"},
        names=["n"],
        when=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        day=date(2026, 1, 2),
        key=UUID("12345678-1234-5678-1234-567812345678"),
        price=Decimal("1.10"),
        blob=b"hi",
        where=Path("a/b.txt"),
        anything={"k": [1, None]},
        maybe=None,
        either="e",
    )
    assert isinstance(value.ratio, float)


def test_what_is_dumped_parses_back_to_the_same_value() -> None:
    value = parse(Everything, EVERYTHING)
    assert parse(Everything, dump(value)) == value
    assert decode(Everything, encode(value)) == value


def test_every_problem_is_reported_at_once_with_its_path() -> None:
    data = {"steps": [{"title": 1}, {"titel": "x", "minutes": 3.7}, "no"], "lead": [], "extra": 1}
    assert problems(Plan, data) == {
        "$.title": "missing, expected str",
        "$.steps[0].title": "expected str, got int 1",
        "$.steps[1].title": "missing, expected str",
        "$.steps[1].minutes": "expected int, got float 3.7",
        "$.steps[1].titel": "unknown field (Step has title, minutes)",
        "$.steps[2]": "expected Step (an object), got str 'no'",
        "$.lead": "expected Step | null, got an array",
        "$.extra": "unknown field (Plan has title, steps, lead)",
    }


def test_the_error_text_lists_every_problem() -> None:
    with pytest.raises(
        SerdeError, match=r"^\$\.title: missing, expected str; \$\.steps: missing, expected list\[Step\]$"
    ):
        parse(Plan, {})


@pytest.mark.parametrize(
    ("annotation", "data"),
    [
        (int, 3.7),
        (int, 3.0),
        (int, True),
        (int, "3"),
        (float, True),
        (float, "1.5"),
        (str, 1),
        (bool, 1),
        (bool, "true"),
        (list[str], "a"),
        (tuple[str, ...], "a"),
        (tuple[int, int], [1]),
        (set[int], {"a": 1}),
        (dict[str, int], [1]),
        (datetime, 1),
        (datetime, "yesterday"),
        (date, "2026-13-01"),
        (UUID, "abc"),
        (Decimal, "many"),
        (Color, "RED"),
        (Color, "green"),
        (Level, True),
        (Literal["a"], "b"),
        (Literal[1], True),
        (dict[int, int], {"x": 1}),
    ],
)
def test_coercion_is_conservative(annotation: Any, data: Any) -> None:
    assert len(problems(annotation, data)) == 1


def test_unknown_keys_are_taken_only_when_asked_for_nested_ones_too() -> None:
    data = {"title": "p", "steps": [{"title": "s", "note": 1}], "more": 2}
    assert set(problems(Plan, data)) == {"$.steps[0].note", "$.more"}
    assert parse(Plan, data, allow_extra=True) == Plan("p", [Step("s")])
    assert decode(Plan, encode(data), allow_extra=True) == Plan("p", [Step("s")])


def test_null_for_a_field_with_a_default_means_the_default() -> None:
    assert parse(Step, {"title": "s", "minutes": None}) == Step("s", 5)
    assert problems(Step, {"title": None}) == {"$.title": "expected str, got null"}


@dataclass
class Circle:
    kind: Literal["circle"]
    radius: float


@dataclass
class Square:
    kind: Literal["square"]
    side: float


@dataclass
class Dot:
    x: int


@dataclass
class Line:
    length: int


def test_a_union_of_dataclasses_takes_the_first_that_fits() -> None:
    assert parse(list[Circle | Square], [{"kind": "square", "side": 2}, {"kind": "circle", "radius": 1}]) == [
        Square("square", 2.0),
        Circle("circle", 1.0),
    ]


def test_a_tagged_union_reports_the_problems_of_the_named_option() -> None:
    assert problems(list[Circle | Square], [{"kind": "square", "side": "x"}]) == {
        "$[0].side": "expected float, got str 'x'"
    }


def test_a_union_without_a_tag_says_why_each_option_failed() -> None:
    assert problems(Dot | Line, {"y": 1}) == {
        "$": "expected Dot | Line, got an object; as Dot: $.x missing, expected int, $.y unknown field (Dot has x); "
        "as Line: $.length missing, expected int, $.y unknown field (Line has length)"
    }


def test_an_integer_stays_one_where_a_union_has_both() -> None:
    assert repr(parse(float | int, 1)) == "1"
    assert repr(parse(float | str, 1)) == "1.0"


@dataclass
class Page(Generic[T]):
    items: list[T]
    next: Page[T] | None = None


@dataclass
class StepPage(Page[Step]):
    number: int = 1


def test_generic_dataclasses_are_read_with_their_arguments() -> None:
    data = {"items": [{"title": "a"}], "next": {"items": []}}
    assert parse(Page[Step], data) == Page([Step("a")], Page([]))
    assert parse(StepPage, {"items": [{"title": "a"}]}) == StepPage([Step("a")])
    assert problems(Page[Step], {"items": [1]}) == {"$.items[0]": "expected Step (an object), got int 1"}


@dataclass
class Computed:
    price: int
    total: int = field(init=False)

    def __post_init__(self) -> None:
        if self.price < 0:
            raise ValueError("price must not be negative")
        self.total = self.price * 2


def test_fields_that_are_computed_are_written_but_not_read() -> None:
    assert dump(parse(Computed, {"price": 2})) == {"price": 2, "total": 4}
    assert problems(Computed, {"price": 2, "total": 9}) == {"$.total": "unknown field (Computed has price)"}


def test_what_post_init_refuses_is_a_problem_with_a_path() -> None:
    assert problems(list[Computed], [{"price": 1}, {"price": -1}]) == {
        "$[1]": "Computed rejected it: price must not be negative"
    }


@dataclass
class Seeded:
    text: str
    seed: InitVar[int] = 3

    def __post_init__(self, seed: int) -> None:
        self.text = self.text * seed


def test_a_constructor_with_more_than_fields_is_called() -> None:
    assert parse(Seeded, {"text": "a"}).text == "aaa"


UserId = NewType("UserId", int)


@dataclass
class Labelled:
    user: UserId
    note: Annotated[str, "what to remember"]


def test_new_types_and_annotated_types_are_what_they_stand_for() -> None:
    assert parse(Labelled, {"user": 1, "note": "n"}) == Labelled(UserId(1), "n")


def test_a_class_inside_a_function_is_found_through_its_callers() -> None:
    @dataclass
    class Inner:
        x: int

    @dataclass
    class Outer:
        inner: Inner
        again: Outer | None = None

    assert parse(Outer, {"inner": {"x": 1}, "again": {"inner": {"x": 2}}}) == Outer(Inner(1), Outer(Inner(2)))


def test_an_annotation_that_cannot_be_resolved_names_the_field() -> None:
    @dataclass
    class Broken:
        x: Missing  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(SerdeError, match=r"Broken\.x: annotation 'Missing' cannot be resolved"):
        codec(Broken)


def test_an_unsupported_type_names_the_field() -> None:
    @dataclass
    class Odd:
        handle: complex

    with pytest.raises(SerdeError, match=r"Odd\.handle: type complex is not supported"):
        codec(Odd)


def test_a_mapping_may_come_as_the_entries_of_the_strict_schema() -> None:
    data = [{"key": 1, "value": "a"}, {"key": "2", "value": "b"}]
    assert parse(dict[int, str], data) == {1: "a", 2: "b"}


def test_a_value_that_is_already_typed_is_kept() -> None:
    step = Step("s")
    assert parse(Plan, {"title": "p", "steps": [step]}).steps[0] is step


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 1_000_000,
        '{"a":' * 200_000,
        "NaN",
        "1e999",
        "1" * 5000,
        '"\\ud800"',
        '"\ud800"',
        b'"\xff"',
        "{}{}",
    ],
    ids=lambda text: repr(text[:8]),
)
def test_text_that_is_not_json_is_malformed(text: str | bytes) -> None:
    with pytest.raises(MalformedJson):
        decode(Any, text)


def test_deeply_nested_data_is_refused_without_overflowing() -> None:
    data: dict[str, Any] = {"items": []}
    for _ in range(100_000):
        data = {"items": [], "next": data}
    assert problems(Page[int], data) == {"$": "nested too deeply"}


def test_huge_integers_are_exact_and_the_last_of_equal_keys_wins() -> None:
    assert decode(dict[str, int], '{"a": 123456789012345678901234567890}') == {"a": 123456789012345678901234567890}
    assert decode(Step, '{"title": "a", "title": "b"}') == Step("b")


def test_only_the_first_hundred_problems_are_spelled_out() -> None:
    with pytest.raises(SerdeError) as caught:
        parse(list[int], ["x"] * 250)
    assert len(caught.value.problems) == 101
    assert caught.value.problems[-1] == ("$", "and 150 more problems")


def test_good_data_takes_the_prepared_decoder() -> None:
    assert len(codec(Plan)._quick(allow_extra=False)) == 2
    assert len(codec(Page[Step])._quick(allow_extra=False)) == 2
    assert len(codec(list[Everything])._quick(allow_extra=False)) == 2
