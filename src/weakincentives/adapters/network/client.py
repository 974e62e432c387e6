"""The line to a vendor through the client object that the user gave, or that the SDK makes from the environment."""

from __future__ import annotations

import inspect
from typing import Any

from weakincentives.adapters.network.async_pool import AsyncPool
from weakincentives.adapters.network.endpoint import Endpoint
from weakincentives.adapters.network.pool import Pool
from weakincentives.adapters.network.sdk import SdkTransport
from weakincentives.adapters.network.transport import AsyncStream, Response, Stream
from weakincentives.adapters.network.vendor import endpoint, fingerprint
from weakincentives.adapters.network.wire import EncodedRequest

_REDIRECTS = (301, 302, 303, 307, 308)


class ClientTransport:
    """Our own connections where the client is plain, the client itself where it is not (or is sent elsewhere)."""

    def __init__(self, client: Any, sdk: Any, path: str, *, plain: tuple[type, ...]) -> None:
        self._client = client
        self._plain = plain
        self._path = path
        self._fallback = SdkTransport(client, sdk, path, awaits=inspect.iscoroutinefunction(client.post))
        self._known: tuple[object, ...] | None = None
        self._endpoint: Endpoint | None = None
        self._pool: Pool | None = None
        self._async_pool: AsyncPool | None = None
        self.refresh()

    @property
    def direct(self) -> bool:
        """Whether requests go over our own connections."""
        return self._endpoint is not None

    def refresh(self) -> None:
        """Take up what the user has changed on the client since."""
        current = fingerprint(self._client)
        if current == self._known:
            return
        self._known = current
        self.close()
        self._endpoint = found = endpoint(self._client, self._plain, self._path)
        self._pool = Pool(found) if found else None
        self._async_pool = AsyncPool(found) if found else None

    def send(self, request: EncodedRequest, timeout: float | None) -> Response:
        if self._pool is not None:
            response = self._pool.send(request, timeout)
            if response.status not in _REDIRECTS:
                return response
        return self._fallback.send(request, timeout)

    def open(self, request: EncodedRequest, timeout: float | None) -> Response | Stream:
        if self._pool is not None:
            opened = self._pool.open(request, timeout)
            if not isinstance(opened, Response) or opened.status not in _REDIRECTS:
                return opened
        return self._fallback.open(request, timeout)

    async def send_async(self, request: EncodedRequest, timeout: float | None) -> Response:
        if self._async_pool is not None:
            response = await self._async_pool.send(request, timeout)
            if response.status not in _REDIRECTS:
                return response
        return await self._fallback.send_async(request, timeout)

    async def open_async(self, request: EncodedRequest, timeout: float | None) -> Response | AsyncStream:
        if self._async_pool is not None:
            opened = await self._async_pool.open(request, timeout)
            if not isinstance(opened, Response) or opened.status not in _REDIRECTS:
                return opened
        return await self._fallback.open_async(request, timeout)

    def close(self) -> None:
        """Close the connections that wait; the client itself belongs to whoever made it."""
        if self._pool:
            self._pool.close()
        if self._async_pool:
            self._async_pool.close()
