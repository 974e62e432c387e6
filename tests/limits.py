"""Gives every test a limit, so that a hung test, or a test that waits for a hung child, fails by name.

After three quarters of the limit (a minute, or `@pytest.mark.limit(seconds)`), the processes that the test started are
killed and an error is raised in the main thread, repeatedly until the test has ended, since leaving a `with` block may
wait as well. At the limit the process is ended, even in C code that never returns; pytest-xdist then names the test and
starts another process for the rest. Where far more processes want to run than there are cores, the limit is longer, and
under --long, where a test repeats itself, ten times as long.

pytest-timeout raises its signal only once and spares the children, so leaving `with Popen(...)` would wait for ever;
its other method, a thread, ends the whole run at the first hung test.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

from tests.rounds import rounds

SECONDS = 60.0
_STDERR = pytest.StashKey[int]()
_LIMIT = pytest.StashKey[float]()
_ENDS = pytest.StashKey[float]()
_CHILDREN = pytest.StashKey[set[int]]()


class Overdue(BaseException):
    """A test has not ended in time. Code under test does not expect it, and does not handle it."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"limit(seconds): how long the test may take at most; {SECONDS:.0f} s if not given"
    )
    # Output is not captured yet.
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    # A thread that a test has left behind must not keep the process from ending; xdist ends its own.
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(SECONDS * _crowd(), exit=True, file=config.stash[_STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_LIMIT] = limit = _limit(item)
    item.stash[_ENDS] = time.monotonic() + limit
    item.stash[_CHILDREN] = _children(os.getpid())
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with _limited(item):
        return (yield)


def _limit(item: pytest.Item) -> float:
    marker = item.get_closest_marker("limit")
    return (float(marker.args[0]) if marker else SECONDS) * _crowd() * rounds(1, 10)


def _crowd() -> float:
    return max(1.0, os.getloadavg()[0] / (2 * (os.cpu_count() or 1)))


@contextmanager
def _limited(item: pytest.Item) -> Iterator[None]:
    """Interrupt what happens here when the time of the test is nearly over, and end the process when it is over."""
    limit = item.stash[_LIMIT]

    def interrupt(number: int, frame: FrameType | None) -> None:
        _kill(_children(os.getpid()) - item.stash[_CHILDREN])
        raise Overdue(f"{item.nodeid} did not end within {limit * 3 / 4:.2f} s")

    # Teardown has some time left even after an overdue test.
    left = max(item.stash[_ENDS] - time.monotonic(), limit / 2)
    before = signal.signal(signal.SIGALRM, interrupt)
    faulthandler.dump_traceback_later(left, exit=True, file=item.config.stash[_STDERR])
    signal.setitimer(signal.ITIMER_REAL, max(left - limit / 4, limit / 12), limit / 12)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()


def _children(process: int) -> set[int]:
    """The processes that a process has started and not yet waited for; none where the system does not list them."""
    found: set[int] = set()
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found.update(map(int, listed.read_text().split()))
    return found


def _kill(processes: set[int]) -> None:
    for process in processes:
        _kill(_children(process))
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
