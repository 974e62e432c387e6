"""The pictures of the README are of this version, and the README has their figures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_figures_of_the_readme_are_those_of_its_picture() -> None:
    pictures = pytest.importorskip("scripts.pictures", reason="needs the extra [test-full] and a POSIX terminal")
    shown = " ".join(pictures.words((ROOT / "docs" / "images" / "run.svg").read_text(encoding="utf-8")))
    told = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Ten lines")[0]
    figures = re.findall(r"\b\d{1,3},\d{3}\b", told)
    assert len(figures) == 2 and [figure for figure in figures if figure not in shown] == []


@pytest.mark.slow
@pytest.mark.limit(300)
def test_the_pictures_are_what_the_commands_print_now() -> None:
    for package in ("xllamacpp", "uvicorn", "rich"):
        pytest.importorskip(package, reason="needs the extras [local,viewer,test-full]")
    from weakincentives.adapters.local.models import model_file

    try:
        model_file(None)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-m", "scripts.pictures", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
