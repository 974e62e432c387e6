"""Requests through the vendor's own client, for clients that carry more than settings."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, TypeVar

import msgspec

from weakincentives.adapters.network.transport import (
    AsyncIteratedStream,
    AsyncStream,
    BodyDecoder,
    EventReader,
    IteratedStream,
    Response,
    Stream,
    TransportError,
    end_of,
    within,
)
from weakincentives.adapters.network.wire import EncodedRequest

FedT = TypeVar("FedT")


class SdkTransport:
    """Posts bodies through an SDK client, bypassing its typed models, whose cost is quadratic in the conversation.

    The client's own retries are off. Bodies are always streamed, so that their size and the time they take are bounded.
    """

    def __init__(self, client: Any, sdk: Any, path: str, *, awaits: bool) -> None:
        self._client = client
        self._sdk = sdk
        self._path = path
        self._awaits = awaits
        self._process: int | None = None

    def open(self, request: EncodedRequest, timeout: float | None, *, whole: bool) -> Response | Stream:
        ends = end_of(timeout)

        def opened() -> Response | Stream:
            response = self._post(request, timeout)
            if response.status_code == 200 and not whole:
                return IteratedStream(_body(response, EventReader().feed), response.close, self._errors)
            return _finish(response, ends, self._errors)

        return within(timeout, opened)

    async def open_async(
        self, request: EncodedRequest, timeout: float | None, *, whole: bool
    ) -> Response | AsyncStream:
        if not self._awaits:
            opened = await asyncio.to_thread(self.open, request, timeout, whole=whole)
            return opened if isinstance(opened, Response) else _ThreadedStream(opened)
        try:
            async with asyncio.timeout(timeout):
                response = await self._post_async(request, timeout)
                if response.status_code == 200 and not whole:
                    return AsyncIteratedStream(_body_async(response, EventReader().feed), response.aclose, self._errors)
                return await _finish_async(response)
        except Exception as error:
            raise self._errors(error) from None

    def _post(self, request: EncodedRequest, timeout: float | None) -> Any:
        if self._awaits:
            name = type(self._client).__name__
            raise TransportError(
                f"the client is an {name} with a transport of its own, which only evaluate_async can use; "
                f"pass {name.removeprefix('Async')}(...) or call evaluate_async",
                retryable=False,
            )
        arguments = self._arguments(request, timeout)
        try:
            return self._client.post(self._path, **arguments, stream_cls=self._sdk.Stream)
        except Exception as error:
            if isinstance(error, self._sdk.APIStatusError):
                return error.response
            raise self._errors(error) from None

    async def _post_async(self, request: EncodedRequest, timeout: float | None) -> Any:
        arguments = self._arguments(request, timeout)
        try:
            return await self._client.post(self._path, **arguments, stream_cls=self._sdk.AsyncStream)
        except self._sdk.APIStatusError as error:
            return error.response

    def _arguments(self, request: EncodedRequest, timeout: float | None) -> dict[str, Any]:
        import httpx2

        self._process = self._process or os.getpid()
        if self._process != os.getpid():
            raise TransportError(
                "the client shares its connections with the parent process; create the client and the adapter in "
                "the child",
                retryable=False,
            )
        options: dict[str, Any] = {"max_retries": 0, "headers": {**request.headers, "accept-encoding": "identity"}}
        if timeout is not None:
            own = getattr(self._client.timeout, "read", self._client.timeout)
            options["timeout"] = timeout if own is None else min(timeout, own)
        body = msgspec.json.decode(request.body())
        return {"cast_to": httpx2.Response, "body": body, "options": options, "stream": True}

    def _errors(self, error: Exception) -> Exception:
        """The error as a `TransportError` if it comes from the network; an error from the user's code is unchanged."""
        name = self._sdk.__name__
        if isinstance(error, TransportError):
            return error
        if isinstance(error, (TimeoutError, self._sdk.APITimeoutError)) or type(error).__name__.endswith("Timeout"):
            return TransportError("the server did not answer in time")
        if isinstance(error, self._sdk.APIConnectionError):
            cause = error.__cause__
            unsendable = type(cause).__name__ == "LocalProtocolError"
            return TransportError(f"the connection failed: {cause or error}", retryable=not unsendable)
        if isinstance(error, OSError) or any(kind.__name__ == "TransportError" for kind in type(error).__mro__):
            return TransportError(f"the connection broke: {error}")
        if isinstance(error, UnicodeEncodeError):
            return TransportError(
                f"the {name} client has a key or header that is not ASCII: {error.reason}", retryable=False
            )
        if type(error).__module__.startswith(name):
            return TransportError(f"the {name} client refused the request: {error}", retryable=False)
        if isinstance(error, TypeError) and "authentication method" in str(error):
            # Anthropic's client can be created without a key, and fails only when it sends a request.
            return TransportError(
                f"the {name} client has no key; set {name.upper()}_API_KEY or pass client= with one", retryable=False
            )
        return error


class _ThreadedStream:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def read(self, timeout: float | None) -> list[bytes] | None:
        return await asyncio.to_thread(self._stream.read, timeout)

    async def close(self) -> None:
        await asyncio.to_thread(self._stream.close)


def _finish(response: Any, ends: float | None, errors: Callable[[Exception], Exception]) -> Response:
    body = bytearray()
    try:
        for data in _body(response, bytes):
            body += data
            if ends is not None and time.monotonic() > ends:
                break
    except Exception as error:
        raise errors(error) from None
    finally:
        response.close()
    return Response(response.status_code, _headers(response), body)


async def _finish_async(response: Any) -> Response:
    try:
        body = b"".join([data async for data in _body_async(response, bytes)])
        return Response(response.status_code, _headers(response), body)
    finally:
        await response.aclose()


def _body(response: Any, feed: Callable[[bytes], FedT]) -> Iterator[FedT]:
    """What `feed` returns for the body, decompressed and bounded; one of the user's hooks may have read it already."""
    if response.is_stream_consumed:
        yield feed(response.content)
        return
    decoder = BodyDecoder(_headers(response))
    for data in response.iter_raw():
        yield feed(decoder.decode(data))
    decoder.finish()


async def _body_async(response: Any, feed: Callable[[bytes], FedT]) -> AsyncGenerator[FedT, None]:
    if response.is_stream_consumed:
        yield feed(response.content)
        return
    decoder = BodyDecoder(_headers(response))
    async for data in response.aiter_raw():
        yield feed(decoder.decode(data))
    decoder.finish()


def _headers(response: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}
