"""The way to a vendor: sends a request, hands back a response or an open stream."""

from __future__ import annotations

from typing import Protocol

from weakincentives.adapters.network.response import AsyncStream, Response, Stream
from weakincentives.adapters.network.wire import Outgoing


class Line(Protocol):
    """Every method raises `Failure` when no whole response arrives in time."""

    def send(self, outgoing: Outgoing, timeout: float | None) -> Response: ...

    def open(self, outgoing: Outgoing, timeout: float | None) -> Response | Stream: ...

    async def send_async(self, outgoing: Outgoing, timeout: float | None) -> Response: ...

    async def open_async(self, outgoing: Outgoing, timeout: float | None) -> Response | AsyncStream: ...
