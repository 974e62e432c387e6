"""Numbers in configurations: whole and at least one, or left out."""

from __future__ import annotations

from weakincentives.errors import PromptValidationError


def check_positive(value: int | None, where: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PromptValidationError(f"{where} is {value!r}; give a whole number of at least 1, or None.")
