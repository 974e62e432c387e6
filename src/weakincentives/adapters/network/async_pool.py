"""Kept-alive connections to one endpoint for asyncio.

The sockets are plain non-blocking ones that no event loop owns while they wait: a connection made under one
`asyncio.run` serves the next, and none is left behind half-closed when a loop ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from weakincentives.adapters.network.endpoint import Endpoint
from weakincentives.adapters.network.http1 import ResponseParser
from weakincentives.adapters.network.pool import IDLE_SECONDS, MAX_IDLE, RECEIVE, readable, translated, within
from weakincentives.adapters.network.transport import EventReader, Response, TransportError
from weakincentives.adapters.network.wire import EncodedRequest


class AsyncPool:
    """Connections that wait for their next request, for any number of tasks and loops."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._idle: deque[tuple[_Connection, float]] = deque()
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    async def send(self, request: EncodedRequest, timeout: float | None) -> Response:
        """Send a request and read the whole answer."""
        connection, incoming = await self._begin(request, timeout)
        return await self._finish(connection, incoming)

    async def open(self, request: EncodedRequest, timeout: float | None) -> Response | AsyncPooledStream:
        """Send a request and hand out the answer as it arrives; anything but 200 is read to its end."""
        connection, incoming = await self._begin(request, timeout)
        if incoming.status == 200:
            return AsyncPooledStream(self, connection, incoming)
        return await self._finish(connection, incoming)

    def close(self) -> None:
        """Close every connection that waits."""
        _close_all(self._idle)

    async def _begin(self, request: EncodedRequest, timeout: float | None) -> tuple[_Connection, ResponseParser]:
        data = self.endpoint.request(request)
        ends = None if timeout is None else time.monotonic() + timeout
        reuse = True
        while True:
            waiting = self._waiting() if reuse else None
            connection = waiting or await self._connect(ends)
            connection.ends = ends
            incoming = ResponseParser()
            try:
                await connection.exchange(data, incoming)
                return connection, incoming
            except BaseException as error:
                connection.discard()
                if waiting and not incoming.started and isinstance(error, (TransportError, ConnectionError)):
                    reuse = False
                    continue
                raise translated(error) from None

    async def _finish(self, connection: _Connection, incoming: ResponseParser) -> Response:
        try:
            while not incoming.done:
                await connection.receive(incoming)
        except BaseException as error:
            connection.discard()
            raise translated(error) from None
        self._release(connection, incoming)
        return Response(incoming.status, incoming.headers, incoming.body)

    def _waiting(self) -> _Connection | None:
        while self._idle:
            connection, since = self._idle.pop()
            if time.monotonic() - since < IDLE_SECONDS and not readable(connection.sock):
                return connection
            connection.discard()
        return None

    async def _connect(self, ends: float | None) -> _Connection:
        endpoint = self.endpoint
        try:
            async with asyncio.timeout(within(ends, endpoint.connect_timeout)):
                sock = await _connected(endpoint.host, endpoint.port)
                connection = _Connection(sock, endpoint)
                try:
                    if endpoint.tls is not None:
                        await connection.secure(endpoint.tls, endpoint.host)
                except BaseException:
                    connection.discard()
                    raise
                return connection
        except OSError as error:
            reason = str(error) or "timed out"
            raise TransportError(f"Cannot connect to {endpoint.host}:{endpoint.port}: {reason}.") from None

    def _release(self, connection: _Connection, incoming: ResponseParser) -> None:
        if not incoming.keep_alive or len(self._idle) >= MAX_IDLE:
            connection.discard()
            return
        now = time.monotonic()
        self._idle.append((connection, now))
        if now - self._idle[0][1] > IDLE_SECONDS:
            self._idle.popleft()[0].discard()


class AsyncPooledStream:
    """An answer that is still arriving on a pooled connection."""

    def __init__(self, pool: AsyncPool, connection: _Connection, incoming: ResponseParser) -> None:
        self._pool = pool
        self._connection: _Connection | None = connection
        self._incoming = incoming
        self._reader = EventReader()

    async def read(self, timeout: float | None) -> list[bytes] | None:
        incoming, connection = self._incoming, self._connection
        events = self._reader.feed(incoming.take())
        while not events:
            if incoming.done or connection is None:
                await self.close()
                return None
            try:
                connection.ends = None if timeout is None else time.monotonic() + timeout
                await connection.receive(incoming)
            except BaseException as error:
                await self.close()
                raise translated(error) from None
            events = self._reader.feed(incoming.take())
        return events

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._incoming.done:
            self._pool._release(connection, self._incoming)
        else:
            connection.discard()


class _Connection:
    """A non-blocking socket, with TLS in memory where the endpoint asks for it."""

    __slots__ = ("_endpoint", "_from_wire", "_tls", "_to_wire", "ends", "sock")

    def __init__(self, sock: socket.socket, endpoint: Endpoint) -> None:
        self.sock = sock
        self.ends: float | None = None
        self._endpoint = endpoint
        self._tls: ssl.SSLObject | None = None

    async def secure(self, context: ssl.SSLContext, host: str) -> None:
        self._from_wire, self._to_wire = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._from_wire, self._to_wire, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            else:
                await self._flush()
                return

    async def exchange(self, data: bytes, incoming: ResponseParser) -> None:
        """Send, and read until the head of the answer is there."""
        async with asyncio.timeout(within(self.ends, self._endpoint.read_timeout)):
            if self._tls is None:
                await asyncio.get_running_loop().sock_sendall(self.sock, data)
            else:
                self._tls.write(data)
                await self._flush()
            while not incoming.status:
                incoming.feed(await self._received())

    async def receive(self, incoming: ResponseParser) -> None:
        """Read once more."""
        async with asyncio.timeout(within(self.ends, self._endpoint.read_timeout)):
            incoming.feed(await self._received())

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.close()

    async def _received(self) -> bytes:
        if self._tls is None:
            return await asyncio.get_running_loop().sock_recv(self.sock, RECEIVE)
        while True:
            try:
                return self._tls.read(RECEIVE)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLZeroReturnError:
                return b""

    async def _fill(self) -> None:
        data = await asyncio.get_running_loop().sock_recv(self.sock, RECEIVE)
        if not data:
            raise ConnectionResetError("the server closed the TLS connection")
        self._from_wire.write(data)

    async def _flush(self) -> None:
        if self._to_wire.pending:
            await asyncio.get_running_loop().sock_sendall(self.sock, self._to_wire.read())


async def _connected(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    failure: OSError = OSError(f"no address for {host}")
    for family, kind, protocol, _, address in await _addresses(host, port):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
            return sock
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


async def _addresses(host: str, port: int) -> Sequence[tuple[int, int, int, str, tuple[Any, ...]]]:
    with contextlib.suppress(OSError):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _close_all(idle: deque[tuple[_Connection, float]]) -> None:
    while idle:
        idle.pop()[0].discard()
