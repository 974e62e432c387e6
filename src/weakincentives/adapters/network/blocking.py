"""Blocking requests, on sockets; httptools, the parser of Node.js, reads the responses."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
import weakref
from collections import deque
from typing import Any

from weakincentives._imports import import_extra
from weakincentives.adapters.network.endpoint import Endpoint
from weakincentives.adapters.network.transport import (
    MAX_BODY,
    BodyDecoder,
    EventReader,
    Response,
    TransportError,
    end_of,
    too_large,
)
from weakincentives.adapters.network.wire import EncodedRequest

PIECE = 64 * 1024
MAX_IDLE = 1000
IDLE_SECONDS = 60.0
MAX_OVERHEAD = 1 << 20
"""How many bytes of a response may arrive without any of its body: headers, trailers, chunk sizes."""


class BlockingTransport:
    """Keeps idle connections to one endpoint, for any number of threads.

    A request is sent once: if the connection turns out to be dead, the request fails and the caller decides whether to
    send it again. A forked child shares the parent's connections and must never use them, so it starts with none.
    """

    def __init__(self, endpoint: Endpoint, extra: str) -> None:
        self._endpoint = endpoint
        self._parser = import_extra("httptools", extra, "A request").HttpResponseParser
        self._idle: deque[_Connection] = deque()
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def open(self, request: EncodedRequest, timeout: float | None, *, whole: bool) -> Response | BlockingStream:
        """Send a request; the response is read to its end if it is not 200 or must be `whole`."""
        message = self._endpoint.message(request)
        connection = self._connection(timeout)
        try:
            connection.post(message, self._parser)
            response = connection.response
            if response.status == 200 and not whole:
                return BlockingStream(self, connection)
            pieces: list[bytes] = []
            while data := connection.read():
                pieces.append(data)
            self.release(connection)
            return Response(response.status, response.headers, b"".join(pieces))
        except BaseException as error:
            connection.fail(error)
            raise

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

    def _connection(self, timeout: float | None) -> _Connection:
        ends = end_of(timeout)
        if self._pid != os.getpid():
            self._pid = os.getpid()
            _close_all(self._idle)
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            # An idle connection is readable only if the server has closed it.
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
        connection.ends = end_of(timeout)
        try:
            while data := connection.read():
                if events := self._reader.feed(data):
                    return events
        except BaseException as error:
            connection.fail(error)
            raise
        self._connection = None
        self._transport.release(connection)
        return None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.discard()


class _Connection:
    """A connection whose every operation ends by the request's deadline, and whose responses are bounded."""

    def __init__(self, endpoint: Endpoint, ends: float | None) -> None:
        self.ends = ends
        self.idle_since = 0.0
        self._read_timeout = endpoint.read_timeout
        self.sock = _connect(endpoint, ends)

    def post(self, message: bytes, parser: Any) -> None:
        """Send a request and read the head of the response."""
        self._early = b""
        self._answered = False
        self._send(message)
        self.response = _Response(parser)
        while not self.response.status:
            self._receive()
        self._decoder = BodyDecoder(self.response.headers)
        if int(self.response.headers.get("content-length", 0)) > MAX_BODY:
            raise too_large()

    def read(self) -> bytes:
        """The next part of the body, or nothing at its end."""
        response = self.response
        while True:
            if response.body:
                data, response.body = bytes(response.body), bytearray()
                if decoded := self._decoder.decode(data):
                    return decoded
            elif response.complete:
                response.free()
                self._decoder.finish()
                return b""
            else:
                self._receive()

    @property
    def reusable(self) -> bool:
        return self.response.keep_alive and not self.response.surplus and not self._answered

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            # Wakes a thread waiting for data, which closing alone does not.
            self.sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self.sock.close()

    def fail(self, error: BaseException) -> None:
        """Close the connection after an error; raise network errors as `TransportError`."""
        self.discard()
        if isinstance(error, TimeoutError):
            raise TransportError("The server did not answer in time.") from None
        if isinstance(error, OSError):
            raise TransportError(f"The connection broke: {error}.") from None
        if type(error).__module__.startswith("httptools"):
            raise TransportError(f"The server sent a malformed response: {error}.", phase="response") from None

    def _send(self, data: bytes) -> None:
        """Send, but stop if the server responds before it has received everything."""
        view = memoryview(data)
        try:
            while view and not self._answered:
                self.sock.settimeout(self._timeout())
                view = view[self.sock.send(view) :]
                if view and _wait(self.sock, self._timeout(), writing=True):
                    self._receive_early()
        except (BrokenPipeError, ConnectionResetError):
            # The response may have arrived before the connection was closed.
            self._answered = True

    def _receive(self) -> None:
        data, self._early = self._early, b""
        if not data:
            self.sock.settimeout(self._timeout())
            data = self.sock.recv(PIECE)
        self.response.feed(data)

    def _receive_early(self) -> None:
        # A TLS connection may be readable only because of a session ticket.
        self.sock.settimeout(0)
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            self._early = self.sock.recv(PIECE)
            self._answered = True

    def _timeout(self) -> float | None:
        return _time_left(self.ends, self._read_timeout)


class _Response:
    """One response, with the unread part of its body; the parser calls its `on_` methods."""

    __slots__ = ("_overhead", "_parser", "body", "complete", "headers", "keep_alive", "status", "surplus")

    def __init__(self, parser: Any) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False
        self.keep_alive = False
        self.surplus = False
        self._parser = parser(self)
        self._overhead = 0

    def feed(self, data: bytes) -> None:
        """Parse received data; empty data means that the server has closed the connection."""
        if not data:
            self._end()
            return
        self._overhead += len(data)
        self._parser.feed_data(data)
        if self._overhead > MAX_OVERHEAD:
            raise TransportError("The server sent headers without end.", phase="response")

    def free(self) -> None:
        """Drop the parser, which refers to this response, so that both are freed without the garbage collector."""
        self._parser = None

    def on_message_begin(self) -> None:
        self.surplus = self.complete

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
        self.complete = bool(self.status) and not {"content-length", "transfer-encoding"} & self.headers.keys()
        if not self.complete:
            raise ConnectionResetError("the server closed it before the response was complete")


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
        # Without TLS's closing message, a body that ends with the connection may have been cut off.
        return endpoint.tls.wrap_socket(sock, server_hostname=endpoint.host, suppress_ragged_eofs=False)
    except OSError as error:
        sock.close()
        raise TransportError(f"Cannot establish TLS with {where}: {error}.") from None


def _time_left(ends: float | None, step: float | None) -> float | None:
    """How long a step with its own limit may take if everything must end by `ends`."""
    if ends is None:
        return step
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left if step is None else min(step, left)


def _wait(sock: socket.socket, timeout: float | None, *, writing: bool = False) -> bool:
    """Wait until the socket is readable or, with `writing`, writable; True if it is readable."""
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [sock] if writing else [], [], timeout)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN | (select.POLLOUT if writing else 0))
    ready = poll.poll(None if timeout is None else timeout * 1000)
    return bool(ready and ready[0][1] & ~select.POLLOUT)


def _close_all(idle: deque[_Connection]) -> None:
    while idle:
        with contextlib.suppress(IndexError):
            idle.pop().discard()
