"""Blocking requests, on sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import weakref
from typing import Any

from weakincentives._imports import import_extra
from weakincentives.adapters.network.connection import (
    Pool,
    ResponseParser,
    network_error,
    time_left,
    track,
    unreachable,
    wait_for,
)
from weakincentives.adapters.network.endpoint import Endpoint
from weakincentives.adapters.network.transport import EventReader, Response, end_of
from weakincentives.adapters.network.wire import EncodedRequest

PIECE = 64 * 1024


class BlockingTransport:
    """Keeps idle connections to one endpoint, for any number of threads."""

    def __init__(self, endpoint: Endpoint, extra: str) -> None:
        self._endpoint = endpoint
        self._parser = import_extra("httptools", extra, "A request").HttpResponseParser
        self._start()

    def open(self, request: EncodedRequest, timeout: float | None, *, whole: bool) -> Response | BlockingStream:
        """Send a request; the response is read to its end if it is not 200 or must be `whole`."""
        message, pool, ends = self._endpoint.message(request), self._pool, end_of(timeout)
        connection = pool.take() or _Connection(self._endpoint, ends)
        connection.ends = ends
        try:
            response = connection.post(message, self._parser)
            if response.status == 200 and not whole:
                return BlockingStream(pool, connection)
            pieces: list[bytes] = []
            while data := connection.read():
                pieces.append(data)
        except BaseException as error:
            connection.discard()
            raise network_error(error) or error from None
        pool.put(connection, reusable=connection.reusable)
        return Response(response.status, response.headers, b"".join(pieces))

    def close(self) -> None:
        """Close every idle connection."""
        self._finalizer()
        self._start()

    def _start(self) -> None:
        self._pool: Pool[_Connection] = Pool()
        self._finalizer = weakref.finalize(self, self._pool.close)


class BlockingStream:
    """A response that is still arriving."""

    def __init__(self, pool: Pool[_Connection], connection: _Connection) -> None:
        self._pool = pool
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
            connection.discard()
            raise network_error(error) or error from None
        self._connection = None
        self._pool.put(connection, reusable=connection.reusable)
        return None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.discard()


class _Connection:
    """A connection whose every operation ends by the request's deadline."""

    def __init__(self, endpoint: Endpoint, ends: float | None) -> None:
        self.ends = ends
        self.idle_since = 0.0
        self._read_timeout = endpoint.read_timeout
        self._sock = _connect(endpoint, ends)
        track(self)

    def fileno(self) -> int:
        return self._sock.fileno()

    def post(self, message: bytes, parser: Any) -> ResponseParser:
        """Send a request and read the head of the response."""
        self._early = b""
        self._answered = False
        self._send(message)
        self._response = ResponseParser(parser)
        while not self._response.status:
            self._receive()
        return self._response

    def read(self) -> bytes:
        """The next part of the body, or nothing at its end."""
        while (data := self._response.read()) is None:
            self._receive()
        return data

    @property
    def reusable(self) -> bool:
        return self._response.keep_alive and not self._answered

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            # Wakes a thread waiting for data, which closing alone does not, and hangs up even if a child has a copy.
            self._sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._sock.close()

    def _send(self, data: bytes) -> None:
        """Send, but stop if the server responds before it has received everything."""
        view = memoryview(data)
        try:
            while view and not self._answered:
                self._sock.settimeout(self._timeout())
                view = view[self._sock.send(view) :]
                if view and wait_for(self, self._timeout(), writing=True):
                    self._receive_early()
        except (BrokenPipeError, ConnectionResetError):
            # The response may have arrived before the connection was closed.
            self._answered = True

    def _receive(self) -> None:
        data, self._early = self._early, b""
        if not data:
            self._sock.settimeout(self._timeout())
            data = self._sock.recv(PIECE)
        self._response.feed(data)

    def _receive_early(self) -> None:
        # A TLS connection may be readable only because of a session ticket.
        self._sock.settimeout(0)
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            self._early = self._sock.recv(PIECE)
            self._answered = True

    def _timeout(self) -> float | None:
        return time_left(self.ends, self._read_timeout)


def _connect(endpoint: Endpoint, ends: float | None) -> socket.socket:
    try:
        sock = socket.create_connection((endpoint.host, endpoint.port), time_left(ends, endpoint.connect_timeout))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls is None:
                return sock
            # Without TLS's closing message, a body that ends with the connection may have been cut off.
            return endpoint.tls.wrap_socket(sock, server_hostname=endpoint.host, suppress_ragged_eofs=False)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise unreachable(endpoint, error) from None
