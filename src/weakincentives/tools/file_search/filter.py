"""Filters on the attributes of stored files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from weakincentives.errors import PromptValidationError

Operator = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
Value = str | float | bool | tuple[str | float, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Files whose attribute `key` compares to `value`; `in` and `nin` take a tuple, the others a single value."""

    key: str
    op: Operator
    value: Value

    def __post_init__(self) -> None:
        if not self.key:
            raise PromptValidationError("Comparison has no key; name the attribute that it compares.")
        if self.op not in get_args(Operator):
            raise PromptValidationError(f"Comparison.op {self.op!r} is unknown; use {', '.join(get_args(Operator))}.")
        if isinstance(self.value, list):
            object.__setattr__(self, "value", tuple(self.value))
        if isinstance(self.value, tuple) != (self.op in ("in", "nin")):
            wanted = "a tuple" if self.op in ("in", "nin") else "a single value"
            raise PromptValidationError(f"Comparison of '{self.key}' with '{self.op}' takes {wanted}.")


@dataclass(frozen=True, slots=True)
class AllOf:
    """Files that pass every one of these filters."""

    filters: tuple[FileFilter, ...]

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Files that pass at least one of these filters."""

    filters: tuple[FileFilter, ...]

    def __post_init__(self) -> None:
        _check(self)


FileFilter = Comparison | AllOf | AnyOf


def _check(compound: AllOf | AnyOf) -> None:
    name = type(compound).__name__
    if not isinstance(compound.filters, Iterable):
        raise PromptValidationError(f"{name}.filters is a tuple; write {name}((..., ...)).")
    object.__setattr__(compound, "filters", tuple(compound.filters))
    if not compound.filters:
        raise PromptValidationError(f"{name} has no filters; give at least one.")
    for each in compound.filters:
        if not isinstance(each, Comparison | AllOf | AnyOf):
            raise PromptValidationError(f"{name} has {each!r} in it; give comparisons, AllOf or AnyOf.")
