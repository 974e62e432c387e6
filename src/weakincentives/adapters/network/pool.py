"""Kept-alive blocking connections to one endpoint."""

from __future__ import annotations

import contextlib
import select
import socket
import time
import weakref
from collections import deque

from weakincentives.adapters.network.endpoint import Endpoint
from weakincentives.adapters.network.http1 import ResponseParser
from weakincentives.adapters.network.transport import EventReader, Response, TransportError
from weakincentives.adapters.network.wire import EncodedRequest

RECEIVE = 64 * 1024
MAX_IDLE = 1000
IDLE_SECONDS = 60.0


class Pool:
    """Connections that wait for their next request; any number of threads may use it.

    A connection that died while it waited is noticed before it is used, or at the latest when it gives no answer at
    all: then the request is sent once more on a new one.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._idle: deque[tuple[socket.socket, float]] = deque()
        self._finalizer = weakref.finalize(self, close_all, self._idle)

    def send(self, request: EncodedRequest, timeout: float | None) -> Response:
        """Send a request and read the whole answer."""
        return self._finish(*self._begin(request, _Limit(self.endpoint, timeout)))

    def open(self, request: EncodedRequest, timeout: float | None) -> Response | PooledStream:
        """Send a request and hand out the answer as it arrives; anything but 200 is read to its end."""
        connection, incoming = self._begin(request, _Limit(self.endpoint, timeout))
        return (
            PooledStream(self, connection, incoming) if incoming.status == 200 else self._finish(connection, incoming)
        )

    def close(self) -> None:
        """Close every connection that waits."""
        close_all(self._idle)

    def _begin(self, request: EncodedRequest, limit: _Limit) -> tuple[_Connection, ResponseParser]:
        """Send the request and read until the head of the answer is there."""
        data = self.endpoint.request(request)
        reuse = True
        while True:
            waiting = self._waiting() if reuse else None
            incoming = ResponseParser()
            connection = _Connection(waiting or self._connect(limit), limit)
            try:
                connection.sock.settimeout(limit.left())
                connection.sock.sendall(data)
                while not incoming.status:
                    incoming.feed(connection.receive())
                return connection, incoming
            except BaseException as error:
                connection.discard()
                if waiting and not incoming.started and isinstance(error, (TransportError, ConnectionError)):
                    reuse = False
                    continue
                raise translated(error) from None

    def _finish(self, connection: _Connection, incoming: ResponseParser) -> Response:
        try:
            while not incoming.done:
                incoming.feed(connection.receive())
        except BaseException as error:
            connection.discard()
            raise translated(error) from None
        self._release(connection, incoming)
        return Response(incoming.status, incoming.headers, incoming.body)

    def _waiting(self) -> socket.socket | None:
        while self._idle:
            try:
                sock, since = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - since < IDLE_SECONDS and not readable(sock):
                return sock
            sock.close()
        return None

    def _connect(self, limit: _Limit) -> socket.socket:
        endpoint = self.endpoint
        try:
            sock = socket.create_connection((endpoint.host, endpoint.port), limit.to_connect())
        except OSError as error:
            raise TransportError(f"Cannot connect to {endpoint.host}:{endpoint.port}: {error}.") from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls is not None:
                return endpoint.tls.wrap_socket(sock, server_hostname=endpoint.host)
        except OSError as error:
            sock.close()
            raise TransportError(f"No TLS connection to {endpoint.host}:{endpoint.port}: {error}.") from None
        return sock

    def _release(self, connection: _Connection, incoming: ResponseParser) -> None:
        if not incoming.keep_alive or len(self._idle) >= MAX_IDLE:
            connection.discard()
            return
        now = time.monotonic()
        self._idle.append((connection.sock, now))
        if now - self._idle[0][1] > IDLE_SECONDS:
            self._idle.popleft()[0].close()


class PooledStream:
    """An answer that is still arriving on a pooled connection."""

    def __init__(self, pool: Pool, connection: _Connection, incoming: ResponseParser) -> None:
        self._pool = pool
        self._connection: _Connection | None = connection
        self._incoming = incoming
        self._reader = EventReader()

    def read(self, timeout: float | None) -> list[bytes] | None:
        incoming, connection = self._incoming, self._connection
        events = self._reader.feed(incoming.take())
        while not events:
            if incoming.done or connection is None:
                self.close()
                return None
            try:
                connection.limit = _Limit(self._pool.endpoint, timeout)
                incoming.feed(connection.receive())
            except BaseException as error:
                self.close()
                raise translated(error) from None
            events = self._reader.feed(incoming.take())
        return events

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._incoming.done:
            self._pool._release(connection, self._incoming)
        else:
            connection.discard()


class _Limit:
    """How long the steps of one request may take: the client's own timeouts, within what is left of the run."""

    __slots__ = ("_endpoint", "_ends")

    def __init__(self, endpoint: Endpoint, timeout: float | None) -> None:
        self._endpoint = endpoint
        self._ends = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        return within(self._ends, self._endpoint.read_timeout)

    def to_connect(self) -> float | None:
        return within(self._ends, self._endpoint.connect_timeout)


class _Connection:
    __slots__ = ("limit", "sock")

    def __init__(self, sock: socket.socket, limit: _Limit) -> None:
        self.sock = sock
        self.limit = limit

    def receive(self) -> bytes:
        self.sock.settimeout(self.limit.left())
        return self.sock.recv(RECEIVE)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.close()


def within(ends: float | None, step: float | None) -> float | None:
    """How long a step may take that has a limit of its own, when all must be over at `ends`."""
    if ends is None:
        return step
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left if step is None else min(step, left)


def readable(sock: socket.socket) -> bool:
    """Whether a waiting connection has something to say, which can only be goodbye."""
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def translated(error: BaseException) -> BaseException:
    """What a broken or silent connection is called here; anything else stays what it is."""
    if isinstance(error, TimeoutError):
        return TransportError("The server did not answer in time.")
    if isinstance(error, OSError):
        return TransportError(f"The connection broke: {error}.")
    return error


def close_all(idle: deque[tuple[socket.socket, float]]) -> None:
    """Close what waits."""
    while idle:
        with contextlib.suppress(IndexError, OSError):
            idle.pop()[0].close()
