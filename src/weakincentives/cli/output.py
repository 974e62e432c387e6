"""The output of commands: data to stdout, progress and errors to stderr.

Names, texts, errors and paths come from models, tools, providers and recordings, so everything is printed through this
module: `printable` escapes control sequences. (The linter forbids `print` in the other modules.)
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from weakincentives._base.visible import UNSEEN, UNSEEN_IN_LINE, visible
from weakincentives.errors import WinkError

if TYPE_CHECKING:
    from weakincentives._base.display import Table


# The seconds in which nothing is printed before a line says that something is under way.
SILENCE = 1.0


class UsageError(WinkError):
    """The command was called incorrectly; the message says what it accepts."""


def printable(text: str, *, one_line: bool = False, stream: TextIO | None = None) -> str:
    """Untrusted text made safe for a terminal: characters that hide are marks, or escapes where it lacks the marks."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    shown = visible(text, one_line=one_line)
    try:
        shown.encode(encoding)
    except UnicodeEncodeError:
        escaped = (UNSEEN_IN_LINE if one_line else UNSEEN).sub(_escaped, text)
        shown = escaped.encode(encoding, "backslashreplace").decode(encoding)
    return shown


def stdin() -> TextIO:
    """Standard input, unless the caller has closed it."""
    if sys.stdin is None:
        raise UsageError("stdin is closed; redirect it from a file or from /dev/null")
    return sys.stdin


def print_line(text: str = "", *, end: str = "\n", style: str = "", stream: TextIO | None = None) -> None:
    """Print untrusted text, to stdout by default, made printable; `style` is an escape code, such as "1" for bold."""
    target = stream or sys.stdout
    Wait.step_aside()
    print(_styled(printable(text, stream=target), style, target), end=end, file=target, flush=True)


def print_prose(text: str, *, style: str = "", indent: str = "") -> None:
    """Print sentences to stdout: on a terminal, lines end between words, and `indent` begins all but the first."""
    print_line(_wrapped(text, terminal_width(), indent), style=style)


def print_error(message: str) -> None:
    """Print a message to stderr, made printable; on a terminal, lines end between words."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() and "\n" not in message else None
    Wait.step_aside()
    print(printable(_wrapped(message, width), stream=sys.stderr), file=sys.stderr, flush=True)


def json_text(value: Any) -> str:
    """The value as indented JSON, in which characters that hide are escaped."""
    return UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], json.dumps(value, indent=2, ensure_ascii=False))


def print_json(value: Any) -> None:
    text = json_text(value)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        # A terminal with another encoding.
        text = json.dumps(value, indent=2)
    print(text)


def print_text(text: str, *, wrap: bool = True) -> None:
    """Print text that is a command's data: unchanged to a file or pipe, printable and wrapped on a terminal."""
    if sys.stdout.isatty():
        print(printable(_wrapped(text, terminal_width() if wrap else None)))
    else:
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding))


def may_colour(stream: TextIO) -> bool:
    """True if the stream is a terminal and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and not _is_dumb()


def erase_line(stream: TextIO | None = None) -> None:
    """Erase the line that the cursor is on; a terminal that cannot do it begins a new one."""
    print("\n" if _is_dumb() else "\r\x1b[2K", end="", file=stream or sys.stdout, flush=True)


def overwrite_echo() -> None:
    """Let the next line on stderr be written over the ^C that a terminal shows for Ctrl-C."""
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr, flush=True)


def progress(message: str, indent: str = "", *, wrap: bool = True) -> None:
    """Print a dim line to stderr for a person who is waiting, wrapped on a terminal.

    Do not `wrap` a line that holds a command to copy: where the terminal breaks it, it can still be copied.
    """
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() and wrap else None
    text = printable(_wrapped(message, width, indent), stream=sys.stderr)
    Wait.step_aside()
    print(_styled(text, "2", sys.stderr), file=sys.stderr, flush=True)


class Wait:
    """A line that says how long somebody has been waiting, until something else is printed.

    It appears `at_once`, or after a second of silence, and again after each such silence.
    """

    active: ClassVar[Wait | None] = None

    def __init__(self, text: str, *, shown: bool, stream: TextIO | None = None, at_once: bool = False) -> None:
        self._text = text if printable("…") == "…" else text.replace("…", "...")
        self._detail = ""
        self._stream = stream
        self._at_once = at_once
        self._drawn = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if shown and not _is_dumb():
            self._thread = threading.Thread(target=self._tick, name="wink-wait", daemon=True)

    def __enter__(self) -> Wait:
        self._since = time.monotonic()
        self._quiet_since = -math.inf if self._at_once else self._since
        if self._thread is not None:
            Wait.active = self
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            Wait.active = None
            self._stop.set()
            self._thread.join()
            self.hide()

    def hide(self) -> None:
        """Erase the line, for something else is to be printed; it comes back after a second of silence."""
        with self._lock:
            self._quiet_since = time.monotonic()
            self._erase()

    @classmethod
    def step_aside(cls) -> None:
        """Erase the line that is active, if there is one, for something else is printed."""
        wait = cls.active
        if wait is not None:
            with wait._lock:
                # The end of time if it is paused.
                wait._quiet_since = max(wait._quiet_since, time.monotonic())
                wait._erase()

    def update(self, detail: str) -> None:
        """Say how far the work is; the line shows it from its next change on."""
        self._detail = detail

    def pause(self) -> None:
        """Stay hidden until the next `hide`, since a line is being written."""
        self.hide()
        self._quiet_since = math.inf

    def _tick(self) -> None:
        while not self._stop.wait(0.25):
            with self._lock:
                now = time.monotonic()
                if now - self._quiet_since >= SILENCE:
                    stream = self._stream or sys.stdout
                    text = printable(f"{self._detail or self._text} {now - self._since:.0f} s", stream=stream)
                    # A line that wraps could not be erased.
                    text = text[: shutil.get_terminal_size().columns - 1]
                    print(f"\r\x1b[2K{_styled(text, '2', stream)}", end="", file=stream, flush=True)
                    self._drawn = True

    def _erase(self) -> None:
        if self._drawn:
            erase_line(self._stream)
            self._drawn = False


def meter(label: str, done: int, size: int) -> None:
    """Draw progress on one line of stderr, if it is a terminal, or in the line that says how long it takes."""
    filled = 30 * done // max(size, 1)
    line = f"{label} [{'#' * filled}{'.' * (30 - filled)}]"
    if Wait.active is not None:
        Wait.active.update(line if done < size else "")
    elif sys.stderr.isatty() and not _is_dumb():
        print(f"\r{line}", end=f"\r{' ' * len(line)}\r" if done >= size else "", file=sys.stderr, flush=True)


def report_damage(path: object, problems: Sequence[str]) -> int:
    """Report what cannot be read in a run file, and return the exit code."""
    if not problems:
        return 0
    more = f" (and {plural(len(problems) - 1, 'more problem')})" if len(problems) > 1 else ""
    print_error(f"wink: '{path}' is damaged: {problems[0]}{more}; the rest is shown")
    return 1


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def dollars(cost: float) -> str:
    """A cost as text; a very small one is not shown as none."""
    return "<$0.0001" if 0 < cost < 0.00005 else f"${cost:.4f}"


def print_table(table: Table, *, styles: Mapping[str, str] | None = None) -> None:
    """Print a table, cut to the width of a terminal; `styles` maps a cell's text to its style."""
    from dataclasses import replace

    clean = replace(table, rows=[[printable(cell, one_line=True) for cell in row] for row in table.rows])
    for index, row in enumerate(clean.cells(terminal_width())):
        row[-1] = row[-1].rstrip()
        known = {"": "1"} if index == 0 else styles or {}
        cells = [_styled(cell, known.get("" if index == 0 else cell.strip(), ""), sys.stdout) for cell in row]
        print("  ".join(cells).rstrip())


def terminal_width() -> int | None:
    """The width of the terminal in columns; None if stdout is a file or pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def in_editor(text: str, name: str, otherwise: str) -> str:
    """The text after the user has changed it in the editor of `VISUAL` or `EDITOR`, in a private file of this name."""
    import subprocess
    import tempfile
    from pathlib import Path
    from shlex import split

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / name
        draft.write_text(text + "\n", encoding="utf-8")
        try:
            subprocess.run([*split(editor), str(draft)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            how = f"exit code {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else reason(error)
            raise UsageError(f"the editor {editor!r} failed ({how}); set EDITOR, or {otherwise}") from None
        return draft.read_text(encoding="utf-8").strip("\n")


def reason(error: Exception) -> str:
    """The reason of an error without its number and the file, which the message around it names."""
    return getattr(error, "strerror", None) or str(error)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: suggests the nearest known one, or is empty."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _is_dumb() -> bool:
    """True if the terminal understands no escape sequences."""
    return os.environ.get("TERM") == "dumb"


def _wrapped(text: str, width: int | None, indent: str = "") -> str:
    from weakincentives._base.display import wrapped  # Not for `wink --help`, which must be fast.

    return wrapped(text, width, indent)


def _styled(text: str, style: str, stream: TextIO) -> str:
    if not style or not text or not may_colour(stream):
        return text
    return "\n".join(f"\x1b[{style}m{line}\x1b[0m" if line else "" for line in text.split("\n"))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
