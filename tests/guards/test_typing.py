import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.guards.typed_program import Forecast, main

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("typed_program.py")


def test_the_program_that_the_type_checkers_read_also_runs() -> None:
    assert main() == Forecast(20)


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_strict_type_checkers_accept_the_program_and_find_its_mistakes(checker: str) -> None:
    import_module(checker)
    checked = subprocess.run([sys.executable, "-m", checker, PROGRAM], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_type_checkers_know_the_names_that_a_star_imports(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from weakincentives import *\nsession: Session = Session()\n")
    checked = subprocess.run([sys.executable, "-m", "mypy", program], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
