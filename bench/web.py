"""A web chat with 50 users, beside the same application on Pydantic AI's adapter for the same protocol.

Each user sends six messages over Vercel's AI message stream, with the history that `useChat` sends. For each message
the model calls a tool and then streams an answer of 30 words. Model, application and users are processes of their own;
the figures are the application's CPU and the time until a user sees the first word. Users do not pause, so 50 of them
keep a slow application busy, and most of the wait is a queue; a user alone shows the cost of an exchange without it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.model_server import serving
from bench.peers import PEERS, SCRIPTS
from bench.row import Row

SLOW = True
USERS, EXCHANGES, ROUNDS = 50, 6, 2
ROOT = Path(__file__).parents[1]
PEER = next(peer for peer in PEERS if peer.script == "pydantic_ai")


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds: the application's CPU for an exchange, and how long users waited for the first word."""

    cpu: float
    first_word: float
    slow_first_word: float


# By attribute: the name of the figure, and the part of the peer's figure that it may have.
FIGURES = {
    "cpu": ("CPU per exchange", 0.25),
    "first_word": ("first word, median", 0.5),
    "slow_first_word": ("first word, slowest twentieth", 0.5),
}


def rows() -> Iterator[Row]:
    commands: dict[str, Sequence[str]] = {"weakincentives.ui": [sys.executable, "-m", "bench.web_app"]}
    if PEER.installed:
        commands[PEER.name] = [str(PEER.python), str(SCRIPTS / "web_pydantic_ai.py")]
    crowds: dict[int, dict[str, list[Measured]]] = {users: {name: [] for name in commands} for users in (USERS, 1)}
    with ExitStack() as stack:
        model = f"{stack.enter_context(serving())}/k1/d20/w30"
        ports = {name: stack.enter_context(application([*command, model])) for name, command in commands.items()}
        for _ in range(ROUNDS):
            for users, measured in crowds.items():
                # In turn, since the machine has slow moments.
                for name, port in ports.items():
                    measured[name].append(asyncio.run(crowd(port, users)))
    for users, measured in crowds.items():
        yield from _compared(f"{users} user{'s' * (users > 1)} x {EXCHANGES} exchanges", measured)


def _compared(label: str, measured: dict[str, list[Measured]]) -> Iterator[Row]:
    for attribute, (what, goal) in FIGURES.items():
        mine, *others = (min(getattr(one, attribute) for one in rounds) for rounds in measured.values())
        if not others:
            yield Row(f"{label}: {what}", mine, "ms", note=f"{PEER.name} is not there: python -m bench.peers install")
            continue
        (other,) = others
        yield Row(f"{label}: {what}", mine, "ms", ratio=mine / other, ratio_goal=goal, baseline=PEER.name)
        yield Row(f"{label}: {what}, {PEER.name}", other, "ms")


@contextmanager
def application(command: Sequence[str]) -> Iterator[int]:
    """The port of an application that runs while the block does."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def crowd(port: int, size: int) -> Measured:
    """All users at once, after one who warms the application up."""
    await User(port).talk(2)
    before = float(await cpu(port))
    users = [User(port) for _ in range(size)]
    await asyncio.gather(*(user.talk(EXCHANGES) for user in users))
    spent = float(await cpu(port)) - before
    waits = [seconds * 1e3 for user in users for seconds in user.first_words]
    return Measured(spent / len(waits) * 1e3, statistics.median(waits), statistics.quantiles(waits, n=20)[-1])


async def cpu(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /cpu HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n\r\n")[2]


class User:
    """A page with a chat: sends its history and the next message, and reads the stream of the answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._thread = uuid.uuid4().hex
        self._messages: list[dict[str, Any]] = []
        self.first_words: list[float] = []

    async def talk(self, exchanges: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for number in range(exchanges):
            said = {"type": "text", "text": f"Please work on item {number}, and tell me how it went."}
            self._messages.append({"id": f"u{number}", "role": "user", "parts": [said]})
            asked = {"id": self._thread, "messages": self._messages, "trigger": "submit-message"}
            body = json.dumps(asked).encode()
            head = b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            start = time.perf_counter()
            writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            parts = await self._answer(reader, start)
            self._messages.append({"id": f"a{number}", "role": "assistant", "parts": parts})
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, start: float) -> list[dict[str, Any]]:
        """The parts of the assistant's message as the client of the protocol puts them together."""
        calls: dict[str, dict[str, Any]] = {}
        words: list[str] = []
        async for event in events(reader):
            match event["type"]:
                case "text-delta":
                    if not words:
                        self.first_words.append(time.perf_counter() - start)
                    words.append(event["delta"])
                case "tool-input-available":
                    calls[event["toolCallId"]] = {
                        "type": f"tool-{event['toolName']}",
                        "toolCallId": event["toolCallId"],
                        "state": "output-available",
                        "input": event["input"],
                        "output": "done",
                    }
                case "tool-output-available":
                    calls[event["toolCallId"]]["output"] = event.get("output")
                case "error":
                    raise RuntimeError(f"the application failed: {event}")
        if len(calls) != 1 or len("".join(words).split()) != 30:
            raise RuntimeError(f"expected a call and 30 words, got {len(calls)} calls and {words!r}")
        step = {"type": "step-start"}
        return [step, *calls.values(), step, {"type": "text", "text": "".join(words), "state": "done"}]


async def events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The events of a response in chunks, each a line of JSON."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise RuntimeError(f"the application refused: {head!r}")
    rest = b""
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        rest += (await reader.readexactly(size + 2))[:-2]
        *whole, rest = rest.split(b"\n\n")
        for event in whole:
            data = event.removeprefix(b"data: ")
            if data and data != b"[DONE]":
                yield json.loads(data)
    await reader.readexactly(2)
