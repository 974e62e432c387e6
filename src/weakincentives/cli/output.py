"""What a command prints: data to stdout, progress and errors to stderr, and whether either may have colour."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Sequence
from typing import Any, TextIO

from weakincentives.errors import WinkError

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class UsageError(WinkError):
    """The command was called wrongly; the message says what it takes."""


def print_json(value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        # Lone surrogates, or a terminal of another age: JSON has escapes for them.
        text = json.dumps(value, indent=2)
    print(text)


def print_text(text: str) -> None:
    """Text as it is, but what stdout cannot encode, and on a terminal also control characters, with escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    print(printable(text) if sys.stdout.isatty() else text.encode(encoding, "backslashreplace").decode(encoding))


def printable(text: str) -> str:
    """Text from a model or a tool as a terminal may have it: no escape sequences, nothing that cannot be encoded."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def may_colour(stream: TextIO) -> bool:
    """A terminal, and no NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def progress(message: str, *, style: str = "2") -> None:
    """One line for a person who waits, on stderr."""
    text = f"\x1b[{style}m{message}\x1b[0m" if may_colour(sys.stderr) else message
    print(text, file=sys.stderr, flush=True)


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """The rows under their heading; the columns in `right` hold numbers."""
    every = [heading, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(heading))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in every
    )
