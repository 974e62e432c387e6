"""Real workers: `wink worker` processes that run the agent of these tests."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import warm
from tests.waiting import PATIENCE

PRELOAD = ("weakincentives.cli", "weakincentives.durable", "dbos", "psycopg")


class Worker:
    """A worker process; its lines on stderr are its log."""

    def __init__(
        self,
        control: Path,
        database_url: str,
        *options: str,
        latency: float = 0.0,
        lease: float = 5.0,
        loop: str = "tests.durable.agent:loop",
        attempts: int = 5,
    ) -> None:
        environment = os.environ | {
            "WINK_CLERK": str(control),
            "WINK_CLERK_ATTEMPTS": str(attempts),
            "WINK_CLERK_LATENCY": str(latency),
            "WINK_TEST_CONTROL": str(control),
            "WINK_TEST_LATENCY": str(latency),
            "WINK_TEST_LEASE": str(lease),
        }
        command = ["-m", "weakincentives.cli", "worker", loop, "--database-url", database_url, *options]
        self._process = warm.start(*command, env=environment, stderr=warm.PIPE, preload=PRELOAD)
        self.pid = self._process.pid

    def wait_for(self, text: str) -> str:
        """The next line of the log that contains this text."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if text in line:
                return line
        raise AssertionError(f"worker {self.pid} ended without {text!r}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        return self._process.wait(PATIENCE)

    def discard(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        self._process.wait(PATIENCE)
        assert self._process.stderr is not None
        self._process.stderr.close()


@contextmanager
def workers(
    count: int, control: Path, database_url: str, *options: str, latency: float = 0.0, lease: float = 5.0
) -> Iterator[list[Worker]]:
    """Start this many workers and wait until they are ready."""
    fleet = [Worker(control, database_url, *options, latency=latency, lease=lease) for _ in range(count)]
    try:
        for worker in fleet:
            worker.wait_for("works on")
        yield fleet
    finally:
        for worker in fleet:
            worker.discard()


def calls(control: Path) -> list[str]:
    """What the agent has called so far, without the numbers of its processes."""
    log = control / "calls"
    return [line.partition(" ")[2] for line in log.read_text().splitlines()] if log.exists() else []


def within(seconds: float) -> float:
    """This many seconds on a machine with a core to spare, in proportion more on a busy one."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
