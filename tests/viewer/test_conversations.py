"""Conversations of several runs, and media, as the viewer shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any
from zlib import compress, crc32

import pytest

from tests.telemetry.agents import record_conversation
from weakincentives.content import Document, Image
from weakincentives.telemetry import RunStore, prune, read_run
from weakincentives.viewer import Viewer, export_run
from weakincentives.viewer.documents import Documents


def picture() -> Image:
    """A red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + kind + data + pack(">I", crc32(kind + data))

    header, pixels = pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0), compress(b"\x00\xff\x00\x00")
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return Image.from_bytes(data, "image/png", name="red.png")


def test_a_later_turn_is_sent_what_was_said_before(tmp_path: Path) -> None:
    first, second = record_conversation(tmp_path / "runs.db", "What does the guide say?", "Thanks.")
    with RunStore(tmp_path / "runs.db") as store:
        turn = store.turn(second, 1)
        documents = Documents(store)
        request = documents.turn(second, 1)["request"]
        shown = [message for start, stop in request for message in documents.messages(second, start, stop)["messages"]]
        assert {run.question for run in store.list_runs()} == {"What does the guide say?", "Thanks."}
        assert len({run.conversation_id for run in store.list_runs()}) == 1
    assert (turn.complete, [message.role for message in turn.messages]) == (
        True,
        ["system", "user", "assistant", "tool", "assistant", "user"],
    )
    assert [message["role"] for message in shown] == [message.role for message in turn.messages]
    assert {message["run_id"] for message in shown} == {first, second}


def test_a_section_read_in_an_earlier_run_names_the_result_that_has_it(tmp_path: Path) -> None:
    _, second = record_conversation(tmp_path / "runs.db", "What does the guide say?", "Thanks.")
    with RunStore(tmp_path / "runs.db") as store:
        turn = store.turn(second, 1)
    guide = next(section for section in turn.sections if section.key == "guide")
    (result,) = [message for message in turn.messages if message.role == "tool"]
    assert (guide.seen, guide.call_id) == ("conversation", result.call_id)


def test_media_are_kept_once_and_read_back_as_they_were(tmp_path: Path) -> None:
    path, image = tmp_path / "runs.db", picture()
    first, second = record_conversation(path, ["What is this?", image], ["And this?", image], script=["Red.", "Red."])
    with RunStore(path) as store:
        assert store.query("SELECT digest, length(data) FROM blobs") == [(image.blob.digest, len(image.data))]  # type: ignore[union-attr]
    (said,) = [event for event in read_run(path, second) if getattr(event, "role", "") == "user"]
    assert said.parts[1] == image
    prune(path, run_ids=[first])
    with RunStore(path) as store:
        assert len(store.query("SELECT digest FROM blobs")) == 1
    prune(path, run_ids=[second])
    with RunStore(path) as store:
        assert store.query("SELECT digest FROM blobs") == []


def test_a_secret_in_a_text_document_is_not_recorded(tmp_path: Path) -> None:
    secret = b"password: hunter2hunter2hunter2"
    document = Document.from_bytes(b"My notes.\n" + secret, "text/plain", name="notes.txt")
    record_conversation(tmp_path / "runs.db", ["Read this.", document], script=["Done."])
    assert all(b"hunter2" not in file.read_bytes() for file in tmp_path.iterdir())


def test_an_image_is_shown_in_the_viewer_and_in_an_export(open_page: Callable[..., Any], tmp_path: Path) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    path = tmp_path / "runs.db"
    (run_id,) = record_conversation(path, ["What is this?", picture()], script=["Red."])
    file = tmp_path / "run.html"
    file.write_text(export_run(path, run_id), encoding="utf-8")
    with Viewer(path, port=0) as viewer:
        for address in (f"{viewer.url}#/run/{run_id}", file.as_uri()):
            page = open_page(address)
            shown = page.get_by_role("img", name="red.png")
            expect(shown).to_be_visible()
            assert shown.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
            expect(page.locator("h1")).to_contain_text("What is this?")
            page.close()
