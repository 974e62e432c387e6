"""The differences of values, as people read them before they approve."""

from __future__ import annotations

import json
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from weakincentives.content import Image
from weakincentives.runtime import differences
from weakincentives.serde import dump_tagged


@dataclass(frozen=True)
class Service:
    name: str
    restarts: int = 0
    tags: tuple[str, ...] = ()


@dataclass
class Cluster:
    services: dict[str, Service] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)


class Point(NamedTuple):
    x: int
    y: int


class Order(msgspec.Struct):
    id: int
    note: str = ""


class State(Enum):
    OPEN = 1
    CLOSED = 2


NAMES = ("checkout", "search", "ledger", "frontend", "mailer")


def cluster() -> Cluster:
    return Cluster({name: Service(name) for name in NAMES})


def test_one_look_at_a_cluster_tells_what_changes() -> None:
    after = cluster()
    after.services["checkout"] = Service("checkout", restarts=1)
    after.services["cache"] = Service("cache")
    del after.services["mailer"]
    after.log.append("restarted checkout")
    assert differences(cluster(), after).text.split("\n") == [
        "  services.checkout.restarts: 0 -> 1",
        "- services.mailer: Service(name='mailer', restarts=0, tags=())",
        "+ services.cache: Service(name='cache', restarts=0, tags=())",
        "+ log[0]: 'restarted checkout'",
    ]


def test_an_item_of_a_long_list_is_named_and_not_counted() -> None:
    before = tuple(Service(f"s{number}", number) for number in range(200))
    after = [*before[:17], *before[18:], replace(before[17], restarts=1_000_000)]
    after.insert(3, Service("new"))
    del after[100]
    found = differences(before, tuple(after))
    assert found.complete
    assert found.text.split("\n") == [
        "  [name='s17'].restarts: 17 -> 1000000",
        "- [100]: Service(name='s100', restarts=100, tags=())",
        "+ [3]: Service(name='new', restarts=0, tags=())",
        "  [name='s17']: moved from place 17 to 199",
    ]


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (1, 2, "  1 -> 2"),
        (1, True, "  1 -> True"),
        (1, 1.0, "  1 -> 1.0"),
        (0.0, -0.0, "  0.0 -> -0.0"),
        (Decimal("1.0"), Decimal("1.00"), "  Decimal(1.0) -> Decimal(1.00)"),
        ("tea", "milk", "  'tea' -> 'milk'"),
        ("a", "a\u200b", "  'a' -> 'a\\u200b'"),
        (None, "None", "  None -> 'None'"),
        (State.OPEN, State.CLOSED, "  State.OPEN -> State.CLOSED"),
        (Point(1, 2), Point(1, 3), "  y: 2 -> 3"),
        (Order(7), Order(7, "paid"), "  note: '' -> 'paid'"),
        ({"a b": 1, 2: 3}, {"a b": 2, 2: 4}, "  ['a b']: 1 -> 2\n  [2]: 3 -> 4"),
        ({1, 2}, {2, 3}, "- 1\n+ 3"),
        (frozenset("a"), frozenset("ab"), "+ 'b'"),
        ([1, 2, 3, 4], [4, 1, 2, 3], "  [3]: moved from place 3 to 0"),
        ([1, 1, 2], [1, 2], "- [1]: 1"),
        (deque([1]), deque([1, 2]), "+ [1]: 2"),
        (MappingProxyType({"a": 1}), MappingProxyType({"a": 2}), "  a: 1 -> 2"),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), "  [0]: moved from place 0 to 1"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ""),
        (b"ab", b"ac", "  b'ab' -> b'ac'"),
        ([], {}, "  [] -> {}"),
        (UUID(int=1), UUID(int=2), f"  UUID({UUID(int=1)}) -> UUID({UUID(int=2)})"),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), None),
    ],
)
def test_values_of_each_shape_show_their_difference(before: Any, after: Any, text: str | None) -> None:
    found = differences(before, after)
    assert found.complete and (text is None or found.text == text)
    assert differences(before, before).items == ()


def test_a_changed_text_is_shown_by_the_line_or_by_what_differs() -> None:
    lines = [f"line {number}" for number in range(100)]
    found = differences({"body": "\n".join(lines)}, {"body": "\n".join([*lines[:50], "changed", *lines[51:]])})
    assert found.text.split("\n")[:3] == ["  body:", "    (47 unchanged lines)", "    line 47"]
    assert "-   line 50" in found.text and "+   changed" in found.text and "line 46\n" not in found.text
    before, after = "a" * 1_000 + "1" + "b" * 1_000, "a" * 1_000 + "2" + "b" * 1_000
    found = differences(before, after)
    assert found.complete and len(found.text) < 300 and "a1b" in found.text and "a2b" in found.text


def test_a_long_value_that_is_added_is_shown_whole() -> None:
    added = [Service(f"s{number}") for number in range(200)]
    found = differences({}, {"services": added, "note": "word " * 5_000 + "PAY MALLORY"})
    assert found.complete and "PAY MALLORY" in found.text
    assert all(f"Service(name='{service.name}'" in found.text for service in added)


def test_what_cannot_be_shown_is_named() -> None:
    def missing(before: Any, after: Any) -> str:
        found = differences(before, after, name="Files")
        assert not found.complete
        return " ".join(found.missing)

    picture = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 500, "image/png")
    assert "Files logo.blob has 508 bytes of binary data" in missing({"logo": None}, {"logo": picture})
    assert "Files has 5,000 bytes of binary data" in missing(b"\0" * 5_000, b"\1" * 5_000)
    assert "more changes of Files than can be shown" in missing([], [f"{n}" * 50 for n in range(20_000)])
    assert "too large to be compared" in missing(list(range(400_000)), list(range(1, 400_001)))
    nested: Any = 1
    for _ in range(90):
        nested = [nested]
    other: Any = 2
    for _ in range(90):
        other = [other]
    assert "nested too deeply" in missing(nested, other)


class Liar:
    """An object that lies about everything that it is asked."""

    __class__ = int  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise SystemExit

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit


@dataclass(frozen=True)
class Amount:
    """A value whose text and comparison lie."""

    cents: int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return "Amount(0)" * 100_000


class Endless(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        number = 0
        while True:
            number += 1
            yield str(number)

    def __len__(self) -> int:
        return 1


def test_values_that_lie_hide_nothing() -> None:
    assert "1000000" in differences([Amount(1)], [Amount(1_000_000)]).text
    assert "1000000" in differences({"a": Amount(1)}, {"a": Amount(1_000_000)}).text
    for before, after in ((Liar(), Liar()), ([1], [Liar()]), ({}, {"a": Liar()}), (Endless(), Endless())):
        assert not differences(before, after).complete


def test_a_value_that_contains_itself_ends() -> None:
    first: list[Any] = [1]
    first.append(first)
    second: list[Any] = [2]
    second.append(second)
    found = differences(first, second)
    assert "1 -> 2" in found.text and not found.complete
    assert not differences([], [second]).complete


def test_hard_cases_take_a_bounded_time() -> None:
    random = Random(3)
    cases: list[tuple[Any, Any]] = [
        (list(range(50_000)), random.sample(range(50_000), 50_000)),
        ([0] * 50_000, [1, 0] * 25_000),
        (["a", "b"] * 20_000, ["b", "a", "a"] * 15_000),
        ({str(n): n for n in range(50_000)}, {str(n): n + 1 for n in range(50_000)}),
        ("x\n" * 100_000, "y\n" * 100_000),
        ("x" * 5_000_000, "x" * 2_500_000 + "y" + "x" * 2_500_000),
        (set(range(50_000)), set(range(1, 50_001))),
    ]
    for before, after in cases:
        began = time.monotonic()
        found = differences(before, after)
        assert found.items or not found.complete
        assert time.monotonic() - began < 20


def random_value(random: Random, depth: int) -> Any:
    leaves: list[Any] = [0, 1, True, None, "a", "b", "", 1.5, b"x", "a\nb", "'", ", ", State.OPEN]
    if depth == 0 or random.random() < 0.3:
        return random.choice(leaves)
    parts = [random_value(random, depth - 1) for _ in range(random.randint(0, 3))]
    match random.randint(0, 7):
        case 0:
            return parts
        case 1:
            return tuple(parts)
        case 2:
            return {random.choice("abc"): part for part in parts}
        case 3:
            return {random.choice([1, "1", None, "a b", "a.b"]): part for part in parts}
        case 4:
            return Service(random.choice("ab"), random.choice((0, 1)), tuple(parts))
        case 5:
            return {part for part in parts if isinstance(part, int | str | None)}
        case 6:
            return [Service(random.choice("abcd"), random.randint(0, 1)) for _ in range(random.randint(0, 4))]
        case _:
            return {"items": parts, "name": random.choice("ab")}


def changed(random: Random, value: Any) -> Any:
    """A value that is like another, but for some part."""
    if random.random() < 0.2:
        return random_value(random, 2)
    if isinstance(value, list | tuple) and value:
        items = list(value)
        at = random.randrange(len(items))
        match random.randint(0, 3):
            case 0:
                items[at] = changed(random, items[at])
            case 1:
                del items[at]
            case 2:
                items.insert(at, random_value(random, 1))
            case _:
                random.shuffle(items)
        return type(value)(items)
    if isinstance(value, dict) and value:
        key = random.choice(list(value))
        return {**value, key: changed(random, value[key])}
    if isinstance(value, Service):
        return replace(value, restarts=random.randint(0, 3))
    return random_value(random, 1)


@pytest.mark.parametrize("seed", range(20))
def test_different_changes_look_different(seed: int) -> None:
    random = Random(seed)
    for _ in range(150):
        before = random_value(random, 3)
        outcomes: dict[str, Any] = {}
        for _ in range(6):
            after = changed(random, before)
            found = differences(before, after)
            assert found.complete
            written = json.dumps(dump_tagged(after), sort_keys=True)
            assert (found.items == ()) == (written == json.dumps(dump_tagged(before), sort_keys=True))
            # Whoever reads the text knows what the value will be.
            assert outcomes.setdefault(found.text, written) == written, (before, after)


def test_pydantic_models_show_their_fields_and_what_else_they_hold() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Account(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        name: str
        limit: int = 0
        password: pydantic.SecretStr | None = None

    before = Account(name="ann")
    assert differences(before, Account(name="ann", limit=5, plan="pro")).text == "  limit: 0 -> 5\n+ plan: 'pro'"
    found = differences(before, Account(name="ann", password=pydantic.SecretStr("hunter2")))
    assert not found.complete and "hunter2" not in found.text + " ".join(found.missing)
    assert differences(
        Account(name="a", password=pydantic.SecretStr("b")), Account(name="a", password=pydantic.SecretStr("b"))
    ).complete
