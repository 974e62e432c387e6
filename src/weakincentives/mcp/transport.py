"""The transports to MCP servers, which limit what one message may be, and leave no process of a server behind.

A server may be hostile or broken: it can send an answer without end, compressed data that expands without end, or JSON
whose values take a hundred times the memory of its text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import anyio
import httpx2
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from weakincentives._base.processes import marked_processes

logger = logging.getLogger("weakincentives.mcp")
MAX_MESSAGE = 32 << 20
"""The largest message that is read, in bytes, after decompression."""
MAX_VALUES = 1_000_000
"""The most values in one message, counted by the characters between them."""
# A server gets this long to exit on its own, and its processes again after SIGTERM, before they are killed.
EXIT_SECONDS = 2.0
MARK = "WINK_MCP_SERVER"
READ_SIZE = 1 << 16
ERROR_OUTPUT = 2_000
Failed = Callable[[str], None]


class UnreadableMessageError(httpx2.StreamError):
    """A message that is too large or damaged. The SDK turns this kind of error into the answer of a call."""


class MessageLimit:
    """Counts the bytes and values of each message in a stream; `ends` are the bytes that end one."""

    def __init__(self, *ends: bytes) -> None:
        self._ends = ends
        self._size = self._values = 0
        self._before = b""

    def add(self, data: bytes) -> None:
        # What ends a message may arrive in two pieces.
        known = len(self._before)
        data = self._before + data
        begin = max((data.rfind(end) + len(end) for end in self._ends if end in data), default=-1)
        self._before = data[-3:]
        if begin > known:
            self._size = self._values = 0
        data = data[max(begin, known) :]
        self._size += len(data)
        self._values += data.count(b",") + data.count(b"[") + data.count(b"{")
        if self._size > MAX_MESSAGE:
            raise UnreadableMessageError(f"it sent more than {MAX_MESSAGE >> 20} MB in one message")
        if self._values > MAX_VALUES:
            raise UnreadableMessageError(f"it sent more than {MAX_VALUES:,} values in one message")


@contextlib.asynccontextmanager
async def http_transport(url: str, headers: Mapping[str, str], failed: Failed) -> AsyncIterator[Any]:
    async def limit(response: httpx2.Response) -> None:
        response.stream = _LimitedBody(response, failed)
        response.headers.pop("content-encoding", None)

    async with create_mcp_http_client(headers={**headers, "accept-encoding": "gzip, deflate"}) as client:
        client.event_hooks = {"response": [limit]}
        # Events have the limit of messages; the default is 1 MB, less than many a picture.
        async with streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE) as streams:
            yield streams


class _LimitedBody(httpx2.AsyncByteStream):
    """The body of a response, decompressed piece by piece."""

    def __init__(self, response: httpx2.Response, failed: Failed) -> None:
        self._body: Any = response.stream
        self._failed = failed
        self._encoding = response.headers.get("content-encoding", "identity").strip().lower()
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        self._limit = MessageLimit(b"\n\n", b"\r\n\r\n", b"\r\r") if is_stream else MessageLimit()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        inflater = None
        if self._encoding in ("gzip", "x-gzip", "deflate"):
            inflater = zlib.decompressobj(wbits=47)
        try:
            if inflater is None and self._encoding != "identity":
                raise UnreadableMessageError(
                    f"it sent a body in the encoding {self._encoding!r}, which was not asked for"
                )
            async for received in self._body:
                for data in [received] if inflater is None else _inflated(inflater, received):
                    self._limit.add(data)
                    yield data
        except UnreadableMessageError as error:
            self._failed(str(error))
            raise

    async def aclose(self) -> None:
        await self._body.aclose()


def _inflated(inflater: Any, data: bytes) -> Iterator[bytes]:
    while data and not inflater.eof:
        try:
            yield inflater.decompress(data, READ_SIZE)
        except zlib.error as error:
            raise UnreadableMessageError(f"it sent damaged data: {error}") from None
        data = inflater.unconsumed_tail


@contextlib.asynccontextmanager
async def stdio_transport(
    command: list[str], env: Mapping[str, str], cwd: Any, errors: bytearray, failed: Failed
) -> AsyncIterator[Any]:
    """Run a server and exchange a line for each message with it. The end of its error output is put into `errors`."""
    mark = secrets.token_hex(16)
    env = {**get_default_environment(), **env, MARK: mark}
    process = await asyncio.create_subprocess_exec(
        shutil.which(command[0], path=env.get("PATH")) or command[0],
        *command[1:],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
        cwd=cwd,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)
    work = [
        asyncio.ensure_future(_receive(process.stdout, received, failed)),
        asyncio.ensure_future(_send(process.stdin, sent, received)),
        asyncio.ensure_future(_keep_end(process.stderr, errors)),
    ]
    try:
        yield incoming, outgoing
    finally:
        with anyio.CancelScope(shield=True):
            incoming.close()
            outgoing.close()
            # Messages that were accepted are sent before the server's input ends.
            await asyncio.wait([work[1]], timeout=EXIT_SECONDS / 4)
            await _stop(process, mark)
            for task in work:
                task.cancel()
            await asyncio.wait(work)
            received.close()
            sent.close()
            # What a surviving process holds open would keep the transport from ending.
            process._transport.close()  # type: ignore[attr-defined]


async def _receive(output: asyncio.StreamReader, received: Any, failed: Failed) -> None:
    limit, line = MessageLimit(b"\n"), bytearray()
    try:
        while data := await output.read(READ_SIZE):
            limit.add(data)
            *ended, rest = data.split(b"\n")
            for piece in ended:
                line += piece
                await received.send(_message(bytes(line)))
                line.clear()
            line += rest
    except UnreadableMessageError as error:
        failed(str(error))
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        pass
    finally:
        received.close()
    # A server that waits until its output is read could not exit.
    while await output.read(READ_SIZE):
        pass


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        logger.debug("An MCP server wrote a line that is no message: %r", line[:200])
        return error


async def _send(target: asyncio.StreamWriter, sent: Any, received: Any) -> None:
    try:
        async for each in sent:
            target.write(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await target.drain()
    except OSError:
        # The server no longer reads; calls that wait for an answer learn that the connection is gone.
        received.close()


async def _keep_end(output: asyncio.StreamReader, errors: bytearray) -> None:
    while data := await output.read(READ_SIZE):
        errors += data
        del errors[:-ERROR_OUTPUT]


async def _stop(process: asyncio.subprocess.Process, mark: str) -> None:
    """End the input of a server, and then the processes it leaves behind: first politely, then by force."""
    assert process.stdin is not None
    process.stdin.close()
    await _until(lambda: process.returncode is not None)
    if not _survivors(process, mark):
        return
    _signal(process, mark, signal.SIGTERM)
    if not await _until(lambda: not _survivors(process, mark)):
        _signal(process, mark, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
        await _until(lambda: process.returncode is not None)


async def _until(condition: Callable[[], bool]) -> bool:
    loop = asyncio.get_running_loop()
    ends, wait = loop.time() + EXIT_SECONDS, 0.005
    while not (met := condition()) and loop.time() < ends:
        await asyncio.sleep(wait)
        wait = min(wait * 1.5, 0.1)
    return met


def _survivors(process: asyncio.subprocess.Process, mark: str) -> bool:
    if process.returncode is None or marked_processes(MARK, mark):
        return True
    if os.path.isdir("/proc/self") or not hasattr(os, "killpg"):
        return False
    try:
        os.killpg(process.pid, 0)
    except OSError:
        return False
    return True


def _signal(process: asyncio.subprocess.Process, mark: str, number: int) -> None:
    """Send a signal to the server's process group, and to processes of the server that have left it."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.terminate()
    for pid in marked_processes(MARK, mark):
        with contextlib.suppress(OSError):
            os.kill(pid, number)
