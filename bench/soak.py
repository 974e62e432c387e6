"""Ten thousand runs in one process: memory does not grow, and no thread or descriptor is left.

`WINK_SOAK_RUNS` changes how many. A mixed soak has a fifth of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.adapters import ADAPTERS, done, done_async, template, through_client
from bench.model_server import serving
from bench.row import Row
from weakincentives.errors import DeadlineExceededError
from weakincentives.limits import Deadline
from weakincentives.prompt import Prompt
from weakincentives.runtime.loop.bridge import MAX_THREADS
from weakincentives.session import Session

SLOW = True
RUNS = int(os.environ.get("WINK_SOAK_RUNS", "10000"))
SLACK_MB = 2.0
SLACK_OBJECTS = 200


def rows() -> Iterator[Row]:
    with serving() as url:
        for name, make in ADAPTERS.items():
            for kind, run in (("sync", run_sync), ("async", run_async), ("stream", run_stream)):
                yield from measured(f"{name}, {kind}", lambda: make(f"{url}/k3"), run, RUNS)  # noqa: B023
        for name, make in {**ADAPTERS, "OpenAIAdapter through its client": through_client}.items():
            yield from measured(f"{name}, mixed", lambda: make(f"{url}/k1/d5"), run_mixed, RUNS // 5, warm_up=0.5)  # noqa: B023


def measured(
    name: str, make: Callable[[], Any], run: Callable[[Any, int], None], runs: int, *, warm_up: float = 0.1
) -> Iterator[Row]:
    """Growth after the first part of the runs, and what is left when the adapter is gone."""
    gc.collect()
    adapter = make()
    run(adapter, 6)
    adapter.close()
    gc.collect()
    threads, descriptors = thread_count(), descriptor_count()
    first = max(1, int(runs * warm_up))
    run(adapter, first)
    gc.collect()
    memory, objects = memory_mb(), len(gc.get_objects())
    run(adapter, runs - first)
    gc.collect()
    memory, objects = memory_mb() - memory, len(gc.get_objects()) - objects
    adapter.close()
    if (client := getattr(adapter, "client", None)) is not None:
        client.close()
        del client
    del adapter
    gc.collect()
    soak = f"{runs:,} runs, {name}"
    yield Row(f"{soak}: memory grown after the first {first:,}", memory, "MB", goal=SLACK_MB)
    yield Row(f"{soak}: objects grown after the first {first:,}", objects, "", goal=SLACK_OBJECTS)
    yield Row(f"{soak}: threads left", thread_count() - threads, "", goal=0)
    yield Row(f"{soak}: descriptors left", descriptor_count() - descriptors, "", goal=0)


def run_sync(adapter: Any, runs: int) -> None:
    prompts = template(handler=done)
    for _ in range(runs):
        adapter.evaluate(Prompt(prompts), session=Session())


def run_async(adapter: Any, runs: int) -> None:
    prompts = template(handler=done_async)

    async def batch(size: int) -> None:
        await asyncio.gather(*(adapter.evaluate_async(Prompt(prompts), session=Session()) for _ in range(size)))

    for start in range(0, runs, 50):
        asyncio.run(batch(min(50, runs - start)))


def run_stream(adapter: Any, runs: int) -> None:
    prompts = template(handler=done)
    for _ in range(runs):
        for _ in adapter.stream(Prompt(prompts), session=Session()):
            pass


def run_mixed(adapter: Any, runs: int) -> None:
    """Runs that end in every way there is: answered, awaited, streamed, abandoned, cancelled, late."""
    kinds = (_answered, _awaited, _streamed, _abandoned, _cancelled, _late)
    prompts = template(handler=done)
    for number in range(runs):
        with contextlib.suppress(DeadlineExceededError, TimeoutError):
            kinds[number % len(kinds)](adapter, Prompt(prompts))


def _answered(adapter: Any, prompt: Prompt[Any]) -> None:
    adapter.evaluate(prompt, session=Session())


def _awaited(adapter: Any, prompt: Prompt[Any]) -> None:
    asyncio.run(adapter.evaluate_async(prompt, session=Session()))


def _streamed(adapter: Any, prompt: Prompt[Any]) -> None:
    for _ in adapter.stream(prompt, session=Session()):
        pass


def _abandoned(adapter: Any, prompt: Prompt[Any]) -> None:
    stream = adapter.stream(prompt, session=Session())
    next(stream)
    stream.close()


def _cancelled(adapter: Any, prompt: Prompt[Any]) -> None:
    asyncio.run(asyncio.wait_for(adapter.evaluate_async(prompt, session=Session()), 0.003))


def _late(adapter: Any, prompt: Prompt[Any]) -> None:
    adapter.evaluate(prompt, session=Session(), deadline=Deadline.after(0.003))


def memory_mb() -> float:
    """What the process holds of its own; pages of files come and go with what else the machine does."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") / 1e6


def thread_count() -> int:
    """The threads of the process, Python's or not; those that are ending have a moment to do so.

    Those that blocking tools are called in do not count: a limited number of them is kept.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(1)
        elif thread.name == "weakincentives-request":
            thread.join(5)
    kept = sum(thread.name.startswith("wink-tools-") for thread in threading.enumerate())
    assert kept <= MAX_THREADS
    return len(list(Path("/proc/self/task").iterdir())) - kept


def descriptor_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
