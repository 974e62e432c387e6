"""A test that fails beside others and passes alone fails the run, unless it is on the list of flakes, with a date.

`./test` runs what has failed again, alone and with `--alone`. What fails again is broken. What passes is a flake: its
cause is to be mended, such as a sleep or a clock where it should wait for something. Until then, `known_flakes.txt` may
name it: a line for each test, with the day on which it was first seen. A guard complains about a line that is old.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("known_flakes.txt")


@dataclass(frozen=True, slots=True)
class Flake:
    """A test that is known to fail now and then, and since when."""

    since: date
    test: str


def known_flakes(file: Path = FILE) -> list[Flake]:
    """The tests that a file names, each in a line such as `2026-11-19 tests/ui/test_storm.py::test_storm[1]`."""
    flakes = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            day, _, test = line.partition(" ")
            flakes.append(Flake(date.fromisoformat(day), test))
    return flakes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--alone", action="store_true", help="what failed beside others runs alone: what passes is a flake"
    )
    parser.addoption("--known-flakes", type=Path, default=FILE, help="the file with the flakes that are tolerated")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--alone"):
        config.pluginmanager.register(Alone(config.getoption("--known-flakes")))


class Alone:
    """Fails a run whose tests pass, if they are not on the list."""

    def __init__(self, file: Path) -> None:
        self._known = {flake.test for flake in known_flakes(file)}
        self._file = file
        self._passed: list[str] = []
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and self._unknown():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        flakes = self._flakes()
        if flakes:
            terminalreporter.section("flakes")
            terminalreporter.line("These tests failed beside others and passed alone:")
            for test in flakes:
                terminalreporter.line(f"  {test}{' (on the list)' if test in self._known else ''}")
        if self._unknown():
            terminalreporter.line(
                "A flake fails the run. Mend its cause: often, a sleep in the place of a wait for what must happen."
                f" Until then, a line in {self._file.name} tolerates it: {date.today()} and the test."
            )

    def _flakes(self) -> list[str]:
        return [test for test in self._passed if test not in self._failed]

    def _unknown(self) -> list[str]:
        return [test for test in self._flakes() if test not in self._known]
