"""Awaited requests, on aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from functools import lru_cache
from typing import Any

from weakincentives._imports import import_extra
from weakincentives.adapters.network.endpoint import Endpoint
from weakincentives.adapters.network.transport import BodyDecoder, EventReader, Response, TransportError
from weakincentives.adapters.network.wire import EncodedRequest

IDLE_SECONDS = 60.0
LARGE_BODY = 1 << 20


class AwaitedTransport:
    """Keeps idle connections to one endpoint, for any number of tasks on any number of event loops.

    An aiohttp session belongs to one event loop. Each loop gets one of its own, which is closed with the loop, or
    before that when the transport is closed or forgotten.
    """

    def __init__(self, endpoint: Endpoint, extra: str) -> None:
        self._endpoint = endpoint
        self._extra = extra
        self._sessions: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[Any, None]]] = {}

    async def send(self, request: EncodedRequest, timeout: float | None) -> Response:
        """Send a request and read the whole response."""
        async with _errors(timeout):
            return await _finish(await self._post(request))

    async def open(self, request: EncodedRequest, timeout: float | None) -> Response | AwaitedStream:
        """Send a request and return the response as it arrives; anything but 200 is read to its end."""
        async with _errors(timeout):
            response = await self._post(request)
            return AwaitedStream(response) if response.status == 200 else await _finish(response)

    def close(self) -> None:
        """Close the sessions: their event loops do it as soon as they run."""
        self._sessions.clear()

    async def _post(self, request: EncodedRequest) -> Any:
        session, body = await self._session(), request.body()
        # aiohttp sends a large body in parts, and warns if it is given as bytes.
        data = body if len(body) < LARGE_BODY else io.BytesIO(body)
        url = _url(self._endpoint.url)
        return await session.post(url, data=data, headers=request.headers, allow_redirects=False)

    async def _session(self) -> Any:
        loop = asyncio.get_running_loop()
        found = self._sessions.get(loop)
        if found is None:
            for known in [known for known in self._sessions if known.is_closed()]:
                del self._sessions[known]
            keeper = _session_of_loop(self._endpoint, self._extra)
            found = self._sessions[loop] = await anext(keeper), keeper
        return found[0]


class AwaitedStream:
    """A response that is still arriving."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._body = _body(response)
        self._reader = EventReader()

    async def read(self, timeout: float | None) -> list[bytes] | None:
        async with _errors(timeout):
            async for data in self._body:
                if events := self._reader.feed(data):
                    return events
        return None

    async def close(self) -> None:
        self._response.close()
        await self._body.aclose()


async def _session_of_loop(endpoint: Endpoint, extra: str) -> AsyncGenerator[Any, None]:
    """Yields a session. An event loop closes its async generators before it ends, and this one its session."""
    aiohttp: Any = import_extra("aiohttp", extra, "An async request")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=endpoint.connect_timeout, sock_read=endpoint.read_timeout)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ssl=endpoint.tls or True)
    session = aiohttp.ClientSession(
        connector=connector,
        headers=endpoint.headers,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
    try:
        yield session
    finally:
        await session.close()


async def _finish(response: Any) -> Response:
    body = bytearray()
    async for data in _body(response):
        body += data
    return Response(response.status, _headers(response), body)


async def _body(response: Any) -> AsyncGenerator[bytes, None]:
    """The body, decompressed and bounded; the connection is closed unless it is read to its end."""
    try:
        decoder = BodyDecoder(_headers(response))
        tls = response.connection and response.connection.transport.get_extra_info("ssl_object")
        async for data in response.content.iter_any():
            if decoded := decoder.decode(data):
                yield decoded
        decoder.finish()
        if tls and response.content_length is None and "chunked" not in response.headers.get("transfer-encoding", ""):
            _check_goodbye(tls)
    except BaseException:
        response.close()
        raise
    response.release()


def _check_goodbye(tls: ssl.SSLObject) -> None:
    """Raise if TLS was not closed properly: a body that ends with the connection may then be cut off."""
    with contextlib.suppress(ssl.SSLZeroReturnError):
        tls.read(1)


def _headers(response: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


@contextlib.asynccontextmanager
async def _errors(timeout: float | None) -> AsyncIterator[None]:
    """Limit the time of a step, and raise the errors of the network as `TransportError`."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        raise TransportError("The server did not answer in time.") from None
    except OSError as error:
        raise TransportError(f"The connection broke: {error}.") from None
    except Exception as error:
        if isinstance(error, TransportError):
            raise
        import aiohttp

        if isinstance(error, (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)):
            raise TransportError(f"The connection broke: {error}.") from None
        if isinstance(error, (aiohttp.ClientError, aiohttp.http.HttpProcessingError, ValueError)):
            raise TransportError(f"The server sent a malformed response: {error!r}.", phase="response") from None
        raise


@lru_cache(maxsize=64)
def _url(text: str) -> Any:
    """A URL that is sent as it is written."""
    import yarl

    return yarl.URL(text, encoded=True)
