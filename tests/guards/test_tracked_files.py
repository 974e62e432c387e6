"""What is tracked says nothing of the machine it was written on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Written in pieces, so that this file does not match itself.
HOMES = re.compile("(?<![\\w./-])/(?:" + "|".join(("work", "root", "Users", "home", "farm")) + ")/[\\w.]")
REGISTRIES = re.compile("python" + "hosted|pypi.org/" + "simple|extra-" + "index-url|/opt/" + "pypi")


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked():
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
                if pattern.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    return found


def test_no_tracked_file_names_a_folder_of_one_machine() -> None:
    assert lines_with(HOMES) == []


def test_no_tracked_file_names_a_package_registry_host() -> None:
    assert lines_with(REGISTRIES) == []
