"""Checks that the configurations of hosted tools share."""

from __future__ import annotations

import re
from collections.abc import Iterable

from weakincentives.errors import PromptValidationError

_LABEL = r"[^\W_](?:(?:[^\W_]|-){0,61}[^\W_])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})+")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def check_type(value: object, types: type | tuple[type, ...], field: str, expected: str) -> None:
    """Raise unless the value is None or an instance of one of these types."""
    if value is not None and not isinstance(value, types):
        raise PromptValidationError(f"{field} must be {expected}, got {value!r}.")


def check_bool(value: object, field: str) -> None:
    if not isinstance(value, bool):
        raise PromptValidationError(f"{field} must be True or False, got {value!r}.")


def check_positive(value: int | None, field: str) -> None:
    """Raise unless the value is None or a positive integer."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PromptValidationError(f"{field} must be a positive integer or None, got {value!r}.")


def check_texts(values: Iterable[str], field: str) -> tuple[str, ...]:
    """Return the values as a tuple; raise unless each is non-empty text."""
    found = _check_tuple(values, field, "texts")
    for value in found:
        if not isinstance(value, str) or not value:
            raise PromptValidationError(f"{field} must contain non-empty texts, got {value!r}.")
    return found


def check_domains(names: Iterable[str], field: str) -> tuple[str, ...]:
    """Return the names as a tuple; raise unless each is a bare domain, without scheme, port or path."""
    found = _check_tuple(names, field, "domains")
    for name in found:
        if not isinstance(name, str) or not _DOMAIN.fullmatch(name):
            bare = re.split(r"[/:?#]", _SCHEME.sub("", name))[0] if isinstance(name, str) else ""
            hint = f"write {bare!r}" if _DOMAIN.fullmatch(bare) else "write it like 'cdc.gov'"
            raise PromptValidationError(f"{field} must contain bare domains, got {name!r}; {hint}.")
    return found


def _check_tuple(values: Iterable[str], field: str, items: str) -> tuple[str, ...]:
    if isinstance(values, str):
        raise PromptValidationError(f"{field} must be a tuple of {items}, got a text; write ({values!r},).")
    if not isinstance(values, Iterable):
        raise PromptValidationError(f"{field} must be a tuple of {items}, got {values!r}.")
    return tuple(values)
