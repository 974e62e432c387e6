"""Searching texts line by line for a regular expression, with a time limit.

Python's `re` can take exponential time, holds the interpreter lock while it runs, and cannot be interrupted. Any
pattern that is not plain text therefore runs in a separate Python process, which is killed when its time is up.
"""

from __future__ import annotations

import marshal
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from weakincentives.filesystem.errors import BadPatternError, FilesystemError

if TYPE_CHECKING:
    from subprocess import Popen

MAX_PATTERN_LENGTH = 5_000
START_TIMEOUT = 30.0
_SPECIAL = frozenset(r"\.^$*+?{}[]|()")

# The CPU limit ends the process even if this one has died and can no longer kill it.
_WORKER = """
import marshal, re, sys

source, target = sys.stdin.buffer, sys.stdout.buffer
pattern, cpu_seconds = marshal.load(source)
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
except (ImportError, OSError, ValueError):
    pass
search = re.compile(pattern).search
marshal.dump("ready", target)
target.flush()
while True:
    try:
        texts = marshal.load(source)
    except EOFError:
        break
    found = []
    for index, text in enumerate(texts):
        for number, line in enumerate(text.split("\\n")):
            if search(line.removesuffix("\\r")):
                found.append((index, number))
    marshal.dump(found, target)
    target.flush()
"""


class LineMatcher:
    """Finds the lines of texts that match a pattern: `with LineMatcher(pattern, timeout=5) as matcher:`.

    The timeout covers the time that all calls of `find` spend on matching.
    """

    def __init__(self, pattern: str, *, timeout: float) -> None:
        _check(pattern)
        self._pattern = pattern
        self._is_plain = _SPECIAL.isdisjoint(pattern)
        self._timeout = self._seconds_left = timeout
        self._process: Popen[bytes] | None = None

    def find(self, texts: list[str]) -> list[tuple[int, int]]:
        """The index of the text and the number of the line (both from 0) of each match, in order.

        A newline ends a line; what follows the last one counts as a line too, even if it is empty.
        """
        if self._is_plain:
            return [(index, number) for index, text in enumerate(texts) for number in self._find_plain(text)]
        process = self._process or self._start()
        started = time.monotonic()
        try:
            found: list[tuple[int, int]] = _ask(process, texts, self._seconds_left)
        except (EOFError, OSError) as error:
            if time.monotonic() - started < self._seconds_left:
                raise FilesystemError(f"The process that matches {self._pattern!r} ended unexpectedly") from error
            raise BadPatternError(
                f"Searching for {self._pattern!r} took longer than {self._timeout:g} seconds; use a simpler pattern "
                "without nested repetitions such as '(a+)+', or search fewer files",
                path=self._pattern,
            ) from None
        self._seconds_left = max(self._seconds_left - (time.monotonic() - started), 0.0)
        return found

    def _find_plain(self, text: str) -> list[int]:
        if self._pattern not in text:
            return []
        return [number for number, line in enumerate(text.split("\n")) if self._pattern in line.removesuffix("\r")]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _start(self) -> Popen[bytes]:
        # Imported here because most programs never search for a regular expression.
        from subprocess import DEVNULL, PIPE, Popen

        if getattr(sys, "frozen", False) or not sys.executable:
            raise FilesystemError("A regular expression needs a Python interpreter to run in; search for plain text")
        command = [sys.executable, "-I", "-S", "-c", _WORKER]
        try:
            process = self._process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
            _ask(process, (self._pattern, int(self._timeout) + 2), START_TIMEOUT)
        except (EOFError, OSError) as error:
            raise FilesystemError(f"Cannot run a regular expression in {sys.executable!r}: {error}") from error
        return process


def _ask(process: Popen[bytes], question: Any, timeout: float) -> Any:
    """Send a value to the process and return its answer. When the time is up, the process is killed."""
    assert process.stdin is not None and process.stdout is not None
    timer = threading.Timer(timeout, process.kill)
    timer.start()
    try:
        process.stdin.write(marshal.dumps(question))
        process.stdin.flush()
        return marshal.load(process.stdout)
    finally:
        timer.cancel()


def _check(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise BadPatternError(
            f"A pattern must have at most {MAX_PATTERN_LENGTH} characters, got {len(pattern)}", path=pattern
        )
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise BadPatternError(f"{pattern!r} is not a regular expression: {error}", path=pattern) from None
