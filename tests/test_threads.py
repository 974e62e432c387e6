"""Blocking work until a deadline, and event loops in threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from weakincentives._base.loops import LoopThread
from weakincentives._base.threads import until


class Opened:
    """Something that is to be closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def test_what_late_work_returns_is_closed() -> None:
    go, opened = threading.Event(), Opened()

    def work() -> Opened:
        go.wait(10)
        return opened

    with pytest.raises(LookupError, match="late"):
        until(0.01, work, LookupError("late"))
    assert not opened.closed.is_set()
    go.set()
    assert opened.closed.wait(10)


@pytest.mark.parametrize("seconds", [None, 10.0])
def test_a_timeout_of_the_work_itself_is_not_its_deadline(seconds: float | None) -> None:
    def work() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        until(seconds, work, LookupError("late"))


def test_a_task_that_exits_does_not_end_the_loop_of_others() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def answer() -> str:
        return "here"

    thread = LoopThread("test")
    assert isinstance(thread.submit(leave()).exception(10), SystemExit)
    assert thread.submit(answer()).result(10) == "here"
    thread.stop()
    thread.join(10)


def test_a_stopped_loop_awaits_its_last_work_and_cancels_the_rest() -> None:
    told: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("cancelled")

    async def last() -> None:
        await asyncio.sleep(0)
        told.append("last")

    thread = LoopThread("test", last)
    thread.submit(wait())
    for _ in range(2):
        thread.stop()
    thread.join(10)
    assert (told, thread.ended.done()) == (["last", "cancelled"], True)
    with pytest.raises(RuntimeError, match="closed"):
        thread.submit(work := wait())
    work.close()
