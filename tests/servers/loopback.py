"""An HTTP server on loopback that answers from a script and keeps what it was asked.

It speaks just enough HTTP/1.1 for the clients under test, out of one thread with its own event loop, and is quick
enough to stand behind benchmarks.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers.turn import Raw, Turn

CERTIFICATE = Path(__file__).with_name("loopback.pem")


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@dataclass(frozen=True)
class Received:
    """One request as it arrived."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @cached_property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """One response: a whole body, or the events of a stream (all but `cut_after` of them, if that is given)."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] | None = None
    events: tuple[bytes, ...] | None = None
    delay: float = 0.0
    cut: bool = False
    cut_after: int | None = None
    reset: bool = False


Step = Turn | Raw
Script = Iterable[Step] | Callable[[Received], Step]


class Loopback:
    """Serves a script. Subclasses render a `Turn` in their vendor's format."""

    def __init__(self, script: Script = (), *, tls: ssl.SSLContext | None = None, window: int | None = None) -> None:
        self.requests: list[Received] = []
        self.looked_up: list[Received] = []
        self.models: dict[str, Any] = {}
        self.refused = 0
        self.window = window
        self.connections = 0
        self._script = script if callable(script) else iter(tuple(script))
        self._tls = tls
        self._ready = threading.Event()
        self._open: set[asyncio.Transport] = set()
        self._changed = threading.Condition()

    def render(self, turn: Turn, received: Received) -> Answer:
        raise NotImplementedError

    def refuse(self, problem: Mapping[str, Any]) -> Answer:
        """A refusal, as the vendor words it."""
        self.refused += 1
        return Answer(400, json.dumps(problem).encode())

    def size(self, received: Received) -> int:
        """The tokens of a request, roughly."""
        return len(received.body) // 4

    def look_up(self, received: Received) -> Answer:
        """The answer of a models endpoint: what `models` has of a model, or that there is no such model."""
        found = self.models.get(received.target.rpartition("/")[2])
        if isinstance(found, Answer):
            return found
        missing = {"type": "error", "error": {"type": "not_found_error", "message": "no such model"}}
        return Answer(200 if found else 404, json.dumps(found or missing).encode())

    def answer(self, received: Received) -> Answer:
        if received.method == "GET":
            self.looked_up.append(received)
            return self.look_up(received)
        self.requests.append(received)
        if callable(self._script):
            step = self._script(received)
        else:
            step = next(self._script, None)
        if step is None:
            return Answer(500, b'{"error":{"message":"the script is used up"}}', {"x-should-retry": "false"})
        if isinstance(step, Raw):
            return Answer(step.status, step.body, step.headers, None, step.delay, step.cut, None, step.reset)
        return self.render(step, received)

    def drop_connections(self) -> None:
        """Close every connection, as a server does with idle ones, and wait until that is done."""
        self._loop.call_soon_threadsafe(lambda: [transport.close() for transport in tuple(self._open)])
        assert self.wait_for_connections(0)
        # asyncio closes a socket only after it has told the protocol.
        closed = threading.Event()
        self._loop.call_soon_threadsafe(closed.set)
        assert closed.wait(10)

    def wait_for_connections(self, number: int) -> bool:
        """Wait until this many connections are open; False if that does not happen within 10 s."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._open) == number, 10)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=1024, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for transport in tuple(self._open):
            transport.abort()
        await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    def __init__(self, server: Loopback) -> None:
        self._server = server
        self._buffer = bytearray()

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        with self._server._changed:
            self._server.connections += 1
            self._server._open.add(transport)
            self._server._changed.notify_all()
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, error: Exception | None) -> None:
        with self._server._changed:
            self._server._open.discard(self._transport)
            self._server._changed.notify_all()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            length = int(headers.get("content-length", 0))
            if len(self._buffer) < end + 4 + length:
                return
            method, target, _ = head[0].split(" ")
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            answer = self._server.answer(Received(method, target, headers, body))
            if answer.delay:
                asyncio.get_running_loop().call_later(answer.delay, self._send, answer)
            else:
                self._send(answer)

    def _send(self, answer: Answer) -> None:
        if self._transport.is_closing():
            return
        if answer.reset:
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
            return
        headers = {"content-type": "application/json", **(answer.headers or {})}
        if answer.events is not None:
            self._stream(answer, {**headers, "content-type": "text/event-stream", "transfer-encoding": "chunked"})
            return
        headers.setdefault("content-length", str(len(answer.body)))
        body = answer.body[: len(answer.body) // 2] if answer.cut else answer.body
        self._transport.write(_head(answer.status, headers) + body)
        if answer.cut:
            self._transport.close()

    def _stream(self, answer: Answer, headers: Mapping[str, str]) -> None:
        assert answer.events is not None
        pieces = [_head(answer.status, headers)]
        for event in answer.events[: answer.cut_after]:
            pieces.append(b"%x\r\n%b\r\n" % (len(event), event))
        if answer.cut_after is None:
            pieces.append(b"0\r\n\r\n")
        self._transport.write(b"".join(pieces))
        if answer.cut_after is not None:
            self._transport.close()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Scripted\r\n{lines}\r\n".encode("latin-1")


def event(kind: str, data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
