"""Structs, TypedDicts and NamedTuples: their own rules for names, tags, absence and defaults hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, NotRequired, Required, TypedDict

import msgspec
import pytest

from weakincentives.errors import SerdeError
from weakincentives.serde import decode, dump, dump_tagged, encode, load_tagged, schema


class Circle(msgspec.Struct, tag="circle", rename="camel"):
    line_width: int
    note: str | msgspec.UnsetType = msgspec.UNSET


class Square(msgspec.Struct, tag="square", forbid_unknown_fields=True):
    side: Annotated[int, msgspec.Meta(ge=1)] = 2


class Open(TypedDict, total=False):
    name: Required[str]
    size: int


class Closed(TypedDict):
    name: str
    size: NotRequired[Annotated[int, msgspec.Meta(description="in metres")]]


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass(frozen=True)
class Drawing:
    shapes: list[Circle | Square]
    at: Point
    about: Open


DRAWING = {
    "shapes": [{"type": "square"}, {"type": "circle", "lineWidth": 3}],
    "at": {"x": 1},
    "about": {"name": "a"},
}


def test_they_are_read_with_their_names_tags_and_defaults() -> None:
    read = decode(Drawing, encode(DRAWING))
    assert read == Drawing([Square(2), Circle(3)], Point(1, 0), {"name": "a"})
    assert load_tagged(dump_tagged(read)) == read


def test_they_are_written_as_objects() -> None:
    value = Drawing([Square(2), Circle(3)], Point(1, 0), {"name": "a"})
    assert dump(value) == {
        "shapes": [{"type": "square", "side": 2}, {"type": "circle", "lineWidth": 3}],
        "at": {"x": 1, "y": 0},
        "about": {"name": "a"},
    }


@pytest.mark.parametrize(
    ("cls", "text", "path"),
    [
        (Square, '{"type": "square", "side": 0}', "$.side"),
        (Square, '{"side": 1, "other": 1}', "$.type"),
        (Circle | Square, '{"type": "circle", "lineWidth": "3"}', "$.lineWidth"),
        (Open, '{"size": 1}', "$.name"),
        (Closed, '{"name": "a", "other": 1}', "$.other"),
        (Point, '{"y": 1}', "$.x"),
        (Point, "[1, 2]", "$"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(cls: Any, text: str, path: str) -> None:
    with pytest.raises(SerdeError) as caught:
        decode(cls, text)
    assert caught.value.problems[0].path == path


def test_what_may_be_absent_is_null_in_the_strict_schema() -> None:
    assert schema(Closed) == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "size": {
                "anyOf": [{"type": "integer"}, {"type": "null"}],
                "description": "in metres (null for the default)",
            },
        },
        "required": ["name", "size"],
        "additionalProperties": False,
    }
    assert decode(Closed, '{"name": "a", "size": null}') == {"name": "a"}
    assert decode(Circle, '{"type": "circle", "lineWidth": 1, "note": null}').note is msgspec.UNSET


def test_a_struct_without_names_in_its_json_is_refused() -> None:
    class Row(msgspec.Struct, array_like=True):
        a: int

    with pytest.raises(SerdeError, match="it is array_like"):
        schema(Row)
