"""Transports, which carry requests to a vendor: responses, open streams, and the error when none arrives.

Everything that sends or waits is written once, as a coroutine. Without an event loop it blocks where it would otherwise
wait, so that `finished` can run it to its end.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from weakincentives._base.threads import until
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

    async def read(self, timeout: float | None) -> list[bytes] | None:
        """The data of the next events, or None at the end."""
        ...

    async def aclose(self) -> None:
        """Close the response; another thread may be reading it."""
        ...


class Transport(Protocol):
    """Sends requests, and raises `TransportError` if no response arrives in time.

    A response is a stream if its status is 200, unless it must be `whole`; any other is read to its end. Unless it
    `awaits`, a request and its stream block, and never wait for an event loop.
    """

    async def open(
        self, request: EncodedRequest, timeout: float | None, *, whole: bool, awaits: bool
    ) -> Response | Stream: ...


def finished(steps: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of a coroutine that blocks instead of waiting for an event loop."""
    try:
        steps.send(None)
    except StopIteration as done:
        result: ResultT = done.value
        return result
    steps.close()
    raise RuntimeError(f"{steps!r} waits for an event loop, although nothing awaits it")


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
class ClientStream:
    """The stream of another library's client: batches of events, which may be empty.

    `end` closes the response, and `errors` turns the client's errors into a `TransportError`. A client that `blocks`
    may be used on an event loop too.
    """

    batches: AsyncGenerator[list[bytes], None]
    end: Callable[[], Any]
    errors: Callable[[Exception], Exception]
    blocks: bool
    awaits: bool

    async def read(self, timeout: float | None) -> list[bytes] | None:
        ends = end_of(timeout)
        try:
            return await within(timeout, lambda: self._next(ends), blocks=self.blocks, awaits=self.awaits)
        except Exception as error:
            raise self.errors(error) from None

    async def aclose(self) -> None:
        await within(None, self.finish, blocks=self.blocks, awaits=self.awaits)

    def close(self) -> None:
        """Close a stream that was opened too late (see `until`)."""
        finished(self.finish())

    async def _next(self, ends: float | None) -> list[bytes] | None:
        async for batch in self.batches:
            if batch or (ends is not None and time.monotonic() > ends):
                return batch
        return None

    async def finish(self) -> None:
        """Close the response, in the client's own way."""
        if self.blocks:
            self.end()
        else:
            await self.batches.aclose()
            await self.end()


def end_of(timeout: float | None) -> float | None:
    """When a step with this timeout must end, by the monotonic clock."""
    return None if timeout is None else time.monotonic() + timeout


async def within(
    seconds: float | None, work: Callable[[], Coroutine[Any, Any, ResultT]], *, blocks: bool, awaits: bool
) -> ResultT:
    """Call another library's client, whose own timeouts limit only single steps of a request, such as one read.

    Work that `blocks` is done in a separate thread if there is a deadline, or an event loop to keep free. The thread of
    an abandoned request ends with its next step, and anything it has opened is closed.
    """
    if not blocks:
        async with asyncio.timeout(seconds):
            return await work()
    late = TransportError("the server did not answer in time")
    blocking = partial(until, seconds, lambda: finished(work()), late)
    return await asyncio.to_thread(blocking) if awaits else blocking()
