"""Writes what happens: coloured and wrapped on a terminal that `rich` knows, else plain lines."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from contextlib import AbstractContextManager, nullcontext
from typing import Any

WIDTH = 100
LABEL = 9
_STYLES = {"opens": "cyan", "tools": "magenta", "calls": "yellow", "result": "green", "answer": "bold", "cost": "dim"}


class Screen:
    """Labelled lines to stdout."""

    def __init__(self) -> None:
        self._rich = _console()

    def say(self, label: str, text: str, *, style: str = "") -> None:
        """One fact: a label, and text that is wrapped beside it."""
        style = style or _STYLES.get(label, "")
        width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) - LABEL - 3
        lines = [
            line
            for part in text.split("\n")
            for line in textwrap.wrap(part, max(width, 30), break_on_hyphens=False) or [""]
        ]
        for index, line in enumerate(lines):
            self._print(label if index == 0 else "", line, style)

    def blank(self) -> None:
        self._print("", "", "")

    def working(self, text: str) -> AbstractContextManager[Any]:
        """A sign of life on a terminal while nothing happens; lines said meanwhile stand above it."""
        if self._rich is None:
            return nullcontext()
        status: AbstractContextManager[Any] = self._rich.status(text, spinner_style="bold blue")
        return status

    def _print(self, label: str, line: str, style: str) -> None:
        if self._rich is None:
            try:
                print(f"{label:<{LABEL}}  {line}".rstrip(), flush=True)
            except BrokenPipeError:
                # The reader has gone (`./run | head`): nobody is left to tell.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        from rich.text import Text

        self._rich.print(Text.assemble((f"{label:<{LABEL}}  ", "bold blue"), (line, style)), soft_wrap=True)


def _console() -> Any:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False)
