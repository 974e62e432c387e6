"""Requests through LiteLLM's own functions, or a user's Router."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import msgspec

from weakincentives._imports import import_extra
from weakincentives.adapters.network import (
    AsyncStream,
    EncodedRequest,
    Response,
    Stream,
    TransportError,
    encode,
    within,
)

END = b"[DONE]"

# LiteLLM reads these while it is imported: do not fetch price lists, do not load a stray .env file.
_SETTINGS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_MODE": "PRODUCTION",
}


def litellm() -> Any:
    """The package, imported without the network."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    module: Any = import_extra("litellm", "litellm", "LiteLLMAdapter")
    module.suppress_debug_info = True
    return module


class LiteLLMTransport:
    """Calls `completion` and `acompletion` of the package or of a Router, with their own retries turned off."""

    def __init__(self, client: Any, options: Mapping[str, Any]) -> None:
        self._client = client
        self._options = {**options, "num_retries": 0, "max_retries": 0}

    def send(self, request: EncodedRequest, timeout: float | None) -> Response:
        try:
            arguments = self._arguments(request, timeout)
            return _whole(within(timeout, lambda: self._client.completion(**arguments)))
        except Exception as error:
            return _answer(error)

    def open(self, request: EncodedRequest, timeout: float | None) -> Response | Stream:
        try:
            arguments = self._arguments(request, timeout)
            return _Chunks(iter(within(timeout, lambda: self._client.completion(**arguments))))
        except Exception as error:
            return _answer(error)

    async def send_async(self, request: EncodedRequest, timeout: float | None) -> Response:
        try:
            return _whole(await self._client.acompletion(**self._arguments(request, timeout)))
        except Exception as error:
            return _answer(error)

    async def open_async(self, request: EncodedRequest, timeout: float | None) -> Response | AsyncStream:
        try:
            return _AwaitedChunks(aiter(await self._client.acompletion(**self._arguments(request, timeout))))
        except Exception as error:
            return _answer(error)

    def _arguments(self, request: EncodedRequest, timeout: float | None) -> dict[str, Any]:
        # Decoded for each request, since some of LiteLLM's providers change the messages they are given.
        arguments = {**self._options, **msgspec.json.decode(request.body())}
        if timeout is not None:
            arguments["timeout"] = timeout
        return arguments


class _Chunks:
    def __init__(self, chunks: Iterator[Any]) -> None:
        self._chunks = chunks
        self._ended = False

    def read(self, timeout: float | None) -> list[bytes] | None:
        return None if self._ended else within(timeout, self._next)

    def _next(self) -> list[bytes]:
        try:
            for chunk in self._chunks:
                return [_json(chunk)]
        except Exception as error:
            raise _failure(error) from None
        self._ended = True
        return [END]

    def close(self) -> None:
        """Close the response, so that the model stops writing."""
        if not self._ended and hasattr(self._chunks, "close"):
            self._chunks.close()
        self._ended = True


class _AwaitedChunks:
    def __init__(self, chunks: AsyncIterator[Any]) -> None:
        self._chunks = chunks
        self._ended = False

    async def read(self, timeout: float | None) -> list[bytes] | None:
        if self._ended:
            return None
        try:
            async with asyncio.timeout(timeout):
                async for chunk in self._chunks:
                    return [_json(chunk)]
        except Exception as error:
            raise _failure(error) from None
        self._ended = True
        return [END]

    async def close(self) -> None:
        if not self._ended and hasattr(self._chunks, "aclose"):
            await self._chunks.aclose()
        self._ended = True


def _json(model: Any) -> bytes:
    return encode(model.model_dump(exclude_none=True, mode="json"))


def _whole(completion: Any) -> Response:
    return Response(200, {}, _json(completion))


def _answer(error: Exception) -> Response:
    """LiteLLM's error for a status as that response; raises for any other error."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        raise _failure(error) from None
    headers = getattr(error, "litellm_response_headers", None) or getattr(
        getattr(error, "response", None), "headers", None
    )
    found = {str(name).lower(): str(value) for name, value in dict(headers or {}).items()}
    body = getattr(error, "body", None)
    code = getattr(error, "code", None)
    payload = {"error": {"message": str(error), "type": type(error).__name__, "code": code, "body": body}}
    return Response(status, found, encode(payload))


def _failure(error: Exception) -> Exception:
    if isinstance(error, TimeoutError):
        return TransportError("the server did not answer in time")
    if type(error).__module__.partition(".")[0] in ("litellm", "openai", "httpx", "httpx2", "aiohttp") or isinstance(
        error, OSError
    ):
        return TransportError(f"litellm failed: {error}")
    return error
