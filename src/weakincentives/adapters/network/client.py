"""The transport for a vendor's client: our own connections if it only carries settings, else the client itself."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from weakincentives.adapters.network.awaited import AwaitedTransport
from weakincentives.adapters.network.blocking import BlockingTransport
from weakincentives.adapters.network.endpoint import Endpoint, endpoint, fingerprint
from weakincentives.adapters.network.sdk import SdkTransport
from weakincentives.adapters.network.transport import AsyncStream, Response, Stream, TransportError
from weakincentives.adapters.network.wire import EncodedRequest

OpenedT = TypeVar("OpenedT")

_REDIRECTS = (301, 302, 303, 307, 308)


class ClientTransport:
    """Sends requests for the user's client, or for the one the SDK creates from the environment."""

    def __init__(self, client: Any, sdk: Any, path: str, *, plain: tuple[type, ...]) -> None:
        self._client = client
        self._extra = sdk.__name__
        self._path = path
        self._plain = plain
        self._sdk = SdkTransport(client, sdk, path, awaits=inspect.iscoroutinefunction(client.post))
        self._known: tuple[object, ...] | None = None
        self._blocking: BlockingTransport | None = None
        self._awaited: AwaitedTransport | None = None
        self.refresh()

    @property
    def direct(self) -> bool:
        """Whether requests go over our own connections."""
        return self._blocking is not None

    def refresh(self) -> None:
        """Apply what the user has changed on the client since."""
        current = fingerprint(self._client)
        if current != self._known:
            self._known = current
            self._use(endpoint(self._client, self._plain, self._path))

    def send(self, request: EncodedRequest, timeout: float | None) -> Response:
        direct = self._blocking
        return self._checked(direct.send(request, timeout)) if direct else self._sdk.send(request, timeout)

    def open(self, request: EncodedRequest, timeout: float | None) -> Response | Stream:
        direct = self._blocking
        return self._checked(direct.open(request, timeout)) if direct else self._sdk.open(request, timeout)

    async def send_async(self, request: EncodedRequest, timeout: float | None) -> Response:
        direct = self._awaited
        if direct is None:
            return await self._sdk.send_async(request, timeout)
        return self._checked(await direct.send(request, timeout))

    async def open_async(self, request: EncodedRequest, timeout: float | None) -> Response | AsyncStream:
        direct = self._awaited
        if direct is None:
            return await self._sdk.open_async(request, timeout)
        return self._checked(await direct.open(request, timeout))

    def close(self) -> None:
        """Close the idle connections; the client itself belongs to whoever created it."""
        if self._blocking is not None:
            self._blocking.close()
        if self._awaited is not None:
            self._awaited.close()

    def _use(self, found: Endpoint | None) -> None:
        self.close()
        self._blocking = None if found is None else BlockingTransport(found, self._extra)
        self._awaited = None if found is None else AwaitedTransport(found, self._extra)

    def _checked(self, opened: OpenedT) -> OpenedT:
        """Leave redirects to the client: it follows them, and sends every later request."""
        if isinstance(opened, Response) and opened.status in _REDIRECTS:
            self._use(None)
            raise TransportError(
                f"the server redirects to {opened.headers.get('location', 'nowhere')}; set the client's base_url",
                wait=0.0,
            )
        return opened
