"""The arguments of a call, written again for people: one on each line, each cut by itself, so that none hides another.

The model's own text is never shown: blanks, order and names that occur twice could hide in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from weakincentives.errors import SerdeError
from weakincentives.runtime.calls.difference import Line
from weakincentives.serde import encode

MAX_IN_LINE = 100
INDENT = "  "


def parsed_arguments(arguments: str, params: Any) -> tuple[Any, frozenset[str]]:
    """The arguments as data, as the handler receives them, and the names of those that are defaults."""
    try:
        written = json.loads(arguments.strip() or "{}")
    except (ValueError, RecursionError):
        return arguments, frozenset()
    if params is None or not isinstance(written, dict):
        return written, frozenset()
    try:
        used = json.loads(encode(params, as_input=True))
    except (SerdeError, ValueError):
        return written, frozenset()
    if not isinstance(used, dict) or not set(written) <= set(used):
        return written, frozenset()
    in_order = {name: used[name] for name in written}
    return in_order | used, frozenset(used) - frozenset(written)


def argument_lines(name: str, data: Any, defaults: frozenset[str], most: int) -> tuple[list[Line], list[str]]:
    """The call with its arguments, each of at most so many characters, and sentences that say what is not shown."""
    if data == {}:
        return [Line("heading", f"{name}()")], []
    lines = [Line("heading", name)]
    missing: list[str] = []
    if not isinstance(data, Mapping):
        data = {"arguments": data}
    for argument, value in data.items():
        label = _label(argument)
        suffix = " (default)" if argument in defaults else ""
        room = most
        hidden = 0
        for text in _written(label, value, INDENT, suffix):
            if room:
                lines.append(Line("same", text[:room]))
            hidden += max(len(text) - room, 0)
            room = max(room - len(text), 0)
        if hidden:
            lines.append(Line("note", f"{INDENT}... and {hidden:,} more characters of {label}"))
            missing.append(f"{hidden:,} characters of the argument {label} are not shown.")
    return lines, missing


def _label(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else json.dumps(name, ensure_ascii=False)


def _written(label: str, value: Any, indent: str, suffix: str = "") -> Iterator[str]:
    """The lines of a value, with its label before the first."""
    if isinstance(value, str) and "\n" in value and len(value) > MAX_IN_LINE // 2:
        yield f"{indent}{label}:{suffix}"
        for line in value.split("\n"):
            yield f"{indent}{INDENT}| {line}"
    elif isinstance(value, str) or _is_short(value):
        yield f"{indent}{label}: {json.dumps(value, ensure_ascii=False)}{suffix}"
    else:
        yield f"{indent}{label}:{suffix}"
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, part in parts:
            inner = _label(name) if isinstance(name, str) else f"[{name}]"
            yield from _written(inner, part, indent + INDENT)


def _is_short(value: Any) -> bool:
    """True if the value fits on a line."""
    if isinstance(value, Mapping | list) and len(value) > MAX_IN_LINE:
        return False
    return not isinstance(value, Mapping | list) or len(json.dumps(value, ensure_ascii=False)) <= MAX_IN_LINE
