"""Glob and grep over any walk of files.

A walk gives files in sorted order, so that a limit leaves out the same ones each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from weakincentives.filesystem.errors import FilesystemError
from weakincentives.filesystem.paths import Parts, join
from weakincentives.filesystem.pattern import compile_filter, compile_glob, compile_regex
from weakincentives.filesystem.protocol import Match
from weakincentives.filesystem.text import grep_lines

Walk = Callable[[Parts, int | None], Iterator[tuple[Parts, Callable[[], bytes]]]]
"""Called with a directory and how many levels to go down; gives each file's path and a way to load it."""


def glob(walk: Walk, pattern: str, base: Parts) -> tuple[str, ...]:
    expression = compile_glob(pattern)
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    depth = None if "**" in pattern or "{" in pattern else len(names)
    skip = len(base)
    return tuple(join(parts) for parts, _ in walk(base, depth) if expression.fullmatch("/".join(parts[skip:])))


def grep(walk: Walk, pattern: str, base: Parts, *, only: str | None, limit: int | None) -> tuple[Match, ...]:
    expression = compile_regex(pattern)
    wanted = compile_filter(only) if only is not None else None
    if limit is not None and limit < 1:
        raise FilesystemError(f"Searching {join(base)!r}: limit is 1 or more, not {limit}", path=join(base))
    skip = len(base)
    found = (
        match
        for parts, load in walk(base, None)
        if wanted is None or wanted(parts[skip:] or parts[-1:])
        for match in grep_lines(load(), join(parts), expression)
    )
    return tuple(islice(found, limit))
