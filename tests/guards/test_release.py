"""A release holds what is tracked, can be installed, and its history is written down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from weakincentives import __version__
from weakincentives.evals.recording import VERSION as RECORDING
from weakincentives.session.snapshot import FORMAT
from weakincentives.telemetry.reader import VERSION

ROOT = Path(__file__).parents[2]
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.limit(240)
@pytest.mark.slow
def test_a_release_can_be_built_installed_and_used_as_the_readme_says(tmp_path: Path) -> None:
    if subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("not a git checkout")
    command = [sys.executable, "-m", "scripts.release", "--offline", "--into", str(tmp_path / "dist")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "without a key, the first one answered 'Order 7 is refunded.'" in done.stdout
    assert {path.suffix for path in (tmp_path / "dist").iterdir()} == {".gz", ".whl"}


def test_the_changelog_names_this_release_and_the_formats_it_writes() -> None:
    assert f"## {__version__} " in CHANGES
    assert f"`{FORMAT}`" in CHANGES
    assert f"| run files (`.wink/runs.db`) | {VERSION} |" in CHANGES
    assert f"| recordings in cases (`wink eval`) | {RECORDING} |" in CHANGES


def test_pre_commit_runs_what_the_check_runs() -> None:
    configured = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (hook,) = [hook for repository in configured["repos"] for hook in repository["hooks"]]
    assert (hook["entry"], hook["always_run"]) == ("./check", True)


def test_the_check_compares_every_generated_page() -> None:
    check = (ROOT / "check").read_text(encoding="utf-8")
    assert "    pages --check\n" in check
    assert "for script in cli_docs hosted_docs llms;" in check
