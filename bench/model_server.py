"""A model that always does the same, quick enough to stand behind benchmarks; in a process of its own.

The path says what to do: `/k10/d20/v1/responses` calls a tool ten times, then answers, each time after 20 ms. It speaks
the Responses, chat and Messages formats. `/k1/d20/w30/v1/responses` is a model in a chat: it calls the tool once for
each message of the user, then streams an answer of 30 words, one after the other.
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


def word_stream(done: int, calls: int, words: int) -> list[bytes]:
    """The events of a Responses stream as the vendor sends them, in the pieces in which they arrive."""
    body = json.loads(responses(done, calls))
    (item,) = body["output"]
    at: dict[str, Any] = {"item_id": item["id"], "output_index": 0}
    begun = {"type": "response.created", "response": {**body, "status": "in_progress", "output": []}}
    if item["type"] == "function_call":
        events: list[dict[str, Any]] = [
            begun,
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
            {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]},
            {"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]},
        ]
        pieces = [events]
    else:
        told = [f"word{number} " for number in range(words)]
        part = item["content"][0] = {"type": "output_text", "text": "".join(told), "annotations": []}
        empty, here = {**part, "text": ""}, {**at, "content_index": 0}
        first: list[dict[str, Any]] = [
            begun,
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
            {"type": "response.content_part.added", **here, "part": empty},
        ]
        pieces = [first, *([{"type": "response.output_text.delta", **here, "delta": word}] for word in told)]
        pieces.append([{"type": "response.output_text.done", **here, "text": part["text"]}])
    last = [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": body},
    ]
    pieces[-1] += last
    numbers = iter(range(10_000))
    return [
        b"".join(
            f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': next(numbers)})}\n\n".encode()
            for event in piece
        )
        for piece in pieces
    ]


def chat_stream(body: dict[str, Any]) -> list[dict[str, Any]]:
    (choice,) = body["choices"]
    calls = [{**call, "index": 0} for call in choice["message"].pop("tool_calls", ())]
    delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    chunk = {"id": body["id"], "object": "chat.completion.chunk", "model": body["model"]}
    return [
        {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        {**chunk, "choices": [], "usage": body["usage"]},
    ]


STREAMS = {b"responses": responses_stream, b"completions": chat_stream, b"messages": messages_stream}
FORMATS = {
    b"responses": (responses, (b'"function_call_output"',)),
    b"completions": (chat, (b'"role":"tool"', b'"role": "tool"')),
    b"messages": (messages, (b'"tool_result"',)),
}
TARGET = re.compile(rb"POST /k(\d+)/(?:d(\d+)/)?(?:w(\d+)/)?\S*/(responses|completions|messages)\S* HTTP")
USER = re.compile(rb'"role": ?"user"')
WORD_SECONDS = 0.005
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """Answers requests one after the other."""

    kept: ClassVar[dict[tuple[bytes, int, int, bool], bytes]] = {}
    streams: ClassVar[dict[tuple[int, int], list[bytes]]] = {}

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
        if target[3]:
            self._talk(request, calls=int(target[1]), delay=int(target[2] or 0) / 1000, words=int(target[3]))
            return
        make, marks = FORMATS[target[4]]
        done, calls = sum(request.count(mark) for mark in marks), int(target[1])
        streams = b'"stream":true' in request
        key = (target[4], done, calls, streams)
        if key not in self.kept:
            body, kind = make(done, calls), b"application/json"
            if streams:
                events = STREAMS[target[4]](json.loads(body))
                body = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
                kind = b"text/event-stream"
            head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
            self.kept[key] = head + body
        if target[2]:
            asyncio.get_running_loop().call_later(int(target[2]) / 1000, self._transport.write, self.kept[key])
        else:
            self._transport.write(self.kept[key])

    def _talk(self, request: bytes, *, calls: int, delay: float, words: int) -> None:
        """Stream the next step of a chat, word for word."""
        done, wanted = request.count(b'"function_call_output"'), calls * len(USER.findall(request))
        if (done, wanted) not in self.streams:
            self.streams[done, wanted] = word_stream(done, wanted, words)
        pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in self.streams[done, wanted]]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        pieces[0] = head + pieces[0]
        pieces[-1] += b"0\r\n\r\n"
        loop = asyncio.get_running_loop()
        for number, piece in enumerate(pieces):
            loop.call_later(delay + number * WORD_SECONDS, self._transport.write, piece)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
