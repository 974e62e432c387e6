"""The least that a run can cost: a raw socket, the history kept as encoded bytes, one decode per reply."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec


@dataclass
class Report:
    title: str
    score: int
    confident: bool
    ratio: float
    tags: list[str]
    summary: str


class _Item(msgspec.Struct):
    type: str
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    content: list[dict[str, object]] = []


class _Response(msgspec.Struct):
    output: list[msgspec.Raw]


_decode = msgspec.json.Decoder(_Response).decode
_item = msgspec.json.Decoder(_Item).decode
_arguments = msgspec.json.Decoder(dict[str, object]).decode
_report = msgspec.json.Decoder(Report).decode
_encode = msgspec.json.Encoder().encode


class Floor:
    """One connection and the bytes of a conversation."""

    def __init__(self, url: str, tools: int = 2) -> None:
        parts = urlsplit(url)
        self._sock = socket.create_connection((parts.hostname, parts.port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = parts.netloc
        described = [
            {"type": "function", "name": f"tool_{n}", "description": "A tool.", "parameters": {"type": "object"}}
            for n in range(tools)
        ]
        self._tools = b",".join(_encode(one) for one in described)

    def run(self, calls: int) -> Report:
        head = f"POST /k{calls}/v1/responses HTTP/1.1\r\nhost: {self._host}\r\ncontent-length: ".encode()
        start = b'{"model":"gpt-5.6","tools":[' + self._tools + b'],"input":['
        history = bytearray(_encode({"role": "developer", "content": "You work."}))
        while True:
            size = len(start) + len(history) + 2
            self._sock.sendall(b"".join((head, b"%d\r\n\r\n" % size, start, history, b"]}")))
            for raw in _decode(self._received()).output:
                item = _item(raw)
                if item.type == "message":
                    return _report(str(item.content[0]["text"]))
                _arguments(item.arguments)
                result = {"type": "function_call_output", "call_id": item.call_id, "output": "done"}
                history += b"," + bytes(raw) + b"," + _encode(result)

    def close(self) -> None:
        self._sock.close()

    def _received(self) -> bytes:
        data = self._sock.recv(65536)
        end = data.find(b"\r\n\r\n")
        start = data.find(b"content-length: ") + 16
        size = end + 4 + int(data[start : data.find(b"\r", start)])
        while len(data) < size:
            data += self._sock.recv(65536)
        return data[end + 4 :]
