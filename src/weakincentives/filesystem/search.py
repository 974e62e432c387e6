"""Glob and grep over any walk of files.

A walk yields files in sorted order, so a limit always cuts at the same place. Python's `re` can take exponential time,
holds the interpreter lock while it runs, and cannot be interrupted. Any pattern that is not plain text therefore runs
in a separate Python process, which is killed when its time is up.
"""

from __future__ import annotations

import marshal
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

from weakincentives._fence import check_fence, seconds_left
from weakincentives.filesystem.protocol import (
    BadPatternError,
    FilesystemError,
    InvalidPathError,
    Match,
    Parts,
    is_binary,
    join,
)

if TYPE_CHECKING:
    from subprocess import Popen

Walk = Callable[[Parts, int | None], Iterator[tuple[Parts, Callable[[], bytes]]]]
"""Takes a directory and a maximum depth; yields each file's path and a function that loads it."""

MAX_ALTERNATIVES = 256
BATCH_SIZE = 1_000_000
MAX_PATTERN_LENGTH = 5_000
START_TIMEOUT = 30.0


def glob(walk: Walk, pattern: str, base: Parts) -> tuple[str, ...]:
    expression = compile_glob(pattern)
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    depth = None if "**" in pattern or "{" in pattern else len(names)
    skip = len(base)
    return tuple(join(parts) for parts, _ in _walked(walk, base, depth) if expression.fullmatch("/".join(parts[skip:])))


def grep(
    walk: Walk, pattern: str, base: Parts, *, only: str | None, limit: int | None, timeout: float
) -> tuple[Match, ...]:
    if limit is not None and limit < 1:
        raise FilesystemError(f"limit must be 1 or more, got {limit} while searching {join(base)!r}", path=join(base))
    wanted = compile_filter(only) if only is not None else None
    skip = len(base)
    files = (
        (join(parts), _text(load()))
        for parts, load in _walked(walk, base, None)
        if wanted is None or wanted(parts[skip:] or parts[-1:])
    )
    with LineMatcher(pattern, timeout=timeout) as matcher:
        return tuple(islice((match for batch in _batches(files) for match in _matches(batch, matcher)), limit))


def _walked(walk: Walk, base: Parts, depth: int | None) -> Iterator[tuple[Parts, Callable[[], bytes]]]:
    """The walk, until the tool call that it works for is stopped or late."""
    for found in walk(base, depth):
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


def _matches(batch: list[tuple[str, str]], matcher: LineMatcher) -> Iterator[Match]:
    found = matcher.find([text for _, text in batch])
    for index, numbers in groupby(found, key=itemgetter(0)):
        path, text = batch[index]
        lines = text.split("\n")
        for _, number in numbers:
            # The empty text after the last newline is not a line.
            if number + 1 < len(lines) or lines[number]:
                yield Match(path, number + 1, lines[number].removesuffix("\r"))


def _text(data: bytes) -> str:
    """The text of a file; empty if it is binary."""
    if is_binary(data):
        return ""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""


def compile_glob(pattern: str) -> re.Pattern[str]:
    """A regular expression for whole paths: `**` crosses directories, `*` and `?` do not."""
    if not pattern or "\0" in pattern:
        raise BadPatternError(
            f"Glob {pattern!r} is {'empty' if not pattern else 'not a path'}; try '**/*'", path=pattern
        )
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise InvalidPathError(f"Glob {pattern!r} leads out of the root; use one relative to it", path=pattern)
    text = "|".join(_translate(alternative) for alternative in _expand(pattern, pattern))
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise BadPatternError(f"Glob {pattern!r} is invalid: {error}", path=pattern) from None


def compile_filter(pattern: str) -> Callable[[Parts], bool]:
    """A predicate for grep's `glob` and for ignore patterns. Without a slash, a pattern applies to the name alone."""
    expression = compile_glob(pattern.rstrip("/"))
    if "/" in pattern.rstrip("/"):
        return lambda parts: expression.fullmatch("/".join(parts)) is not None
    return lambda parts: bool(parts) and expression.fullmatch(parts[-1]) is not None


def _expand(pattern: str, whole: str) -> list[str]:
    """Expand braces: `*.{c,h}` gives `*.c` and `*.h`. An unclosed brace is literal."""
    start = pattern.find("{")
    end = _closing_brace(pattern, start)
    if start < 0 or end < 0:
        return [pattern]
    tails = _expand(pattern[end + 1 :], whole)
    expanded = [
        pattern[:start] + choice + tail
        for option in _options(pattern[start + 1 : end])
        for choice in _expand(option, whole)
        for tail in tails
    ]
    if len(expanded) > MAX_ALTERNATIVES:
        raise BadPatternError(f"Glob {whole!r} has more than {MAX_ALTERNATIVES} alternatives", path=whole)
    return expanded


def _closing_brace(pattern: str, start: int) -> int:
    depth = 0
    for index in range(max(start, 0), len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[index], 0)
        if pattern[index] == "}" and depth == 0:
            return index
    return -1


def _options(inside: str) -> list[str]:
    options, depth = [""], 0
    for character in inside:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            options.append("")
        else:
            options[-1] += character
    return options


def _translate(pattern: str) -> str:
    """The regular expression for a glob. The part between two `**` is atomic: backtracking would find nothing new."""
    segments: list[list[str]] = [[]]
    for part in pattern.split("/"):
        if part == "**":
            segments.append([])
        elif part not in ("", "."):
            segments[-1].append(_translate_name(part))
    first, *rest = ["/".join([*segment, ""]) for segment in segments]
    if not rest:
        return first[:-1]
    *middle, last = rest
    found = "".join(f"(?>(?:[^/]+/)*?{segment})" for segment in middle if segment)
    return first + found + (f"(?:[^/]+/)*{last[:-1]}" if last else ".*")


def _translate_name(name: str) -> str:
    """Translate one name; the part between two `*` is atomic for the same reason."""
    pieces, index = [""], 0
    while index < len(name):
        character = name[index]
        index += 1
        if character == "*":
            pieces.append("")
            while name[index : index + 1] == "*":
                index += 1
        elif character == "?":
            pieces[-1] += "[^/]"
        elif character == "[" and (end := name.find("]", index + 1 + (name[index : index + 1] == "!"))) > 0:
            chosen = name[index:end].replace("\\", r"\\").replace("[", r"\[").replace("&&", r"&\&")
            chosen = chosen.replace("~~", r"~\~").replace("||", r"|\|").replace("--", r"-\-")
            chosen = "^" + chosen[1:] if chosen.startswith("!") else "\\" + chosen if chosen.startswith("^") else chosen
            pieces[-1] += f"(?!/)[{chosen}]"
            index = end + 1
        else:
            pieces[-1] += re.escape(character)
    first, *rest = pieces
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle) + f"[^/]*{last}"


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
        _check_pattern(pattern)
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
            check_fence()
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
            check_fence()
            raise FilesystemError(f"Cannot run a regular expression in {sys.executable!r}: {error}") from error
        return process


def _ask(process: Popen[bytes], question: Any, timeout: float) -> Any:
    """Send a value to the process and return its answer. When the time is up, also a run's, the process is killed."""
    assert process.stdin is not None and process.stdout is not None
    timer = threading.Timer(max(0.0, min(timeout, seconds_left())), process.kill)
    timer.start()
    try:
        process.stdin.write(marshal.dumps(question))
        process.stdin.flush()
        return marshal.load(process.stdout)
    finally:
        timer.cancel()


def _check_pattern(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise BadPatternError(
            f"A pattern must have at most {MAX_PATTERN_LENGTH} characters, got {len(pattern)}", path=pattern
        )
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise BadPatternError(f"{pattern!r} is not a regular expression: {error}", path=pattern) from None
