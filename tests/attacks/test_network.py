"""What a server, or a process around it, may do to a request: every outcome is a reply or an error that says why."""

from __future__ import annotations

import asyncio
import base64
import functools
import gzip
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import openai
import pytest

from tests.adapters.tools import SYSTEM, ask
from tests.adapters.vendors import LITELLM
from tests.attacks.reach import ALL, DIRECT, DONE, KEY, OK, STREAMED, WHOLE, Way
from tests.servers.hostile import Connection, HostileServer, chunked, response
from tests.servers.loopback import CERTIFICATE, server_tls
from tests.servers.openai_responses import ResponsesServer
from tests.servers.turn import Turn
from weakincentives.adapters.network.connection import Pool
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.clock import FakeClock
from weakincentives.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.runtime import Message

ROOT = Path(__file__).parents[2]
SPACES = b" " * 65536
LARGE = ask([SYSTEM, Message("user", "x" * 20_000_000)])


def answering(data: bytes) -> Callable[[Connection], None]:
    """Serves every request with these bytes, then closes the connection."""

    def serve(connection: Connection) -> None:
        if connection.receive() is not None:
            connection.send(data)

    return serve


def failure(way: Way, serve: Callable[[Connection], None], **options: object) -> tuple[PromptEvaluationError, int]:
    """The error that a request without retries ends in, and how many bytes the server had sent by then."""
    with HostileServer(serve) as server, pytest.raises(PromptEvaluationError) as caught:
        way.ask(server.url, max_retries=0, **options)
    return caught.value, server.sent


FORKING = """
import asyncio, os, sys
import openai
from tests.adapters.tools import SYSTEM, ask
from tests.adapters.vendors import LITELLM
from weakincentives.adapters.network.connection import Pool
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.runtime import Message

adapter = OpenAIAdapter("m", client=openai.OpenAI(api_key="sk-fork-0123456789", base_url=sys.argv[1]))

def wrong(name, requests):
    async def ask_async(request):
        return await adapter.channel().call_async(request)
    found = 0
    for number in range(requests):
        text = f"{name}-{number}"
        request = ask([SYSTEM, Message("user", text)])
        found += adapter.channel().call(request).text != text
        if number % 5 == 0:
            found += asyncio.run(ask_async(request)).text != text
    return found

assert wrong("before", 3) == 0
children = []
for child in range(4):
    pid = os.fork()
    if not pid:
        try:
            code = min(wrong(f"child{child}", 25), 100)
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 101
        os._exit(code)
    children.append(pid)
mine = wrong("parent", 25)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
print(mine, *codes)
"""


@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_a_fork_with_an_idle_connection_mixes_no_answers(secure: bool) -> None:
    with ResponsesServer(
        lambda received: Turn(received.json["input"][-1]["content"]), tls=server_tls() if secure else None
    ) as server:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", FORKING, f"{server.url}/v1"],
            cwd=ROOT,
            env={**os.environ, "SSL_CERT_FILE": str(CERTIFICATE)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.stdout.split(), done.stderr) == (["0"] * 5, "")


def dying(connection: Connection) -> None:
    """Answers the first request of a connection and, on the second, hangs up without an answer."""
    connection.receive()
    connection.send(response(OK))
    connection.receive()


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
def test_without_retries_a_request_is_sent_once_even_if_an_idle_connection_dies(awaited: bool) -> None:
    async def twice(adapter: OpenAIAdapter) -> None:
        await adapter.channel().call_async(ask([SYSTEM]))
        await adapter.channel().call_async(ask([SYSTEM]))

    with (
        HostileServer(dying) as server,
        openai.OpenAI(api_key=KEY, base_url=server.url) as client,
        OpenAIAdapter("m", client=client, max_retries=0) as adapter,
        pytest.raises(PromptEvaluationError, match="The connection broke"),
    ):
        if awaited:
            asyncio.run(twice(adapter))
        adapter.channel().call(ask([SYSTEM]))
        adapter.channel().call(ask([SYSTEM]))
    assert (server.requests, server.connections) == (2, 1)


class Contended(deque[Any]):
    """Idle connections of which each is taken by another thread as soon as it is there."""

    def append(self, connection: Any) -> None:
        super().append(connection)
        self.pop()


def test_a_connection_may_be_taken_while_it_is_being_put_back() -> None:
    pool = Pool()
    pool._idle = Contended()
    pool.put(SimpleNamespace(reusable=lambda: True))
    assert pool.take() is None


def test_a_request_that_is_sent_again_counts_as_a_retry() -> None:
    with (
        HostileServer(dying) as server,
        openai.OpenAI(api_key=KEY, base_url=server.url) as client,
        OpenAIAdapter("m", client=client, max_retries=1, clock=FakeClock()) as adapter,
    ):
        adapter.channel().call(ask([SYSTEM]))
        reply = adapter.channel().call(ask([SYSTEM]))
    assert (reply.text, reply.retries, server.requests) == ("fine", 1, 3)


@pytest.mark.parametrize("way", DIRECT, ids=str)
def test_a_redirect_without_retries_is_an_error_and_not_a_second_request(way: Way) -> None:
    moved = response(b"", "location: /elsewhere", status="307 Moved")
    with (
        HostileServer(answering(moved)) as server,
        pytest.raises(PromptEvaluationError, match="redirects to /elsewhere; set base_url to where it is"),
    ):
        way.ask(server.url, max_retries=0)
    assert server.requests == 1


def pinging(*first: bytes) -> Callable[[Connection], None]:
    """Sends these events, then comments for as long as the client listens."""

    def serve(connection: Connection) -> None:
        connection.receive()
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", *first)
        for _ in range(400):
            connection.send(b": ping\n\n")
            time.sleep(0.05)

    return serve


def seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


@pytest.mark.parametrize("way", STREAMED, ids=str)
def test_a_stream_that_only_pings_ends_at_the_deadline(way: Way) -> None:
    def work() -> None:
        with HostileServer(pinging()) as server, pytest.raises(DeadlineExceededError):
            way.ask(server.url, ask([SYSTEM], deadline=Deadline.after(0.5)))

    assert seconds(work) < 30


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
def test_a_stream_through_litellm_ends_at_the_deadline(awaited: bool) -> None:
    async def collect(adapter: Any, request: Any) -> list[Any]:
        return [part async for part in adapter.channel().stream_async(request)]

    def work() -> None:
        with HostileServer(pinging()) as server, pytest.raises(DeadlineExceededError):
            adapter, request = LITELLM.adapter(server), ask([SYSTEM], deadline=Deadline.after(0.5))
            asyncio.run(collect(adapter, request)) if awaited else list(adapter.channel().stream(request))

    assert seconds(work) < 30


@pytest.mark.parametrize("way", STREAMED, ids=str)
def test_a_stream_whose_reply_is_complete_is_not_waited_for(way: Way) -> None:
    def work() -> None:
        with HostileServer(pinging(DONE)) as server:
            assert way.ask(server.url).text == "fine"

    assert seconds(work) < 30


def drip(connection: Connection) -> None:
    """Sends a body byte by byte, for 20 seconds."""
    connection.receive()
    connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\ncontent-type: application/json\r\n\r\n")
    for _ in range(400):
        connection.send(b" ")
        time.sleep(0.05)


@pytest.mark.parametrize("way", WHOLE, ids=str)
def test_a_body_that_arrives_byte_by_byte_ends_at_the_deadline(way: Way) -> None:
    def work() -> None:
        with HostileServer(drip) as server, pytest.raises(DeadlineExceededError):
            way.ask(server.url, ask([SYSTEM], deadline=Deadline.after(0.5)))

    assert seconds(work) < 15


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
def test_a_body_that_arrives_byte_by_byte_through_litellm_ends_at_the_deadline(awaited: bool) -> None:
    with HostileServer(drip) as server, pytest.raises(DeadlineExceededError):
        adapter = LITELLM.adapter(server)
        # Importing LiteLLM takes seconds.
        request, channel = ask([SYSTEM], deadline=Deadline.after(1)), adapter.channel()
        started = time.monotonic()
        try:
            asyncio.run(channel.call_async(request)) if awaited else channel.call(request)
        finally:
            taken = time.monotonic() - started
    assert taken < 15


@pytest.mark.parametrize("way", [way for way in DIRECT if not way.streamed], ids=str)
def test_a_head_that_arrives_byte_by_byte_ends_at_the_deadline(way: Way) -> None:
    def drip(connection: Connection) -> None:
        connection.receive()
        for _ in range(400):
            connection.send(b"H")
            time.sleep(0.05)

    def work() -> None:
        with HostileServer(drip) as server, pytest.raises(DeadlineExceededError):
            way.ask(server.url, ask([SYSTEM], deadline=Deadline.after(0.5)))

    assert seconds(work) < 30


def refusing(status: str) -> Callable[[Connection], None]:
    """Refuses a request when it has read its head, and reads no more of it."""

    def serve(connection: Connection) -> None:
        connection.receive_head()
        connection.send(response(b'{"error":{"message":"no"}}', "connection: close", status=status))
        connection.sock.shutdown(socket.SHUT_WR)
        connection.wait_for_the_client_to_leave()

    return serve


@pytest.mark.parametrize("status", ["413 Too Large", "401 Unauthorized", "429 Busy"])
@pytest.mark.parametrize("way", WHOLE, ids=str)
def test_an_early_refusal_of_a_large_upload_is_reported_with_its_status(way: Way, status: str) -> None:
    with HostileServer(refusing(status)) as server, pytest.raises(PromptEvaluationError) as caught:
        way.ask(server.url, LARGE, max_retries=0 if status.startswith("429") else 2)
    assert f"openai answered {status[:3]}: no" in str(caught.value)
    assert (len(server.heads), caught.value.phase) == (1, "request")


def test_a_refusal_is_read_even_if_the_server_resets_the_connection() -> None:
    def slam(connection: Connection) -> None:
        connection.receive_head()
        connection.send(response(b'{"error":{"message":"no"}}', "connection: close", status="413 Too Large"))

    with HostileServer(slam) as server, pytest.raises(PromptEvaluationError, match="answered 413: no"):
        DIRECT[0].ask(server.url, LARGE)


@functools.cache
def gzip_bomb() -> bytes:
    """0.7 MB that unfold to 763 MB."""
    squeeze = zlib.compressobj(wbits=31)
    return b"".join(squeeze.compress(SPACES) for _ in range(763 * 16)) + squeeze.flush()


def head(*headers: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", *headers]).encode() + b"\r\n\r\n"


def endless(start: bytes, piece: bytes) -> Callable[[Connection], None]:
    def serve(connection: Connection) -> None:
        connection.receive()
        connection.send(start)
        connection.send_endlessly(piece)

    return serve


TOO_LARGE = {
    "a body of 1 GB": endless(head("content-length: 1073741824"), SPACES),
    "a body without a length": endless(head(), SPACES),
    "chunks without end": endless(head("transfer-encoding: chunked"), b"10000\r\n" + SPACES + b"\r\n"),
    "a gzip bomb": lambda connection: answering(response(gzip_bomb(), "content-encoding: gzip"))(connection),
}
ENDLESS = {
    "a header": endless(b"HTTP/1.1 200 OK\r\nx-long: ", b"x" * 65536),
    "headers": endless(b"HTTP/1.1 200 OK\r\n", b"x-name: value\r\n" * 4096),
    "a chunk extension": endless(head("transfer-encoding: chunked") + b"2;", SPACES),
    "one chunk": endless(head("transfer-encoding: chunked") + b"fffffffffffffff\r\n", SPACES),
    "trailers": endless(head("transfer-encoding: chunked") + b"2\r\n{}\r\n0\r\n", b"x-name: " + b"v" * 4000 + b"\r\n"),
}


@pytest.mark.parametrize("attack", TOO_LARGE)
@pytest.mark.parametrize("way", WHOLE, ids=str)
def test_a_response_that_is_too_large_is_given_up(way: Way, attack: str) -> None:
    error, sent = failure(way, TOO_LARGE[attack])
    assert "the server sent more than 128 MB in one response" in str(error)
    assert (error.phase, sent < 400 << 20) == ("response", True)


@pytest.mark.parametrize("attack", ENDLESS)
@pytest.mark.parametrize("way", DIRECT, ids=str)
def test_what_never_ends_in_http_is_given_up(way: Way, attack: str) -> None:
    error, sent = failure(way, ENDLESS[attack])
    assert (bool(error.phase), sent < 600 << 20) == (True, True)


@pytest.mark.parametrize("way", STREAMED, ids=str)
def test_a_line_of_a_stream_without_end_is_given_up(way: Way) -> None:
    error, sent = failure(way, endless(head() + b"data: ", b"x" * 65536))
    assert "the server sent more than 128 MB in one response" in str(error)
    assert sent < 400 << 20


MALFORMED = {
    "a negative chunk size": head("transfer-encoding: chunked") + b"-2\r\n{}\r\n0\r\n\r\n",
    "a chunk size of -1": head("transfer-encoding: chunked") + b"-1\r\n{}\r\n0\r\n\r\n",
    "a chunk size in words": head("transfer-encoding: chunked") + b"two\r\n{}\r\n0\r\n\r\n",
    "a chunk that is cut off": head("transfer-encoding: chunked") + b"50\r\n{}",
    "chunks without an end": head("transfer-encoding: chunked") + b"2\r\n{}\r\n",
    "a negative length": head("content-length: -5") + OK,
    "a length in words": head("content-length: five") + OK,
    "two lengths": head("content-length: 2", f"content-length: {len(OK)}") + OK,
    "a body that is too short": head("content-length: 5000") + OK,
    "a status in words": b"HTTP/1.1 good OK\r\ncontent-length: 2\r\n\r\n{}",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "nothing": b"",
    "a cut head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "not UTF-8": response(b'{"output":[],"id":"\xff\xfe"}'),
    "not UTF-8 in an item": response(b'{"output":[{"type":"message","content":[{"text":"\xff"}]}]}'),
    "nested too deeply": response(b'{"output":[' + b"[" * 200_000 + b"]" * 200_000 + b"]}"),
    "another shape": response(b'{"output": 5}'),
    "a list": response(b"[]"),
    "no JSON": response(b"<html>oops</html>"),
    "half of it": response(OK[: len(OK) // 2], "connection: close"),
    "an unknown encoding": response(OK, "content-encoding: br"),
    "damaged gzip": response(b"\x1f\x8bnope", "content-encoding: gzip"),
    "half of a gzip": response(gzip.compress(OK)[:-20], "content-encoding: gzip"),
    "a date that is none": response(b"{}", "retry-after: Fri, 99 Foo 2026 99:99:99 GMT", status="400 Bad"),
    "a status of 999": response(b"{}", status="999 What"),
}


@pytest.mark.parametrize("attack", MALFORMED)
@pytest.mark.parametrize("way", ALL, ids=str)
def test_a_malformed_response_is_an_error_with_a_phase(way: Way, attack: str) -> None:
    error, _ = failure(way, answering(MALFORMED[attack]))
    assert error.phase in ("request", "response")


@pytest.mark.parametrize("way", ALL, ids=str)
def test_a_response_that_turns_malformed_after_its_head_is_an_error(way: Way) -> None:
    def serve(connection: Connection) -> None:
        connection.receive()
        connection.send(head("transfer-encoding: chunked") + b"2\r\n  \r\n")
        time.sleep(0.2)
        connection.send(b"two\r\n{}\r\n")
        connection.wait_for_the_client_to_leave()

    error, _ = failure(way, serve)
    assert error.phase in ("request", "response")


@pytest.mark.parametrize("attack", ["chunks without an end", "a body that is too short", "nothing", "half of it"])
@pytest.mark.parametrize("way", ALL, ids=str)
def test_a_response_that_is_cut_off_is_asked_for_again(way: Way, attack: str) -> None:
    data = [MALFORMED[attack], response(DONE if way.streamed else OK)]

    def serve(connection: Connection) -> None:
        if connection.receive() is not None:
            connection.send(data.pop(0))

    with HostileServer(serve) as server:
        reply = way.ask(server.url, clock=FakeClock())
    assert (reply.text, reply.retries) == ("fine", 1)


@pytest.mark.parametrize(
    "wait", ["", "soon", "nan", "-5", "Fri, 99 Foo 2026 99:99:99 GMT", "Thu, 01 Jan 2026 00:00:01 -0000", "\xff"]
)
@pytest.mark.parametrize("way", [way for way in DIRECT if not way.streamed], ids=str)
def test_a_retry_after_that_makes_no_sense_is_ignored(way: Way, wait: str) -> None:
    busy = f"HTTP/1.1 429 Busy\r\nretry-after: {wait}\r\ncontent-length: 2\r\n\r\n{{}}".encode("latin-1")
    data = [busy, response(OK)]

    def serve(connection: Connection) -> None:
        while connection.receive() is not None and data:
            connection.send(data.pop(0))

    clock = FakeClock()
    with HostileServer(serve) as server:
        assert way.ask(server.url, clock=clock).text == "fine"
    assert clock.monotonic() < 2


EVENTS = {
    "nothing in it": b"data: {}\n\n",
    "no JSON": b"data: oops\n\n",
    "a list": b"data: []\n\n",
    "not UTF-8": b'data: {"type":"\xff"}\n\n',
    "nested too deeply": b"data: " + b"[" * 200_000 + b"\n\n",
    "no response": b'data: {"type":"response.completed"}\n\n',
    "an end without a reply": b"data: [DONE]\n\n",
}


@pytest.mark.parametrize("attack", EVENTS)
@pytest.mark.parametrize("way", [way for way in DIRECT if way.streamed], ids=str)
def test_a_malformed_event_is_an_error_with_a_phase(way: Way, attack: str) -> None:
    error, _ = failure(way, answering(chunked([EVENTS[attack]])))
    assert error.phase == "response"


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("properly", [True, False], ids=["closed properly", "cut"])
def test_a_tls_body_that_ends_with_the_connection_needs_a_proper_end(
    awaited: bool, properly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(connection: Connection) -> None:
        connection.receive()
        connection.send(head("content-type: application/json") + OK)
        assert isinstance(connection.sock, ssl.SSLSocket)
        if properly:
            connection.sock.unwrap()

    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with HostileServer(serve, tls=server_tls()) as server:
        way = Way(own=False, awaited=awaited, streamed=False)
        if properly:
            assert way.ask(server.url, max_retries=0).text == "fine"
        else:
            with pytest.raises(PromptEvaluationError, match="The connection broke"):
                way.ask(server.url, max_retries=0)


@pytest.mark.parametrize("way", ALL, ids=str)
def test_a_tls_body_that_is_cut_in_the_middle_is_an_error(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    half = (DONE if way.streamed else OK)[:-20]
    with HostileServer(answering(head() + half), tls=server_tls()) as server, pytest.raises(PromptEvaluationError):
        way.ask(server.url, max_retries=0)
    assert server.requests == 1


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
def test_headers_of_the_user_cannot_double_those_of_http(awaited: bool) -> None:
    smuggled = {"Host": "gateway.example", "Content-Length": "3", "Transfer-Encoding": "chunked", "Connection": "close"}
    with HostileServer(answering(response(OK))) as server:
        client = openai.OpenAI(api_key=KEY, base_url=server.url, default_headers=smuggled)
        with client, OpenAIAdapter("m", client=client) as adapter:
            channel = adapter.channel()
            reply = asyncio.run(channel.call_async(ask([SYSTEM]))) if awaited else channel.call(ask([SYSTEM]))
    names = [line.partition(b":")[0].lower() for line in server.heads[0].split(b"\r\n")[1:]]
    assert reply.text == "fine"
    assert [names.count(name) for name in (b"host", b"content-length", b"transfer-encoding")] == [1, 1, 0]
    assert b"gateway.example" in server.heads[0] and b"content-length: 3\r\n" not in server.heads[0].lower() + b"\r\n"


KEY_FORMS = [KEY, quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode(), json.dumps(KEY)]


@pytest.mark.parametrize("form", KEY_FORMS)
def test_an_error_shows_no_key_in_any_encoding(form: str) -> None:
    body = json.dumps({"error": {"message": f"bad key: {form}", "headers": {"x-key": form}}}).encode()
    error, _ = failure(DIRECT[0], answering(response(body, status="400 Bad")))
    assert form not in str(error) and "[redacted]" in str(error)
    assert form not in json.dumps(error.payload)


@pytest.mark.parametrize("key", ["sk-schlüssel", "sk-鍵", "sk-\n-injected: yes", "sk-\ud800"])
@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
def test_a_key_that_no_header_can_carry_is_an_error_that_says_so(awaited: bool, key: str) -> None:
    with HostileServer(answering(response(OK))) as server:
        client = (openai.AsyncOpenAI if awaited else openai.OpenAI)(api_key=key, base_url=server.url)
        channel = OpenAIAdapter("m", client=client).channel()
        with pytest.raises(PromptEvaluationError) as caught:
            asyncio.run(channel.call_async(ask([SYSTEM]))) if awaited else channel.call(ask([SYSTEM]))
    assert (caught.value.phase, server.requests) == ("request", 0)
