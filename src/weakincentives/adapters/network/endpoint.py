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
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from weakincentives.adapters.network.transport import TransportError
from weakincentives.adapters.network.wire import EncodedRequest
from weakincentives.errors import PromptEvaluationError

PRIVATE_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "openai": ("_client", "_api_key_provider", "_provider", "_provider_runtime"),
    "anthropic": ("_client",),
}
"""By SDK. The first holds the HTTP client, an instance of a class private to the SDK; the others default to None."""

_OWN_CLIENTS = ("SyncHttpxClientWrapper", "AsyncHttpxClientWrapper")
_SET_BY_HTTP = ("connection", "content-length", "transfer-encoding", "expect", "upgrade", "te")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
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


def endpoint(client: Any, plain: tuple[type, ...], path: str, method: str = "POST") -> Endpoint | None:
    """Where a client of exactly one of these types posts this path; None if requests must go through the client."""
    try:
        return _endpoint(client, path, method) if type(client) in plain and _only_settings(client) else None
    except (AttributeError, TypeError, ValueError):
        return None


def own_endpoint(base_url: str, path: str, headers: Mapping[str, str]) -> Endpoint:
    """Where a path below an address is posted, without a vendor's client."""
    url = urlsplit(base_url)
    host = url.hostname or ""
    if host not in _LOOPBACK and _proxied(url.scheme, host):
        raise PromptEvaluationError(
            f"The environment sets a proxy for {url.scheme}, which this adapter does not use: add {host} to NO_PROXY, "
            "or use an adapter with a client of its own, such as LiteLLMAdapter.",
            phase="request",
        )
    sent = {"content-type": "application/json", **headers}
    return _at(url.scheme, host, url.port, f"{quote(url.path.rstrip('/'), safe='/%')}{path}", sent, 5.0, 600.0)


def check_address(base_url: str, path: str, headers: Mapping[str, str]) -> str:
    """The host and port of an address; raises if requests with these headers cannot be sent to it."""
    try:
        url = urlsplit(base_url)
        host, _ = url.hostname, url.port
    except ValueError:
        url, host = urlsplit(""), None
    if url.scheme not in ("http", "https") or not host or url.query or url.fragment or url.path.endswith(path):
        raise ValueError(f"base_url must be an address such as 'https://host/v1', without '{path}'; got {base_url!r}")
    if url.username or url.password:
        raise ValueError("base_url must not contain a user or a password; pass api_key=")
    for name, value in headers.items():
        try:
            _header_lines({name: value})
        except ValueError:
            raise ValueError(f"the header '{name}' must be ASCII text without control characters") from None
    return url.netloc


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


def _endpoint(client: Any, path: str, method: str) -> Endpoint | None:
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
    query = urlencode({key: str(value) for key, value in client.default_query.items()})
    target = url.raw_path.decode("ascii").rstrip("/") + path + (f"?{query}" if query else "")
    connect, read = getattr(timeout, "connect", timeout), getattr(timeout, "read", timeout)
    return _at(url.scheme, url.host, url.port, target, headers, connect, read, method)


def _at(
    scheme: str,
    host: str,
    port: int | None,
    target: str,
    headers: Mapping[str, str],
    connect: float | None,
    read: float | None,
    method: str = "POST",
) -> Endpoint:
    """The endpoint with these headers and timeouts."""
    name = f"[{host}]" if ":" in host else host
    sent = {key: value for key, value in headers.items() if key not in _SET_BY_HTTP}
    named = {"host": f"{name}:{port}" if port else name, **sent, "accept-encoding": "identity"}
    secure = scheme == "https"
    return Endpoint(
        host=host,
        port=port or (443 if secure else 80),
        head=f"{method} {target} HTTP/1.1\r\n".encode("ascii") + _header_lines(named),
        tls=_tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")) if secure else None,
        connect_timeout=connect,
        read_timeout=read,
    )


def _header_lines(headers: Mapping[str, str]) -> bytes:
    if not all(f"{name}{value}".isprintable() for name, value in headers.items()):
        raise ValueError("it has a control character")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")


@lru_cache(maxsize=4)
def _tls_context(cert_file: str | None, cert_dir: str | None) -> ssl.SSLContext:
    """The context of an SDK's client in this environment, or Python's own; TLS's closing message must end a connection.

    Python 3.11 with OpenSSL 3 accepts any end by default, so that a body without a length could be cut off unnoticed.
    """
    try:
        import httpx2
    except ModuleNotFoundError:
        context = ssl.create_default_context()
    else:
        context = httpx2.create_ssl_context()
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    return context


def _proxied(scheme: str, host: str) -> bool:
    proxies = getproxies()
    return bool(proxies.get(scheme) or proxies.get("all")) and not proxy_bypass(host)
