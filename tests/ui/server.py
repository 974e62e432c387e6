"""A web application on loopback that serves conversations in both protocols, and a model that can be stopped."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.runtime import Channel, ModelReply, ModelRequest, TextDelta
from weakincentives.ui import DurableThreads, Threads, ag_ui, vercel_ai


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """The address of a server for this application, in a thread."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="off", ws="none", log_level="warning", timeout_graceful_shutdown=2)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


class Page:
    """A page in this process, which sends messages to an application and may leave at any time.

    Cancelling the task that waits for an answer is a connection that breaks; `gone` is one that is closed.
    """

    def __init__(self, threads: Threads | DurableThreads, path: str = "vercel") -> None:
        self._app = application(threads)
        self._path = path
        self.gone = asyncio.Event()
        self.status = 0
        self.body = bytearray()
        # Sent again and again in place of a body, if there is any; and how many pieces were read.
        self.piece = b""
        self.pieces = 0
        # Every byte of every response, headers included.
        self.received = bytearray()

    async def post(self, body: Any, **headers: str) -> tuple[int, str]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self._request("POST", data, headers={"content-type": "application/json", **headers})

    async def get(self, query: str, **headers: str) -> tuple[int, str]:
        return await self._request("GET", b"", query=query, headers=headers)

    async def send(self, text: str, thread: str = "t1", **fields: Any) -> tuple[int, str]:
        headers = fields.pop("headers", {})
        return await self.post(asked(text, thread, **fields), **headers)

    async def hear(self, text: str, thread: str = "t1", **fields: Any) -> str:
        """The text of the answer."""
        return said((await self.send(text, thread, **fields))[1])

    async def _request(self, method: str, body: bytes, *, headers: dict[str, str], query: str = "") -> tuple[int, str]:
        self.status, self.body = 0, bytearray()
        self.pieces = 0

        async def receive() -> Any:
            self.pieces += 1
            if self.piece or self.pieces == 1:
                return {"type": "http.request", "body": self.piece or body, "more_body": bool(self.piece)}
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.status = message.get("status", self.status)
            self.body += message.get("body", b"")
            self.received += repr(message).encode()

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": f"/{self._path}",
            "raw_path": f"/{self._path}".encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        await self._app(scope, receive, send)
        return self.status, self.body.decode()


def asked(text: str, thread: str = "t1", **fields: Any) -> dict[str, Any]:
    """A message in both protocols; `key` is its id, and `earlier` has the ids of those before it."""
    key, earlier = fields.pop("key", ""), fields.pop("earlier", ())
    newest = {"id": key, "role": "user", "parts": [{"type": "text", "text": text}], "content": text}
    before = [{"id": each, "role": "user", "content": "?", "parts": []} for each in earlier]
    return {"id": thread, "threadId": thread, "runId": "r", "messages": [*before, newest], **fields}


def post(url: str, body: Any, **headers: str) -> tuple[int, str]:
    """A request over the network, and the response whole."""
    given = {"content-type": "application/json", **headers}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, given), timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def chunks(body: str) -> list[dict[str, Any]]:
    """The objects of a stream of events."""
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def said(body: str) -> str:
    """The text that the events of either protocol carry."""
    texts = ("text-delta", "TEXT_MESSAGE_CHUNK")
    return "".join(chunk["delta"] for chunk in chunks(body) if chunk["type"] in texts)


def application(threads: Threads | DurableThreads, **options: Any) -> Starlette:
    return Starlette(
        routes=[
            Route("/vercel", vercel_ai(threads), methods=["GET", "POST", "DELETE"]),
            Route("/vercel/{id}/stream", vercel_ai(threads)),
            Route("/ag-ui", ag_ui(threads), methods=["GET", "POST", "DELETE"]),
        ],
        **options,
    )


class Whole(Channel):
    """A channel that brings each reply in one piece, its reasoning first."""

    def __init__(self, adapter: ScriptedAdapter) -> None:
        self._adapter = adapter

    def call(self, request: ModelRequest) -> ModelReply:
        return self._adapter.reply(request)


class Endless(Whole):
    """Begins its first answer and never ends it."""

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[Any]:
        reply = self.call(request)
        yield TextDelta(reply.text)
        if reply.text == "I begin":
            await asyncio.Event().wait()
        yield reply


class Talkative(ScriptedAdapter):
    def channel(self) -> Channel:
        return Endless(self)
