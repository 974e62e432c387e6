"""A process that starts children while it has connections; `test_forks.py` runs it, and serves it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

FORKS = ("os.fork", "fork")
KINDS = ("sync", "async")
CHILDREN = {"asks": 0, "exits": 0, "closes": 0, "is killed": -9}
"""What a child does, with its exit code."""
MOMENTS = ("idle", "idle, then busy", "busy")
"""When a child is started, and when it then does that."""


def cases(method: str) -> list[tuple[str, str]]:
    """What children do and when; those that are not forked inherit nothing that they could close or use later."""
    every = [(child, moment) for child in CHILDREN for moment in MOMENTS]
    return [case for case in every if method in FORKS or (case[0] != "closes" and case[1] != "idle, then busy")]


class Asker:
    """Sends requests with one adapter, blocking or on an event loop in a thread of its own."""

    def __init__(self, url: str, kind: str) -> None:
        import openai

        from weakincentives.adapters.openai import OpenAIAdapter

        client = openai.OpenAI(api_key="sk-fork-0123456789", base_url=url, timeout=20)
        self.adapter = OpenAIAdapter("m", client=client, max_retries=0)
        self.loop = asyncio.new_event_loop() if kind == "async" else None
        if self.loop is not None:
            threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def ask(self, text: str, *, in_child: bool = False) -> str:
        channel = self.adapter.channel()
        if self.loop is None:
            return str(channel.call(request(text)).text)
        asked = channel.call_async(request(text))
        return str(asyncio.run(asked).text if in_child else self._wait(asked).text)

    def start(self, text: str) -> Callable[[], str]:
        """Begin a stream and wait for its first part; returns a function that waits for its end."""
        if self.loop is None:
            stream = self.adapter.channel().stream(request(text))
            next(stream)
            return lambda: str(list(stream)[-1].text)
        streamed = self.adapter.channel().stream_async(request(text))
        self._wait(anext(streamed))
        return lambda: str(self._wait(_last(streamed)).text)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)


async def _last(stream: AsyncIterator[Any]) -> Any:
    return [part async for part in stream][-1]


def request(text: str) -> Any:
    from tests.adapters.tools import SYSTEM, ask
    from weakincentives.runtime import Message

    return ask([SYSTEM, Message("user", text)])


def behave(go: Callable[[], object], child: str, asker: Asker | None, url: str, kind: str, text: str) -> None:
    """The child's part; one that was not forked has no adapter of its parent."""
    go()
    if child == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if child == "closes":
        assert asker is not None
        asker.adapter.close()
    if child == "asks":
        assert (asker or Asker(url, kind)).ask(text, in_child=True) == text
    # Running every finalizer takes a while.
    sys.exit(0) if child == "exits" else os._exit(0)


def start_child(method: str, asker: Asker, child: str, *arguments: str) -> Callable[[], int]:
    """Start a child; returns a function that lets it act, waits for its end, and returns its exit code."""
    if method == "os.fork":
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            behave(lambda: os.read(reader, 1), child, asker, *arguments)

        def finish() -> int:
            os.write(writer, b"x")
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        return finish
    context: Any = multiprocessing.get_context(method)
    go = context.Event()
    process = context.Process(target=behave, args=(go.wait, child, asker if method == "fork" else None, *arguments))
    process.start()

    def finish_process() -> int:
        go.set()
        process.join(20)
        return int(process.exitcode)

    return finish_process


def main(method: str, url: str) -> None:
    release = Asker(url, "sync")
    for kind in KINDS:
        asker = Asker(url, kind)
        for child, moment in cases(method):
            name = f"{kind}: {child} ({moment})"
            asker.ask(f"before {name}")
            arguments = (method, asker, child, url, kind, f"child {name}")
            finish = None if moment == "busy" else start_child(*arguments)
            code = finish() if finish and moment == "idle" else None
            end = asker.start(f"slow {name}")
            if code is None:
                code = (finish or start_child(*arguments))()
            release.ask(f"release {name}")
            print(name, code, end() == f"slow {name}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
