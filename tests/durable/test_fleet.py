"""Workers share work: one is killed, one frozen, one told to stop, and nothing is lost or done twice."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durable.agent import LEASE, Task, loop
from tests.durable.fleet import Worker, calls, within, workers
from tests.rounds import rounds
from tests.waiting import until
from weakincentives.durable import DurableMainLoop, Work
from weakincentives.telemetry import RunStore

pytestmark = pytest.mark.slow


@pytest.fixture
def shared(postgres_url: str) -> Iterator[DurableMainLoop[Task, None]]:
    """The agent's loop on a fresh Postgres, to submit work; this process is no worker."""
    loop.database_url = postgres_url
    with loop:
        yield loop


def names(count: int) -> list[str]:
    return [f"job-{number}" for number in range(count)]


def submit(keys: list[str], tenant: str | None = None) -> None:
    for key in keys:
        loop.submit(Task(key), key=key, tenant=tenant)


def running_on(worker: Worker) -> list[Work]:
    return [work for work in loop.store.list(status="running", limit=1000) if f"-{worker.pid}-" in work.worker]


def freeze_at_work(worker: Worker) -> list[str]:
    """Stop the worker while it runs something, and return the ids of what it runs."""

    def caught() -> bool:
        worker.signal(signal.SIGSTOP)
        if running_on(worker):
            return True
        worker.signal(signal.SIGCONT)
        return False

    until(caught, "the worker to be at work")
    return [work.id for work in running_on(worker)]


def assert_all_correct(keys: list[str], control: Path, repeated: int) -> None:
    """Every result is correct, every step is recorded once, and at most `repeated` calls were made again."""
    assert [loop.result(key).text for key in keys] == [f"Total(value=3) abc for {key}" for key in keys]
    assert {len(loop.store.steps(loop.work_id(key))) for key in keys} == {10}
    made = Counter(calls(control))
    effects = {call: times for call, times in made.items() if not call.endswith("prepare")}
    assert len(effects) == 8 * len(keys)
    assert sum(effects.values()) - len(effects) <= repeated


def test_many_loops_on_two_workers_with_one_killed(
    shared: DurableMainLoop[Task, None], postgres_url: str, tmp_path: Path
) -> None:
    keys = names(rounds(60, 200))
    submit(keys)
    with workers(2, tmp_path, postgres_url, latency=0.002) as (victim, _):
        until(lambda: loop.store.list(status="done", limit=20)[19:], "the fleet to be busy")
        lost = freeze_at_work(victim)
        victim.signal(signal.SIGKILL)
        took = until(lambda: not running_on(victim), "a takeover")
        victim.end()
        assert took < within(3.0)
        assert_all_correct(keys, tmp_path, repeated=len(lost))


def test_a_frozen_worker_is_taken_over_and_fenced_off_when_it_thaws(
    shared: DurableMainLoop[Task, None], postgres_url: str, tmp_path: Path
) -> None:
    keys, runs = names(16), tmp_path / "runs.db"
    submit(keys)
    with workers(2, tmp_path, postgres_url, "--record", str(runs), latency=0.05) as (frozen, other):
        lost = freeze_at_work(frozen)
        took = until(lambda: not running_on(frozen), "a takeover") - LEASE
        assert took < within(3.0)
        for key in keys:
            loop.result(key)
        made = Counter(calls(tmp_path))
        recorded = {key: loop.store.steps(loop.work_id(key)) for key in keys}

        frozen.signal(signal.SIGCONT)
        frozen.wait_for("joined again as")
        assert {key: loop.store.steps(loop.work_id(key)) for key in keys} == recorded
        assert_all_correct(keys, tmp_path, repeated=len(lost))
        in_flight = Counter(calls(tmp_path)) - made
        assert in_flight.total() <= len(lost) and set(in_flight.values()) <= {1}

        other.signal(signal.SIGTERM)
        other.end()
        submit(["later"])
        assert loop.result("later").text == "Total(value=3) abc for later"
        assert f"-{frozen.pid}-" in loop.status("later").worker
        frozen.signal(signal.SIGTERM)
        assert frozen.end() == 0
    with RunStore(runs) as store:
        assert {run.status for run in store.list_runs()} == {"ok"}


def test_a_worker_that_is_told_to_stop_hands_its_loops_back_at_their_next_step(
    shared: DurableMainLoop[Task, None], postgres_url: str, tmp_path: Path
) -> None:
    keys = names(8)
    submit(keys)
    with workers(1, tmp_path, postgres_url, latency=0.3) as (worker,):
        until(lambda: running_on(worker), "the worker to be busy")
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0
        assert {loop.status(key).status for key in keys} == {"queued"}
    with workers(1, tmp_path, postgres_url):
        assert_all_correct(keys, tmp_path, repeated=0)
    assert {loop.status(key).attempts for key in keys} == {1}
