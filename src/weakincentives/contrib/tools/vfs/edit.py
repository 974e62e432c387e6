"""Replacing a piece of text exactly, or saying why it cannot be done."""

from __future__ import annotations

from weakincentives.errors import ToolValidationError

MAX_LINES_NAMED = 10


def replace_exactly(text: str, old: str, new: str, *, path: str, replace_all: bool) -> tuple[str, int]:
    """The new text and how many pieces were replaced; the error tells the model what to do instead."""
    if not old:
        raise ToolValidationError(f"'old' is empty; to fill {path!r} use the write tool")
    if old == new:
        raise ToolValidationError("'old' and 'new' are the same text; nothing would change")
    if old not in text and "\r\n" in text and "\r\n" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    count = text.count(old)
    if count == 0:
        raise ToolValidationError(
            f"The text to replace is not in {path!r}{_near_miss(text, old)}; read the file and copy the text exactly"
        )
    if count > 1 and not replace_all:
        raise ToolValidationError(
            f"The text to replace is in {path!r} {count} times (lines {_lines(text, old)}); add the lines around it to "
            "make it unique, or set replace_all"
        )
    return text.replace(old, new), count


def _near_miss(text: str, old: str) -> str:
    """Where the same lines stand with other whitespace."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    wanted = [" ".join(line.split()) for line in old.strip("\n").split("\n")]
    for start in range(len(lines) - len(wanted) + 1):
        if lines[start : start + len(wanted)] == wanted:
            return f" (line {start + 1} differs in whitespace only)"
    return ""


def _lines(text: str, old: str) -> str:
    numbers: list[str] = []
    start = text.find(old)
    while start >= 0 and len(numbers) < MAX_LINES_NAMED:
        numbers.append(str(text.count("\n", 0, start) + 1))
        start = text.find(old, start + len(old))
    return ", ".join(numbers) + (" ..." if start >= 0 else "")
