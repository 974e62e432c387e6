"""What a vendor's client object says about reaching its server.

A client as its class makes it (address, key, headers and timeouts may be the user's own) is served by our own
connections. Anything that such a client could do beyond that, a proxy, a certificate authority, a transport, hooks,
token providers, middleware, a subclass, is the business of the client: then there is no endpoint, and requests go
through the client itself.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from weakincentives.adapters.network.endpoint import Endpoint

_CALLBACKS = ("_api_key_provider", "_provider", "_provider_runtime", "workload_identity", "custom_auth")


def endpoint(client: Any, plain: tuple[type, ...], path: str) -> Endpoint | None:
    """Where a client of exactly these types sends this path; None for a client that must send by itself."""
    try:
        return _endpoint(client, path) if type(client) in plain else None
    except (AttributeError, TypeError, ValueError, UnicodeEncodeError):
        # An SDK that keeps its settings elsewhere than the ones we know: let it do its own work.
        return None


def fingerprint(client: Any) -> tuple[object, ...]:
    """What a user may change on a client after it was made."""
    return (
        getattr(client, "api_key", None),
        getattr(client, "auth_token", None),
        client.base_url,
        client.timeout,
        getattr(client, "organization", None),
        getattr(client, "project", None),
    )


def secrets(client: Any) -> tuple[str | None, ...]:
    """What must never be shown: the keys, and any header that carries one."""
    found: list[str | None] = [getattr(client, "api_key", None), getattr(client, "auth_token", None)]
    for name, value in dict(getattr(client, "_custom_headers", {}) or {}).items():
        if isinstance(value, str) and any(word in name.lower() for word in ("auth", "key", "token", "cookie")):
            found += [value, value.rpartition(" ")[2]]
    return tuple(value for value in found if isinstance(value, str))


def _endpoint(client: Any, path: str) -> Endpoint | None:
    http = client._client
    url = client.base_url
    if (
        type(http).__name__ not in ("SyncHttpxClientWrapper", "AsyncHttpxClientWrapper")
        or client.is_closed()
        or any(getattr(client, name, None) is not None for name in _CALLBACKS)
        or getattr(client, "middleware", ())
        or "tracer_provider" in (getattr(client, "open_telemetry", None) or {})
        or http._transport_for_url(url) is not http._transport
        or type(http._transport).__name__ not in ("HTTPTransport", "AsyncHTTPTransport")
        or any(http.event_hooks.values())
        or http.auth is not None
        or http.cookies
        or url.scheme not in ("http", "https")
        or url.userinfo
        or url.query
    ):
        return None
    headers: dict[str, str] = {}
    for name, value in (*client.auth_headers.items(), *client.default_headers.items()):
        headers.pop(name.lower(), None)
        if isinstance(value, str):
            if not f"{name}{value}".isprintable():
                return None
            headers[name.lower()] = value
    if "authorization" not in headers and "x-api-key" not in headers:
        return None
    headers.pop("connection", None)
    headers["accept-encoding"] = "identity"
    query = urlencode({key: str(value) for key, value in client.default_query.items()})
    base = url.raw_path.decode("ascii").rstrip("/")
    timeout = client.timeout
    connect, read = getattr(timeout, "connect", timeout), getattr(timeout, "read", timeout)
    secure = url.scheme == "https"
    return Endpoint(
        host=url.host,
        port=url.port or (443 if secure else 80),
        target=f"{base}{path}" + (f"?{query}" if query else ""),
        headers=headers,
        tls=http._transport._pool._ssl_context if secure else None,
        connect_timeout=connect,
        read_timeout=read,
    )
