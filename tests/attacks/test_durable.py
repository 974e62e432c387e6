"""Durable work under attack: cancelled in its steps, its disk filled, its server stopped, its file opened by many."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests import warm
from tests.durable.agent import Task
from tests.durable.fleet import PRELOAD, calls, workers
from tests.durable.postgres import new_database, running_server
from tests.rounds import rounds
from tests.waiting import PATIENCE, until
from weakincentives import MarkdownSection, Prompt, PromptTemplate, ScriptedAdapter, Tool, ToolContext, ToolResult
from weakincentives.adapters.scripted import call
from weakincentives.durable import (
    DatabaseUnavailableError,
    DurableClient,
    DurableError,
    DurableMainLoop,
)
from weakincentives.runtime import RunEnded
from weakincentives.session import observing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """A Postgres server that tests may stop."""
    with running_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return new_database(request.getfixturevalue("server").get_uri())
    return str(tmp_path / "durable.db")


class Gate:
    """A tool that waits until it is opened, and counts who is inside; its answers have this many characters."""

    def __init__(self, size: int = 4) -> None:
        self.entered: list[str] = []
        self.most: Counter[str] = Counter()
        self.open = threading.Event()
        self._size = size
        self._inside: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, params: None, *, context: ToolContext) -> ToolResult[None]:
        work_id = context.session.session_id
        with self._lock:
            self.entered.append(work_id)
            self._inside[work_id] += 1
            self.most[work_id] = max(self.most[work_id], self._inside[work_id])
        self.open.wait(PATIENCE)
        with self._lock:
            self._inside[work_id] -= 1
        return ToolResult("y" * self._size)

    def loop(self, database_url: str, turns: int = 1, **options: Any) -> DurableMainLoop[Task, None]:
        """A loop whose model passes the gate so many times."""
        tool = Tool[None, None](name="gate", description="Wait.", handler=self)
        section = MarkdownSection(title="Gate", key="gate", template="Pass.", tools=[tool])

        def model(request: Any) -> Any:
            passed = sum(message.role == "tool" for message in request.messages)
            return call("gate", call_id=f"c{passed}") if passed < turns else f"passed {passed}"

        def prepare(task: Task) -> Prompt[None]:
            return Prompt(PromptTemplate[None](ns="attacks", key="gate", sections=[section]))

        return DurableMainLoop("gate", prepare, ScriptedAdapter(model), database_url, lease_seconds=1.0, **options)


def steps(client: DurableClient[Any, Any], key: str) -> list[str]:
    return [step.name for step in client.store.steps(client.work_id(key))]


def test_cancel_then_retry_during_a_step_never_runs_it_twice_at_once(database_url: str) -> None:
    gate = Gate()
    with gate.loop(database_url) as loop:
        loop.start()
        loop.submit(Task("a"), key="a")
        until(lambda: gate.entered, "the step")
        loop.cancel("a")
        assert loop.status("a").status == "cancelled"
        loop.retry("a")
        loop.submit(Task("b"), key="b")
        until(lambda: "gate/b" in gate.entered, "the queue to be polled after the retry")
        assert gate.entered == ["gate/a", "gate/b"]
        gate.open.set()
        assert loop.result("a", timeout=PATIENCE).text == "passed 1"
        assert gate.entered == ["gate/a", "gate/b"]
        assert steps(loop, "a") == ["begin", "model", "gate", "model"]


def test_a_step_that_finished_is_recorded_although_its_work_was_cancelled(database_url: str) -> None:
    gate = Gate()
    with gate.loop(database_url) as loop:
        loop.start()
        loop.submit(Task("a"), key="a")
        until(lambda: gate.entered, "the step")
        loop.cancel("a")
        gate.open.set()
        until(lambda: steps(loop, "a") == ["begin", "model", "gate"], "the step to be recorded")
        assert loop.status("a").status == "cancelled"
        loop.retry("a")
        assert (loop.result("a", timeout=PATIENCE).text, gate.entered) == ("passed 1", ["gate/a"])


def test_cancels_and_retries_at_random_repeat_no_step_and_lose_none(database_url: str) -> None:
    gate, keys, random = Gate(), [f"{number}" for number in range(12)], Random(7)
    gate.open.set()
    with gate.loop(database_url, turns=12) as loop:
        loop.start()
        for key in keys:
            loop.submit(Task(key), key=key)
        for _ in range(150):
            key = random.choice(keys)
            loop.cancel(key)
            if loop.status(key).status == "cancelled":
                loop.retry(key)
        assert [loop.result(key, timeout=PATIENCE).text for key in keys] == ["passed 12"] * 12
        assert Counter(gate.entered) == {f"gate/{key}": 12 for key in keys}
        assert set(gate.most.values()) == {1}
        assert {len(steps(loop, key)) for key in keys} == {26}


def test_workers_that_share_a_database_do_not_share_a_cancelled_step(server: Any, tmp_path: Path) -> None:
    url = new_database(server.get_uri())
    (tmp_path / "hold").write_text("tool b")
    with DurableClient[Task, None]("agent", url) as client, workers(2, tmp_path, url):
        client.submit(Task("job"), key="job")
        until(lambda: "agent/job tool b" in calls(tmp_path), "the step")
        client.cancel("job")
        client.retry("job")
        client.submit(Task("next"), key="next")
        until(lambda: "agent/next tool b" in calls(tmp_path), "the queue to be polled after the retry")
        (tmp_path / "hold").unlink()
        assert client.result("job", timeout=PATIENCE).text == "Total(value=3) abc for job"
        assert max(Counter(calls(tmp_path)).values()) == 1


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room on the disk; deleting the returned file makes it again."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        size = 65536
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    return filler


def test_a_step_that_a_full_disk_cannot_record_is_recorded_later_and_not_repeated(tmp_path: Path) -> None:
    gate = Gate(size=500_000)
    with small_disk(tmp_path / "disk") as disk, gate.loop(str(disk / "durable.db")) as loop:
        loop.start()
        loop.submit(Task("a"), key="a")
        until(lambda: gate.entered, "the step")
        filler = fill(disk)
        with pytest.raises(DatabaseUnavailableError, match="database or disk is full"):
            loop.submit(Task("x" * 1_000_000), key="large")
        gate.open.set()
        until(lambda: not loop.health().ready, "the step to wait for its disk")
        assert "database or disk is full" in loop.health().reason
        assert steps(loop, "a") == ["begin", "model"]
        filler.unlink()
        assert (loop.result("a", timeout=PATIENCE).text, gate.entered) == ("passed 1", ["gate/a"])
        until(lambda: loop.health().ready, "the worker to be ready again")


def test_an_outcome_that_a_full_disk_cannot_record_puts_the_work_back_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(size=500_000)
    gate.open.set()
    fillers: list[Path] = []

    def fill_at_the_end(session: Any, event: Any) -> None:
        if isinstance(event, RunEnded) and event.status == "completed" and not fillers:
            fillers.append(fill(disk))

    with small_disk(tmp_path / "disk") as disk, gate.loop(str(disk / "durable.db"), turns=2) as loop:
        with observing(fill_at_the_end):
            loop.start()
            loop.submit(Task("a"), key="a")
            until(lambda: fillers, "the end of the run")
            until(lambda: loop.health().running == 0, "the execution to end without an outcome")
        assert loop.status("a").status == "running"
        fillers[0].unlink()
        assert loop.result("a", timeout=PATIENCE).text == "passed 2"
        assert gate.entered == ["gate/a", "gate/a"]
    assert "gate/a ended without an outcome; it is back in its queue." in caplog.messages


def test_a_stopped_server_costs_no_step_and_no_restart(server: Any, tmp_path: Path) -> None:
    url = new_database(server.get_uri())
    (tmp_path / "hold").write_text("tool b")
    with (
        DurableClient[Task, None]("agent", url) as client,
        ThreadPoolExecutor(1) as pool,
        workers(2, tmp_path, url, lease=0.5) as fleet,
    ):
        client.submit(Task("job"), key="job")
        until(lambda: "agent/job tool b" in calls(tmp_path), "the step")
        result = pool.submit(client.result, "job")
        server.stop()
        try:
            for ask in (client.status, client.cancel, client.retry, client.questions):
                with pytest.raises(DatabaseUnavailableError, match="Cannot use postgresql"):
                    ask("job")
            with pytest.raises(DatabaseUnavailableError, match="Cannot use postgresql"):
                client.submit(Task("other"), key="other")
            for worker in fleet:
                worker.wait_for("cannot renew its lease")
            (tmp_path / "hold").unlink()
        finally:
            server.start()
        assert result.result(PATIENCE).text == "Total(value=3) abc for job"
        client.submit(Task("other"), key="other")
        assert client.result("other", timeout=PATIENCE).text == "Total(value=3) abc for other"
        effects = Counter(line for line in calls(tmp_path) if not line.endswith("prepare"))
        assert set(effects.values()) == {1}


def test_workers_that_lost_their_server_give_each_other_time_to_come_back(server: Any, tmp_path: Path) -> None:
    url = new_database(server.get_uri())
    (tmp_path / "hold").write_text("job tool b")
    with DurableClient[Task, None]("agent", url) as client, workers(2, tmp_path, url, lease=20.0) as fleet:
        client.submit(Task("job"), key="job")
        until(lambda: "agent/job tool b" in calls(tmp_path), "the step")
        (slow,) = [worker for worker in fleet if f"-{worker.pid}-" in client.status("job").worker]
        (quick,) = [worker for worker in fleet if worker is not slow]
        slow.signal(signal.SIGSTOP)
        server.stop()
        quick.wait_for("cannot renew its lease")
        server.start()
        quick.wait_for("has its database again")
        client.submit(Task("other"), key="other")
        assert client.result("other", timeout=PATIENCE).text == "Total(value=3) abc for other"
        slow.signal(signal.SIGCONT)
        (tmp_path / "hold").unlink()
        assert client.result("job", timeout=PATIENCE).text == "Total(value=3) abc for job"
        assert max(Counter(calls(tmp_path)).values()) == 1


def test_work_that_lost_its_server_at_its_end_finishes_when_the_server_is_back(server: Any) -> None:
    gate, stopped = Gate(), threading.Event()
    gate.open.set()

    def stop_at_the_end(session: Any, event: Any) -> None:
        if isinstance(event, RunEnded) and event.status == "completed" and not stopped.is_set():
            server.stop()
            stopped.set()

    with gate.loop(new_database(server.get_uri())) as loop:
        with observing(stop_at_the_end):
            loop.start()
            loop.submit(Task("a"), key="a")
            try:
                until(stopped.is_set, "the end of the run")
                until(lambda: loop.health().running == 0, "the execution to end without an outcome")
            finally:
                until(stopped.is_set, "the server to be stopped")
                server.start()
        assert (loop.result("a", timeout=PATIENCE).text, gate.entered) == ("passed 1", ["gate/a"])


def test_a_tool_that_exits_fails_and_neither_its_run_nor_the_worker(database_url: str) -> None:
    class Exit(Gate):
        def __call__(self, params: None, *, context: ToolContext) -> ToolResult[None]:
            self.entered.append(context.session.session_id)
            sys.exit(3)

    gate = Exit()
    with gate.loop(database_url) as loop:
        loop.start()
        for key in ("a", "b"):
            loop.submit(Task(key), key=key)
            assert loop.result(key, timeout=PATIENCE).text == "passed 1"
    assert gate.entered == ["gate/a", "gate/b"]


NEWCOMER = """
import sys, time
from pathlib import Path
from tests.durable.agent import Task
from weakincentives.durable import DurableClient

database, name, start = sys.argv[1:]
client = DurableClient("agent", database)
import weakincentives.durable.store
while not Path(start).exists():
    time.sleep(0.001)
client.submit(Task(name), key=name)
client.close()
"""


def test_processes_that_open_a_new_file_at_the_same_moment_all_hand_in_their_work(tmp_path: Path) -> None:
    for round_number in range(rounds(2, 10)):
        database, start = tmp_path / f"{round_number}.db", tmp_path / f"start-{round_number}"
        script = ["-c", NEWCOMER, str(database)]
        processes = [warm.start(*script, f"{n}", str(start), stderr=warm.PIPE, preload=PRELOAD) for n in range(6)]
        start.touch()
        assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 6
        with DurableClient[Task, None]("agent", str(database)) as client:
            assert {work.key for work in client.store.list()} == {f"{n}" for n in range(6)}


@pytest.mark.parametrize("kind", ["text", "folder", "unwritable"])
def test_what_is_no_database_is_our_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "d.db"
    if kind == "text":
        path.write_text("This is a letter, not a database. " * 100)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/proc/nothing/here/d.db")
    with pytest.raises(DurableError, match=r"Cannot use .*d\.db"):
        DurableClient[Task, None]("agent", str(path)).submit(Task("a"), key="a")


@pytest.mark.parametrize("url", ["me:s3cret@127.0.0.1:1/db", "127.0.0.1:1/db?user=me&password=s3cret"])
def test_an_error_does_not_show_the_password_of_a_database(url: str) -> None:
    with pytest.raises(DatabaseUnavailableError, match=r"Cannot use postgresql.*127\.0\.0\.1:1/db") as caught:
        DurableClient[Task, None]("agent", f"postgresql://{url}").submit(Task("a"), key="a")
    assert "s3cret" not in str(caught.value)
