"""The pictures of the README are of this version, and the README has their figures."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from tests.helpers.embedded import require_quotation

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
WORD = r"[\w.-]+(?:,\d+)*"


def test_the_terminal_of_the_readme_is_what_the_picture_shows() -> None:
    pictures = pytest.importorskip("scripts.pictures", reason="needs the extra [test-full] and a POSIX terminal")
    shown = iter(re.findall(WORD, " ".join(pictures.words((IMAGES / "run.svg").read_text(encoding="utf-8")))))
    demo = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Try it without a key")[2]
    block = re.search(r"```text\n(.*?)```", demo, re.DOTALL)
    assert block is not None and [word for word in re.findall(WORD, block[1]) if word not in shown] == []


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.svg")), ids=lambda file: file.name)
def test_no_word_of_a_picture_is_broken(file: Path) -> None:
    sources = [path for end in ("py", "md") for path in (ROOT / "src").rglob(f"*.{end}")]
    known = {word for path in sources for word in re.findall(r"[A-Za-z]{2,}", path.read_text(encoding="utf-8"))}
    known |= {"a", "A", "I", "s", "C"} | {path.stem for path in sources}
    lines = map(unescape, re.findall(r"<text[^>]*>([^<]*)</text>", file.read_text(encoding="utf-8")))
    words = [word for line in lines for word in re.findall(r"(?<![\w/.-])[A-Za-z]+(?![\w/-])", line)]
    assert len(words) > 20 and [word for word in words if word not in known] == []


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.svg")), ids=lambda file: file.name)
def test_a_picture_can_be_read_on_a_phone(file: Path) -> None:
    svg = file.read_text(encoding="utf-8")
    (size,), (width,) = re.findall(r'font-size="(\d+)"', svg), re.findall(r'viewBox="0 0 (\d+)', svg)
    assert int(size) * 390 / int(width) >= 10


@pytest.mark.slow
@pytest.mark.limit(300)
def test_the_pictures_are_what_the_commands_print_now() -> None:
    require_quotation("uvicorn", "rich")
    done = subprocess.run(
        [sys.executable, "-m", "scripts.pictures", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
