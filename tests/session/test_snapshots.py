"""Going back: snapshots, restore, logs, and snapshots as text."""

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st

from tests.rounds import rounds
from weakincentives.session import LogEntry, Session, SessionError, Snapshot, reducer


class Shown(Enum):
    FULL = "full"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Opened:
    path: tuple[str, ...]
    shown: Shown = Shown.FULL


@dataclass(frozen=True, slots=True)
class Visibility:
    overrides: Mapping[tuple[str, ...], Shown] = field(default_factory=dict)

    @reducer(on=Opened)
    def open(self, event: Opened) -> "Visibility":
        return replace(self, overrides={**self.overrides, event.path: event.shown})


@dataclass(frozen=True, slots=True)
class Called(LogEntry):
    name: str


@dataclass(frozen=True, slots=True)
class Note:
    text: str


def test_restore_brings_state_back_and_keeps_the_log():
    session = Session()
    session.dispatch(Opened(("a",)))
    session.dispatch(Called("one"))
    before = session.snapshot()
    session.dispatch(Opened(("b",)))
    session.dispatch(Called("two"))
    session.dispatch(Note("new slice"))
    session.restore(before)
    assert session[Visibility].latest() == Visibility({("a",): Shown.FULL})
    assert (session[Opened].all(), session[Note].all()) == ((Opened(("a",)),), ())
    assert session[Called].all() == (Called("one"), Called("two"))


def test_restore_may_take_the_log_back_too():
    session = Session()
    session.dispatch(Called("one"))
    before = session.snapshot()
    session.dispatch(Called("two"))
    session.restore(before, preserve_logs=False)
    assert session[Called].all() == (Called("one"),)


def test_a_fresh_session_takes_the_log_of_the_snapshot():
    session = Session()
    session.dispatch(Called("one"))
    other = Session()
    other.restore(session.snapshot())
    assert other[Called].all() == (Called("one"),)


def test_a_slice_installed_after_the_snapshot_goes_back_to_its_initial_value():
    session = Session()
    before = session.snapshot()
    session.dispatch(Opened(("a",)))
    session.restore(before)
    assert session[Visibility].all() == (Visibility(),)


def test_snapshots_can_be_restored_in_any_order_and_again():
    session, snapshots = Session(), []
    for text in "abcd":
        session[Note].append(Note(text))
        snapshots.append(session.snapshot())
    for index in (1, 3, 0, 2, 1):
        session.restore(snapshots[index])
        session[Note].append(Note("branch"))
        expected = tuple(Note(text) for text in "abcd"[: index + 1])
        assert session[Note].all() == (*expected, Note("branch"))
        assert snapshots[index][Note] == expected


def test_a_snapshot_of_one_session_restored_in_another_leaves_the_first_alone():
    first, second = Session(), Session()
    first[Note].seed([Note("a")])
    snapshot = first.snapshot()
    second.restore(snapshot)
    second[Note].append(Note("second"))
    first[Note].append(Note("first"))
    assert first[Note].all() == (Note("a"), Note("first"))
    assert second[Note].all() == (Note("a"), Note("second"))
    assert snapshot[Note] == (Note("a"),)


def test_a_snapshot_says_what_it_holds():
    session = Session(session_id="s")
    session.dispatch(Note("a"))
    assert session[Called].all() == ()
    snapshot = session.snapshot()
    assert (snapshot.slices, snapshot[Note], snapshot[Called]) == ((Note,), (Note("a"),), ())
    assert repr(snapshot) == "<Snapshot of session 's' (Note: 1)>"


def test_going_back_over_a_long_history_copies_nothing():
    session = Session()
    session[Note].seed([Note("x")] * 1000)
    items = session.snapshot().marks[Note][0]
    for _ in range(3):
        before = session.snapshot()
        session.dispatch(Note("tool"))
        session.dispatch(Note("tool"))
        session.restore(before)
    assert session.snapshot().marks[Note][0] is items
    assert len(session[Note]) == 1000


def test_a_snapshot_survives_text_with_every_slice():
    session = Session(session_id="s")
    session.dispatch(Opened(("docs", "api.v1"), Shown.SUMMARY))
    session.dispatch(Called("tool"))
    snapshot = Snapshot.from_json(session.snapshot().to_json())
    assert snapshot == session.snapshot()
    other = Session()
    other.restore(snapshot)
    assert other[Visibility].latest() == Visibility({("docs", "api.v1"): Shown.SUMMARY})
    other.dispatch(Opened(("more",)))
    assert len(other[Visibility].latest().overrides) == 2
    assert snapshot == session.snapshot()


def test_text_with_a_type_that_the_program_does_not_have_is_refused_by_name():
    session = Session()
    session.dispatch(Note("a"))
    text = session.snapshot().to_json().replace("Note", "Missing")
    with pytest.raises(SessionError, match="Missing"):
        Snapshot.from_json(text)


def test_text_with_an_item_in_the_wrong_slice_is_refused():
    session = Session()
    session.dispatch(Called("a"))
    session.dispatch(Note("a"))
    document = json.loads(session.snapshot().to_json())
    document["slices"][0][1], document["slices"][1][1] = document["slices"][1][1], document["slices"][0][1]
    with pytest.raises(SessionError, match=r"\$\.slices\[0\]\[1\]\[0\]: expected Called, got a .*:Note"):
        Snapshot.from_json(json.dumps(document))


def test_a_slice_that_cannot_be_written_is_named():
    session = Session()
    session.dispatch(Note(threading.Lock()))
    with pytest.raises(SessionError, match="Slice 'Note' cannot be written as JSON"):
        session.snapshot().to_json()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"format": "weakincentives.session/1", "session_id": "s", "slices": []}',
        '{"format": "weakincentives.session/2"}',
        '{"format": "weakincentives.session/2", "session_id": "s", "slices": {"a": [1]}}',
        '{"format": "weakincentives.session/2", "session_id": "s", "slices": [1]}',
        '{"format": "weakincentives.session/2", "session_id": "s", "slices": [["a", ["b"]]]}',
        '{"format": "weakincentives.session/2", "session_id": "s", "slices": [[{"$": "type", "v": 1}, []]]}',
    ],
)
def test_text_that_is_no_snapshot_is_refused(text):
    with pytest.raises(SessionError, match="snapshot"):
        Snapshot.from_json(text)


def test_restoring_text_names_the_way_to_read_it():
    with pytest.raises(SessionError, match="must be a Snapshot, got str; read text"):
        Session().restore(Session().snapshot().to_json())


class Colour(Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Options(TypedDict, total=False):
    size: int


@dataclass(frozen=True)
class Part:
    name: str
    size: float = 1.0
    tags: tuple[str, ...] = ()


# Each annotation stands for a field; any of the values may be in it, since nothing checks them at run time.
ANNOTATIONS: list[Any] = [
    int, float, str, bool, bytes, Decimal, datetime, date, UUID, Path, Colour, Point, Options, Part, Any, object,
    int | None, str | int, Literal["a", 1], list[int], list[Part], tuple[str, ...], tuple[int, str], tuple[Part, ...],
    set[int], frozenset[str], dict[str, int], dict[int, Part], Mapping[str, Any], Sequence[str], Part | Point | None,
]  # fmt: skip
LEAVES = st.sampled_from(
    [None, True, 0, 2**70, 1.5, float("inf"), "", "a", "\ud800", b"x", Decimal("1.0"), datetime(2026, 1, 1),
     date(2026, 1, 1), UUID(int=1), Path("a"), PurePosixPath("a"), Colour.RED, Point(1), Point("x", 2), Part("n"),
     Part(3, "x"), Part("n", True), complex(1, 2), timedelta(1)]
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "$", "size", 1]), inner, max_size=2)
    ),
    max_leaves=4,
) | st.sampled_from([set(), {1}, frozenset({"a"}), {"a", 1}, MappingProxyType({"a": 1}), deque([1]), OrderedDict(a=1)])
HOLDERS = [make_dataclass(f"Holder{index}", [("value", each)]) for index, each in enumerate(ANNOTATIONS)]


@given(st.sampled_from(HOLDERS), VALUES)
@settings(max_examples=rounds(100, 500), deadline=None)
def test_what_is_written_as_text_can_be_read(holder: Any, value: Any) -> None:
    session = Session()
    session.dispatch(holder(value))
    try:
        text = session.snapshot().to_json()
    except SessionError as error:
        assert "cannot be written as JSON" in str(error)
    else:
        assert Snapshot.from_json(text, types=[holder, Part, Point, Colour]) == session.snapshot()


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (Part("n", tags=["a"]), r"\$\[0\]\.tags: expected tuple\[str, \.\.\.\], got an array"),
        (Part("n", tags=("a", 1)), r"\$\[0\]\.tags\[1\]: expected str, got int 1"),
        (Part("n", True), r"\$\[0\]\.size: expected float, got bool True"),
        (Part(None), r"\$\[0\]\.name: expected str, got null"),
    ],
)
def test_a_value_that_could_not_be_read_is_not_written(item: Any, problem: str) -> None:
    session = Session()
    session.dispatch(item)
    with pytest.raises(SessionError, match=rf"Slice '{type(item).__name__}' cannot be written as JSON: {problem}"):
        session.snapshot().to_json()


@dataclass(frozen=True)
class Parsed:
    when: datetime | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "when", datetime.fromisoformat(str(self.when)))


@dataclass(frozen=True)
class Positive:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("must not be negative")
        object.__setattr__(self, "value", -self.value)


@dataclass(init=False)
class OwnInit:
    value: int

    def __init__(self, half: int) -> None:
        self.value = 2 * half


@pytest.mark.parametrize("item", [Positive(1), OwnInit(1)])
def test_a_value_that_its_own_constructor_would_refuse_is_refused_when_it_is_written(item: Any) -> None:
    name = type(item).__qualname__
    for wrapped in (item, Wrapped([item])):
        session = Session()
        session.dispatch(wrapped)
        with pytest.raises(SessionError, match=rf"cannot be written as JSON: .*cannot be read as .*:{name}"):
            session.snapshot().to_json()


@dataclass(frozen=True)
class Wrapped:
    what: Any


def test_a_value_that_its_constructor_accepts_again_is_written() -> None:
    session = Session()
    session.dispatch(Parsed("2026-01-01"))
    assert Snapshot.from_json(session.snapshot().to_json(), types=[Parsed]) == session.snapshot()


@dataclass(frozen=True)
class Page:
    title: str
    text: str


@dataclass(frozen=True)
class Kept:
    text: str
    value: Any = None


LONG = st.sampled_from(["a" * 400, "b" * 400, 'quoted "text"\n' * 40, "short"])
ODD = st.sampled_from([{"$": "part", "v": 0}, {"$": "part"}, {"$": "tuple", "v": []}])
VALUES = st.recursive(
    LONG | ODD | st.builds(Page, LONG, LONG),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(["v", "$", "x"]), each, max_size=2),
    max_leaves=6,
)


@given(st.lists(st.builds(Kept, LONG, VALUES), min_size=1, max_size=4))
def test_a_long_text_is_written_once_wherever_it_stands(items: list[Kept]) -> None:
    session = Session()
    session[Kept].seed(items)
    written = session.snapshot().to_json()
    assert Snapshot.from_json(written, types=[Kept, Page]) == session.snapshot()
    for letter in "ab":
        assert written.count(letter * 400) <= 1
