"""Reading an HTTP/1.1 response out of bytes, wherever they come from."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from weakincentives.adapters.network.transport import TransportError

MAX_HEAD = 256 * 1024


class ResponseParser:
    """One response as it arrives: feed it what was received, take the body so far, ask whether it is done."""

    __slots__ = ("_chunk_left", "_head", "_inflate", "_left", "body", "done", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self._head = bytearray()
        self._left: int | None = None
        self._chunk_left = -1
        self._inflate: Callable[[bytes], bytes] | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.keep_alive = True
        self.done = False

    @property
    def started(self) -> bool:
        """Whether any byte of an answer has arrived."""
        return bool(self.status or self._head)

    def feed(self, data: bytes) -> None:
        """Take received bytes; no bytes mean that the other side has closed the connection."""
        if not data:
            self._closed()
            return
        if self.status:
            self._feed_body(data)
            return
        self._head += data
        while not self.status:
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if len(self._head) > MAX_HEAD:
                    raise TransportError("The server sent a response head without an end.")
                return
            rest = bytes(self._head[end + 4 :])
            self._read_head(bytes(self._head[:end]))
            self._head = bytearray() if self.status else bytearray(rest)
        self._feed_body(rest)

    def take(self) -> bytes:
        """The part of the body that arrived since the last call."""
        data = bytes(self.body)
        self.body.clear()
        return data

    def _read_head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise TransportError(f"The server did not answer in HTTP: {lines[0][:80]!r}.")
        status = int(rest[:3])
        if status < 200:
            return
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self.headers, self.status = headers, status
        connection = headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
        if headers.get("content-encoding", "identity").lower() in ("gzip", "deflate"):
            self._inflate = zlib.decompressobj(wbits=47).decompress
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._chunk_left = 0
            self._head = bytearray()
        elif "content-length" in headers:
            length = headers["content-length"]
            if not length.isdigit():
                raise TransportError(f"The server sent an unreadable content-length: {length[:40]!r}.")
            self._left = int(length)
        elif status in (204, 304):
            self._left = 0
        else:
            self.keep_alive = False

    def _feed_body(self, data: bytes) -> None:
        if self._chunk_left >= 0:
            self._feed_chunks(data)
        elif self._left is None:
            self._keep(data)
        else:
            self._keep(data[: self._left] if len(data) > self._left else data)
            if len(data) > self._left:
                self.keep_alive = False
            self._left -= min(len(data), self._left)
            self.done = not self._left

    def _feed_chunks(self, data: bytes) -> None:
        pending = self._head
        pending += data
        position = 0
        while not self.done:
            if self._chunk_left > 2:
                size = min(self._chunk_left - 2, len(pending) - position)
                self._keep(bytes(pending[position : position + size]))
                position += size
                self._chunk_left -= size
            if 0 < self._chunk_left <= 2:
                if len(pending) - position < self._chunk_left:
                    break
                position += self._chunk_left
                self._chunk_left = 0
            if self._chunk_left:
                break
            end = pending.find(b"\r\n", position)
            if end < 0:
                break
            try:
                size = int(pending[position:end].split(b";")[0], 16)
            except ValueError:
                raise TransportError("The server sent a broken chunk.") from None
            if not size:
                last = pending.find(b"\r\n\r\n", end)
                if last >= 0:
                    self.done = True
                break
            position = end + 2
            self._chunk_left = size + 2
        del pending[:position]

    def _keep(self, data: bytes) -> None:
        if self._inflate is not None:
            try:
                data = self._inflate(data)
            except zlib.error:
                raise TransportError("The server sent a compressed body that cannot be read.") from None
        self.body += data

    def _closed(self) -> None:
        if self.status and self._left is None and self._chunk_left < 0:
            self.done = True
            return
        raise TransportError(
            "The connection was closed in the middle of the answer."
            if self.started
            else "The connection was closed before an answer arrived."
        )
