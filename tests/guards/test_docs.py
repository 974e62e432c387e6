"""The docs are complete, and what is generated from them and from the program is current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.diagrams import WIDTH, drawn, figure
from scripts.llms import chapters

ROOT = Path(__file__).parents[2]
LONGEST = 2_500  # words, code included
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *DOCS])
# Made from the program, to be searched rather than read.
GENERATED = ("cli.md",)


def test_the_index_lists_every_page() -> None:
    linked = [name for _, pages in chapters() for _, name, _ in pages]
    assert sorted([*linked, "index.md"]) == sorted(str(path.relative_to(ROOT / "docs")) for path in DOCS)


def test_every_chapter_begins_with_steps_and_their_output() -> None:
    first = {title: ROOT / "docs" / pages[0][1] for title, pages in chapters() if title != "Reference"}
    texts = {title: page.read_text(encoding="utf-8") for title, page in first.items()}
    assert [title for title, text in texts.items() if len(re.findall("^```(output|console)$", text, re.M)) < 2] == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        prose = re.sub(r"`[^`]*`", "", prose)
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", prose)
        broken += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
    assert broken == []


def test_a_page_is_short_enough_to_be_read() -> None:
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in DOCS if page.name not in GENERATED}
    too_long = {name: count for name, count in words.items() if count > LONGEST}
    assert too_long == {}, "divide it along the tasks of its readers"


def test_the_diagrams_of_the_pages_can_be_drawn() -> None:
    for page in DOCS:
        text = page.read_text(encoding="utf-8")
        figures = re.findall(r"<figure.*?</figure>", drawn(text), re.DOTALL)
        assert len(figures) == text.count("```diagram"), page.name
        for picture in figures:
            boxes = re.findall(r'<rect [^>]*x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', picture)
            assert max(float(left) + float(width) for left, width in boxes) <= WIDTH, page.name


def test_a_diagram_names_a_line_that_it_cannot_read() -> None:
    with pytest.raises(ValueError, match="got 'you ask the model'"):
        figure("you -> model: a question\nyou ask the model")
    with pytest.raises(ValueError, match="shorten its texts"):
        figure("request 1: " + " | ".join(f"a long part {number}" for number in range(9)))


@pytest.mark.parametrize("script", ["llms.py", "cli_docs.py", "hosted_docs.py"])
def test_generated_pages_are_current(script: str) -> None:
    command = [sys.executable, f"scripts/{script}", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
