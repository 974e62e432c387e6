"""What carries requests to a vendor: responses, open streams, and the error when none arrives."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from weakincentives._threads import until
from weakincentives.adapters.network.wire import EncodedRequest

ResultT = TypeVar("ResultT")

MAX_BODY = 128 << 20
"""The largest response that is read, in bytes, after decompression."""


@dataclass(slots=True)
class Response:
    """A status, headers keyed by lower-case name, and the whole body."""

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
    """Sends requests, and raises `TransportError` if no response arrives in time.

    A response is a stream if its status is 200, unless it must be `whole`; any other is read to its end.
    """

    def open(self, request: EncodedRequest, timeout: float | None, *, whole: bool) -> Response | Stream: ...

    async def open_async(
        self, request: EncodedRequest, timeout: float | None, *, whole: bool
    ) -> Response | AsyncStream: ...


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

    @classmethod
    def unusable(cls, message: str, payload: object, *, retryable: bool = False) -> TransportError:
        """The error for a response that arrived but contains no answer."""
        return cls(message, phase="response", payload=payload, retryable=retryable)


class BodyDecoder:
    """Decompresses a response body piece by piece and limits its size."""

    __slots__ = ("_inflater", "_size")

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._size = 0
        self._inflater: Any = None
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._inflater = zlib.decompressobj(wbits=47)
        elif encoding not in ("", "identity"):
            raise TransportError(f"the server sent a body in the encoding {encoding!r}", phase="response")

    def decode(self, data: bytes) -> bytes:
        if self._inflater is not None:
            try:
                data = self._inflater.decompress(data, MAX_BODY + 1 - self._size)
            except zlib.error as error:
                raise TransportError(f"the server sent a damaged {error}", phase="response") from None
        self._size += len(data)
        if self._size > MAX_BODY:
            raise too_large()
        return data

    def finish(self) -> None:
        """Raise if the body ended before its compression did."""
        if self._inflater is not None and not self._inflater.eof:
            raise TransportError("the server sent a compressed body that is cut off", phase="response")


def too_large() -> TransportError:
    return TransportError(
        f"the server sent more than {MAX_BODY >> 20} MB in one response", phase="response", retryable=False
    )


class EventReader:
    """Splits a byte stream into server-sent events and returns their `data`; names, ids and comments are ignored.

    Lines end with LF, CR or CRLF, and the stream may begin with a byte order mark, as in the HTML standard.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_line", "_size")

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._first = True
        self._after_cr = False

    def feed(self, received: bytes) -> list[bytes]:
        """The data of every event that these bytes complete."""
        if self._after_cr and received:
            received = received.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in received:
            self._after_cr = received.endswith(b"\r")
            received = received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = received.split(b"\n")
        events: list[bytes] = []
        for line in lines:
            if self._line:
                line, self._line = bytes(self._line) + line, bytearray()
            self._add(line, events)
        self._line += rest
        if len(self._line) + self._size > MAX_BODY:
            raise too_large()
        return events

    def _add(self, line: bytes, events: list[bytes]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        elif line.startswith(b"data:") or line == b"data":
            self._data.append(line[5:].removeprefix(b" "))
            self._size += len(line)


@dataclass(slots=True)
class IteratedStream:
    """The stream of another library's client: an iterator over batches of events, which may be empty.

    `close` closes the response, and `errors` turns the client's errors into a `TransportError`.
    """

    batches: Iterator[list[bytes]]
    close: Callable[[], None]
    errors: Callable[[Exception], Exception]

    def read(self, timeout: float | None) -> list[bytes] | None:
        ends = end_of(timeout)
        return within(timeout, lambda: self._next(ends))

    def _next(self, ends: float | None) -> list[bytes] | None:
        try:
            for batch in self.batches:
                if batch or (ends is not None and time.monotonic() > ends):
                    return batch
        except Exception as error:
            raise self.errors(error) from None
        return None


@dataclass(slots=True)
class AsyncIteratedStream:
    """The stream of another library's client on an event loop."""

    batches: AsyncGenerator[list[bytes], None]
    close_response: Callable[[], Awaitable[object]]
    errors: Callable[[Exception], Exception]

    async def read(self, timeout: float | None) -> list[bytes] | None:
        try:
            async with asyncio.timeout(timeout):
                async for batch in self.batches:
                    if batch:
                        return batch
        except Exception as error:
            raise self.errors(error) from None
        return None

    async def close(self) -> None:
        await self.batches.aclose()
        await self.close_response()


def end_of(timeout: float | None) -> float | None:
    """When a step with this timeout must end, by the monotonic clock."""
    return None if timeout is None else time.monotonic() + timeout


def within(seconds: float | None, work: Callable[[], ResultT]) -> ResultT:
    """Call another library's client, in a separate thread if there is a deadline.

    A client's own timeouts limit only single steps of a request, such as one read. The thread of an abandoned request
    ends with its next step, and anything it has opened is closed.
    """
    return until(seconds, work, TransportError("the server did not answer in time"))
