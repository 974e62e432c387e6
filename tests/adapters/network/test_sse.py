"""Server-sent events, as the HTML standard defines them."""

from __future__ import annotations

import pytest

from weakincentives.adapters.network.transport import EventReader

STREAMS = [
    (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
    (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
    (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
    (b"\xef\xbb\xbfdata: one\n\n", [b"one"]),
    (b"data: one\n\n\xef\xbb\xbfdata: two\n\n", [b"one"]),
    (b"data: one\ndata:\ndata: two\n\n", [b"one\n\ntwo"]),
    (b"data\n\n", [b""]),
    (b"data:\ndata\n\n", [b"\n"]),
    (b"data:  two spaces\n\n", [b" two spaces"]),
    (b": comment\nevent: x\nid: 1\nretry: 5\ndatum: no\ndata: yes\n\n", [b"yes"]),
    (b"event: nothing\n\n\n\ndata: one\n\n", [b"one"]),
    (b"data: unfinished\n", []),
]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("stream", "events"), STREAMS)
def test_events_are_the_same_however_the_stream_is_cut(stream: bytes, events: list[bytes], size: int) -> None:
    reader = EventReader()
    found = [event for start in range(0, len(stream), size) for event in reader.feed(stream[start : start + size])]
    assert found == events
