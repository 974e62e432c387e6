"""Servers that send too much, never stop, or lie: what is left of them is an error that names them."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.disclosure.desk import answers, tool_names
from tests.servers.hostile import Connection, HostileServer
from tests.waiting import until
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.mcp import HttpServer, MCPSection, StdioServer
from weakincentives.mcp.transport import MAX_VALUES, MessageLimit, UnreadableMessageError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.runtime import Conversation
from weakincentives.session import Session

pytestmark = pytest.mark.slow
SERVER = str(Path(__file__).parent / "hostile.py")
READ, GO = call("read_section", section_key="shop"), call("go")


def hostile(mode: str, *words: str, **options: Any) -> MCPSection:
    server = StdioServer(sys.executable, [SERVER, mode, *words], start_timeout=options.pop("start_timeout", 120))
    return MCPSection(key="shop", title="Shop", server=server, **options)


def prompt(made: MCPSection) -> Prompt[Any]:
    task = MarkdownSection(title="Task", key="task", template="Help.")
    return Prompt(PromptTemplate(ns="tests", key="shop", sections=[task, made]))


def run(made: MCPSection, *script: Any) -> list[tuple[bool, str]]:
    session = Session()
    with ScriptedAdapter([READ, *script, "Done."]) as adapter:
        adapter.evaluate(prompt(made), session=session)
    return answers(session)


@pytest.mark.parametrize(
    ("mode", "why"),
    [("endless-line", "it sent more than 32 MB"), ("endless-values", "it sent more than 1,000,000 values")],
)
def test_a_line_without_end_ends_the_call(mode: str, why: str) -> None:
    _, (success, message) = run(hostile(mode), GO)
    assert not success
    assert message.startswith(f"MCP server 'shop' stopped while 'go' was running: {why} in one message.")


def test_a_line_without_end_instead_of_a_greeting_ends_the_start(caplog: pytest.LogCaptureFixture) -> None:
    (answer,) = run(hostile("endless-start"))
    assert answer == (False, "Section 'shop' cannot be opened now; go on without it.")
    assert "cannot be started: it sent more than 32 MB in one message" in caplog.text


def test_error_output_without_end_is_read_and_dropped() -> None:
    assert run(hostile("endless-errors"), GO)[1] == (True, "done")


def test_the_output_schema_of_a_server_cannot_freeze_the_process() -> None:
    _, result = run(hostile("output-schema"), GO)
    assert result == (True, json.dumps({"text": "a" * 40 + "!"}))


Body = Callable[[Connection, int], None]
"""Answers a call, whose id it is given."""


def compressed(encoding: str) -> Body:
    """40 MB in 40 kB."""

    def send(connection: Connection, number: int) -> None:
        packer = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
        packed = packer.compress(bytes(40 << 20)) + packer.flush()
        head = f"content-type: application/json\r\ncontent-encoding: {encoding}\r\ncontent-length: {len(packed)}"
        connection.send(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode(), packed)

    return send


def endless(kind: str, piece: bytes, head: bytes = b"") -> Body:
    def send(connection: Connection, number: int) -> None:
        connection.send(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n".encode(), head)
        connection.send_endlessly(piece, limit=1 << 28)

    return send


def speaking(body: Body) -> Callable[[Connection], None]:
    """Answers as a server should, until a tool is called."""

    def serve(connection: Connection) -> None:
        while (received := connection.receive()) is not None:
            request = json.loads(received or b"{}")
            method = request.get("method", "")
            if method == "tools/call":
                body(connection, request["id"])
                return
            if "id" not in request:
                connection.send(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
                continue
            results = {
                "initialize": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "hostile", "version": "1"},
                },
                "tools/list": {"tools": [{"name": "go", "description": "Goes.", "inputSchema": {"type": "object"}}]},
            }
            found: dict[str, Any] = {"error": {"code": -32601, "message": "unknown"}}
            if method in results:
                found = {"result": results[method]}
            answer = json.dumps({"jsonrpc": "2.0", "id": request["id"], **found}).encode()
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n"
            connection.send(head.encode(), answer)

    return serve


JSON, EVENTS = "application/json", "text/event-stream"
START = b'{"jsonrpc": "2.0", "id": 1, "result": {"content": ['


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (endless(JSON, b"x" * 65536), "more than 32 MB"),
        (endless(JSON, b"[]," * 20_000, START), "more than 1,000,000 values"),
        (endless(EVENTS, b"x" * 65536, b"data: "), "stopped while 'go' was running"),
        (endless(EVENTS, b"data: " + b"x" * 65536 + b"\n"), "stopped while 'go' was running"),
        (endless(EVENTS, b"[]," * 20_000, b"data: " + START), "more than 1,000,000 values"),
        (compressed("gzip"), "more than 32 MB"),
        (compressed("deflate"), "more than 32 MB"),
        (endless(JSON + "\r\ncontent-encoding: br", b"x" * 65536), "encoding 'br', which was not asked for"),
        (endless(JSON + "\r\ncontent-encoding: gzip", b"x" * 65536), "damaged data"),
    ],
    ids=["json", "values", "line", "event", "event-values", "gzip", "deflate", "encoding", "damaged"],
)
def test_an_http_answer_without_end_ends_the_call(body: Body, why: str) -> None:
    with HostileServer(speaking(body)) as server:
        _, (success, message) = run(MCPSection(key="shop", title="Shop", server=HttpServer(f"{server.url}/mcp")), GO)
        assert (success, why in message, "MCP server 'shop'" in message) == (False, True, True), message
        assert server.sent < 100 << 20


def test_a_compressed_answer_is_read() -> None:
    def body(connection: Connection, number: int) -> None:
        content = [{"type": "text", "text": "big" * 1_000_000}]
        packed = gzip.compress(json.dumps({"jsonrpc": "2.0", "id": number, "result": {"content": content}}).encode())
        head = f"content-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {len(packed)}"
        connection.send(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode(), packed)

    with HostileServer(speaking(body)) as server:
        _, (success, message) = run(MCPSection(key="shop", title="Shop", server=HttpServer(f"{server.url}/mcp")), GO)
    assert (success, len(message)) == (True, 3_000_000)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("at", range(5))
def test_events_are_counted_one_by_one_wherever_the_stream_is_cut(end: bytes, at: int) -> None:
    limit = MessageLimit(b"\n\n", b"\r\n\r\n", b"\r\r")
    values = b"[" * (MAX_VALUES // 2)
    for _ in range(3):
        limit.add(values + end[:at])
        limit.add(end[at:])
    with pytest.raises(UnreadableMessageError):
        for _ in range(3):
            limit.add(values)


async def largest_stall(work: Any) -> float:
    """The longest time for which the event loop did nothing else while this ran."""
    task, longest, before = asyncio.ensure_future(work), 0.0, time.monotonic()
    while not task.done():
        await asyncio.sleep(0.01)
        now = time.monotonic()
        longest, before = max(longest, now - before), now
    await task
    return longest


async def open_and_go(made: MCPSection) -> None:
    with ScriptedAdapter([READ, GO, "Done."]) as adapter:
        await adapter.evaluate_async(prompt(made), session=Session())


async def fail_in_the_second_turn(made: MCPSection) -> None:
    chat = Conversation(prompt(made), adapter=ScriptedAdapter([READ, "Opened.", GO, "Failed."]))
    await chat.send_async("Open it.")
    await chat.send_async("Go.")


def test_the_event_loop_does_not_wait_for_servers_that_will_not_stop() -> None:
    # The first import takes a second, part of which no other thread can run.
    importlib.import_module("mcp")

    async def all_at_once() -> None:
        await asyncio.gather(
            open_and_go(hostile("stubborn")),
            open_and_go(hostile("hangs", start_timeout=0.5)),
            fail_in_the_second_turn(hostile("failing")),
        )

    assert asyncio.run(largest_stall(all_at_once())) < 1.5


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc to find processes that left their group")
@pytest.mark.parametrize("mode", ["descendant", "detached-descendant"])
def test_no_process_of_a_server_is_left_behind(mode: str, tmp_path: Path) -> None:
    run(hostile(mode, str(tmp_path / "pid")), GO)
    pid = int((tmp_path / "pid").read_text())
    # A killed process is gone only once the kernel has ended it.
    until(lambda: not is_running(pid), "the process to be gone")


@pytest.mark.parametrize(("mode", "limit"), [("many-tools", "1,000 tools"), ("long-text", "4 MB of text")])
def test_a_listing_has_limits_that_are_named(mode: str, limit: str, caplog: pytest.LogCaptureFixture) -> None:
    (answer,) = run(hostile(mode))
    assert answer == (False, "Section 'shop' cannot be opened now; go on without it.")
    assert f"MCP server 'shop' cannot list its tools: it lists more than {limit}, the most" in caplog.text


def test_a_tool_with_an_endless_description_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    session = Session()
    with ScriptedAdapter([READ, "Done."]) as adapter:
        adapter.evaluate(prompt(hostile("long-description")), session=session)
    assert tool_names(adapter.requests[-1].tools) == ["read_section", "go"]
    assert "Tool 'long' of MCP server 'shop' is left out: its definition has" in caplog.text


def test_names_are_logged_without_their_control_characters(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    lock = tmp_path / "mcp.lock.json"
    lock.write_text('{"shop": {"tools": []}}')
    run(hostile("bad-names", lock=lock))
    logged = [record.getMessage() for record in caplog.records if record.name == "weakincentives.mcp"]
    assert len(logged) == 5
    assert [text for text in logged if not text.isprintable()] == []


def test_a_block_that_is_not_base64_does_not_lose_the_others() -> None:
    _, (success, message) = run(hostile("bad-base64"), GO)
    assert success
    assert message.split("\n\n") == [
        "before",
        "[data: image/png, not valid base64]",
        "[shop://blob: application/pdf, not valid base64]",
        "after",
    ]
