"""Stored values of classes that have changed since: upgraded, or left out by name."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from pydantic import BaseModel

from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.content import Image
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext, ToolResult, tool
from weakincentives.runtime import Conversation, Message, ToolInvoked
from weakincentives.session import Session, SessionError, Snapshot
from weakincentives.telemetry import RunStore, UnknownType, read_run, record

HERE = __name__


@dataclass(frozen=True)
class Plain:
    cents: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Slotted:
    cents: int
    note: str = ""


class Record(msgspec.Struct, frozen=True):
    cents: int
    note: str = ""


class Model(BaseModel):
    cents: int
    note: str = ""


class Pair(NamedTuple):
    cents: int
    note: str = ""


class Colour(Enum):
    RED = 1


@dataclass(frozen=True)
class Refunded:
    what: Any


RECORDS: list[Any] = [Plain, Slotted, Record, Model]
TYPES = [*RECORDS, Pair, Colour, Refunded]


def named(cls: type) -> str:
    return f"{HERE}:{cls.__qualname__}"


def in_euros(fields: dict[str, Any]) -> dict[str, Any]:
    """Today's fields, of those from before `euros` became `cents`, or of today's."""
    if "euros" in fields:
        fields["cents"] = fields.pop("euros") * 100
    return fields


def as_slice(value: Any) -> tuple[Session, Callable[[Snapshot], Any]]:
    session = Session()
    session[type(value)].append(value)
    return session, lambda snapshot: snapshot[type(value)][0]


def in_field(value: Any) -> tuple[Session, Callable[[Snapshot], Any]]:
    session = Session()
    session.dispatch(Refunded({"deep": [(value,)]}))
    return session, lambda snapshot: snapshot[Refunded][0].what["deep"][0][0]


def in_result(value: Any) -> tuple[Session, Callable[[Snapshot], Any]]:
    session = Session()
    session.dispatch(ToolInvoked(name="t", params=value, result=ToolResult("ok", [value]), call_id="1"))
    return session, lambda snapshot: snapshot[ToolInvoked][0].result.value[0]


PLACES = [as_slice, in_field, in_result]


def old_text(session: Session) -> str:
    """The snapshot as it was written when the class had `euros` in place of `cents`."""
    text = session.snapshot().to_json()
    assert '"cents": 500' in text
    return text.replace('"cents": 500', '"euros": 5').replace('"set": ["cents"]', '"set": ["euros"]')


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cls", RECORDS)
def test_a_renamed_field_is_upgraded_wherever_the_value_is(cls: Any, place: Any) -> None:
    session, find = place(cls(cents=500))
    text = old_text(session)
    with pytest.raises(SessionError, match="has no field 'euros'"):
        Snapshot.from_json(text, types=TYPES)
    found = find(Snapshot.from_json(text, types=TYPES, upgrades={named(cls): in_euros}))
    assert (found, type(found)) == (cls(cents=500), cls)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cls", RECORDS)
def test_an_upgrade_leaves_values_of_today_as_they_are(cls: Any, place: Any) -> None:
    session, _ = place(cls(cents=500, note="x"))
    snapshot = session.snapshot()
    assert Snapshot.from_json(snapshot.to_json(), types=TYPES, upgrades={named(cls): in_euros}) == snapshot


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cls", [*RECORDS, Pair])
def test_a_class_that_was_renamed_or_moved_is_given_in_place_of_a_function(cls: Any, place: Any) -> None:
    session, find = place(cls(cents=500))
    text = session.snapshot().to_json().replace(named(cls), "old.shop:Former")
    with pytest.raises(SessionError, match=r"unknown type old\.shop:Former"):
        Snapshot.from_json(text, types=TYPES)
    assert find(Snapshot.from_json(text, types=[Refunded], upgrades={"old.shop:Former": cls})) == cls(cents=500)


def test_a_class_that_was_renamed_and_has_changed_takes_both() -> None:
    session, find = as_slice(Plain(500))
    text = old_text(session).replace(named(Plain), "old.shop:Former")
    upgrades: dict[str, Any] = {"old.shop:Former": Plain, named(Plain): in_euros}
    assert find(Snapshot.from_json(text, upgrades=upgrades)) == Plain(500)


def test_two_slices_that_became_one_class_are_one_slice() -> None:
    session = Session()
    session[Plain].append(Plain(1))
    session[Slotted].append(Slotted(2))
    snapshot = Snapshot.from_json(session.snapshot().to_json(), types=TYPES, upgrades={named(Slotted): Plain})
    assert snapshot[Plain] == (Plain(1), Plain(2))


def test_a_function_may_return_another_value_in_place_of_the_instance() -> None:
    session, find = in_field(Plain(500))
    upgrades = {named(Plain): lambda fields: Slotted(fields["cents"], "was plain")}
    assert find(Snapshot.from_json(session.snapshot().to_json(), types=TYPES, upgrades=upgrades)) == Slotted(
        500, "was plain"
    )


def test_named_tuples_and_enums_are_upgraded_by_their_items_and_names() -> None:
    session = Session()
    session.dispatch(Refunded([Pair(5, "x"), Colour.RED]))
    text = session.snapshot().to_json().replace('"RED"', '"ROUGE"')
    upgrades: dict[str, Any] = {
        named(Pair): lambda items: [items[0] * 100, *items[1:]],
        named(Colour): lambda name: {"ROUGE": "RED"}.get(name, name),
    }
    found = Snapshot.from_json(text, types=TYPES, upgrades=upgrades)
    assert found[Refunded] == (Refunded([Pair(500, "x"), Colour.RED]),)


def test_fields_reach_a_function_as_values_and_inner_values_come_first() -> None:
    session = Session()
    session.dispatch(Refunded((Plain(500), {"at": (1, 2)})))
    seen: list[Any] = []

    def look(fields: dict[str, Any]) -> dict[str, Any]:
        seen.append(fields["what"])
        return fields

    text = old_text(session)
    Snapshot.from_json(text, upgrades={named(Refunded): look, named(Plain): in_euros})
    assert seen == [(Plain(500), {"at": (1, 2)})]


def test_a_function_that_fails_is_named_with_the_place() -> None:
    session, _ = as_slice(Plain(500))
    with pytest.raises(
        SessionError, match=rf"\$\.slices\[0\]\[1\]\[0\]: the upgrade of {named(Plain)} raised KeyError: 'gone'"
    ):
        Snapshot.from_json(session.snapshot().to_json(), upgrades={named(Plain): lambda fields: fields["gone"]})


def test_an_upgrade_builds_no_class_that_is_not_declared() -> None:
    session, _ = in_field(Plain(500))
    with pytest.raises(SessionError, match="Plain is not declared as data"):
        Snapshot.from_json(session.snapshot().to_json(), upgrades={named(Refunded): lambda fields: fields})


def test_a_field_that_was_added_needs_a_default_and_nothing_else() -> None:
    session, find = as_slice(Plain(500, "x"))
    text = session.snapshot().to_json().replace(', "note": "x"', "")
    assert find(Snapshot.from_json(text, types=TYPES)) == Plain(500)


@dataclass(frozen=True)
class Order:
    number: int
    cents: int


@dataclass(frozen=True)
class Sold:
    order: Order


@tool
def sell(number: int, *, context: ToolContext) -> Order:
    """Sell."""
    order = Order(number, 500)
    context.session.dispatch(Sold(order))
    return order


def shop(*replies: Any, session: Session | None = None) -> Conversation[Any]:
    section = MarkdownSection(key="desk", title="Desk", template="Sell.", tools=[sell])
    prompt = Prompt(PromptTemplate(ns="tests", key="upgrades", sections=[section]))
    return Conversation(prompt, adapter=ScriptedAdapter(replies), session=session)


@pytest.fixture
def chat() -> Conversation[Any]:
    chat = shop(call("sell", number=7), "Sold.", call("sell", number=8), "Sold again.")
    chat.send([Image.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(300), "image/png"), "One like this, please."])
    chat.send("Another.")
    return chat


def damages(text: str) -> Iterator[tuple[str, str]]:
    yield "a renamed field", text.replace('"cents"', '"price"')
    yield "a field with another type", text.replace('"cents": 500', '"cents": "500"')
    yield "a class that is gone", text.replace(f"{HERE}:Order", f"{HERE}:Gone")
    yield "a slice that is gone", text.replace(f"{HERE}:Sold", f"{HERE}:Gone")
    yield "media without bytes", json.dumps({**json.loads(text), "blobs": []})
    yield "damaged media", json.dumps({**json.loads(text), "blobs": ["%"]})
    yield "a field of ours that is gone", text.replace('"success": true', '"success": true, "older": 1')


DAMAGES = [name for name, _ in damages('{"blobs": []}')]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_lenient_reader_keeps_the_conversation_and_lists_what_it_left_out(
    chat: Conversation[Any], damage: str
) -> None:
    text = dict(damages(chat.session.snapshot().to_json()))[damage]
    with pytest.raises(SessionError, match="cannot be read"):
        Snapshot.from_json(text, types=[Sold])
    snapshot = Snapshot.from_json(text, types=[Sold], lenient=True)
    assert snapshot.problems
    assert all(problem.startswith("$.") for problem in snapshot.problems)
    session = Session()
    session.restore(snapshot)
    assert [message.text for message in session[Message]] == [message.text for message in chat.messages]
    assert [event.name for event in session[ToolInvoked]] == ["sell", "sell"]
    again = shop("You are welcome.", session=session)
    assert again.send("Thanks.").text == "You are welcome."
    assert again.usage.input_tokens >= chat.usage.input_tokens


def test_a_lenient_reader_leaves_out_your_values_whole_and_keeps_the_events_around_them(
    chat: Conversation[Any],
) -> None:
    text = chat.session.snapshot().to_json().replace('"number": 7, "cents": 500', '"number": 7, "price": 5')
    snapshot = Snapshot.from_json(text, types=[Sold], lenient=True)
    assert [event.result.value for event in snapshot[ToolInvoked]] == [None, Order(8, 500)]
    assert snapshot[Sold] == (Sold(Order(8, 500)),)
    assert [problem.partition(": ")[2] for problem in snapshot.problems] == ["Order has no field 'price'"] * 2


def test_a_strict_reader_has_no_problems(chat: Conversation[Any]) -> None:
    assert Snapshot.from_json(chat.session.snapshot().to_json(), types=[Sold]).problems == ()


def test_a_class_that_is_not_declared_is_left_out_by_name(chat: Conversation[Any]) -> None:
    snapshot = Snapshot.from_json(chat.session.snapshot().to_json(), lenient=True)
    assert Sold not in snapshot.slices
    (problem,) = snapshot.problems
    assert f"{HERE}:Sold is not declared as data; pass it in types=" in problem


def recorded(tmp_path: Path) -> Path:
    """A run file from before `Order.price` became `cents`."""
    path = tmp_path / "runs.db"
    with record(path):
        shop(call("sell", number=7), "Sold.").send("One, please.")
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("""UPDATE events SET payload = replace(payload, '"cents":500', '"price":5')""")
    connection.close()
    return path


def run_events(path: Path, **options: Any) -> list[Any]:
    with RunStore(path) as store:
        (summary,) = store.list_runs()
        assert store.history(summary.run_id).turns
        assert store.problems == []
    return list(read_run(path, summary.run_id, **options))


def test_a_recorded_value_of_a_changed_class_is_upgraded_and_else_keeps_its_fields(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    (event,) = [each for each in run_events(path) if isinstance(each, ToolInvoked)]
    assert event.result.value == UnknownType(f"{HERE}:Order", {"number": 7, "price": 5})
    upgrades = {f"{HERE}:Order": lambda fields: {"number": fields["number"], "cents": fields["price"] * 100}}
    events = run_events(path, upgrades=upgrades)
    (event,) = [each for each in events if isinstance(each, ToolInvoked)]
    assert event.result.value == Order(7, 500)
    assert [each for each in events if isinstance(each, Sold)] == [Sold(Order(7, 500))]


@pytest.mark.parametrize("key", ["Plain", Plain])
def test_an_upgrade_that_names_no_stored_class_is_an_error(key: Any) -> None:
    with pytest.raises(TypeError, match=r"named by the stored module and class, such as 'shop:Refunded', got .*Plain"):
        Snapshot.from_json(Session().snapshot().to_json(), upgrades={key: lambda fields: fields})


def test_an_upgrade_that_cannot_be_called_is_an_error(tmp_path: Path) -> None:
    upgrades: Any = {"shop:Refunded": {"order": "order_id"}}
    problem = r"the upgrade of 'shop:Refunded' must be its new class, or a function of the stored fields, got \{'order"
    with pytest.raises(TypeError, match=problem):
        Snapshot.from_json(Session().snapshot().to_json(), upgrades=upgrades)
    with pytest.raises(TypeError, match=problem):
        RunStore(tmp_path / "runs.db", upgrades=upgrades)
