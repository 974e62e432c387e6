from collections import UserDict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
import pytest

from weakincentives.errors import SerdeError
from weakincentives.serde import dump, encode


class Color(Enum):
    RED = "red"


class Name(str):
    pass


class Point(msgspec.Struct):
    x: int


@dataclass(frozen=True)
class Thing:
    color: Color = Color.RED
    pair: tuple[int, ...] = (1, 2)
    table: dict[Any, Any] = field(default_factory=lambda: {1: UUID(int=0)})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Thing(), {"color": "red", "pair": [1, 2], "table": {"1": "00000000-0000-0000-0000-000000000000"}}),
        ((1, (2, {3})), [1, [2, [3]]]),
        (MappingProxyType({"a": (1,)}), {"a": [1]}),
        (UserDict({"a": Color.RED}), {"a": "red"}),
        (deque([Thing(table={})]), [{"color": "red", "pair": [1, 2], "table": {}}]),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (Decimal("1.10"), "1.10"),
        (b"hi", "aGk="),
        (PurePosixPath("a/b"), "a/b"),
        (Name("n"), "n"),
        (Point(1), {"x": 1}),
        (Thing, "Thing"),
        (None, None),
    ],
)
def test_values_become_plain_data(value: Any, expected: Any) -> None:
    assert dump(value) == expected
    assert msgspec.json.decode(encode(value)) == expected


def test_numbers_that_json_lacks_are_written_as_null() -> None:
    assert encode([float("nan"), float("inf")]) == b"[null,null]"


@pytest.mark.parametrize(
    "value", [object(), {"a": lambda: 1}, {(1, 2): 3}, "\ud800"], ids=["object", "call", "key", "text"]
)
def test_what_has_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(SerdeError, match="cannot be written as JSON"):
        encode(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for write in (dump, encode):
        with pytest.raises(SerdeError, match="contains itself"):
            write(loop)
