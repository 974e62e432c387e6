"""Characters that hide, as people see them on terminals, pages and in questions."""

from __future__ import annotations

import json
import shutil
import subprocess
import unicodedata
from pathlib import Path
from random import Random

import pytest

import weakincentives
from weakincentives._base.visible import UNSEEN_RANGES, exactly_visible, visible

HIDING = {
    "ESC": "\x1b[2K",
    "carriage return": "\r",
    "backspace": "\x08",
    "C1": "\x9b2K",
    "next line": "\x85",
    "override": "\u202e",
    "isolate": "\u2067",
    "mark": "\u200e",
    "line separator": "\u2028",
    "zero width space": "\u200b",
    "joiner": "\u200d",
    "word joiner": "\u2060",
    "soft hyphen": "\u00ad",
    "byte order mark": "\ufeff",
    "grapheme joiner": "\u034f",
    "filler": "\u3164",
    "halfwidth filler": "\uffa0",
    "braille blank": "\u2800",
    "tag": "\U000e0072",
    "selector": "\ufe0f",
    "second selector": "\U000e0100",
    "Mongolian separator": "\u180e",
    "annotation": "\ufff9",
    "inherent vowel": "\u17b4",
    "musical": "\U0001d173",
    "surrogate": "\ud800",
    "private use": "\ue000",
}
LOOKALIKES = {"no-break space": "\u00a0", "figure space": "\u2007", "ideographic space": "\u3000", "overlay": "\u0338"}
STATIC = Path(weakincentives.__file__).parent / "viewer" / "static"


@pytest.mark.parametrize("name", HIDING)
def test_a_character_that_hides_is_a_mark(name: str) -> None:
    for show in (visible, exactly_visible):
        text = show(f"x{HIDING[name]}y")
        assert HIDING[name] not in text and text.startswith("x") and text.endswith("y") and len(text) > 2
        assert all(letter.isprintable() for letter in text)


@pytest.mark.parametrize("name", LOOKALIKES)
def test_a_question_also_marks_what_looks_like_something_else(name: str) -> None:
    assert visible(f"x{LOOKALIKES[name]}y") == f"x{LOOKALIKES[name]}y"
    assert exactly_visible(f"x{LOOKALIKES[name]}y") == f"x⟨U+{ord(LOOKALIKES[name]):04X}⟩y"


def test_what_is_written_by_people_stays_as_it_is() -> None:
    for text in ("Grüße, naïve", "日本語", "שלום", "می‌خواهم", "क्‍ष", "❤️ 👩‍👩‍👧 1️⃣", "one\n\ttwo"):
        assert visible(text) == text
    assert visible("one\ttwo\n", one_line=True) == "one␉two␊"
    assert exactly_visible("Grüße, 日本語\n\ttwo") == "Grüße, 日本語\n\ttwo"


def test_marks_cannot_be_forged_in_a_question() -> None:
    assert exactly_visible("⟨U+200B⟩") != exactly_visible("\u200b")
    assert exactly_visible("␛") != exactly_visible("\x1b")
    assert exactly_visible("⟨50 spaces⟩") != exactly_visible(" " * 50)


def test_long_runs_of_blanks_do_not_move_what_follows_out_of_sight() -> None:
    assert exactly_visible(f"pay(10);{' ' * 1_000}evil()") == "pay(10);⟨1,000 spaces⟩evil()"
    assert exactly_visible("\t" * 20) == "⟨20 tabs⟩"
    assert exactly_visible(" " * 40 + "\t" * 8) == " " * 40 + "\t" * 8


def test_two_texts_that_differ_look_different_in_a_question() -> None:
    random = Random(7)
    letters = ["a", "b", " ", "\t", "⟨", "⟩", "U+200B", "␛", *HIDING.values(), *LOOKALIKES.values(), " " * 41, "\u0301"]
    shown: dict[str, str] = {}
    for _ in range(20_000):
        text = "".join(random.choices(letters, k=random.randint(1, 6)))
        assert shown.setdefault(exactly_visible(text), text) == text


def test_every_character_without_ink_is_in_the_table() -> None:
    hidden = set[int]()
    for first, last in UNSEEN_RANGES:
        hidden.update(range(first, last + 1))
    for code in range(0x110000):
        if unicodedata.category(chr(code)) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}:
            assert code in hidden or chr(code) in "\t\n", hex(code)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_pages_show_the_same_marks_as_terminals(tmp_path: Path) -> None:
    texts: list[str] = []
    for code in (*range(0xE0200), *range(0x10FFF0, 0x110000)):
        if not 0xD800 <= code < 0xE000:
            texts.append(f"x{chr(code)}y ❤{chr(code)} ب{chr(code)}ب")
    program = f"""
import {{ readFileSync }} from "node:fs";
import {{ visible }} from "{(STATIC / "unseen.js").as_uri()}";
const text = JSON.parse(readFileSync("{tmp_path / "text.json"}", "utf-8"));
console.log(JSON.stringify(visible(text)));
"""
    (tmp_path / "text.json").write_text(json.dumps("\n".join(texts)), encoding="utf-8")
    (tmp_path / "program.mjs").write_text(program, encoding="utf-8")
    done = subprocess.run(["node", str(tmp_path / "program.mjs")], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout).split("\n") == visible("\n".join(texts)).split("\n")
