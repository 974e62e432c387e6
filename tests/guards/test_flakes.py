"""A test that fails beside others and passes alone is not hidden."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.flakes import known_flakes

ROOT = Path(__file__).parents[2]
OLDEST = timedelta(days=14)
FLAKE = """
from pathlib import Path

def test_flake():
    failed = Path(__file__).with_name("failed")
    if not failed.exists():
        failed.touch()
        raise AssertionError("beside others")

def test_broken():
    assert {works}

def test_good():
    pass
"""
NAME = "test_flaky.py::test_flake"


def test_a_known_flake_is_mended_within_two_weeks_and_leaves_the_list() -> None:
    today = date.today()
    old = [flake.test for flake in known_flakes() if not today - OLDEST <= flake.since <= today]
    assert old == [], "mend the cause, or delete the test if nobody relies on it"


def test_the_list_of_flakes_names_tests_that_exist() -> None:
    for flake in known_flakes():
        file, _, name = flake.test.partition("::")
        function = re.escape(name.partition("[")[0].rpartition("::")[2])
        assert re.search(rf"def {function}\(", (ROOT / file).read_text(encoding="utf-8")), flake.test


def run(folder: Path, *, works: bool, listed: str = "") -> tuple[int, str]:
    """Run tests, then what failed again and alone; returns the second exit code and what was printed."""
    (folder / "test_flaky.py").write_text(FLAKE.format(works=works), encoding="utf-8")
    # An ini file of its own: ours would have it collected as one of our tests.
    (folder / "pytest.ini").touch()
    (folder / "flakes.txt").write_text(f"# Comments are no tests.\n\n{listed}\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.flakes",
        "-c",
        str(folder / "pytest.ini"),
        str(folder),
    ]
    beside = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert beside.returncode == pytest.ExitCode.TESTS_FAILED, beside.stdout
    command += ["--last-failed", "--alone", "--known-flakes", str(folder / "flakes.txt")]
    alone = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return alone.returncode, alone.stdout


def test_a_test_that_fails_beside_others_and_passes_alone_fails_the_run(tmp_path: Path) -> None:
    code, output = run(tmp_path, works=True)
    assert (code, f"\n  {NAME}\nA flake fails the run." in output) == (pytest.ExitCode.TESTS_FAILED, True), output


def test_a_flake_that_is_on_the_list_is_named_and_tolerated(tmp_path: Path) -> None:
    code, output = run(tmp_path, works=True, listed=f"2026-11-19 {NAME}")
    assert (code, f"\n  {NAME} (on the list)\n" in output) == (pytest.ExitCode.OK, True), output


def test_a_test_that_fails_alone_too_is_broken_and_no_flake(tmp_path: Path) -> None:
    code, output = run(tmp_path, works=False, listed=f"2026-11-19 {NAME}")
    flakes = re.findall(r"::(test_\w+) \(on the list\)", output)
    assert (code, flakes) == (pytest.ExitCode.TESTS_FAILED, ["test_flake"]), output
    assert "1 failed, 1 passed" in output
