"""Server-sent events out of a byte stream."""

from __future__ import annotations


class EventReader:
    """Collects the `data` of each event; names, ids and comments are of no use to us."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """The data of every event that these bytes complete."""
        lines = (self._rest + received).split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
