"""A session snapshot from a source that is not trusted builds nothing undeclared, and fails with our error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given, settings, strategies as st

from tests.rounds import rounds
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolResult, tool
from weakincentives.runtime import ModelReply, ToolCall, ToolInvoked
from weakincentives.session import Session, SessionError, Snapshot


@dataclass(frozen=True)
class Bomb:
    """A class of the program that must not be built by whoever writes the text."""

    built: ClassVar[list[str]] = []
    name: str = ""

    def __post_init__(self) -> None:
        Bomb.built.append(self.name)


@dataclass(frozen=True)
class Owner:
    name: str
    age: int | None = None


@dataclass(frozen=True)
class Note:
    text: str
    score: float = 0.0
    owner: Owner | None = None
    tags: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    kind: Literal["plain", "rich"] = "plain"
    pair: tuple[int, str] = (0, "")
    extra: Any = None


NOTE = Note("a", 1, Owner("Ann", 41), ("x", "y"), {"n": 1}, "rich", (1, "b"), {"deep": [Owner("Bob")]})


@pytest.fixture(autouse=True)
def nothing_built() -> Iterator[None]:
    Bomb.built.clear()
    yield
    assert Bomb.built == []


def document(*items: object) -> dict[str, Any]:
    session = Session(session_id="s")
    session[Note].seed([item for item in items if isinstance(item, Note)] or [NOTE])
    written: dict[str, Any] = json.loads(session.snapshot().to_json())
    return written


def read(written: object) -> Snapshot:
    return Snapshot.from_json(json.dumps(written), types=[Note, Owner])


BOMB = {"$": f"{__name__}:Bomb", "v": {"name": "boom"}}


def test_what_was_written_is_read() -> None:
    assert read(document(NOTE))[Note] == (NOTE,)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("text", 5, "text: expected str, got int 5"),
        ("text", BOMB, "text: expected str, got a .*:Bomb"),
        ("score", "1", "score: expected float, got str '1'"),
        ("owner", BOMB, "owner: expected .*Owner.*, got a .*:Bomb"),
        ("owner", {"$": f"{__name__}:Owner", "v": {"name": 1}}, r"owner\.name: expected str, got int 1"),
        ("owner", {"$": f"{__name__}:Owner", "v": {"name": "a", "age": BOMB}}, r"owner\.age: expected int \| None"),
        ("owner", {"$": f"{__name__}:Owner", "v": {"name": "a", "evil": BOMB}}, "owner: Owner has no field 'evil'"),
        ("owner", {"$": f"{__name__}:Owner", "v": 3}, "owner: expected the fields of Owner, got int 3"),
        ("tags", ["x"], "tags: expected tuple.*, got an array"),
        ("tags", {"$": "tuple", "v": ["x", BOMB]}, r"tags\[1\]: expected str, got a .*:Bomb"),
        ("tags", {"$": "tuple", "v": 3}, "tags: expected a list of items"),
        ("counts", {"a": "x"}, r"counts\.a: expected int, got str 'x'"),
        ("counts", {"$": "dict", "v": [["a", BOMB]]}, r"counts\[0\]: expected int, got a .*:Bomb"),
        ("counts", {"$": "dict", "v": [["a"]]}, "counts: expected a key and a value"),
        ("kind", "poor", "kind: expected .*, got str 'poor'"),
        ("pair", {"$": "tuple", "v": [1]}, "pair: expected tuple"),
        ("pair", {"$": "tuple", "v": ["1", "b"]}, r"pair\[0\]: expected int"),
        ("extra", {"$": "no:Such", "v": {}}, "extra: unknown type no:Such"),
        ("extra", {"$": 5, "v": {}}, "extra: an object with"),
        ("extra", [{"$": f"{__name__}:Owner", "v": {"name": BOMB}}], r"extra\[0\]\.name: expected str, got a .*:Bomb"),
        ("extra", {"$": f"{__name__}:Owner", "v": {}}, "missing 1 required positional argument: 'name'"),
    ],
)
def test_a_value_that_its_field_does_not_declare_is_refused_with_its_place(
    name: str, value: object, message: str
) -> None:
    written = document(NOTE)
    written["slices"][0][1][0]["v"][name] = value
    with pytest.raises(SessionError, match=rf"\$\.slices\[0\]\[1\]\[0\]\.?.*{message}"):
        read(written)


@pytest.mark.parametrize("item", [BOMB, 5, None, [], {}, {"$": "tuple", "v": []}])
def test_an_item_that_is_not_of_its_slice_is_refused(item: object) -> None:
    written = document(NOTE)
    written["slices"][0][1].append(item)
    with pytest.raises(SessionError, match=r"\$\.slices\[0\]\[1\]\[1\]: expected Note, got"):
        read(written)


@pytest.mark.parametrize("slice_type", [5, BOMB, {"$": "type", "v": 5}, {"$": "type", "v": "os:nothing"}])
def test_a_slice_is_named_by_a_class_of_the_program(slice_type: object) -> None:
    written = document(NOTE)
    written["slices"][0][0] = slice_type
    with pytest.raises(SessionError, match="snapshot"):
        read(written)


def test_a_slice_appears_once() -> None:
    written = document(NOTE)
    written["slices"] *= 2
    with pytest.raises(SessionError, match="slice 'Note' appears twice"):
        read(written)


@pytest.mark.parametrize("depth", [500, 5_000, 200_000])
def test_deep_text_is_our_error(depth: int) -> None:
    deep = ["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, '{"$":"tuple","v":[' * depth + "]}" * depth]
    text = json.dumps(document(NOTE))
    for nested in (deep[0], *(text.replace('"deep"', f'"x": {value}, "deep"') for value in deep)):
        try:
            Snapshot.from_json(nested, types=[Note, Owner])
        except SessionError as error:
            assert "snapshot" in str(error)


def values(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from values(child, (*path, key))


WRITTEN = document(NOTE)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(BOMB),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["$", "v", "a"]), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(list(values(WRITTEN))), JSON)
@settings(max_examples=rounds(100, 500), deadline=None)
def test_damaged_text_is_read_whole_or_refused_with_our_error(path: tuple[Any, ...], value: object) -> None:
    written = json.loads(json.dumps(WRITTEN))
    if not path:
        written = value
    else:
        parent = written
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = value
    snapshot = None
    with suppress(SessionError):
        snapshot = read(written)
    assert Bomb.built == []
    # As text, since NaN is not equal to itself.
    assert snapshot is None or read(json.loads(snapshot.to_json())).to_json() == snapshot.to_json()
    # Whatever is damaged inside the slices, a lenient reader reads the rest.
    if path[:1] == ("slices",) and len(path) > 3:
        lenient = Snapshot.from_json(json.dumps(written), types=[Note, Owner], lenient=True)
        assert bool(lenient.problems) == (snapshot is None)
        assert Bomb.built == []


@given(st.integers(0, len(json.dumps(WRITTEN))), st.binary(max_size=3))
@settings(max_examples=rounds(100, 500), deadline=None)
def test_cut_and_overwritten_bytes_are_our_error(position: int, noise: bytes) -> None:
    text = json.dumps(WRITTEN).encode()
    for damaged in (text[:position], text[:position] + noise + text[position + len(noise) :]):
        try:
            Snapshot.from_json(damaged, types=[Note, Owner])
        except SessionError:
            continue


def test_the_events_of_a_whole_run_are_read_back_equal() -> None:
    @tool
    def add(a: int, b: int) -> int:
        "Add two numbers."
        return a + b

    section = MarkdownSection(key="t", title="T", template="Add.", tools=[add])
    session = Session()
    adapter = ScriptedAdapter([call("add", a=1, b=2), call("add", a="x"), "3"])
    adapter.evaluate(Prompt(PromptTemplate(ns="t", key="t", sections=[section])), session=session)
    assert Snapshot.from_json(session.snapshot().to_json()) == session.snapshot()


@tool
def keep(data: Any) -> str:
    """Keep data."""
    return "kept"


KEEPER = PromptTemplate(
    ns="attacks", key="deep", sections=[MarkdownSection(title="T", key="t", template="Go.", tools=[keep])]
)


@pytest.mark.parametrize("depth", [101, 300, 900, 100_000])
def test_arguments_too_deep_to_store_are_refused_and_the_session_can_be_saved(depth: int) -> None:
    session, deep = Session(), '{"data":' + "[" * depth + "]" * depth + "}"
    replies = [ModelReply(tool_calls=(ToolCall("1", "keep", deep),)), "done"]
    ScriptedAdapter(replies).evaluate(Prompt(KEEPER), session=session)
    refused = session[ToolInvoked].all()[0].result.message
    assert refused == "Invalid arguments for 'keep': $: nested more than 100 levels deep"
    assert Snapshot.from_json(session.snapshot().to_json())[ToolInvoked][0].result.message == refused


def test_many_brackets_that_are_not_deep_are_taken() -> None:
    wide = json.dumps({"data": [{"text": "[[{{", "list": []}] * 500})
    assert keep.parse(wide).data[499] == {"text": "[[{{", "list": []}


# What the text can name that the program has not declared as data: a slice, or a value in a field that is open.
def bomb_as_slice(written: dict[str, Any]) -> None:
    written["slices"].append([{"$": "type", "v": f"{__name__}:Bomb"}, [BOMB]])


def bomb_as_any(written: dict[str, Any]) -> None:
    written["slices"][0][1][0]["v"]["extra"] = [BOMB]


def bomb_as_params(written: dict[str, Any]) -> None:
    session = Session(session_id="s")
    event = ToolInvoked(name="t", params=None, result=ToolResult("ok"), call_id="1")
    session.dispatch(event)
    (entry,) = json.loads(session.snapshot().to_json())["slices"]
    entry[1][0]["v"]["params"] = BOMB
    written["slices"].append(entry)


def bomb_as_value(written: dict[str, Any]) -> None:
    bomb_as_params(written)
    invoked = written["slices"][-1][1][0]["v"]
    invoked["params"], invoked["result"]["v"]["value"] = None, {"deep": BOMB}


def bomb_as_subclass(written: dict[str, Any]) -> None:
    disguised = {"$": f"{__name__}:Disguised", "v": {"name": "boom"}}
    written["slices"][0][1][0]["v"]["owner"] = disguised


@dataclass(frozen=True)
class Disguised(Owner):
    def __post_init__(self) -> None:
        Bomb.built.append(self.name)


BOMBS = [bomb_as_slice, bomb_as_any, bomb_as_params, bomb_as_value, bomb_as_subclass]


@pytest.mark.parametrize("place", BOMBS, ids=lambda place: place.__name__)
def test_a_class_that_is_not_declared_as_data_is_not_built(place: Any) -> None:
    written = document(NOTE)
    place(written)
    with pytest.raises(SessionError, match=r":(Bomb|Disguised) is not declared as data; pass it in types="):
        Snapshot.from_json(json.dumps(written), types=[Note, Owner])


@pytest.mark.parametrize("place", BOMBS, ids=lambda place: place.__name__)
def test_a_class_given_in_types_is_built(place: Any) -> None:
    written = document(NOTE)
    place(written)
    Snapshot.from_json(json.dumps(written), types=[Note, Owner, Bomb, Disguised])
    assert Bomb.built
    Bomb.built.clear()


def test_a_slice_that_is_not_declared_is_named() -> None:
    text = json.dumps(document(NOTE))
    with pytest.raises(SessionError, match=r"\$\.slices\[0\]: .*:Note is not declared as data; pass it in types="):
        Snapshot.from_json(text)
    assert Snapshot.from_json(text, types=[Note, Owner])[Note] == (NOTE,)


PROGRAM = """
from dataclasses import dataclass
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolResult, tool
from weakincentives.session import LogEntry, Session, Snapshot, reducer
from weakincentives.adapters.scripted import ScriptedAdapter, call

@dataclass(frozen=True)
class Customer:
    name: str

@dataclass(frozen=True)
class Paid:
    amount: int

@dataclass(frozen=True, slots=True)
class Till:
    total: int = 0
    @reducer(on=Paid)
    def add(self, event): return Till(self.total + event.amount)

@dataclass(frozen=True, slots=True)
class Tried(LogEntry):
    what: str

@dataclass(frozen=True)
class Receipt:
    number: int

@dataclass(frozen=True)
class Answer:
    receipts: list[Receipt]

@tool
def pay(amount: int, *, context) -> list[Receipt]:
    "Pay."
    context.session.dispatch(Paid(amount))
    context.session.dispatch(Tried("pay"))
    return [Receipt(1)]

section = MarkdownSection[Customer](key="t", title="T", template="For ${name}.", tools=[pay])
template = PromptTemplate[Answer](ns="t", key="t", sections=[section])
"""
WRITES = """
session = Session()
adapter = ScriptedAdapter([call("pay", amount=3), '{"receipts": [{"number": 1}]}'])
adapter.evaluate(Prompt(template).bind(Customer("Ann")), session=session)
print(session.snapshot().to_json())
"""
READS = """
import sys
session = Session()
session.restore(Snapshot.from_json(sys.stdin.read()))
assert session[Till].latest() == Till(3)
assert (session[Paid].all(), session[Tried].all()) == ((Paid(3),), (Tried("pay"),))
"""


def test_another_process_reads_all_that_a_program_has_declared(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    command = [sys.executable, "-c"]
    options: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60, "check": True}
    written = subprocess.run([*command, f"from shop import *\n{WRITES}"], **options).stdout
    subprocess.run([*command, f"from shop import *\n{READS}"], input=written, **options)


def test_a_part_cannot_grow_by_referring_to_other_parts() -> None:
    written = document(Note("a", extra=["x" * 500, ["y"] * 100]))
    doubled: list[Any] = ["x" * 500]
    for at in range(60):
        doubled.append([{"$": "part", "v": at}, {"$": "part", "v": at}])
    with suppress(SessionError):
        read({**written, "parts": doubled})
    with suppress(SessionError):
        read({**written, "parts": [[{"$": "part", "v": 0}]]})


@pytest.mark.parametrize("position", [-1, 99, None, "0", [], True, 10**30])
def test_a_reference_to_no_part_is_our_error(position: Any) -> None:
    written = document(Note("a", extra=["x" * 500, ["y"] * 100]))
    text = json.dumps(written).replace('{"$": "part", "v": 0}', json.dumps({"$": "part", "v": position}))
    with suppress(SessionError):
        Snapshot.from_json(text)
