"""Content parts are values: made from bytes, paths, addresses and ids, checked at once, and stored once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pictures import png
from weakincentives.content import Audio, Document, Image, Text, parts_of, text_of
from weakincentives.runtime import Message
from weakincentives.session import Session, SessionError, Snapshot


def test_a_part_is_made_from_bytes_a_path_an_address_or_an_id(tmp_path: Path) -> None:
    (tmp_path / "box.PNG").write_bytes(png())
    image = Image.from_path(tmp_path / "box.PNG")
    assert (image.media_type, image.name, image.data) == ("image/png", "box.PNG", png())
    assert Document.from_url("https://example.com/a.pdf").url == "https://example.com/a.pdf"
    assert Audio.from_file_id("file-1").file_id == "file-1"
    assert Image.from_bytes(png(), "image/png") == Image.from_bytes(bytearray(png()), "IMAGE/PNG")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Image(), "takes bytes, a URL or a file id, got none of them"),
        (lambda: Image.from_bytes(b"", "image/png"), "got no bytes"),
        (lambda: Image.from_bytes("text", "image/png"), "takes bytes, got str"),
        (lambda: Image.from_bytes(png(), ""), "needs a media type, such as 'image/png'"),
        (lambda: Image.from_bytes(png(), "image/jpeg"), "said to be image/jpeg, but its bytes are image/png"),
        (lambda: Image.from_path("box.bmp"), "the type of 'box.bmp' is not known"),
        (lambda: Image.from_url("box.png"), "takes an http or https address, got 'box.png'"),
        (lambda: Text(3), "takes a string, got 3"),
    ],
)
def test_what_cannot_be_a_part_is_refused_with_the_reason(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_the_size_of_a_picture_is_read_from_its_bytes() -> None:
    gif = b"GIF89a" + (5).to_bytes(2, "little") + (6).to_bytes(2, "little")
    jpeg = b"\xff\xd8\xff\xe0\x00\x04\x00\x00\xff\xc0\x00\x11\x08" + b"\x00\x08\x00\x07" + bytes(12)
    webp = b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + (8).to_bytes(3, "little") + (9).to_bytes(3, "little")
    found = [Image.from_bytes(data, f"image/{kind}").dimensions for data, kind in ((gif, "gif"), (jpeg, "jpeg"))]
    assert found == [(5, 6), (7, 8)]
    assert Image.from_bytes(webp, "image/webp").dimensions == (9, 10)
    assert Image.from_bytes(png(3, 4), "image/png").dimensions == (3, 4)
    assert Image.from_url("https://example.com/a.png").dimensions is None


def test_content_is_text_a_part_or_a_list_of_both() -> None:
    image = Image.from_bytes(png(), "image/png", name="box.png")
    assert parts_of("Hi.") == (Text("Hi."),)
    assert parts_of(image) == (image,)
    assert parts_of(["See:", image, ""]) == (Text("See:"), image)
    assert text_of(parts_of(["See:", image])) == f"See:\n[image box.png (image/png, {len(png())} bytes)]"


def test_a_snapshot_holds_the_bytes_of_a_picture_once() -> None:
    image = Image.from_bytes(png(90, 90), "image/png")
    session = Session()
    for _ in range(3):
        session.dispatch(Message("user", "[image]", parts=(image,)))
    text = session.snapshot().to_json()
    assert len(json.loads(text)["blobs"]) == 1
    restored = Session()
    restored.restore(Snapshot.from_json(text))
    assert [message.parts for message in restored[Message]] == [(image,)] * 3


def test_a_snapshot_whose_bytes_are_gone_or_damaged_says_so() -> None:
    session = Session()
    session.dispatch(Message("user", "[image]", parts=(Image.from_bytes(png(), "image/png"),)))
    document = json.loads(session.snapshot().to_json())
    with pytest.raises(SessionError, match=r"the bytes with digest .* are missing"):
        Snapshot.from_json(json.dumps({**document, "blobs": []}))
    with pytest.raises(SessionError, match=r"\$\.blobs"):
        Snapshot.from_json(json.dumps({**document, "blobs": ["%%"]}))
