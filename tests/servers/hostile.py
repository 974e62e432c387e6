"""A server on loopback that sends whatever bytes a test wants, one thread per connection."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self


class Connection:
    """One connection of a client. `requests` and `sent` of the server count across all of them."""

    def __init__(self, server: HostileServer, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock

    def receive_head(self) -> bytes | None:
        """The head of a request, with as much of its body as came along; None when the client is gone."""
        received = b""
        while b"\r\n\r\n" not in received:
            data = self.sock.recv(65536)
            if not data:
                return None
            received += data
        self.server.heads.append(received.partition(b"\r\n\r\n")[0])
        return received

    def receive(self) -> bytes | None:
        """A whole request; None when the client is gone."""
        received = self.receive_head()
        if received is None:
            return None
        head, _, body = received.partition(b"\r\n\r\n")
        lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-len")]
        while len(body) < sum(lengths[:1]):
            data = self.sock.recv(65536)
            if not data:
                return None
            body += data
        self.server.requests += 1
        return body

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.sock.sendall(piece)
            self.server.sent += len(piece)

    def send_endlessly(self, piece: bytes, *, limit: int = 1 << 30) -> None:
        """Send a piece again and again, until the client goes away or this many bytes are sent."""
        for _ in range(limit // len(piece)):
            self.send(piece)

    def wait_for_the_client_to_leave(self) -> None:
        while self.sock.recv(65536):
            pass


class HostileServer:
    """Hands each connection to `serve`; a client that goes away ends it."""

    def __init__(self, serve: Callable[[Connection], None], *, tls: ssl.SSLContext | None = None) -> None:
        self.heads: list[bytes] = []
        self.requests = 0
        self.connections = 0
        self.sent = 0
        self._serve = serve
        self._tls = tls
        self._open: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(sock)
            self.connections += 1
            threading.Thread(target=self._run, args=(sock,), daemon=True).start()

    def _run(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            self._open.append(sock)
            self._serve(Connection(self, sock))
        with contextlib.suppress(OSError):
            sock.close()


def response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole HTTP response."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(pieces: Iterable[bytes], *headers: str) -> bytes:
    """A whole HTTP response in chunks."""
    head = "\r\n".join(["HTTP/1.1 200 OK", "transfer-encoding: chunked", *headers]).encode() + b"\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
