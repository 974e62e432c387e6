"""A user's program in the library's types: what type checkers accept of it, and the mistakes that they find.

mypy reads it, with the rest, in `./check`.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.guards.typed_program import Forecast, main

ROOT = Path(__file__).parents[2]
PROGRAMS = ["tests/guards/typed_program.py", "tests/guards/typed_star.py"]


def test_the_program_that_the_type_checkers_read_also_runs() -> None:
    assert main() == Forecast(20)


@pytest.mark.slow
@pytest.mark.limit(180)
def test_pyright_accepts_the_examples_and_the_program_and_finds_its_mistakes() -> None:
    import_module("pyright")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *PROGRAMS, "examples"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_mypy_reads_the_programs_and_the_examples_in_the_check() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert settings["strict"] and {"examples", *PROGRAMS} <= set(settings["files"])
    assert (ROOT / "check").read_text(encoding="utf-8").endswith('exec "$venv_python" -m mypy\n')
