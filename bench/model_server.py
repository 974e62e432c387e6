"""A model that always does the same, quick enough to stand behind benchmarks; in a process of its own.

The path says what to do: `/k10/d20/v1/responses` calls a tool ten times, then answers, each time after 20 ms. It speaks
the Responses, chat and Messages formats.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

ANSWER = json.dumps(
    {
        "title": "A report on the thing that was asked",
        "score": 7,
        "confident": True,
        "ratio": 0.25,
        "tags": ["one", "two"],
        "summary": "It went as well as could be expected, all told.",
    }
)
TOOLS = ("alpha", "beta")
ARGUMENTS = {"text": "the words to work on", "count": 3}


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server that runs while the block does."""
    command = [sys.executable, "-m", "bench.model_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def responses(done: int, calls: int) -> bytes:
    if done < calls:
        call = {
            "type": "function_call",
            "id": f"fc_{done}",
            "call_id": f"call_{done}",
            "name": TOOLS[done % 2],
            "arguments": json.dumps(ARGUMENTS),
            "status": "completed",
        }
        return _response(call)
    part = {"type": "output_text", "text": ANSWER, "annotations": []}
    return _response({"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": [part]})


def _response(item: dict[str, Any]) -> bytes:
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 120,
    }
    return json.dumps(
        {
            "id": "resp",
            "object": "response",
            "created_at": 1_790_000_000,
            "model": "gpt-5.6",
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "output": [item],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": usage,
        }
    ).encode()


def chat(done: int, calls: int) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    if done < calls:
        function = {"name": TOOLS[done % 2], "arguments": json.dumps(ARGUMENTS)}
        call = {"id": f"call_{done}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if done < calls else "stop"}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    body = {"id": "chat", "object": "chat.completion", "created": 1_790_000_000, "model": "gpt-5.6"}
    return json.dumps({**body, "choices": [choice], "usage": usage}).encode()


def messages(done: int, calls: int) -> bytes:
    block: dict[str, Any] = {"type": "text", "text": ANSWER}
    if done < calls:
        block = {"type": "tool_use", "id": f"toolu_{done}", "name": TOOLS[done % 2], "input": ARGUMENTS}
    return json.dumps(
        {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-5",
            "content": [block],
            "stop_reason": "tool_use" if done < calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 100, "output_tokens": 20},
        }
    ).encode()


def responses_stream(body: dict[str, Any]) -> list[dict[str, Any]]:
    (item,) = body["output"]
    told = [part["text"] for part in item.get("content", ())]
    deltas = [{"type": "response.output_text.delta", "delta": text} for text in told]
    return [*deltas, {"type": "response.completed", "response": body}]


def messages_stream(body: dict[str, Any]) -> list[dict[str, Any]]:
    (block,) = body["content"]
    if block["type"] == "text":
        delta = {"type": "text_delta", "text": block["text"]}
        start: dict[str, Any] = {"type": "text", "text": ""}
    else:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        start = {**block, "input": {}}
    return [
        {"type": "message_start", "message": {**body, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": start},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": body["stop_reason"]}, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ]


STREAMS = {b"responses": responses_stream, b"messages": messages_stream}
FORMATS = {
    b"responses": (responses, (b'"function_call_output"',)),
    b"completions": (chat, (b'"role":"tool"', b'"role": "tool"')),
    b"messages": (messages, (b'"tool_result"',)),
}
TARGET = re.compile(rb"POST /k(\d+)/(?:d(\d+)/)?\S*/(responses|completions|messages)\S* HTTP")
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """Answers requests one after the other."""

    kept: ClassVar[dict[tuple[bytes, int, int, bool], bytes]] = {}

    def __init__(self) -> None:
        self._buffer = bytearray()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            found = LENGTH.search(self._buffer, 0, end)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self._buffer) < size:
                return
            self._answer(bytes(self._buffer[:size]))
            del self._buffer[:size]

    def _answer(self, request: bytes) -> None:
        target = TARGET.match(request)
        if target is None:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")
            return
        make, marks = FORMATS[target[3]]
        done, calls = sum(request.count(mark) for mark in marks), int(target[1])
        streams = b'"stream":true' in request
        key = (target[3], done, calls, streams)
        if key not in self.kept:
            body, kind = make(done, calls), b"application/json"
            if streams:
                events = STREAMS[target[3]](json.loads(body))
                body = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
                kind = b"text/event-stream"
            head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
            self.kept[key] = head + body
        if target[2]:
            asyncio.get_running_loop().call_later(int(target[2]) / 1000, self._transport.write, self.kept[key])
        else:
            self._transport.write(self.kept[key])


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
