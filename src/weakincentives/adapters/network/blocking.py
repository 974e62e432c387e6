"""Blocking requests; the responses are read by the standard library's `http.client`."""

from __future__ import annotations

import contextlib
import io
import os
import select
import socket
import ssl
import time
import weakref
from collections import deque
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Any

from weakincentives.adapters.network.endpoint import Endpoint
from weakincentives.adapters.network.transport import (
    MAX_BODY,
    BodyDecoder,
    EventReader,
    Response,
    TransportError,
    too_large,
)
from weakincentives.adapters.network.wire import EncodedRequest

PIECE = 64 * 1024
MAX_IDLE = 1000
IDLE_SECONDS = 60.0


class BlockingTransport:
    """Keeps idle connections to one endpoint, for any number of threads.

    A request is sent once: if the connection turns out to be dead, the request fails and the caller decides whether to
    send it again. A forked child shares the parent's connections and must never use them, so it starts with none.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: deque[_Connection] = deque()
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def send(self, request: EncodedRequest, timeout: float | None) -> Response:
        """Send a request and read the whole response."""
        with _errors(connection := self._connection(timeout)):
            connection.post(self._endpoint, request)
            return self._finish(connection)

    def open(self, request: EncodedRequest, timeout: float | None) -> Response | BlockingStream:
        """Send a request and return the response as it arrives; anything but 200 is read to its end."""
        with _errors(connection := self._connection(timeout)):
            connection.post(self._endpoint, request)
            return BlockingStream(self, connection) if connection.status == 200 else self._finish(connection)

    def close(self) -> None:
        """Close every idle connection."""
        _close_all(self._idle)

    def release(self, connection: _Connection) -> None:
        """Keep a connection whose response was read to its end, if it can be used again."""
        if not connection.reusable or len(self._idle) >= MAX_IDLE:
            connection.discard()
            return
        connection.idle_since = now = time.monotonic()
        self._idle.append(connection)
        if now - self._idle[0].idle_since > IDLE_SECONDS:
            self._idle.popleft().discard()

    def _finish(self, connection: _Connection) -> Response:
        body = bytearray()
        while data := connection.read():
            body += data
        response = Response(connection.status, connection.headers, body)
        self.release(connection)
        return response

    def _connection(self, timeout: float | None) -> _Connection:
        ends = None if timeout is None else time.monotonic() + timeout
        if self._pid != os.getpid():
            self._pid = os.getpid()
            _close_all(self._idle)
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            # An idle connection has nothing to read, unless the server has closed it.
            if time.monotonic() - connection.idle_since < IDLE_SECONDS and not _wait(connection.sock, 0.0):
                connection.ends = ends
                return connection
            connection.discard()
        return _Connection(self._endpoint, ends)


class BlockingStream:
    """A response that is still arriving."""

    def __init__(self, transport: BlockingTransport, connection: _Connection) -> None:
        self._transport = transport
        self._connection: _Connection | None = connection
        self._reader = EventReader()

    def read(self, timeout: float | None) -> list[bytes] | None:
        connection = self._connection
        if connection is None:
            return None
        connection.ends = None if timeout is None else time.monotonic() + timeout
        with _errors(connection):
            while data := connection.read():
                if events := self._reader.feed(data):
                    return events
        self._connection = None
        self._transport.release(connection)
        return None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.discard()


class _Connection:
    """A connection whose every operation ends when the request must, and whose responses are bounded.

    `http.client` reads its responses. It does not send the requests, since it would send the head and the body apart,
    and would not look for a response before it has sent everything.
    """

    def __init__(self, endpoint: Endpoint, ends: float | None) -> None:
        self.ends = ends
        self.idle_since = 0.0
        self._read_timeout = endpoint.read_timeout
        self.sock = _connect(endpoint, ends)

    def post(self, endpoint: Endpoint, request: EncodedRequest) -> None:
        """Send a request and read the head of the response."""
        self._early = b""
        self._received = 0
        self._answered = False
        self._send(endpoint.message(request))
        self._response: Any = HTTPResponse(self, method="POST")  # type: ignore[arg-type]
        self._response.begin()
        self.status: int = self._response.status
        self.headers: Any = self._response.headers
        self._decoder = BodyDecoder(self.headers)
        self._left = _content_length(self._response)

    def read(self) -> bytes:
        """The next part of the body, or nothing at its end."""
        response = self._response
        while not response.isclosed():
            data = response.read1(PIECE if self._left is None else min(PIECE, self._left))
            if response.chunked and not 0 <= (response.chunk_left or 0) <= MAX_BODY:
                raise HTTPException(f"a chunk of {response.chunk_left} bytes")
            if self._left is not None:
                self._left -= len(data)
                if self._left and not data:
                    raise IncompleteRead(b"", self._left)
            decoded = self._decoder.decode(data)
            if not data or self._left == 0:
                response.close()
                self._decoder.finish()
            if decoded:
                return decoded
        return b""

    @property
    def reusable(self) -> bool:
        return not (self._response.will_close or self._answered or self._early)

    def discard(self) -> None:
        self._response = None
        with contextlib.suppress(OSError):
            self.sock.close()

    def _send(self, data: bytes) -> None:
        """Send, but stop if the server answers before it has everything."""
        view = memoryview(data)
        try:
            while view and not self._answered:
                self.sock.settimeout(self._timeout())
                view = view[self.sock.send(view) :]
                if view and _wait(self.sock, self._timeout(), writing=True):
                    self._receive_early()
        except (BrokenPipeError, ConnectionResetError):
            # The answer may have arrived before the connection was closed.
            self._answered = True

    def makefile(self, mode: str) -> io.BufferedReader:
        """The file that `http.client` reads a response from."""
        return io.BufferedReader(_Incoming(self))

    def receive_into(self, buffer: Any) -> int:
        if self._early:
            count = min(len(buffer), len(self._early))
            buffer[:count], self._early = self._early[:count], self._early[count:]
            return count
        self.sock.settimeout(self._timeout())
        count = self.sock.recv_into(buffer)
        self._received += count
        if self._received > 2 * MAX_BODY:
            raise too_large()
        return count

    def _receive_early(self) -> None:
        # A TLS connection may be readable for a session ticket alone.
        self.sock.settimeout(0)
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            self._early = self.sock.recv(PIECE)
            self._answered = True

    def _timeout(self) -> float | None:
        return _time_left(self.ends, self._read_timeout)


class _Incoming(io.RawIOBase):
    """What a connection receives, as a file."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._connection.receive_into(buffer)


def _connect(endpoint: Endpoint, ends: float | None) -> socket.socket:
    where = f"{endpoint.host}:{endpoint.port}"
    try:
        sock = socket.create_connection((endpoint.host, endpoint.port), _time_left(ends, endpoint.connect_timeout))
    except OSError as error:
        raise TransportError(f"Cannot connect to {where}: {str(error) or 'timed out'}.") from None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if endpoint.tls is None:
            return sock
        # Without a TLS goodbye, a body that ends with the connection may be cut off.
        return endpoint.tls.wrap_socket(sock, server_hostname=endpoint.host, suppress_ragged_eofs=False)
    except OSError as error:
        sock.close()
        raise TransportError(f"Cannot establish TLS with {where}: {error}.") from None


def _content_length(response: HTTPResponse) -> int | None:
    """The length of the body if the response has one; `http.client` ignores what it cannot read."""
    lengths = response.headers.get_all("content-length")
    if response.chunked or not lengths:
        return None
    length = lengths[0]
    if lengths != [length] * len(lengths) or not (length.isascii() and length.isdigit()):
        raise HTTPException(f"a content-length of {', '.join(lengths)[:40]!r}")
    if int(length) > MAX_BODY:
        raise too_large()
    return int(length)


def _time_left(ends: float | None, step: float | None) -> float | None:
    """How long a step with a limit of its own may take if everything must end at `ends`."""
    if ends is None:
        return step
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left if step is None else min(step, left)


def _wait(sock: socket.socket, timeout: float | None, *, writing: bool = False) -> bool:
    """Wait until the socket can be read or, if so asked, written; True if it can be read."""
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [sock] if writing else [], [], timeout)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN | (select.POLLOUT if writing else 0))
    ready = poll.poll(None if timeout is None else timeout * 1000)
    return bool(ready and ready[0][1] & ~select.POLLOUT)


@contextlib.contextmanager
def _errors(connection: _Connection) -> Iterator[None]:
    """Close the connection on any error, and raise those of the network as `TransportError`."""
    try:
        yield
    except BaseException as error:
        connection.discard()
        if isinstance(error, TimeoutError):
            raise TransportError("The server did not answer in time.") from None
        if isinstance(error, (OSError, IncompleteRead)):
            raise TransportError(f"The connection broke: {error}.") from None
        if isinstance(error, (HTTPException, ValueError)):
            raise TransportError(f"The server sent a malformed response: {error!r}.", phase="response") from None
        raise


def _close_all(idle: deque[_Connection]) -> None:
    while idle:
        with contextlib.suppress(IndexError):
            idle.pop().discard()
