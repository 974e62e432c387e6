"""Snapshots that an earlier release has written, stored in tests/fixtures/snapshots, are read for ever."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from tests.fixtures.snapshots.shop import (
    AT,
    DONE,
    FOLDER,
    ORDER,
    PIXEL,
    SCENARIOS,
    Answer,
    CheckedOut,
    Refunded,
    State,
    Till,
    Tried,
    prompt,
)
from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.content import Document, Image
from weakincentives.prompt import ToolResult
from weakincentives.runtime import Conversation, Message, ModelCalled, RunEnded, ToolInvoked
from weakincentives.session import Session, Snapshot


def stored(name: str) -> Session:
    session = Session()
    session.restore(Snapshot.from_json((FOLDER / f"{name}.json").read_text()))
    return session


def texts(session: Session, role: str) -> list[str]:
    return [message.text for message in session[Message] if message.role == role]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_stored_snapshot_is_read_whole_and_written_so_that_it_is_read_again(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text()
    snapshot = Snapshot.from_json(text)
    assert snapshot == Snapshot.from_json(snapshot.to_json())
    counts = {entry[0]["v"].rpartition(":")[2]: len(entry[1]) for entry in json.loads(text)["slices"]}
    assert {cls.__name__: len(snapshot[cls]) for cls in snapshot.slices} == counts


def test_a_stored_conversation_has_its_messages_slices_and_tool_values() -> None:
    session = stored("conversation")
    assert texts(session, "user")[-2:] == ["Money back for order 7, please.", "And the rest?"]
    assert (session[Refunded].all(), session[Till].latest()) == (
        (Refunded(ORDER, AT),),
        Till(Decimal("-12.50"), frozenset({7})),
    )
    assert session[Tried].all() == (Tried("refund 7"),)
    values = {event.name: event.result for event in session[ToolInvoked]}
    assert values["find_orders"].value == [ORDER]
    assert values["refund"] == ToolResult("Refunded.", Refunded(ORDER, AT))
    assert not values["refuse"].success
    outputs = [event.output for event in session[RunEnded]]
    assert isinstance(outputs[1], Answer)
    assert (outputs[0], outputs[1].orders[0].state) == (Answer("Done.", []), State.OPEN)
    assert len(session[ModelCalled]) == 6


def test_stored_media_have_their_bytes() -> None:
    (message,) = [message for message in stored("media")[Message] if message.parts]
    image, document, _ = message.parts
    assert isinstance(image, Image)
    assert isinstance(document, Document)
    assert (image.data, document.data) == (PIXEL, b"%PDF-1.4 stored")


def test_stored_files_can_be_restored() -> None:
    session = stored("files")
    (saved,) = session[CheckedOut]
    session.workspace.restore(saved.files)
    assert session.workspace.read("receipts/7.txt") == "Paid: 12.50 €"


@pytest.mark.parametrize("name", ["conversation", "media", "files"])
def test_a_stored_conversation_continues(name: str) -> None:
    session = stored(name)
    before = texts(session, "user")
    adapter = ScriptedAdapter([DONE])
    answer = Conversation(prompt(), adapter=adapter, session=session).send("Thanks.")
    assert answer.output == Answer("Done.", [])
    asked = [message.text for message in adapter.requests[0].messages if message.role == "user"]
    assert asked == [*before, "Thanks."]


def test_a_stored_run_is_resumed_with_the_call_that_was_open() -> None:
    session = stored("pending")
    adapter = ScriptedAdapter([DONE])
    assert adapter.resume(prompt(), session=session).output == Answer("Done.", [])
    assert "teapot" in texts(session, "tool")[0]
