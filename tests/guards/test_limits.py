"""A test that hangs, wherever it hangs, fails by name and within its limit, and the run goes on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import SECONDS
from tests.rounds import rounds

ROOT = Path(__file__).parents[2]
HUNG = """
import asyncio, os, signal, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import pytest

pytestmark = pytest.mark.limit(1)
CHILD = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"]

def test_busy():
    while True:
        pass

def test_asleep_in_code_that_handles_every_exception():
    while True:
        try:
            time.sleep(1000)
        except Exception:
            pass

def test_lock():
    threading.Lock().acquire() and threading.Event().wait()

def test_thread():
    with ThreadPoolExecutor() as pool:
        pool.submit(threading.Event().wait).result()

def test_child():
    with subprocess.Popen(CHILD, stdout=subprocess.PIPE) as child:
        child.stdout.read()

def test_grandchild():
    subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.run({CHILD!r})"])

def test_forked_child():
    if (child := os.fork()) == 0:
        time.sleep(1000)
        os._exit(0)
    os.waitpid(child, 0)

def test_event_loop():
    asyncio.run(asyncio.Event().wait())

def test_thread_of_an_event_loop():
    asyncio.run(asyncio.to_thread(threading.Event().wait))

@pytest.fixture
def stuck():
    time.sleep(1000)

@pytest.fixture
def stuck_at_its_end():
    yield
    time.sleep(1000)

def test_fixture(stuck):
    pass

def test_end_of_a_fixture(stuck_at_its_end):
    pass
"""
# In code of our own, in that of others, in processes of its own, and after its end.
FEW = ["test_busy", "test_lock", "test_thread_of_an_event_loop", "test_child", "test_end_of_a_fixture"]
IN_C = """
import collections, itertools, pytest

@pytest.mark.limit(2)
def test_hung_in_c_code_that_keeps_the_interpreter():
    collections.deque(itertools.repeat(0), maxlen=0)

def test_after_it():
    pass
"""


def run(folder: Path, tests: str, *arguments: str) -> str:
    (folder / "test_hung.py").write_text(tests, encoding="utf-8")
    # An ini file of its own: ours would have it collected as one of our tests.
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.limits", "-c", str(folder / "pytest.ini"), *arguments]
    done = subprocess.run([*command, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=90)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.limit(120)
def test_a_hung_test_fails_by_name_and_the_next_one_runs(tmp_path: Path) -> None:
    tests = rounds(FEW, re.findall(r"(?m)^def (test_\w+)", HUNG))
    said = run(tmp_path, HUNG, "-n", "2", "-k", " or ".join(tests))
    failed = set(re.findall(r"(?m)^(?:FAILED|ERROR) \S*::(test_\w+)", said))
    assert failed == set(tests), said
    assert "::test_child did not end within " in said


@pytest.mark.slow
@pytest.mark.limit(120)
def test_a_process_hung_in_c_code_is_ended_and_its_test_named(tmp_path: Path) -> None:
    said = run(tmp_path, IN_C, "-n", "1")
    assert "crashed while running" in said and "test_hung_in_c_code_that_keeps_the_interpreter" in said
    assert "1 failed, 1 passed" in said


def test_the_limit_of_a_test_is_a_minute_unless_it_names_another() -> None:
    assert SECONDS == 60
