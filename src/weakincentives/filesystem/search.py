"""Glob and grep over any walk of files.

A walk yields files in sorted order, so a limit always cuts at the same place. Python's `re` can take exponential time,
holds the interpreter lock while it runs, and cannot be interrupted. Any pattern that is not plain text therefore runs
in a separate Python process, which ends when its time is up.
"""

from __future__ import annotations

import fnmatch
import marshal
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from weakincentives._base.fence import check_fence, seconds_left
from weakincentives.filesystem.protocol import (
    BadPatternError,
    FilesystemError,
    InvalidPathError,
    Match,
    NotDirectoryError,
    NotFoundError,
    Parts,
    Stat,
    is_binary,
    join,
    split,
)

Files = Iterator[tuple[Parts, Callable[[], bytes]]]
"""The path of each file, and a function that loads it."""

MAX_ALTERNATIVES = 256
BATCH_SIZE = 4_000_000
MAX_PATTERN_LENGTH = 5_000
START_TIMEOUT = 30.0


class Searchable(ABC):
    """The methods of a filesystem that need only a walk through its files, and the status of a path."""

    _grep_timeout: float

    @abstractmethod
    def stat(self, path: str) -> Stat: ...

    @abstractmethod
    def _walk(self, base: Parts, depth: int | None) -> Files:
        """The files below a directory, not deeper than `depth`."""

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except (NotFoundError, NotDirectoryError):
            return False
        return True

    def glob(self, pattern: str, *, path: str = ".") -> tuple[str, ...]:
        if self.stat(path).kind != "directory":
            raise NotDirectoryError(f"{path!r} is a file, not a directory", path=path)
        fits = compile_glob(pattern)
        base = split(path)
        names = [name for name in pattern.split("/") if name not in ("", ".")]
        depth = None if "**" in pattern or "{" in pattern else len(names)
        found = (parts for parts, _ in _until_stopped(self._walk(base, depth)))
        return tuple(join(parts) for parts in found if fits(parts[len(base) :]))

    def grep(
        self, pattern: str, *, path: str = ".", glob: str | None = None, limit: int | None = None
    ) -> tuple[Match, ...]:
        self.stat(path)
        if limit is not None and limit < 1:
            raise FilesystemError(f"limit must be 1 or more, got {limit} while searching {path!r}", path=path)
        _check_pattern(pattern)
        wanted = compile_filter(glob) if glob is not None else None
        base = split(path)
        files = (
            (join(parts), _text(load()))
            for parts, load in _until_stopped(self._walk(base, None))
            if wanted is None or wanted(parts[len(base) :] or parts[-1:])
        )
        return tuple(islice(_matches(files, pattern, self._grep_timeout), limit))


def _until_stopped(files: Files) -> Files:
    """The files, until the tool call that the search works for is stopped or late."""
    for found in files:
        check_fence()
        yield found


def _batches(files: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Group files, to keep down the number of round trips to the process that matches them."""
    batch: list[tuple[str, str]] = []
    size = 0
    for path, text in files:
        batch.append((path, text))
        size += len(text)
        if size >= BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _matches(files: Iterable[tuple[str, str]], pattern: str, timeout: float) -> Iterator[Match]:
    """The matching lines. A newline ends a line; the empty text after the last one is not a line."""
    is_plain = _SPECIAL.isdisjoint(pattern)
    left = timeout
    for batch in _batches(files):
        texts = [text for _, text in batch]
        if is_plain:
            found = [_lines_with(pattern, text) for text in texts]
        else:
            found, spent = _search(pattern, texts, left, timeout)
            left -= spent
        for (path, text), numbers in zip(batch, found, strict=True):
            lines = text.split("\n") if numbers else []
            for number in numbers:
                if number + 1 < len(lines) or lines[number]:
                    yield Match(path, number + 1, lines[number].removesuffix("\r"))


def _lines_with(pattern: str, text: str) -> list[int]:
    if pattern not in text:
        return []
    return [number for number, line in enumerate(text.split("\n")) if pattern in line.removesuffix("\r")]


def _text(data: bytes) -> str:
    """The text of a file; empty if it is binary."""
    if is_binary(data):
        return ""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""


def compile_glob(pattern: str) -> Callable[[Parts], bool]:
    """A predicate for whole paths: `**` crosses directories, `*` and `?` do not."""
    _check_length(pattern)
    if not pattern or "\0" in pattern:
        raise BadPatternError(
            f"Glob {pattern!r} is {'empty' if not pattern else 'not a path'}; try '**/*'", path=pattern
        )
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise InvalidPathError(f"Glob {pattern!r} leads out of the root; use one relative to it", path=pattern)
    options = [_tests(each) for each in _expand(pattern)]
    return lambda parts: any(_fits(parts, tests) for tests in options)


def compile_filter(pattern: str) -> Callable[[Parts], bool]:
    """A predicate for grep's `glob` and for ignore patterns. Without a slash, a pattern applies to the name alone."""
    fits = compile_glob(pattern.rstrip("/"))
    return fits if "/" in pattern.rstrip("/") else lambda parts: fits(parts[-1:])


def _expand(pattern: str) -> list[str]:
    """Expand braces, the innermost first: `*.{c,h}` gives `*.c` and `*.h`. An unclosed brace is literal."""
    expanded: list[str] = []
    wider = [pattern]
    while wider != expanded:
        expanded = wider
        wider = list(dict.fromkeys(option for each in expanded for option in _options(each)))
        if len(wider) > MAX_ALTERNATIVES:
            raise BadPatternError(f"Glob {pattern!r} has more than {MAX_ALTERNATIVES} alternatives", path=pattern)
    return expanded


def _options(pattern: str) -> list[str]:
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    return [pattern[: braces.start()] + choice + pattern[braces.end() :] for choice in braces[1].split(",")]


def _tests(pattern: str) -> list[Callable[[str], object] | None]:
    """A test for each name in a glob without braces; None stands for `**`, any number of names."""
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    names += ["*"] if names[-1:] == ["**"] else []
    translated = [fnmatch.translate(name) for name in names]
    if any("(?!)" in text for text in translated):  # Instead of a class without characters.
        raise BadPatternError(f"Glob {pattern!r} is invalid: bad character range", path=pattern)
    return [None if name == "**" else re.compile(text).match for name, text in zip(names, translated, strict=True)]


def _fits(names: Parts, tests: Sequence[Callable[[str], object] | None]) -> bool:
    """True if the names pass the tests. If one fails, the last `**` before it takes one more name."""
    at = step = 0
    again: tuple[int, int] | None = None
    while at < len(names):
        test = tests[step] if step < len(tests) else bool
        if test is None:
            step += 1
            again = at, step
        elif step < len(tests) and test(names[at]):
            at, step = at + 1, step + 1
        elif again is not None:
            at, step = again = again[0] + 1, again[1]
        else:
            return False
    return step == len(tests)


_BRACES = re.compile(r"\{([^{}]*)\}")
_SPECIAL = frozenset(r"\.^$*+?{}[]|()")

# The watchdog ends the process even if this one has died, and whatever `re` is doing.
_WORKER = """
import faulthandler, marshal, re, sys, time

pattern, texts, seconds = marshal.load(sys.stdin.buffer)
started = time.monotonic()
faulthandler.dump_traceback_later(max(seconds, 0.001), exit=True)
search = re.compile(pattern).search
found = [
    [number for number, line in enumerate(text.split("\\n")) if search(line.removesuffix("\\r"))] for text in texts
]
marshal.dump((found, time.monotonic() - started), sys.stdout.buffer)
"""


def _search(pattern: str, texts: list[str], seconds: float, timeout: float) -> tuple[list[list[int]], float]:
    """The numbers (from 0) of the matching lines of each text, and how long that took.

    `seconds` are left of the `timeout`. A run's deadline ends the process too.
    """
    # Imported here because most programs never search for a regular expression.
    from subprocess import DEVNULL, PIPE, TimeoutExpired, run

    if getattr(sys, "frozen", False) or not sys.executable:
        raise FilesystemError("A regular expression needs a Python interpreter to run in; search for plain text")
    command = [sys.executable, "-I", "-S", "-c", _WORKER]
    question = marshal.dumps((pattern, texts, seconds))
    started = time.monotonic()
    try:
        limit = min(seconds + START_TIMEOUT, seconds_left())
        done = run(command, input=question, stdout=PIPE, stderr=DEVNULL, timeout=limit, check=False)
    except (OSError, TimeoutExpired) as error:
        check_fence()
        raise FilesystemError(f"Cannot run a regular expression in {sys.executable!r}: {error}") from error
    if done.returncode == 0:
        answer: tuple[list[list[int]], float] = marshal.loads(done.stdout)
        return answer
    if time.monotonic() - started < seconds:
        raise FilesystemError(f"The process that matches {pattern!r} ended unexpectedly")
    raise BadPatternError(
        f"Searching for {pattern!r} took longer than {timeout:g} seconds; use a simpler pattern "
        "without nested repetitions such as '(a+)+', or search fewer files",
        path=pattern,
    )


def _check_pattern(pattern: str) -> None:
    _check_length(pattern)
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise BadPatternError(f"{pattern!r} is not a regular expression: {error}", path=pattern) from None


def _check_length(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise BadPatternError(
            f"A pattern must have at most {MAX_PATTERN_LENGTH} characters, got {len(pattern)}", path=pattern
        )
