"""HTTP/1.1 over any kind of connection: the parsing of responses, idle connections, and errors.

A request is sent once: if its connection turns out to be dead, the request fails, and the caller decides whether to
send it again.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from weakincentives.adapters.network.endpoint import Endpoint
from weakincentives.adapters.network.transport import MAX_BODY, BodyDecoder, TransportError, too_large

MAX_IDLE = 1000
IDLE_SECONDS = 60.0
MAX_OVERHEAD = 1 << 20
"""How many bytes of a response may arrive without any of its body: headers, trailers, chunk sizes."""


# Other threads take idle connections at any time.
_unless_empty = contextlib.suppress(IndexError)


class Pool:
    """Idle connections to one endpoint."""

    def __init__(self) -> None:
        self._idle: deque[Connection] = deque()
        self._closed = False

    def take(self) -> Connection | None:
        """A connection that the server has not closed, if there is one."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # Another thread has taken it.
                break
            # An idle connection is readable only if the server has closed it.
            fresh = time.monotonic() - connection.idle_since < IDLE_SECONDS and connection.fileno() >= 0
            if fresh and not wait_for(connection, 0.0):
                return connection
            connection.discard()
        return None

    def put(self, connection: Connection) -> None:
        """Keep a connection whose response was read to its end, if it can be used again."""
        if not connection.reusable() or self._closed or len(self._idle) >= MAX_IDLE:
            connection.discard()
            return
        connection.idle_since = now = time.monotonic()
        self._idle.append(connection)
        if len(self._idle) > 1:
            with _unless_empty:
                if now - self._idle[0].idle_since > IDLE_SECONDS:
                    self._idle.popleft().discard()

    def close(self) -> None:
        """Close every idle connection, and those in use when they are put back."""
        self._closed = True
        with _unless_empty:
            while True:
                self._idle.pop().discard()


class ResponseParser:
    """One response and the unread part of its body; httptools calls the `on_` methods."""

    def __init__(self, parser: Any) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False
        self.keep_alive = False
        self._decoder: BodyDecoder | None = None
        self._parser = parser(self)
        self._overhead = 0

    def feed(self, data: bytes) -> None:
        """Parse received data; empty data means that the server has closed the connection."""
        if not data or self.complete:
            self._end()
            return
        self._overhead += len(data)
        self._parser.feed_data(data)
        if self._overhead > MAX_OVERHEAD:
            raise TransportError("The server sent headers without end.", phase="response")
        if self._decoder is None and self.status:
            self._decoder = BodyDecoder(self.headers)
            if int(self.headers.get("content-length", 0)) > MAX_BODY:
                raise too_large()

    def read(self) -> bytes | None:
        """The next part of the body, nothing at its end, or None if more must be received first."""
        if self._decoder is None:
            return None
        if self.body:
            data, self.body = bytes(self.body), bytearray()
            if decoded := self._decoder.decode(data):
                return decoded
        if not self.complete:
            return None
        # The parser refers to this response; without it, both are freed before a garbage collection.
        self._parser = None
        self._decoder.finish()
        return b""

    def on_message_begin(self) -> None:
        if self.complete:
            self.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
        elif not self.status:
            self.status, self.keep_alive = status, self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._overhead = 0
        if not self.complete:
            self.body += data

    def on_message_complete(self) -> None:
        self.complete = bool(self.status)

    def _end(self) -> None:
        self.keep_alive = False
        ends_with_connection = self.status and not {"content-length", "transfer-encoding"} & self.headers.keys()
        if not self.complete and not ends_with_connection:
            raise ConnectionResetError("the server closed it before the response was complete")
        self.complete = True


class Connection(ABC):
    """A connection whose every operation ends by the request's deadline; idle ones can be kept for the next request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.ends: float | None = None
        self.idle_since = 0.0
        self._read_timeout = endpoint.read_timeout
        self._response: ResponseParser | None = None

    async def post(self, message: bytes, parser: Any) -> ResponseParser:
        """Send a request and read the head of the response."""
        response = self._response = ResponseParser(parser)
        self._send(message)
        while not response.status:
            await self._receive(response)
        return response

    async def read(self) -> bytes:
        """The next part of the body, or nothing at its end."""
        response = self._response
        assert response is not None
        while (data := response.read()) is None:
            await self._receive(response)
        return data

    def time_left(self) -> float | None:
        """How long the next step may take."""
        return time_left(self.ends, self._read_timeout)

    @abstractmethod
    def reusable(self) -> bool:
        """True if the connection can be used again; ends its response."""

    @abstractmethod
    def fileno(self) -> int:
        """The descriptor of its socket, or -1 if that is closed."""

    @abstractmethod
    def discard(self) -> None:
        """Hang up."""

    @abstractmethod
    def _send(self, message: bytes) -> None:
        """Send a request."""

    @abstractmethod
    async def _receive(self, response: ResponseParser) -> None:
        """Wait until something has arrived for the response."""


def network_error(error: BaseException) -> TransportError | None:
    """An error of the network or of the response as a `TransportError`; None if it is neither."""
    if isinstance(error, TransportError):
        return error
    if isinstance(error, TimeoutError):
        return TransportError("The server did not answer in time.")
    if isinstance(error, OSError):
        return TransportError(f"The connection broke: {error}.")
    if type(error).__module__.startswith("httptools"):
        return TransportError(f"The server sent a malformed response: {error}.", phase="response")
    return None


def unreachable(endpoint: Endpoint, error: OSError) -> TransportError:
    """The error for a connection that could not be established."""
    step = "establish TLS with" if isinstance(error, ssl.SSLError) else "connect to"
    return TransportError(f"Cannot {step} {endpoint.host}:{endpoint.port}: {str(error) or 'timed out'}.")


def time_left(ends: float | None, step: float | None) -> float | None:
    """How long a step with its own limit may take if everything must end by `ends`."""
    if ends is None:
        return step
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left if step is None else min(step, left)


def wait_for(connection: Connection, timeout: float | None, *, writing: bool = False) -> bool:
    """Wait until a connection is readable or, with `writing`, writable; True if it is readable."""
    if not hasattr(select, "poll"):
        readable: Sequence[Any] = select.select([connection], [connection] if writing else [], [], timeout)[0]
        return bool(readable)
    poll = select.poll()
    poll.register(connection, select.POLLIN | (select.POLLOUT if writing else 0))
    ready = poll.poll(None if timeout is None else timeout * 1000)
    return bool(ready and ready[0][1] & ~select.POLLOUT)


_connections: WeakSet[Connection] = WeakSet()


def track(connection: Connection) -> None:
    """Keep a connection from being shared with forked children."""
    _connections.add(connection)


def _disconnect_child() -> None:
    """Replace the sockets that a forked child has inherited by an unconnected one.

    Whatever the child then does with its copies of our connections (read, close, finalize, run the parent's event
    loop), it only gets errors and cannot reach those of the parent. Closing the descriptors would not do: the objects
    that own them would later close whatever has their numbers by then.
    """
    with socket.socket() as unconnected:
        for connection in tuple(_connections):
            if (inherited := connection.fileno()) >= 0:
                os.dup2(unconnected.fileno(), inherited, inheritable=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disconnect_child)
