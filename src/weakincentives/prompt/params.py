"""The dataclass instances that fill a prompt's placeholders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from weakincentives.errors import PromptValidationError, UnboundParamsError
from weakincentives.prompt.outline import Outline, ParamsSource


class Params:
    """Resolves each source once: the bound instance, else the default, else the type without arguments."""

    def __init__(self, outline: Outline, bound: dict[type, Any]) -> None:
        self._sources = outline.sources
        self._bound = bound
        self._resolved: list[Any] = [None] * len(outline.sources)

    def __getitem__(self, source: int) -> Any:
        if source < 0:
            return None
        instance = self._resolved[source]
        if instance is None:
            instance = self._resolved[source] = self._resolve(self._sources[source])
        return instance

    def _resolve(self, source: ParamsSource) -> Any:
        instance = self._bound.get(source.params_type, source.default)
        if instance is not None:
            return instance
        try:
            return source.params_type()
        except Exception as error:
            missing = tuple(f.name for f in fields(source.params_type) if f.init and _required(f))
            name = source.params_type.__name__
            why = (
                f"it has required fields ({', '.join(missing)})"
                if missing
                else f"it cannot be made by itself ({error})"
            )
            raise UnboundParamsError(
                f"No {name} was bound and {why}; pass one to bind().", params_type=name, missing=missing
            ) from error


def check_params(params: Iterable[Any]) -> None:
    """Params are instances of dataclasses."""
    for value in params:
        if isinstance(value, type) or not is_dataclass(value):
            given = (
                f"the class {value.__name__}; write {value.__name__}(...)" if isinstance(value, type) else repr(value)
            )
            raise PromptValidationError(f"Params must be dataclass instances, got {given}.")


def _required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING
