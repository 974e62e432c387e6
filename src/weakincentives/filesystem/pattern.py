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
    """An expression that repeats a repetition is refused: it may never end, and nothing can stop it."""
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise BadPatternError(f"{pattern!r} is not a regular expression: {error}", path=pattern) from None
    if _repeats_a_repetition(pattern):
        raise BadPatternError(
            f"{pattern!r} repeats a group that holds a repetition, which may take forever; "
            "drop the outer '*' or '+', or make the inner one possessive ('*+', '++')",
            path=pattern,
        )
    return expression


_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|\(|\)|(?:[*+]|\{\d*,\d*\})[?+]?|.", re.DOTALL)


def _repeats_a_repetition(pattern: str) -> bool:
    """Whether `*`, `+` or `{n,}` stands after a group in which one of them stands that could give back."""
    groups, closed = [False], False
    for piece in _PIECE.findall(pattern):
        if piece == "(":
            groups.append(False)
        elif piece == ")" and len(groups) > 1:
            closed = groups.pop()
            groups[-1] |= closed
            continue
        elif piece[0] in "*+" or (piece[0] == "{" and len(piece) > 1):
            if closed and (piece[0] != "{" or ",}" in piece):
                return True
            groups[-1] |= not piece.endswith("+") or len(piece) == 1
        closed = False
    return False


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
    """What lies between two `**` is looked for once, from the left: going back finds nothing else and may be slow."""
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
    """The same for what lies between two `*`."""
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
            pieces[-1] += f"(?!/)[^{chosen[1:]}]" if chosen.startswith("!") else f"(?!/)[{_caret(chosen)}]"
            index = end + 1
        else:
            pieces[-1] += re.escape(character)
    first, *rest = pieces
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle) + f"[^/]*{last}"


def _caret(chosen: str) -> str:
    return "\\" + chosen if chosen.startswith("^") else chosen
