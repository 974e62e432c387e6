"""A scripted Anthropic-compatible streaming server on loopback, for clients that cannot be handed a transport.

Replies are given in order, one per `POST /v1/messages`; every request is kept, so a test can ask what it carried.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Text:
    """A text block; it is streamed in as many deltas as it has words."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call of a tool."""

    name: str
    input: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """One assistant message."""

    blocks: tuple[Text | ToolUse, ...]
    input_tokens: int = 10
    output_tokens: int = 5
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP error instead of a message."""

    status: int
    kind: str = "api_error"
    message: str = "scripted failure"


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer at all until the client or the server goes away."""


Step = Reply | Failure | Hang
Script = Sequence[Step] | Callable[[Mapping[str, Any]], Step]


def say(text: str, **usage: int) -> Reply:
    """An answer that is only text."""
    return Reply((Text(text),), **usage)


def call(name: str, **arguments: Any) -> Reply:
    """An answer that calls one tool."""
    return Reply((ToolUse(name, arguments),))


class AnthropicServer:
    """Serves the script while entered; `requests` are the bodies of message requests, `paths` all that was asked."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.arrived = threading.Condition(self._lock)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def tool_names(self) -> list[tuple[str, ...]]:
        """The tools that each request offered: declared ones, then those added by `tool_addition`."""
        return [_offered(body) for body in self.requests]

    def tool_results(self, index: int = -1) -> list[dict[str, Any]]:
        """The tool results of the last turn of one request."""
        for message in reversed(self.requests[index]["messages"]):
            content = message["content"]
            if message["role"] == "user" and isinstance(content, list):
                found = [block for block in content if block["type"] == "tool_result"]
                if found:
                    return found
        return []

    def wait_for_requests(self, count: int, timeout: float = 20) -> bool:
        """Block until so many message requests have arrived."""
        with self.arrived:
            return self.arrived.wait_for(lambda: len(self.requests) >= count, timeout)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _next(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Step]:
        with self.arrived:
            index = len(self.requests)
            self.requests.append(body)
            self.headers.append(headers)
            self.arrived.notify_all()
        if callable(self._script):
            return index, self._script(body)
        if index < len(self._script):
            return index, self._script[index]
        return index, Failure(400, "invalid_request_error", f"the script has no reply for request {index + 1}")

    def _handler(server: AnthropicServer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self._json(200, {})

            def do_GET(self) -> None:
                server.paths.append(self.path)
                self._json(404, {"type": "error", "error": {"type": "not_found_error", "message": self.path}})

            def do_POST(self) -> None:
                server.paths.append(self.path)
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
                route = self.path.partition("?")[0]
                if route == "/v1/messages/count_tokens":
                    self._json(200, {"input_tokens": len(json.dumps(body)) // 4})
                elif route == "/v1/messages":
                    self._reply(body)
                else:
                    self._json(404, {"type": "error", "error": {"type": "not_found_error", "message": route}})

            def _reply(self, body: dict[str, Any]) -> None:
                index, step = server._next(body, {k.lower(): v for k, v in self.headers.items()})
                if isinstance(step, Failure):
                    self._json(step.status, {"type": "error", "error": {"type": step.kind, "message": step.message}})
                elif isinstance(step, Hang):
                    server._closed.wait()
                    self.close_connection = True
                elif body.get("stream"):
                    self.send_response(200)
                    self.send_header("content-type", "text/event-stream")
                    self.send_header("connection", "close")
                    self.end_headers()
                    self.wfile.write(b"".join(_sse(event) for event in events(step, body["model"], index)))
                    self.close_connection = True
                else:
                    self._json(200, _message(step, body["model"], index))

            def _json(self, status: int, payload: Mapping[str, Any]) -> None:
                data = json.dumps(payload).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        return Handler


def _offered(body: Mapping[str, Any]) -> tuple[str, ...]:
    names = [tool["name"] for tool in body.get("tools", ()) if not tool.get("defer_loading")]
    for message in body["messages"]:
        if isinstance(message["content"], list):
            for block in message["content"]:
                if block["type"] == "tool_addition":
                    tool = block["tool"]
                    names.append(tool.get("name") or tool["definition"]["name"])
    return tuple(names)


def _sse(event: Mapping[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _message(step: Reply, model: str, index: int) -> dict[str, Any]:
    return {
        "id": f"msg_{index:04}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [_block(block, index, position) for position, block in enumerate(step.blocks)],
        "stop_reason": _stop_reason(step),
        "stop_sequence": None,
        "usage": _usage(step),
    }


def events(step: Reply, model: str, index: int) -> list[dict[str, Any]]:
    """A reply as the stream events of the Messages API."""
    start = {**_message(step, model, index), "content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for position, block in enumerate(step.blocks):
        whole = _block(block, index, position)
        if isinstance(block, Text):
            opening: dict[str, Any] = {"type": "text", "text": ""}
            words = block.text.split(" ")
            deltas = [{"type": "text_delta", "text": word + " " * (n < len(words) - 1)} for n, word in enumerate(words)]
        else:
            opening = {**whole, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(whole["input"])}]
        events.append({"type": "content_block_start", "index": position, "content_block": opening})
        events += [{"type": "content_block_delta", "index": position, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": position})
    delta = {"stop_reason": _stop_reason(step), "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": _usage(step)})
    events.append({"type": "message_stop"})
    return events


def _block(block: Text | ToolUse, index: int, position: int) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    return {
        "type": "tool_use",
        "id": block.id or f"toolu_{index:02}_{position:02}",
        "name": block.name,
        "input": dict(block.input),
    }


def _stop_reason(step: Reply) -> str:
    return "tool_use" if any(isinstance(block, ToolUse) for block in step.blocks) else "end_turn"


def _usage(step: Reply) -> dict[str, int]:
    return {
        "input_tokens": step.input_tokens,
        "output_tokens": step.output_tokens,
        "cache_read_input_tokens": step.cached_tokens,
        "cache_creation_input_tokens": 0,
    }
