"""Requests through the vendor's own client, for clients that carry more than settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec

from weakincentives.adapters.network.transport import AsyncStream, EventReader, Response, Stream, TransportError
from weakincentives.adapters.network.wire import EncodedRequest


class SdkTransport:
    """Posts bodies through an SDK client without its typed request and response models, whose cost grows with the
    square of the conversation; retries are ours, so the client's are off."""

    def __init__(self, client: Any, sdk: Any, path: str, *, awaits: bool) -> None:
        self._client = client
        self._sdk = sdk
        self._path = path
        self._awaits = awaits

    def send(self, request: EncodedRequest, timeout: float | None) -> Response:
        try:
            return _response(self._post(request, timeout, stream=False))
        except Exception as error:
            return self._answer(error)

    def open(self, request: EncodedRequest, timeout: float | None) -> Response | Stream:
        try:
            return _BlockingStream(self._post(request, timeout, stream=True), self._failure)
        except Exception as error:
            return self._answer(error)

    async def send_async(self, request: EncodedRequest, timeout: float | None) -> Response:
        if not self._awaits:
            return await asyncio.to_thread(self.send, request, timeout)
        try:
            return _response(await self._request(request, timeout, stream=False))
        except Exception as error:
            return self._answer(error)

    async def open_async(self, request: EncodedRequest, timeout: float | None) -> Response | AsyncStream:
        if not self._awaits:
            opened = await asyncio.to_thread(self.open, request, timeout)
            return opened if isinstance(opened, Response) else _ThreadedStream(opened)
        try:
            response = await self._request(request, timeout, stream=True)
            return _AwaitedStream(response, self._failure)
        except Exception as error:
            return self._answer(error)

    def _post(self, request: EncodedRequest, timeout: float | None, *, stream: bool) -> Any:
        if self._awaits:
            name = type(self._client).__name__
            raise TransportError(
                f"the client is an {name} with a transport of its own, which only evaluate_async can use; "
                f"pass {name.removeprefix('Async')}(...) or call evaluate_async",
                retryable=False,
            )
        return self._request(request, timeout, stream=stream)

    def _request(self, request: EncodedRequest, timeout: float | None, *, stream: bool) -> Any:
        options: dict[str, Any] = {"max_retries": 0}
        if request.headers:
            options["headers"] = dict(request.headers)
        if timeout is not None:
            own = getattr(self._client.timeout, "read", self._client.timeout)
            options["timeout"] = timeout if own is None else min(timeout, own)
        return self._client.post(
            self._path,
            cast_to=_response_type(),
            body=msgspec.json.decode(request.body()),
            options=options,
            stream=stream,
            **({"stream_cls": self._sdk.AsyncStream if self._awaits else self._sdk.Stream} if stream else {}),
        )

    def _answer(self, error: Exception) -> Response:
        """An error status as a response, a failure as a failure; what a user's own code raised goes on."""
        if isinstance(error, self._sdk.APIStatusError):
            return _response(error.response)
        raise self._failure(error) from None

    def _failure(self, error: Exception) -> Exception:
        if isinstance(error, self._sdk.APITimeoutError) or type(error).__name__.endswith("Timeout"):
            return TransportError("the server did not answer in time")
        if isinstance(error, self._sdk.APIConnectionError):
            cause = error.__cause__
            return TransportError(f"the connection failed: {cause or error}")
        if isinstance(error, OSError) or any(kind.__name__ == "TransportError" for kind in type(error).__mro__):
            return TransportError(f"the connection broke: {error}")
        if type(error).__module__.startswith(self._sdk.__name__):
            return TransportError(f"the {self._sdk.__name__} client refused the request: {error}", retryable=False)
        if isinstance(error, TypeError) and "authentication method" in str(error):
            # Anthropic's client is made without a key, and says so only when it is to send.
            name = self._sdk.__name__
            return TransportError(
                f"the {name} client has no key; set {name.upper()}_API_KEY or pass client= with one", retryable=False
            )
        return error


class _BlockingStream:
    def __init__(self, response: Any, failure: Callable[[Exception], Exception]) -> None:
        self._response = response
        self._pieces: Iterator[bytes] = response.iter_bytes()
        self._reader = EventReader()
        self._failure = failure

    def read(self, timeout: float | None) -> list[bytes] | None:
        try:
            for piece in self._pieces:
                events = self._reader.feed(piece)
                if events:
                    return events
        except Exception as error:
            raise self._failure(error) from None
        return None

    def close(self) -> None:
        self._response.close()


class _AwaitedStream:
    def __init__(self, response: Any, failure: Callable[[Exception], Exception]) -> None:
        self._response = response
        self._pieces: AsyncIterator[bytes] = response.aiter_bytes()
        self._reader = EventReader()
        self._failure = failure

    async def read(self, timeout: float | None) -> list[bytes] | None:
        try:
            async with asyncio.timeout(timeout):
                async for piece in self._pieces:
                    events = self._reader.feed(piece)
                    if events:
                        return events
        except Exception as error:
            raise self._failure(error) from None
        return None

    async def close(self) -> None:
        await self._response.aclose()


class _ThreadedStream:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def read(self, timeout: float | None) -> list[bytes] | None:
        return await asyncio.to_thread(self._stream.read, timeout)

    async def close(self) -> None:
        await asyncio.to_thread(self._stream.close)


def _response(raw: Any) -> Response:
    return Response(raw.status_code, {name.lower(): value for name, value in raw.headers.items()}, raw.content)


def _response_type() -> Any:
    import httpx2

    return httpx2.Response
