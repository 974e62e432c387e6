"""Globs and regular expressions, compiled with errors that a person or a model can act on."""

from __future__ import annotations

import re
from collections.abc import Callable

from weakincentives.filesystem.errors import BadPatternError, InvalidPathError
from weakincentives.filesystem.paths import Parts

MAX_ALTERNATIVES = 256


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
        raise BadPatternError(f"Glob {pattern!r} cannot be read: {error}", path=pattern) from None


def compile_filter(pattern: str) -> Callable[[Parts], bool]:
    """A test for the `glob` of grep and for ignore patterns: without a slash the name counts, else the whole path."""
    expression = compile_glob(pattern.rstrip("/"))
    if "/" in pattern.rstrip("/"):
        return lambda parts: expression.fullmatch("/".join(parts)) is not None
    return lambda parts: bool(parts) and expression.fullmatch(parts[-1]) is not None


def compile_regex(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise BadPatternError(f"{pattern!r} is not a regular expression: {error}", path=pattern) from None


def _expand(pattern: str, whole: str) -> list[str]:
    """Every reading of the braces: `*.{c,h}` gives `*.c` and `*.h`. Braces that do not close are literal."""
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
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    out = []
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            out.append(".*" if last else "(?:[^/]+/)*")
        else:
            out.append(_translate_name(part) + ("" if last else "/"))
    return "".join(out)


def _translate_name(name: str) -> str:
    out, index = [], 0
    while index < len(name):
        character = name[index]
        index += 1
        if character == "*":
            out.append("[^/]*")
            while name[index : index + 1] == "*":
                index += 1
        elif character == "?":
            out.append("[^/]")
        elif character == "[" and (end := name.find("]", index + 1 + (name[index : index + 1] == "!"))) > 0:
            chosen = name[index:end].replace("\\", r"\\").replace("[", r"\[").replace("&&", r"&\&")
            chosen = chosen.replace("~~", r"~\~").replace("||", r"|\|").replace("--", r"-\-")
            out.append(f"(?!/)[^{chosen[1:]}]" if chosen.startswith("!") else f"(?!/)[{_caret(chosen)}]")
            index = end + 1
        else:
            out.append(re.escape(character))
    return "".join(out)


def _caret(chosen: str) -> str:
    return "\\" + chosen if chosen.startswith("^") else chosen
