"""What keeps other pages of the same browser away from the viewer.

A page of any site can send requests to a loopback address, by name too once its DNS says so. Requests are answered
only when they name this server exactly, and only to the viewer's own page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """An ASGI application around another: checks Host, Origin and method, and sets the headers of every answer."""

    def __init__(self, app: App, *, port: int, policy: str) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}
        self._headers = [*HEADERS, (b"content-security-policy", policy.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope)
        if problem is None:
            await self._app(scope, receive, self._guarded(send))
        elif scope["type"] == "http":
            status, text = problem
            headers = [*self._headers, (b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": text.encode()})

    def _problem(self, scope: Scope) -> tuple[int, str] | None:
        if scope["type"] != "http":
            return 400, "Only HTTP is spoken here."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "The viewer only reads."
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 421, "This is the viewer of another name: open the address that wink view printed."
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        if any(origin not in self._origins for origin in origins):
            return 403, "Only the viewer's own page may ask."
        return None

    def _guarded(self, send: Send) -> Send:
        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
            await send(message)

        return guarded
