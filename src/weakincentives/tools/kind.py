"""Values in configurations: each of the kind that its field declares."""

from __future__ import annotations

from collections.abc import Iterable

from weakincentives.errors import PromptValidationError


def check_kind(value: object, kinds: type | tuple[type, ...], where: str, wanted: str) -> None:
    """Raise unless the value is one of these kinds, or left out."""
    if value is not None and not isinstance(value, kinds):
        raise PromptValidationError(f"{where} is {value!r}; give {wanted}.")


def check_flag(value: object, where: str) -> None:
    """Raise unless the value is True or False."""
    if not isinstance(value, bool):
        raise PromptValidationError(f"{where} is {value!r}; give True or False.")


def check_positive(value: int | None, where: str) -> None:
    """Raise unless the value is a whole number of at least one, or left out."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PromptValidationError(f"{where} is {value!r}; give a whole number of at least 1, or None.")


def texts(values: Iterable[str], where: str) -> tuple[str, ...]:
    """The values as a tuple, each of them a text that is not empty."""
    if isinstance(values, str):
        raise PromptValidationError(f"{where} is a tuple; write ({values!r},).")
    if not isinstance(values, Iterable):
        raise PromptValidationError(f"{where} is {values!r}; give a tuple of texts.")
    found = tuple(values)
    for value in found:
        if not isinstance(value, str) or not value:
            raise PromptValidationError(f"{where} has {value!r} in it; give texts that are not empty.")
    return found
