"""Real processes: many at once, forked ones, and one that is killed in the middle."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from weakincentives.telemetry import RunStore

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENDLESS = """
import sys, time
from tests.telemetry.agents import ADD, prompt
from weakincentives.adapters.scripted import ScriptedAdapter, call
from weakincentives.limits import Budget
from weakincentives.session import Session
from weakincentives.telemetry import record

def answer(request):
    time.sleep(0.002)
    print(time.time(), flush=True)
    return call("add", a=1, b=len(request.messages))

with record(sys.argv[1]):
    ScriptedAdapter(answer).evaluate(prompt(ADD), session=Session(), budget=Budget(max_turns=None))
"""
RUNS = """
import sys
from tests.telemetry.agents import run
from weakincentives.telemetry import record

recorder = record(sys.argv[1])
for number in range(int(sys.argv[2])):
    run(recorder=recorder)
"""
FORKS = """
import multiprocessing, sys
from tests.telemetry.agents import run
from weakincentives.telemetry import record

with record(sys.argv[1]):
    run()
    children = [multiprocessing.get_context("fork").Process(target=run) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    run()
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def killed_run(path: Path, lines: int) -> float:
    """Let an endless run call the model so many times, kill it, and say when it last did."""
    with start(ENDLESS, path) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        printed += process.stdout.read().splitlines(keepends=True)
    return max(float(line) for line in printed if line.endswith("\n"))


def test_a_killed_process_loses_at_most_200_milliseconds_and_leaves_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    last = killed_run(path, 300)
    with RunStore(path) as store:
        assert store.query("PRAGMA integrity_check") == [("ok",)]
        (run,) = store.list_runs()
        ((written,),) = store.query("SELECT max(time) FROM events WHERE kind = 'ModelCalled'")
        assert run.turns > 100 and store.turn(run.run_id, run.turns).complete
    assert last - written <= 0.2


def test_a_run_whose_recorder_has_gone_silent_counts_as_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    killed_run(path, 100)
    with RunStore(path) as store:
        assert [run.status for run in store.list_runs()] == ["running"]
        connection = sqlite3.connect(path)
        with connection:
            connection.execute("UPDATE recorders SET beat = beat - 60")
        connection.close()
        assert [run.status for run in store.list_runs(status="interrupted")] == ["interrupted"]


def test_many_processes_record_to_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    processes = [start(RUNS, path, 5) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=60)
    with RunStore(path) as store:
        runs = store.list_runs(100)
        assert [(run.status, run.turns) for run in runs] == [("ok", 4)] * 15
        assert len({run.events for run in runs}) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_processes_record_too(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    process = start(FORKS, path)
    process.communicate(timeout=60)
    with RunStore(path) as store:
        assert [(run.status, run.turns) for run in store.list_runs()] == [("ok", 4)] * 5
        assert store.query("SELECT count(*) FROM recorders") == [(4,)]
