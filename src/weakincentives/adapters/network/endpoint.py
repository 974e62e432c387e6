"""The server that a vendor's client object is set to, and how to reach it.

This is the one module that reads private attributes of the SDKs, to find out whether a client carries only settings. A
client that does more, through a proxy, certificates, a transport, hooks, token providers, middleware or a subclass, has
no endpoint: requests then go through the client itself. So does every request if an SDK has changed.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode
from urllib.request import getproxies, proxy_bypass

from weakincentives.adapters.network.transport import TransportError
from weakincentives.adapters.network.wire import EncodedRequest

PRIVATE_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "openai": ("_client", "_api_key_provider", "_provider", "_provider_runtime"),
    "anthropic": ("_client",),
}
"""By SDK. The first holds the HTTP client, an instance of a class private to the SDK; the others default to None."""

_OWN_CLIENTS = ("SyncHttpxClientWrapper", "AsyncHttpxClientWrapper")
_SET_BY_HTTP = ("connection", "content-length", "transfer-encoding", "expect", "upgrade", "te")
_SECRET_HEADERS = ("auth", "key", "token", "cookie")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address, the beginning of each request to it, and the settings of the vendor's client that apply to it."""

    host: str
    port: int
    head: bytes = field(repr=False)
    tls: ssl.SSLContext | None = None
    connect_timeout: float | None = None
    read_timeout: float | None = None

    def message(self, request: EncodedRequest) -> bytes:
        """A request as HTTP/1.1 sends it."""
        try:
            headers = _header_lines(request.headers) if request.headers else b""
        except ValueError as error:
            raise TransportError(f"a header of the request cannot be sent: {error}", retryable=False) from None
        length = b"content-length: %d\r\n\r\n" % sum(map(len, request.pieces))
        return b"".join((self.head, headers, length, *request.pieces))


def endpoint(client: Any, plain: tuple[type, ...], path: str) -> Endpoint | None:
    """Where a client of exactly one of these types posts this path; None if requests must go through the client."""
    try:
        return _endpoint(client, path) if type(client) in plain and _only_settings(client) else None
    except (AttributeError, TypeError, ValueError):
        return None


def fingerprint(client: Any) -> tuple[object, ...]:
    """The settings that a user may change on a client after creating it."""
    names = ("api_key", "auth_token", "base_url", "timeout", "organization", "project")
    return tuple(getattr(client, name, None) for name in names)


def keys(client: Any) -> tuple[str, ...]:
    """Secrets that errors must never show: the keys, and every header that carries one."""
    found: list[object] = [getattr(client, "api_key", None), getattr(client, "auth_token", None)]
    for name, value in getattr(client, "default_headers", {}).items():
        if isinstance(value, str) and any(word in name.lower() for word in _SECRET_HEADERS):
            found += [value, value.rpartition(" ")[2]]
    return tuple(key for key in found if isinstance(key, str))


def _only_settings(client: Any) -> bool:
    own, *unset = PRIVATE_ATTRIBUTES[type(client).__module__.partition(".")[0]]
    return (
        type(getattr(client, own)).__name__ in _OWN_CLIENTS
        and all(getattr(client, name) is None for name in (*unset, "custom_auth"))
        and not getattr(client, "workload_identity", None)
        and not getattr(client, "credentials", None)
        and not getattr(client, "middleware", None)
        and "tracer_provider" not in getattr(client, "open_telemetry", {})
        and not client.is_closed()
    )


def _endpoint(client: Any, path: str) -> Endpoint | None:
    url, timeout = client.base_url, client.timeout
    if url.scheme not in ("http", "https") or url.userinfo or url.query or _proxied(url.scheme, url.host):
        return None
    headers: dict[str, str] = {}
    for name, value in (*client.auth_headers.items(), *client.default_headers.items()):
        headers.pop(name.lower(), None)
        if isinstance(value, str):
            headers[name.lower()] = value
    if "authorization" not in headers and "x-api-key" not in headers:
        return None
    for name in _SET_BY_HTTP:
        headers.pop(name, None)
    headers["accept-encoding"] = "identity"
    query = urlencode({key: str(value) for key, value in client.default_query.items()})
    base = url.raw_path.decode("ascii").rstrip("/")
    secure = url.scheme == "https"
    host = f"[{url.host}]" if ":" in url.host else url.host
    named = {"host": f"{host}:{url.port}" if url.port else host, **headers}
    start = f"POST {base}{path}" + (f"?{query}" if query else "") + " HTTP/1.1\r\n"
    return Endpoint(
        host=url.host,
        port=url.port or (443 if secure else 80),
        head=start.encode("ascii") + _header_lines(named),
        tls=_tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")) if secure else None,
        connect_timeout=getattr(timeout, "connect", timeout),
        read_timeout=getattr(timeout, "read", timeout),
    )


def _header_lines(headers: Mapping[str, str]) -> bytes:
    if not all(f"{name}{value}".isprintable() for name, value in headers.items()):
        raise ValueError("it has a control character")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")


@lru_cache(maxsize=4)
def _tls_context(cert_file: str | None, cert_dir: str | None) -> ssl.SSLContext:
    """The context that the SDK's own clients use in this environment; a connection must end with TLS's closing message.

    Python 3.11 with OpenSSL 3 accepts any end by default, so that a body without a length could be cut off unnoticed.
    """
    import httpx2

    context: ssl.SSLContext = httpx2.create_ssl_context()
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    return context


def _proxied(scheme: str, host: str) -> bool:
    proxies = getproxies()
    return bool(proxies.get(scheme) or proxies.get("all")) and not proxy_bypass(host)
