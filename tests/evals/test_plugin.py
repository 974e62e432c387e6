"""The fixture `evals`, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = """
from tests.evals.shop import adapter, shop
from weakincentives.evals import assert_at_least, assert_no_regression, contains

RULES = {rules!r}

def test_the_shop(evals):
    found = evals.run("shop.jsonl", shop(RULES), [contains()], adapter=adapter)
    assert_no_regression(found, found)
    assert_at_least(found, 0.01)
    print("verdicts", [result.verdict for result in found.results])
"""
CASES = "".join(f'{{"id": "c{n}", "input": "Please refund order-{n}", "expected": "order-{n}"}}\n' for n in range(6))


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "weakincentives.evals.plugin",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *options, "test_shop.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.limit(120)
def test_a_live_run_records_what_later_runs_replay(tmp_path: Path) -> None:
    (tmp_path / "shop.jsonl").write_text(CASES)
    (tmp_path / "test_shop.py").write_text(TEST.format(rules="Refunds take three days."))
    unrecorded = run_pytest(tmp_path)
    assert unrecorded.returncode == 1
    assert "case 'c0' of shop.jsonl has no recording" in unrecorded.stdout
    live = run_pytest(tmp_path, "--evals=live")
    assert live.returncode == 0, live.stdout
    assert (tmp_path / "shop.jsonl").read_text().count('"recording"') == 6
    replayed = run_pytest(tmp_path)
    assert replayed.returncode == 0, replayed.stdout
    assert "verdicts ['passed', 'passed', 'passed', 'passed', 'passed', 'passed']" in replayed.stdout
    (tmp_path / "test_shop.py").write_text(TEST.format(rules="Refunds take four days."))
    changed = run_pytest(tmp_path)
    assert changed.returncode == 1
    assert "no case of 'tests/shop' was scored: tests/shop: 6 diverged" in changed.stdout


def test_the_plugin_is_declared_and_light() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"weakincentives": "weakincentives.evals.plugin"}
    program = "import sys, weakincentives.evals.plugin; print('weakincentives.runtime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
