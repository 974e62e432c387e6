"""Async connections, on asyncio's transports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

from weakincentives.adapters.network.connection import Connection, ResponseParser, time_left, track, unreachable
from weakincentives.adapters.network.endpoint import Endpoint

MAX_UNREAD = 256 * 1024
"""How many bytes of a body may wait to be read before the server has to."""


class AwaitedConnection(Connection, asyncio.Protocol):
    """A connection of one event loop."""

    _transport: asyncio.Transport

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._lost = self._paused = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._sock: socket.socket = transport.get_extra_info("socket")
        track(self)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.discard()
            return
        try:
            response.feed(data)
        except Exception as error:
            self._fail(error)
        if len(response.body) > MAX_UNREAD:
            self._transport.pause_reading()
            self._paused = True
        self._wake()

    def eof_received(self) -> None:
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        try:
            if tls is not None:
                tls.read(1)
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError:
            # Without TLS's closing message, a body that ends with the connection may have been cut off.
            self._fail(ConnectionResetError("TLS was not closed properly"))
            return
        self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._fail(error or ConnectionResetError("the server closed it before the response was complete"))

    def fileno(self) -> int:
        return -1 if self._lost else self._sock.fileno()

    def reusable(self) -> bool:
        response, self._response = self._response, None
        # With some of the request unsent, the response came early, and the server need not read the rest.
        kept = response is not None and response.keep_alive and self._failure is None
        return kept and not self._transport.get_write_buffer_size()

    def discard(self) -> None:
        self._response = self._failure = None
        with contextlib.suppress(OSError, TypeError):
            # Hangs up even if a child has a copy; uvloop's sockets cannot do this.
            self._sock.shutdown(socket.SHUT_RDWR)
        if not self._loop.is_closed():
            # Merely closing a transport waits until the server has read what was sent.
            self._transport.abort()

    def _send(self, message: bytes) -> None:
        self._transport.write(message)

    async def _receive(self, response: ResponseParser) -> None:
        if self._failure is not None:
            raise self._failure
        if self._paused:
            self._transport.resume_reading()
            self._paused = False
        left = self.time_left()
        unsent = self._transport.get_write_buffer_size()
        self._waiter = self._loop.create_future()
        timer = None if left is None else self._loop.call_later(left, self._wake, TimeoutError())
        try:
            await self._waiter
        except TimeoutError:
            if self._transport.get_write_buffer_size() >= unsent:
                raise
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self, error: Exception | None = None) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(error)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake()


async def connect(endpoint: Endpoint, ends: float | None) -> AwaitedConnection:
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    try:
        async with asyncio.timeout(time_left(ends, endpoint.connect_timeout)):
            found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        # One after the other: asyncio's happy eyeballs leave a socket open if they are cancelled.
        for *_, address in found:
            try:
                async with asyncio.timeout(time_left(ends, endpoint.connect_timeout)):
                    _, connection = await loop.create_connection(
                        lambda: AwaitedConnection(endpoint),
                        *address[:2],
                        ssl=endpoint.tls,
                        server_hostname=None if endpoint.tls is None else endpoint.host,
                    )
                return connection
            except OSError as error:
                failure = failure or error
    except OSError as error:
        failure = failure or error
    raise unreachable(endpoint, failure or OSError("no address")) from None
