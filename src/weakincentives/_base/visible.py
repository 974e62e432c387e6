"""Makes characters visible that hide: controls, those that turn text around, and those without ink.

Texts of models, files and servers reach people on terminals, pages and in notebooks. There, none of these characters
may change how the text around them looks. The viewer's pages use the same table, in `viewer/static/unseen.js`.
"""

from __future__ import annotations

import re

# Controls but tab and line feed, formats, separators, surrogates, private use, fillers, selectors, and tags. The list
# is written out, because the category of a character depends on the version of Python.
UNSEEN_RANGES: tuple[tuple[int, int], ...] = (
    (0x00, 0x08),
    (0x0B, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x34F, 0x34F),
    (0x600, 0x605),
    (0x61C, 0x61C),
    (0x6DD, 0x6DD),
    (0x70F, 0x70F),
    (0x890, 0x891),
    (0x8E2, 0x8E2),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xD800, 0xF8FF),
    (0xFDD0, 0xFDEF),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0xFFFE, 0xFFFF),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x1345F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0x10FFFF),
)

# Where some of these characters belong to the writing: joiners in Arabic and Indic words, and emoji.
_JOINING = "\u0600-\u0dff"
_EMOJI = (
    "#*0-9\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_KEPT = (
    f"(?<=[{_JOINING}])[\u200c\u200d](?=[{_JOINING}])",
    f"(?<=[{_EMOJI}])[\ufe0e\ufe0f]",
    f"(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])",
)

# What looks like a space, what strikes other characters out, and what the marks below are made of.
_ALSO_EXACT = (
    "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
    "\u0334-\u0338\u20d2\u20d3\u20d8-\u20da\u20dd-\u20e0\u20e2-\u20e6\u20ea\u20eb"
    "\u2400-\u2426\u27e8"
)
_MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
MAX_SPACES = 40
MAX_TABS = 8
_PICTURES = 0x2400


def _class_of(ranges: tuple[tuple[int, int], ...]) -> str:
    parts: list[str] = []
    for first, last in ranges:
        parts.append(f"\\U{first:08x}-\\U{last:08x}")
    return "".join(parts)


_UNSEEN = _class_of(UNSEEN_RANGES)
UNSEEN = re.compile(f"[{_UNSEEN}]")
UNSEEN_IN_LINE = re.compile(f"[{_UNSEEN}\t\n]")
_IN_PROSE = re.compile(f"{'|'.join(_KEPT)}|(?P<unseen>[{_UNSEEN}])")
_IN_LINE = re.compile(f"{'|'.join(_KEPT)}|(?P<unseen>[{_UNSEEN}\t\n])")
_IN_QUESTION = re.compile(
    f"(?P<unseen>[{_UNSEEN}{_ALSO_EXACT}]|(?<=[{_MARKS}]{{3}})[{_MARKS}])"
    f"|(?P<run> {{{MAX_SPACES + 1},}}|\t{{{MAX_TABS + 1},}})"
)


def visible(text: str, *, one_line: bool = False) -> str:
    """The text with each character that hides as a mark; emoji, and what joins letters of a word, stay.

    In `one_line`, tabs and line feeds are marks as well.
    """
    if text.isascii() and text.isprintable():
        return text
    return (_IN_LINE if one_line else _IN_PROSE).sub(_mark, text)


def exactly_visible(text: str) -> str:
    """The text as a person can check it: two texts look the same only if their letters look alike.

    So unusual spaces are marks as well, all that belongs to emoji, and long runs of blanks, which would move what
    follows out of sight.
    """
    if text.isascii() and text.isprintable() and " " * (MAX_SPACES + 1) not in text:
        return text
    return _IN_QUESTION.sub(_mark, text)


def _mark(match: re.Match[str]) -> str:
    character = match["unseen"]
    if character is None:
        return _counted(match)
    code = ord(character)
    if code < 0x20:
        return chr(_PICTURES + code)
    if code == 0x7F:
        return "\u2421"
    return f"⟨U+{code:04X}⟩"


def _counted(match: re.Match[str]) -> str:
    """A run of blanks by its length, where runs are marks; anything else stays."""
    if not match.re.groupindex.get("run"):
        return match[0]
    kind = "tabs" if match[0][0] == "\t" else "spaces"
    return f"⟨{len(match[0]):,} {kind}⟩"
