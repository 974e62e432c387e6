"""Async requests, on aiohttp."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncGenerator, Awaitable
from functools import lru_cache
from typing import Any, TypeVar

from weakincentives._imports import import_extra
from weakincentives.adapters.network.endpoint import Endpoint
from weakincentives.adapters.network.transport import BodyDecoder, EventReader, Response, TransportError
from weakincentives.adapters.network.wire import EncodedRequest

ResultT = TypeVar("ResultT")

IDLE_SECONDS = 60.0
LARGE_BODY = 1 << 20


class AwaitedTransport:
    """Keeps idle connections to one endpoint, for any number of tasks on any number of event loops.

    An aiohttp session belongs to one event loop. Each loop gets its own, which is closed with the loop, or earlier if
    the transport is closed or garbage-collected.
    """

    def __init__(self, endpoint: Endpoint, extra: str) -> None:
        self._endpoint = endpoint
        self._extra = extra
        self._sessions: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[Any, None]]] = {}

    async def open(self, request: EncodedRequest, timeout: float | None, *, whole: bool) -> Response | AwaitedStream:
        """Send a request; the response is read to its end if it is not 200 or must be `whole`."""
        return await _bounded(self._open(request, whole), timeout)

    def close(self) -> None:
        """Close the sessions; each event loop does so as soon as it runs and no request needs the session."""
        self._sessions.clear()

    async def _open(self, request: EncodedRequest, whole: bool) -> Response | AwaitedStream:
        body = await self._post(request)
        if body.status == 200 and not whole:
            return AwaitedStream(body)
        content = bytearray()
        while data := await body.read():
            content += data
        return Response(body.status, body.headers, content)

    async def _post(self, request: EncodedRequest) -> _Body:
        (session, keeper), body = await self._session(), request.body()
        small, large = _upload_types()
        # aiohttp sends a large body in parts, and warns if it gets one as bytes.
        upload = small(body) if len(body) < LARGE_BODY else large(io.BytesIO(body))
        url = _url(self._endpoint.url)
        try:
            response = await session.post(url, data=upload, headers=request.headers, allow_redirects=False)
        except BaseException:
            if upload.transport is not None:
                upload.transport.abort()
            raise
        return _Body(response, keeper)

    async def _session(self) -> tuple[Any, AsyncGenerator[Any, None]]:
        loop = asyncio.get_running_loop()
        found = self._sessions.get(loop)
        if found is None:
            for known in [known for known in self._sessions if known.is_closed()]:
                del self._sessions[known]
            keeper = _session_of_loop(self._endpoint, self._extra)
            found = self._sessions[loop] = await anext(keeper), keeper
        return found


class AwaitedStream:
    """A response that is still arriving."""

    def __init__(self, body: _Body) -> None:
        self._body = body
        self._reader = EventReader()

    async def read(self, timeout: float | None) -> list[bytes] | None:
        return await _bounded(self._next(), timeout)

    async def close(self) -> None:
        self._body.close()

    async def _next(self) -> list[bytes] | None:
        while data := await self._body.read():
            if events := self._reader.feed(data):
                return events
        return None


class _Body:
    """The body of a response, decompressed and bounded; on an error, the connection is closed.

    It keeps a reference to its session's `keeper`, so that the session is not closed while the body arrives.
    """

    def __init__(self, response: Any, keeper: AsyncGenerator[Any, None]) -> None:
        self.response = response
        self.keeper = keeper
        self.status: int = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._ended = False
        # aiohttp does not wake a task waiting for a body if the rest turns out to be malformed.
        self._closed: asyncio.Future[None] | None = response.connection and response.connection.protocol.closed
        if self._closed is not None:
            self._closed.add_done_callback(self._wake)
        # A body without a length ends with the connection, which TLS must then close properly.
        self._tls: ssl.SSLObject | None = None
        if "content-length" not in self.headers and "transfer-encoding" not in self.headers and response.connection:
            self._tls = response.connection.transport.get_extra_info("ssl_object")
        try:
            self._decoder = BodyDecoder(self.headers)
        except TransportError:
            self.close()
            raise

    async def read(self) -> bytes:
        """The next part, or nothing at the end."""
        decoded = b""
        try:
            while not decoded and not self._ended:
                data = await self.response.content.readany()
                decoded = self._decoder.decode(data)
                self._ended = not data
            if self._ended:
                self._stop_watching()
                if self.response.connection is not None:
                    # The response arrived before the whole request was sent, and the server will not read the rest.
                    self.close()
                self._decoder.finish()
                self._check_tls_end()
        except BaseException:
            self.close()
            raise
        return decoded

    def close(self) -> None:
        self._stop_watching()
        connection = self.response.connection
        transport = connection and connection.transport
        self.response.close()
        if transport is not None:
            # Merely closing a transport waits until the server has read what was sent.
            transport.abort()

    def _wake(self, closed: asyncio.Future[None]) -> None:
        _retrieve(closed)
        content = self.response.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(ConnectionResetError("the response is malformed or cut off"))

    def _stop_watching(self) -> None:
        closed, self._closed = self._closed, None
        if closed is not None:
            closed.remove_done_callback(self._wake)
            # The connection may be kept alive and break much later.
            closed.remove_done_callback(_retrieve)
            closed.add_done_callback(_retrieve)

    def _check_tls_end(self) -> None:
        try:
            if self._tls is not None:
                self._tls.read(1)
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError:
            raise TransportError("The connection broke: TLS was not closed properly.") from None


def _retrieve(closed: asyncio.Future[None]) -> None:
    """Keep asyncio from reporting the error of a connection that nobody is waiting for."""
    if not closed.cancelled():
        closed.exception()


async def _session_of_loop(endpoint: Endpoint, extra: str) -> AsyncGenerator[Any, None]:
    """Yield a session. An event loop closes its async generators before it ends, and this one closes its session."""
    aiohttp: Any = import_extra("aiohttp", extra, "An async request")
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ssl=endpoint.tls or True),
        headers=endpoint.headers,
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=endpoint.connect_timeout, sock_read=endpoint.read_timeout
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
    try:
        yield session
    finally:
        await session.close()


async def _bounded(work: Awaitable[ResultT], timeout: float | None) -> ResultT:
    """Limit the time of a step, and raise network errors as `TransportError`."""
    try:
        if timeout is None:
            return await work
        async with asyncio.timeout(timeout):
            return await work
    except TimeoutError:
        raise TransportError("The server did not answer in time.") from None
    except OSError as error:
        raise TransportError(f"The connection broke: {error}.") from None
    except (TransportError, ImportError):
        raise
    except Exception as error:
        import aiohttp

        if isinstance(error, (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)):
            raise TransportError(f"The connection broke: {error}.") from None
        if isinstance(error, (aiohttp.ClientError, aiohttp.http.HttpProcessingError, ValueError)):
            raise TransportError(f"The server sent a malformed response: {error!r}.", phase="response") from None
        raise


@lru_cache(maxsize=1)
def _upload_types() -> tuple[Any, Any]:
    """aiohttp's payloads for bytes and for files, extended to remember the transport they are written to.

    When a request is cancelled, aiohttp only closes its connection, which then stays open until the server has read
    what was sent. Aborting the transport ends it at once.
    """
    from aiohttp import payload

    class Upload:
        transport: asyncio.Transport | None = None

        async def write_with_length(self, writer: Any, content_length: int | None) -> None:
            self.transport = writer.transport
            await super().write_with_length(writer, content_length)  # type: ignore[misc]

    return type("SmallUpload", (Upload, payload.BytesPayload), {}), type(
        "LargeUpload", (Upload, payload.BytesIOPayload), {}
    )


@lru_cache(maxsize=64)
def _url(text: str) -> Any:
    """A URL that is sent exactly as written."""
    import yarl

    return yarl.URL(text, encoded=True)
