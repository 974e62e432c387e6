"""A process that starts children while it has connections; `test_forks.py` runs it, and serves it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

CHILDREN = ("asks", "exits", "closes", "is killed")


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
        started, parts = threading.Event(), []

        def read() -> None:
            for part in self.adapter.channel().stream(request(text)):
                parts.append(part)
                started.set()

        async def read_async() -> None:
            async for part in self.adapter.channel().stream_async(request(text)):
                parts.append(part)
                started.set()

        thread = threading.Thread(target=(lambda: self._wait(read_async())) if self.loop else read, daemon=True)
        thread.start()
        assert started.wait(20)

        def end() -> str:
            thread.join(20)
            return str(parts[-1].text)

        return end

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)


def request(text: str) -> Any:
    from tests.adapters.tools import SYSTEM, ask
    from weakincentives.runtime import Message

    return ask([SYSTEM, Message("user", text)])


def behave(child: str, asker: Asker | None, url: str, kind: str, text: str) -> None:
    """What the child does; one that was not forked has no adapter of its parent."""
    if child == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if child == "closes" and asker is not None:
        asker.adapter.close()
    if child == "asks":
        assert (asker or Asker(url, kind)).ask(text, in_child=True) == text
    sys.exit(0)


def start_child(method: str, child: str, asker: Asker, url: str, kind: str, text: str) -> int:
    """Start a child, wait for its end, and return its exit code."""
    if method == "os.fork":
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            behave(child, asker, url, kind, text)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=behave, args=(child, asker if method == "fork" else None, url, kind, text))
    process.start()
    process.join(20)
    return int(process.exitcode)


def main(method: str, url: str) -> None:
    release = Asker(url, "sync")
    for kind in ("sync", "async"):
        asker = Asker(url, kind)
        for child in CHILDREN:
            name = f"{kind} {child}"
            assert asker.ask(f"before {name}") == f"before {name}"
            idle = start_child(method, child, asker, url, kind, f"child of idle {name}")
            kept = asker.ask(f"after {name}") == f"after {name}"
            end = asker.start(f"slow {name}")
            busy = start_child(method, child, asker, url, kind, f"child of busy {name}")
            release.ask(f"release {name}")
            print(name, idle, kept, busy, end() == f"slow {name}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
