"""The viewer explains its words as the glossary does."""

from __future__ import annotations

import re
from pathlib import Path

from weakincentives.viewer.page import STATIC

ROOT = Path(__file__).parents[2]


def glossary() -> dict[str, str]:
    """Each word of the glossary with its meaning, as plain text."""
    found = {}
    for line in (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8").splitlines():
        row = re.fullmatch(r"\| (.+?) \| (.+) \|", line)
        if row:
            meaning = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", row[2]).replace("`", "").replace("*", "")
            found |= {word.strip("* "): meaning for word in row[1].split(", ")}
    return found


def test_every_term_has_the_words_of_the_glossary() -> None:
    source = (STATIC / "terms.js").read_text(encoding="utf-8")
    block = source.split("export const TERMS = {")[1].split("};")[0]
    terms = {name.strip('"'): text for name, text in re.findall(r'^  ("?[\w ]+"?): "(.+)",$', block, re.MULTILINE)}
    known = glossary()
    assert len(terms) > 20
    assert terms == {name: known.get(name) for name in terms}
