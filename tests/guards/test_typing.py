import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.guards.typed_program import Forecast, main

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("typed_program.py")
CHECKERS = {"mypy": ["mypy"], "pyright": ["pyright", "--pythonpath", sys.executable]}


def test_the_program_that_the_type_checkers_read_also_runs() -> None:
    assert main() == Forecast(20)


@pytest.mark.slow
@pytest.mark.limit(180)
@pytest.mark.parametrize("checker", CHECKERS)
def test_strict_type_checkers_accept_the_examples_and_the_program_and_find_its_mistakes(checker: str) -> None:
    import_module(checker)
    command = [sys.executable, "-m", *CHECKERS[checker], str(PROGRAM), str(ROOT / "examples")]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_type_checkers_know_the_names_that_a_star_imports(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from weakincentives import *\nsession: Session = Session()\n")
    checked = subprocess.run([sys.executable, "-m", "mypy", program], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
