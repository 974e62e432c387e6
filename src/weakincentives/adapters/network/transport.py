"""What carries requests to a vendor: responses, open streams, and the error when none arrives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from weakincentives.adapters.network.wire import EncodedRequest


@dataclass(slots=True)
class Response:
    """A status, headers with lower-case names, and the whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes | bytearray


class Stream(Protocol):
    """A response that is still arriving."""

    def read(self, timeout: float | None) -> list[bytes] | None:
        """The data of the next events, or None at the end."""
        ...

    def close(self) -> None: ...


class AsyncStream(Protocol):
    """A response that is still arriving, on an event loop."""

    async def read(self, timeout: float | None) -> list[bytes] | None: ...

    async def close(self) -> None: ...


class Transport(Protocol):
    """Sends requests. Every method raises `TransportError` if no whole response arrives in time."""

    def send(self, request: EncodedRequest, timeout: float | None) -> Response: ...

    def open(self, request: EncodedRequest, timeout: float | None) -> Response | Stream: ...

    async def send_async(self, request: EncodedRequest, timeout: float | None) -> Response: ...

    async def open_async(self, request: EncodedRequest, timeout: float | None) -> Response | AsyncStream: ...


class TransportError(Exception):
    """No usable response: the connection broke, or the vendor reported a failure.

    `retryable` means that the request may be sent again, after `wait` seconds if the vendor asked for that.
    """

    def __init__(
        self,
        message: str,
        *,
        phase: Literal["request", "response"] = "request",
        payload: object = None,
        retryable: bool = True,
        wait: float | None = None,
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.payload = payload
        self.retryable = retryable
        self.wait = wait


class EventReader:
    """Splits a byte stream into server-sent events and returns their `data`; names, ids and comments are ignored."""

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
