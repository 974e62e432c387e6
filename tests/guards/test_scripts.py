"""The commands of the repository are POSIX shell, and say what they are for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = ["run", "test", "check", ".ci/run"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_can_be_run_and_parses_as_posix_shell(command: str) -> None:
    shell = shutil.which("dash") or "sh"
    assert os.access(ROOT / command, os.X_OK)
    assert (ROOT / command).read_text(encoding="utf-8").startswith("#!/bin/sh\n# ")
    subprocess.run([shell, "-n", str(ROOT / command)], check=True)


def test_without_python_and_venv_the_exact_packages_are_named(tmp_path: Path) -> None:
    for name in ("run", "test", "scripts/env.sh", "scripts/litellm.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("cat", "cksum", "dirname", "sh"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    done = subprocess.run([tmp_path / "test"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "sudo apt-get install -y python3 python3-venv python3-pip" in done.stderr
