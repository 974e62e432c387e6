"""Glob and grep over any walk of files.

A walk yields files in sorted order, so a limit always cuts at the same place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from operator import itemgetter

from weakincentives.filesystem.errors import BadPatternError, FilesystemError, InvalidPathError
from weakincentives.filesystem.protocol import Match, Parts, is_binary, join
from weakincentives.filesystem.regex import LineMatcher

Walk = Callable[[Parts, int | None], Iterator[tuple[Parts, Callable[[], bytes]]]]
"""Takes a directory and a maximum depth; yields each file's path and a function that loads it."""

MAX_ALTERNATIVES = 256
BATCH_SIZE = 1_000_000


def glob(walk: Walk, pattern: str, base: Parts) -> tuple[str, ...]:
    expression = compile_glob(pattern)
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    depth = None if "**" in pattern or "{" in pattern else len(names)
    skip = len(base)
    return tuple(join(parts) for parts, _ in walk(base, depth) if expression.fullmatch("/".join(parts[skip:])))


def grep(
    walk: Walk, pattern: str, base: Parts, *, only: str | None, limit: int | None, timeout: float
) -> tuple[Match, ...]:
    if limit is not None and limit < 1:
        raise FilesystemError(f"limit must be 1 or more, got {limit} while searching {join(base)!r}", path=join(base))
    wanted = compile_filter(only) if only is not None else None
    skip = len(base)
    files = (
        (join(parts), _text(load()))
        for parts, load in walk(base, None)
        if wanted is None or wanted(parts[skip:] or parts[-1:])
    )
    with LineMatcher(pattern, timeout=timeout) as matcher:
        return tuple(islice((match for batch in _batches(files) for match in _matches(batch, matcher)), limit))


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
    """The regular expression of a glob. What stands between two `**` is atomic: backtracking would find nothing new."""
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
    """Translate one name; what stands between two `*` is atomic for the same reason."""
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
