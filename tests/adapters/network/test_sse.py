"""Server-sent events out of bytes."""

import pytest

from weakincentives.adapters.network.transport import EventReader

STREAM = b": hello\n\nevent: a\ndata: {1}\n\ndata: {2}\r\ndata:{3}\r\n\r\nid: 4\ndata: last\n\n"


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
def test_events_are_the_same_however_they_are_cut(size: int) -> None:
    reader = EventReader()
    events = [event for start in range(0, len(STREAM), size) for event in reader.feed(STREAM[start : start + size])]
    assert events == [b"{1}", b"{2}\n{3}", b"last"]


def test_an_unfinished_event_is_not_delivered() -> None:
    assert EventReader().feed(b"data: half") == []
