"""Requests over our own connections, blocking or on event loops."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator

from weakincentives._base.imports import import_extra
from weakincentives.adapters.network import awaited, blocking
from weakincentives.adapters.network.connection import Connection, Pool, network_error
from weakincentives.adapters.network.endpoint import Endpoint
from weakincentives.adapters.network.transport import EventReader, Response, TransportError, end_of
from weakincentives.adapters.network.wire import EncodedRequest

_REDIRECTS = (301, 302, 303, 307, 308)


class RedirectError(TransportError):
    """The server wants the request to be sent elsewhere."""

    def __init__(self, place: str) -> None:
        super().__init__(f"the server redirects to {place}; set base_url to where it is", retryable=False)


class OwnTransport:
    """Sends requests over our own connections, which follow no redirect.

    It keeps idle connections to one endpoint, for any number of threads, and of tasks on any number of event loops.

    An async connection belongs to one event loop. Each loop gets its own pool, which is closed with the loop, or
    earlier if the transport is closed or garbage-collected.
    """

    def __init__(self, endpoint: Endpoint, extra: str) -> None:
        self._endpoint = endpoint
        self._parser = import_extra("httptools", extra, "A request").HttpResponseParser
        self._start()

    async def open(
        self, request: EncodedRequest, timeout: float | None, *, whole: bool, awaits: bool
    ) -> Response | OwnStream:
        message, ends = self._endpoint.message(request), end_of(timeout)
        pool = await self._loop_pool() if awaits else self._pool
        connection = pool.take()
        if connection is None:
            connection = await (awaited.connect if awaits else blocking.connect)(self._endpoint, ends)
        connection.ends = ends
        try:
            response = await connection.post(message, self._parser)
            if response.status == 200 and not whole:
                return OwnStream(pool, connection)
            pieces: list[bytes] = []
            while data := await connection.read():
                pieces.append(data)
        except BaseException as error:
            connection.discard()
            raise network_error(error) or error from None
        pool.put(connection)
        if response.status in _REDIRECTS:
            raise RedirectError(response.headers.get("location", "nowhere"))
        return Response(response.status, response.headers, b"".join(pieces))

    def close(self) -> None:
        """Close the idle connections; those of event loops that run elsewhere as soon as these run."""
        self._finalizer()
        pools = self._pools
        self._start()
        with contextlib.suppress(RuntimeError, KeyError):
            pools[asyncio.get_running_loop()][0].close()

    def _start(self) -> None:
        self._pool = Pool()
        self._finalizer = weakref.finalize(self, self._pool.close)
        self._pools: dict[asyncio.AbstractEventLoop, tuple[Pool, AsyncGenerator[Pool, None]]] = {}

    async def _loop_pool(self) -> Pool:
        """The pool of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            for known in [known for known in self._pools if known.is_closed()]:
                self._pools.pop(known)[0].close()
            keeper = _kept_pool()
            self._pools[loop] = await anext(keeper), keeper
        return self._pools[loop][0]


class OwnStream:
    """A response that is still arriving."""

    def __init__(self, pool: Pool, connection: Connection) -> None:
        self._pool = pool
        self._connection: Connection | None = connection
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
        self._pool.put(connection)
        return None

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.discard()


async def _kept_pool() -> AsyncGenerator[Pool, None]:
    """Yield a pool. An event loop closes its async generators before it ends, and this one closes its pool."""
    pool = Pool()
    try:
        yield pool
    finally:
        pool.close()
        # Aborted transports close their sockets in the loop's next iteration.
        await asyncio.sleep(0)
