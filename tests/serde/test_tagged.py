from __future__ import annotations

import ast
import json
import sys
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, StrEnum, auto
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path, PurePosixPath
from types import MappingProxyType, ModuleType
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, strategies as st

import weakincentives
from weakincentives.errors import SerdeError
from weakincentives.prompt import ReadSectionParams
from weakincentives.serde import dump_tagged, load_tagged, register_type

T = TypeVar("T")


class Color(Enum):
    RED = auto()
    BLUE = (1, 2)


class Word(StrEnum):
    YES = "yes"


class Access(Flag):
    READ = auto()
    WRITE = auto()


class Pair(NamedTuple):
    left: Any
    right: Any


class Name(str):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    parts: tuple[Any, ...] = ()
    extra: Any = None


@dataclass
class Box(Generic[T]):
    content: T
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = 1


def through_json(value: Any) -> Any:
    return load_tagged(json.loads(msgspec.json.encode(dump_tagged(value))))


def same(one: Any, two: Any) -> bool:
    return type(one) is type(two) and repr(one) == repr(two)


@pytest.mark.parametrize(
    "value",
    [
        Event("e", (1, "a", (2.0,)), {"k": [None, True]}),
        {("a", 1): "tuple key", 2: "int key", None: "none key"},
        {"$": "looks tagged"},
        {"plain": {"nested": [1, 2.5]}},
        {1, 2},
        frozenset({("a",)}),
        Color.BLUE,
        Word.YES,
        Access.READ | Access.WRITE,
        Pair(1, (2,)),
        Name("n"),
        MappingProxyType({"a": 1}),
        OrderedDict([(1, 2)]),
        deque([1, 2], 3),
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        datetime(2026, 1, 2, fold=1),
        date(2026, 1, 2),
        time(3, 4, 5),
        timedelta(days=-1, microseconds=3),
        UUID(int=7),
        Decimal("1.10"),
        b"\x00\xff",
        bytearray(b"x"),
        Path("/a/b"),
        PurePosixPath("c"),
        IPv4Address("192.0.2.1"),
        IPv6Network("2001:db8::/32"),
        10**40,
        -(2**63),
        -(2**63) - 1,
        float("inf"),
        float("nan"),
        -0.0,
        1j,
        "lone \ud800 surrogate",
        {"\ud800": 1},
        Event,
        dict,
        type(None),
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(value: Any) -> None:
    assert same(through_json(value), value)


def test_computed_fields_keep_what_they_were() -> None:
    box = Box([1])
    box.count = 7
    assert through_json(box) == box


def test_a_field_with_a_default_may_be_absent() -> None:
    data = dump_tagged(Event("e"))
    del data["v"]["parts"]
    assert load_tagged(data) == Event("e")


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(SerdeError, match=r"^\$\.list\[1\]: unknown type nowhere\.at_all:Thing; import the module"):
        load_tagged({"list": [1, {"$": "nowhere.at_all:Thing", "v": {}}]})


def test_nothing_is_imported_to_find_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "this" not in sys.modules
    lazy = ModuleType("lazy_module_of_a_test")
    lazy.__getattr__ = lambda name: Event  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_module_of_a_test", lazy)
    for name in ("this:Zen", "lazy_module_of_a_test:Event"):
        with pytest.raises(SerdeError, match="unknown type"):
            load_tagged({"$": name, "v": {}})
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"$": "no-such-tag", "v": 1}, r"^\$: unknown tag 'no-such-tag'"),
        ({"$": "tuple"}, r"^\$: an object with"),
        ({"a": {"$": "UUID", "v": "x"}}, r"^\$\.a: cannot be read as UUID: badly formed"),
        ({"$": "builtins:object", "v": 1}, r"builtins:object cannot be loaded"),
        ([{"$": f"{Event.__module__}:Event", "v": {"name": "e", "nam": 1}}], r"^\$\[0\]: .*:Event has no field 'nam'"),
        ([{"$": f"{Event.__module__}:Event", "v": {}}], r"^\$\[0\]: cannot be read as .*:Event: .*missing 1 required"),
    ],
)
def test_data_that_cannot_be_read_says_where_and_why(data: Any, message: str) -> None:
    register_type(Event)
    with pytest.raises(SerdeError, match=message):
        load_tagged(data)


def test_a_value_that_cannot_be_written_says_where_and_how_to_help() -> None:
    with pytest.raises(
        SerdeError, match=r"^\$\.extra\.f\[0\]: builtins:function cannot be serialised; .*serde\.register_type"
    ):
        dump_tagged(Event("e", extra={"f": [lambda: 1]}))


class Celsius:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees


def test_a_class_may_say_how_it_is_written() -> None:
    register_type(Celsius, dump=lambda value: (value.degrees,), load=lambda data: Celsius(*data))
    assert through_json([Celsius(21.5)])[0].degrees == 21.5


def test_a_class_inside_a_function_is_known_once_seen() -> None:
    @dataclass
    class Local:
        x: int

    assert through_json(Local(1)) == Local(1)


def test_a_class_that_no_module_holds_is_found_without_being_seen() -> None:
    @dataclass(frozen=True, slots=True)
    class Unseen:
        x: int

    name = f"{Unseen.__module__}:{Unseen.__qualname__}"
    assert load_tagged({"$": name, "v": {"x": 1}}) == Unseen(1)


def test_classes_that_refuse_to_be_compared_do_not_disturb_the_search() -> None:
    class Strict(type):
        def __eq__(cls, other: object) -> bool:
            raise DeprecationWarning("compared")

        def __hash__(cls) -> int:
            raise DeprecationWarning("hashed")

    class Foreign(metaclass=Strict):
        pass

    with pytest.raises(SerdeError, match="unknown type"):
        load_tagged({"$": f"{__name__}:Missing", "v": {}})
    assert Foreign.__name__ == "Foreign"


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(SerdeError, match="contains itself"):
        dump_tagged(loop)


def test_deep_data_is_refused_without_overflowing() -> None:
    data: Any = []
    for _ in range(100_000):
        data = [data]
    with pytest.raises(SerdeError, match="nested too deeply"):
        load_tagged(data)


hashable = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=())),
        st.binary(),
        st.datetimes(timezones=st.none() | st.timezones()),
        st.dates(),
        st.times(),
        st.timedeltas(),
        st.uuids(),
        st.decimals(allow_nan=False),
        st.sampled_from([*Color, *Word, Event, int]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=2) | st.builds(Pair, inner, inner)
    ),
    max_leaves=5,
)
values = st.recursive(
    hashable,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(hashable, inner, max_size=3),
        st.dictionaries(st.text(max_size=3) | st.just("$"), inner, max_size=3),
        st.builds(Event, st.text(), st.tuples(inner), inner),
    ),
    max_leaves=8,
)


@given(values)
def test_any_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    back = through_json(value)
    assert type(back) is type(value)
    assert back == value
    assert dump_tagged(back) == dump_tagged(value)


def test_the_stored_name_of_a_class_of_the_library_does_not_say_its_module() -> None:
    stored = dump_tagged(ReadSectionParams("docs"))
    assert stored["$"] == "weakincentives:ReadSectionParams"
    assert load_tagged(stored) == ReadSectionParams("docs")


def test_a_value_whose_class_has_no_module_can_be_stored() -> None:
    made = dataclass(frozen=True)(type("Made", (), {"__annotations__": {"x": int}, "__module__": None}))
    assert dump_tagged(made(1))["$"] == "None:Made"


def test_no_two_stored_classes_of_the_library_have_one_name() -> None:
    package = Path(weakincentives.__file__).parent
    modules: dict[str, list[str]] = {}
    for file in package.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, []).append(file.relative_to(package).as_posix())
    # What none of them is ever part of: a session, an event, or a recorded step.
    never_stored = {
        *("Advice", "AnyOf", "Bill", "ChatWire", "ChunkParser", "Column", "Comparison", "Connection", "Conversation"),
        *(
            "Change",
            "Changes",
            "LiveRun",
            "Decided",
            "Engine",
            "Entered",
            "EventReader",
            "Exchange",
            "FileLock",
            "Folder",
            "Guard",
        ),
        *("Judgement", "Layer", "Model", "ModelFacts", "Node", "Owner", "Pool", "Record", "Replace"),
        *("ReplyParser", "Score", "Settings", "Step", "Turn", "Usage", "Wait", "Work"),
    }
    shared: dict[str, list[str]] = {}
    for name, files in modules.items():
        if len(files) > 1 and not name.startswith("_") and name not in never_stored | {"Question"}:
            shared[name] = files
    assert not shared
