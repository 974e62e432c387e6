"""Messages of the Responses API: their text, and the annotations that belong to a hosted tool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from weakincentives.adapters.hosted.reading import Reading, kind_of
from weakincentives.tools import FailureCode


class _Message(msgspec.Struct):
    content: list[Any] | None = None


class _Text(msgspec.Struct):
    text: str = ""
    annotations: list[Any] | None = None


def read_message(reading: Reading, item: Any, annotation: str, take: Callable[[Any, int], None]) -> None:
    """Say the message's text, and give each annotation of this type to `take` with the length of its text."""
    message = reading.part(item, _Message)
    for piece in (message.content or ()) if message else ():
        if kind_of(piece) != "output_text":
            continue
        part = reading.part(piece, _Text)
        if part is None:
            continue
        reading.say(part.text)
        for note in part.annotations or ():
            if kind_of(note) == annotation:
                take(note, len(part.text))


def check_status(reading: Reading, status: str | None, call_id: str) -> None:
    """Note a call that did not come to its end."""
    codes: dict[str, FailureCode] = {"failed": "failed", "incomplete": "incomplete"}
    if status in codes:
        reading.fail(codes[status], status, call_id=call_id)
