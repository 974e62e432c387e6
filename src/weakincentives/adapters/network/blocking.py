"""Blocking connections, on sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl

from weakincentives.adapters.network.connection import (
    Connection,
    ResponseParser,
    time_left,
    track,
    unreachable,
    wait_for,
)
from weakincentives.adapters.network.endpoint import Endpoint

PIECE = 64 * 1024


class BlockingConnection(Connection):
    """A connection of one thread at a time."""

    def __init__(self, endpoint: Endpoint, sock: socket.socket) -> None:
        super().__init__(endpoint)
        self._sock = sock
        track(self)

    def fileno(self) -> int:
        return self._sock.fileno()

    def reusable(self) -> bool:
        response, self._response = self._response, None
        return response is not None and response.keep_alive and not self._answered

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            # Wakes a thread waiting for data, which closing alone does not, and hangs up even if a child has a copy.
            self._sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._sock.close()

    def _send(self, message: bytes) -> None:
        # Stops if the server responds before it has received everything.
        self._early, self._answered = b"", False
        view = memoryview(message)
        try:
            while view and not self._answered:
                self._sock.settimeout(self.time_left())
                view = view[self._sock.send(view) :]
                if view and wait_for(self, self.time_left(), writing=True):
                    self._receive_early()
        except (BrokenPipeError, ConnectionResetError):
            # The response may have arrived before the connection was closed.
            self._answered = True

    async def _receive(self, response: ResponseParser) -> None:
        data, self._early = self._early, b""
        if not data:
            self._sock.settimeout(self.time_left())
            data = self._sock.recv(PIECE)
        response.feed(data)

    def _receive_early(self) -> None:
        # A TLS connection may be readable only because of a session ticket.
        self._sock.settimeout(0)
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            self._early = self._sock.recv(PIECE)
            self._answered = True


async def connect(endpoint: Endpoint, ends: float | None) -> BlockingConnection:
    try:
        sock = socket.create_connection((endpoint.host, endpoint.port), time_left(ends, endpoint.connect_timeout))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls is not None:
                # Without TLS's closing message, a body that ends with the connection may have been cut off.
                sock = endpoint.tls.wrap_socket(sock, server_hostname=endpoint.host, suppress_ragged_eofs=False)
            return BlockingConnection(endpoint, sock)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise unreachable(endpoint, error) from None
