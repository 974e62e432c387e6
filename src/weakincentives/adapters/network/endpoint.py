"""Where requests go, and what an HTTP request head looks like there."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from weakincentives.adapters.network.wire import EncodedRequest


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address with everything that a vendor's client says about reaching it."""

    host: str
    port: int
    target: str
    headers: Mapping[str, str] = field(repr=False)
    tls: ssl.SSLContext | None = None
    connect_timeout: float | None = None
    read_timeout: float | None = None
    start: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", self._head())

    def request(self, request: EncodedRequest) -> bytes:
        """The whole request as it goes over the wire."""
        length = sum(map(len, request.pieces))
        extra = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items()).encode("latin-1")
        return b"".join((self.start, extra, b"content-length: %d\r\n\r\n" % length, *request.pieces))

    def _head(self) -> bytes:
        default_port = 443 if self.tls else 80
        name = f"[{self.host}]" if ":" in self.host else self.host
        host = name if self.port == default_port else f"{name}:{self.port}"
        lines = [f"POST {self.target} HTTP/1.1", f"host: {host}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")
