"""A run whose process is killed in each of its steps in turn still ends correctly and repeats only those steps."""

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests import warm
from tests.durable.fleet import PRELOAD

pytestmark = pytest.mark.slow

STEPS = ["prepare", "model 0", "model 1", "tool a", "model 2", "tool b", "model 3", "tool c", "model 4"]


def run(control: Path, database_url: str, attempts: int = 3, **more: str) -> subprocess.CompletedProcess[str]:
    environment = (
        os.environ
        | more
        | {
            "WINK_TEST_ATTEMPTS": str(attempts),
            "WINK_TEST_CONTROL": str(control),
            "WINK_DATABASE_URL": database_url,
        }
    )
    return warm.run("-m", "tests.durable.agent", "job", env=environment, preload=PRELOAD)


def test_a_loop_survives_a_kill_in_every_step(database_url: str, tmp_path: Path) -> None:
    for step in STEPS:
        (tmp_path / "kill").write_text(step)
        assert run(tmp_path, database_url).returncode == -signal.SIGKILL
    last = run(tmp_path, database_url)
    assert last.stdout == "Total(value=3) abc for job\n", last.stderr

    calls = Counter(line.split(" ", 2)[2] for line in (tmp_path / "calls").read_text().splitlines())
    assert calls.pop("prepare") == len(STEPS) + 1
    assert calls == dict.fromkeys(STEPS[1:], 2)


def test_a_run_that_falls_back_to_another_adapter_survives_kills_before_and_after(tmp_path: Path) -> None:
    database, steps = str(tmp_path / "durable.db"), [*STEPS[:4], "down 2", *STEPS[4:]]
    killed = ["tool a", "down 2", "model 2", "model 4"]
    for step in killed:
        (tmp_path / "kill").write_text(step)
        assert run(tmp_path, database, WINK_TEST_FALLBACK="1").returncode == -signal.SIGKILL
    last = run(tmp_path, database, WINK_TEST_FALLBACK="1")
    assert last.stdout == "Total(value=3) abc for job\n", last.stderr

    calls = Counter(line.split(" ", 2)[2] for line in (tmp_path / "calls").read_text().splitlines())
    assert calls.pop("prepare") == len(killed) + 1
    assert calls == {step: 1 + (step in killed) for step in steps[1:]}


def test_work_that_kills_its_worker_each_time_becomes_a_dead_letter(tmp_path: Path) -> None:
    database = str(tmp_path / "durable.db")
    for _ in range(2):
        (tmp_path / "kill").write_text("model 1")
        assert run(tmp_path, database, attempts=2).returncode == -signal.SIGKILL
    given_up = run(tmp_path, database, attempts=2)
    assert "DeadLetterError: 'agent/job' was given up after 2 attempts without progress" in given_up.stderr

    wink = ["-m", "weakincentives.cli", "work"]
    show, retry = (
        warm.run(*wink, verb, "agent/job", "--database-url", database, check=True).stdout for verb in ("show", "retry")
    )
    assert "attempts  2\n" in show
    assert retry == "agent/job is queued\n"
    assert run(tmp_path, database, attempts=2).stdout == "Total(value=3) abc for job\n"
