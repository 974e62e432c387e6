"""Workers as a supervisor such as Kubernetes sees them: probes, signals and exit codes."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.durable.agent import Task
from tests.durable.fleet import Worker, calls, workers
from tests.waiting import PATIENCE, until
from weakincentives.cli import main
from weakincentives.durable import DurableClient
from weakincentives.telemetry import RunStore

pytestmark = pytest.mark.slow


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "durable.db")


@pytest.fixture
def client(database: str) -> Iterator[DurableClient[Task, None]]:
    with DurableClient[Task, None]("agent", database) as client:
        yield client


def health_port(worker: Worker) -> int:
    return int(worker.wait_for("health on port").rpartition(" ")[2])


def get(port: int, path: str) -> tuple[int, Any]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture
def worker(database: str, tmp_path: Path) -> Iterator[Worker]:
    """A worker that holds its run in the tool call `b`."""
    (tmp_path / "hold").write_text("tool b")
    worker = Worker(tmp_path, database, "--health", "127.0.0.1:0", "--drain", "60")
    yield worker
    worker.discard()


def test_a_worker_is_ready_until_it_drains_and_live_until_it_ends(
    worker: Worker, client: DurableClient[Task, None], tmp_path: Path
) -> None:
    port = health_port(worker)
    worker.wait_for("works on")
    until(lambda: get(port, "/readyz")[0] == 200, "the worker to be ready")
    client.submit(Task("job"), key="job")
    until(lambda: "agent/job tool b" in calls(tmp_path), "the step")
    status, body = get(port, "/healthz")
    assert (status, body["live"], body["ready"], body["reason"], body["running"]) == (200, True, True, "", 1)
    assert body["worker"] == client.status("job").worker

    worker.signal(signal.SIGTERM)
    worker.wait_for("draining")
    until(lambda: get(port, "/readyz")[0] == 503, "the worker to be unready")
    status, body = get(port, "/readyz")
    assert (status, body["live"], body["ready"], body["reason"], body["running"]) == (503, True, False, "draining", 1)
    assert get(port, "/healthz")[0] == 200
    (tmp_path / "hold").unlink()
    assert worker.end() == 0
    assert client.status("job").status == "queued"


def test_the_health_port_answers_nothing_else(worker: Worker) -> None:
    assert get(health_port(worker), "/metrics") == (404, {"paths": ["/healthz", "/readyz"]})


def test_a_step_that_outlasts_the_drain_ends_with_its_process(
    client: DurableClient[Task, None], database: str, tmp_path: Path
) -> None:
    (tmp_path / "hold").write_text("tool b")
    with workers(1, tmp_path, database, "--drain", "0.1") as (worker,):
        client.submit(Task("job"), key="job")
        until(lambda: "agent/job tool b" in calls(tmp_path), "the step")
        worker.signal(signal.SIGTERM)
        worker.wait_for("a step was still running; another worker will repeat it")
        assert worker.end() == 1
    (tmp_path / "hold").unlink()
    with workers(1, tmp_path, database):
        assert client.result("job", timeout=PATIENCE).text == "Total(value=3) abc for job"
    assert calls(tmp_path).count("agent/job tool b") == 2


def test_the_work_of_a_killed_worker_says_that_it_is_gone(
    worker: Worker, client: DurableClient[Task, None], database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client.submit(Task("job"), key="job")
    until(lambda: "agent/job tool b" in calls(tmp_path), "the step")
    show = ["work", "show", "agent/job", "--database-url", database]
    assert (main(show), "(gone)" in capsys.readouterr().out) == (0, False)
    worker.signal(signal.SIGKILL)
    worker.end()
    assert (main(show), f"{client.status('job').worker} (gone)" in capsys.readouterr().out) == (0, True)


def test_a_worker_records_its_runs(client: DurableClient[Task, None], database: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs.db"
    with workers(1, tmp_path, database, "--record", str(runs)) as (worker,):
        client.submit(Task("job"), key="job")
        client.result("job", timeout=PATIENCE)
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0
    with RunStore(runs) as store:
        assert (store.run("agent/job").status, store.run("agent/job").turns) == ("ok", 5)


def test_a_second_worker_on_a_sqlite_file_says_who_has_it(database: str, tmp_path: Path) -> None:
    with workers(1, tmp_path, database) as (first,):
        second = Worker(tmp_path, database)
        try:
            assert f"Process {first.pid} runs the work of" in second.wait_for("wink:")
            assert second.end() == 1
        finally:
            second.discard()


def test_a_port_that_is_taken_is_said_before_the_worker_starts(database: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = Worker(tmp_path, database, "--health", f"127.0.0.1:{port}")
        try:
            assert f"--health cannot listen on 127.0.0.1 port {port}: " in worker.wait_for("wink:")
            assert worker.end() == 2
        finally:
            worker.discard()
