"""What other tools read of our cases and runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.evals.shop import CASES, adapter, shop
from tests.packages import SERVERS, is_installed
from weakincentives.cli import main
from weakincentives.evals import Case, cases_from_runs, contains, evaluate, write_cases

READ_CASES = """
import json, sys
from inspect_ai.dataset import json_dataset
text = lambda given: given if isinstance(given, str) else [message.text for message in given]
print(json.dumps([[s.id, text(s.input), s.target] for s in json_dataset(sys.argv[1])]))
"""
VALIDATE = """
import sys
from harbor.utils.trajectory_validator import TrajectoryValidator
for file in sys.argv[1:]:
    validator = TrajectoryValidator()
    if not validator.validate(file):
        sys.exit("; ".join(validator.get_errors()))
print("valid", len(sys.argv) - 1)
"""


def outside(package: str, program: str, *arguments: str) -> str:
    """Run a program with a package of its own folder."""
    if not is_installed(package):
        pytest.skip(f"needs {package}: python -m tests.packages")
    environment = {**os.environ, "PYTHONPATH": str(SERVERS / package)}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "runs.db"
    evaluate(CASES, shop(), adapter(), [contains()], file=file, limit=1)
    return file


@pytest.mark.slow
@pytest.mark.limit(180)
def test_inspect_reads_the_cases(tmp_path: Path) -> None:
    cases = [
        Case("a", "text", expected="target"),
        Case("b", {"name": "Ann"}, expected=["x", "y"], group="g"),
        Case("c", messages=("one", "two"), expected={"n": 1}),
    ]
    write_cases(tmp_path / "samples.jsonl", cases, Case.as_inspect)
    assert json.loads(outside("inspect", READ_CASES, str(tmp_path / "samples.jsonl"))) == [
        ["a", "text", "target"],
        ["b", "Ann", ["x", "y"]],
        ["c", ["one", "two"], '{"n": 1}'],
    ]


@pytest.mark.slow
@pytest.mark.limit(180)
def test_harbor_validates_the_exported_runs(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "runs.jsonl"
    assert main(["export", "--atif", str(file), "-o", str(target)]) == 0
    names = []
    for place, line in enumerate(target.read_text().splitlines()):
        names.append(str(tmp_path / f"{place}.json"))
        Path(names[-1]).write_text(line)
    assert outside("harbor", VALIDATE, *names).strip() == "valid 3"


def test_a_trajectory_has_calls_results_tokens_and_tools(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--atif", str(file)]) == 0
    first: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["schema_version"] == "ATIF-v1.7"
    assert first["agent"]["name"] == "tests/shop"
    assert [step["source"] for step in first["steps"]] == ["system", "user", "agent", "agent", "agent"]
    called = first["steps"][3]
    assert called["tool_calls"] == [
        {
            "tool_call_id": called["tool_calls"][0]["tool_call_id"],
            "function_name": "refund",
            "arguments": {"order": "order-1"},
        }
    ]
    assert called["observation"]["results"][0]["content"] == "Refunded 5 for order-1."
    assert called["metrics"]["prompt_tokens"] > 0
    assert first["steps"][2]["observation"]["results"][0]["extra"]["opened"] == ["refunds"]
    assert "refund" in {tool["function"]["name"] for tool in first["agent"]["tool_definitions"]}
    assert first["final_metrics"]["total_steps"] == 5


def test_a_run_exported_by_name_is_that_run(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = cases_from_runs(file)[1].id
    assert main(["export", "--atif", str(file), wanted[:8]]) == 0
    assert json.loads(capsys.readouterr().out)["trajectory_id"] == wanted
