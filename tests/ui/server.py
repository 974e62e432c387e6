"""A web application on loopback that serves conversations in both protocols, and a model that can be stopped."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from weakincentives.adapters.scripted import ScriptedAdapter
from weakincentives.runtime import Channel, ModelReply, ModelRequest, TextDelta
from weakincentives.ui import Threads, ag_ui, vercel_ai


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


def application(threads: Threads, **options: Any) -> Starlette:
    return Starlette(
        routes=[
            Route("/vercel", vercel_ai(threads), methods=["POST"]),
            Route("/ag-ui", ag_ui(threads), methods=["POST"]),
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
