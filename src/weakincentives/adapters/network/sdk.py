"""Requests through the vendor's own client, for clients that carry more than settings."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from weakincentives.adapters.network.transport import (
    BodyDecoder,
    ClientStream,
    EventReader,
    Response,
    TransportError,
    end_of,
    within,
)
from weakincentives.adapters.network.wire import EncodedRequest


class SdkTransport:
    """Sends bodies through an SDK client, bypassing its typed models, whose cost is quadratic in the conversation.

    The client's own retries are off. Bodies are always streamed, so that their size and the time they take are bounded.
    """

    def __init__(self, client: Any, sdk: Any, path: str, method: str = "POST") -> None:
        self._client = client
        self._send = client.post if method == "POST" else client.get
        self._sdk = sdk
        self._path = path
        self._blocks = not inspect.iscoroutinefunction(client.post)
        self._process: int | None = None

    async def open(
        self, request: EncodedRequest, timeout: float | None, *, whole: bool, awaits: bool
    ) -> Response | ClientStream:
        if not self._blocks and not awaits:
            name = type(self._client).__name__
            raise TransportError(
                f"the client is an {name} with a transport of its own, which only evaluate_async can use; "
                f"pass {name.removeprefix('Async')}(...) or call evaluate_async",
                retryable=False,
            )
        ends = end_of(timeout)

        async def opened() -> Response | ClientStream:
            response = await self._post(request, timeout)
            streams = response.status_code == 200 and not whole
            batches = self._body(response, EventReader().feed if streams else lambda data: [data])
            end = response.close if self._blocks else response.aclose
            stream = ClientStream(batches, end, self._errors, self._blocks, awaits)
            return stream if streams else Response(response.status_code, _headers(response), await _whole(stream, ends))

        try:
            return await within(timeout, opened, blocks=self._blocks, awaits=awaits)
        except Exception as error:
            raise self._errors(error) from None

    async def _post(self, request: EncodedRequest, timeout: float | None) -> Any:
        kind = self._sdk.Stream if self._blocks else self._sdk.AsyncStream
        try:
            response = self._send(self._path, **self._arguments(request, timeout), stream_cls=kind)
            return response if self._blocks else await response
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
        body = {"body": msgspec.json.decode(request.body())} if request.pieces else {}
        return {"cast_to": httpx2.Response, **body, "options": options, "stream": True}

    async def _body(self, response: Any, feed: Callable[[bytes], list[bytes]]) -> AsyncGenerator[list[bytes], None]:
        """Feed the body, decompressed and bounded; one of the user's hooks may have read it already."""
        if response.is_stream_consumed:
            yield feed(response.content)
            return
        decoder = BodyDecoder(_headers(response))
        if self._blocks:
            for data in response.iter_raw():
                yield feed(decoder.decode(data))
        else:
            async for data in response.aiter_raw():
                yield feed(decoder.decode(data))
        decoder.finish()

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
                f"set {name.upper()}_API_KEY or pass client= with a key; the {name} client has none", retryable=False
            )
        return error


async def _whole(stream: ClientStream, ends: float | None) -> bytearray:
    body = bytearray()
    try:
        async for (data,) in stream.batches:
            body += data
            if stream.blocks and ends is not None and time.monotonic() > ends:
                break
    finally:
        await stream.finish()
    return body


def _headers(response: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}
