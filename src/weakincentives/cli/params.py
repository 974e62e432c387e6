"""Params from the command line, parsed into the template's params types.

`field=value`, `Type.field=value` where two types share a field, or `@file.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from weakincentives.cli.output import UsageError, did_you_mean
from weakincentives.errors import SerdeError
from weakincentives.serde import columns, parse


def read_params(words: Iterable[str], types: Sequence[type]) -> tuple[Any, ...]:
    """One instance of each type that got a value."""
    values: dict[type, dict[str, Any]] = {}
    for key, value in _pairs(words, types):
        owner, field = _owner(key, types)
        values.setdefault(owner, {})[field] = _typed(value, owner, field) if isinstance(value, Typed) else value
    return tuple(_instance(owner, given) for owner, given in values.items())


class Typed(str):
    """A value from the command line that may be text or JSON."""

    __slots__ = ()


def _pairs(words: Iterable[str], types: Sequence[type]) -> Iterator[tuple[str, Any]]:
    for word in words:
        if word.startswith("@"):
            yield from _file_pairs(word[1:], types)
            continue
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--params takes field=value or @file.json, got {word!r}")
        yield key, Typed(value)


def _file_pairs(name: str, types: Sequence[type]) -> Iterator[tuple[str, Any]]:
    try:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--params @{name}: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"--params @{name} must hold a JSON object of fields")
    by_name = {params_type.__name__: params_type for params_type in types}
    for key, value in content.items():
        if key in by_name and isinstance(value, Mapping):
            yield from ((f"{key}.{field}", inner) for field, inner in value.items())
        else:
            yield key, value


def _owner(key: str, types: Sequence[type]) -> tuple[type, str]:
    type_name, dot, field = key.rpartition(".")
    owners = [
        candidate
        for candidate in types
        if field in _field_names(candidate) and (not dot or candidate.__name__ == type_name)
    ]
    if len(owners) == 1:
        return owners[0], field
    if owners:
        choices = ", ".join(f"{owner.__name__}.{field}" for owner in owners)
        raise UsageError(f"--params {key}= is ambiguous; write one of {choices}")
    known = [f"{owner.__name__}.{name}" for owner in types for name in _field_names(owner)]
    hint = did_you_mean(key, [*known, *(name for owner in types for name in _field_names(owner))])
    has = f"there are {', '.join(known)}{hint}" if known else "this prompt has no params"
    raise UsageError(f"--params {key}= matches no field; {has}")


def _field_names(params_type: type) -> list[str]:
    return [column.key for column in columns(params_type) if column.init]


def _typed(value: str, owner: type, field: str) -> Any:
    """Text where the field takes text, else JSON, else the text itself (for dates, enums and the like)."""
    name = next(column.name for column in columns(owner) if column.key == field)
    hint = get_type_hints(owner)[name]
    choices = get_args(hint) or (hint,)
    if str in choices and not (value == "null" and NoneType in choices):
        return str(value)
    try:
        return json.loads(value)
    except ValueError:
        return str(value)


def _instance(owner: type, given: dict[str, Any]) -> Any:
    try:
        return parse(owner, given)
    except SerdeError as error:
        raise UsageError(f"--params for {owner.__name__}: {error}") from None
