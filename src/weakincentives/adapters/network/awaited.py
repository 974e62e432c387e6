"""Async requests, on asyncio's transports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator
from typing import Any

from weakincentives._imports import import_extra
from weakincentives.adapters.network.connection import (
    Pool,
    ResponseParser,
    network_error,
    time_left,
    track,
    unreachable,
)
from weakincentives.adapters.network.endpoint import Endpoint
from weakincentives.adapters.network.transport import EventReader, Response, end_of
from weakincentives.adapters.network.wire import EncodedRequest

MAX_UNREAD = 256 * 1024
"""How many bytes of a body may wait to be read before the server has to."""


class AwaitedTransport:
    """Keeps idle connections to one endpoint, for any number of tasks on any number of event loops.

    A connection belongs to one event loop. Each loop gets its own pool, which is closed with the loop, or earlier if
    the transport is closed or garbage-collected.
    """

    def __init__(self, endpoint: Endpoint, extra: str) -> None:
        self._endpoint = endpoint
        self._parser = import_extra("httptools", extra, "A request").HttpResponseParser
        self._pools: dict[asyncio.AbstractEventLoop, tuple[Pool[_Connection], AsyncGenerator[Any, None]]] = {}

    async def open(self, request: EncodedRequest, timeout: float | None, *, whole: bool) -> Response | AwaitedStream:
        """Send a request; the response is read to its end if it is not 200 or must be `whole`."""
        message, ends = self._endpoint.message(request), end_of(timeout)
        kept = self._pools.get(asyncio.get_running_loop())
        pool = await self._start() if kept is None else kept[0]
        connection = pool.take() or await _connect(self._endpoint, ends)
        connection.ends = ends
        try:
            response = await connection.post(message, self._parser)
            if response.status == 200 and not whole:
                return AwaitedStream(pool, connection)
            pieces: list[bytes] = []
            while data := await connection.read():
                pieces.append(data)
        except BaseException as error:
            connection.discard()
            raise network_error(error) or error from None
        pool.put(connection, reusable=connection.reusable)
        return Response(response.status, response.headers, b"".join(pieces))

    def close(self) -> None:
        """Close the idle connections: now those of the running event loop, the others as soon as their loops run."""
        pools, self._pools = self._pools, {}
        with contextlib.suppress(RuntimeError, KeyError):
            pools[asyncio.get_running_loop()][0].close()

    async def _start(self) -> Pool[_Connection]:
        """A pool for the running event loop."""
        for known in [known for known in self._pools if known.is_closed()]:
            self._pools.pop(known)[0].close()
        keeper = _pool_of_loop()
        pool = await anext(keeper)
        self._pools[asyncio.get_running_loop()] = pool, keeper
        return pool


class AwaitedStream:
    """A response that is still arriving."""

    def __init__(self, pool: Pool[_Connection], connection: _Connection) -> None:
        self._pool = pool
        self._connection: _Connection | None = connection
        self._reader = EventReader()

    async def read(self, timeout: float | None) -> list[bytes] | None:
        connection = self._connection
        if connection is None:
            return None
        connection.ends = end_of(timeout)
        try:
            while data := await connection.read():
                if events := self._reader.feed(data):
                    return events
        except BaseException as error:
            connection.discard()
            raise network_error(error) or error from None
        self._connection = None
        self._pool.put(connection, reusable=connection.reusable)
        return None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.discard()


class _Connection(asyncio.Protocol):
    """A connection whose every wait ends by the request's deadline."""

    _transport: asyncio.Transport

    def __init__(self, endpoint: Endpoint) -> None:
        self.ends: float | None = None
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._read_timeout = endpoint.read_timeout
        self._response: ResponseParser | None = None
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
            self._wake()
            return
        self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._fail(error or ConnectionResetError("the server closed it before the response was complete"))
        self._wake()

    def fileno(self) -> int:
        return -1 if self._lost else self._sock.fileno()

    async def post(self, message: bytes, parser: Any) -> ResponseParser:
        """Send a request and read the head of the response."""
        response = self._response = ResponseParser(parser)
        self._transport.write(message)
        while not response.status:
            await self._receive()
        return response

    async def read(self) -> bytes:
        """The next part of the body, or nothing at its end."""
        assert self._response is not None
        while (data := self._response.read()) is None:
            await self._receive()
        return data

    @property
    def reusable(self) -> bool:
        """Whether the connection can be used again; ends its response."""
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

    async def _receive(self) -> None:
        """Wait until something has arrived."""
        if self._failure is not None:
            raise self._failure
        if self._paused:
            self._transport.resume_reading()
            self._paused = False
        left = time_left(self.ends, self._read_timeout)
        unsent = self._transport.get_write_buffer_size()
        self._waiter = self._loop.create_future()
        timer = None if left is None else self._loop.call_later(left, self._expire)
        try:
            await self._waiter
        except TimeoutError:
            if self._transport.get_write_buffer_size() >= unsent:
                raise
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _expire(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error


async def _connect(endpoint: Endpoint, ends: float | None) -> _Connection:
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
                        lambda: _Connection(endpoint),
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


async def _pool_of_loop() -> AsyncGenerator[Pool[_Connection], None]:
    """Yield a pool. An event loop closes its async generators before it ends, and this one closes its pool."""
    pool: Pool[_Connection] = Pool()
    try:
        yield pool
    finally:
        pool.close()
        # Aborted transports close their sockets in the loop's next iteration.
        await asyncio.sleep(0)
