"""Frozen dataclasses that are quick to create."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def quick_init(frozen: type[T]) -> type[T]:
    """Speed up the `__init__` of a frozen dataclass with slots, for a class that a run creates many times.

    A frozen dataclass sets its fields with `object.__setattr__`, at several times the cost of an assignment: with
    twenty such objects in a turn, that was a quarter of its time. Here the object is of a subclass that is not frozen
    while its fields are assigned. Put it above `@dataclass(frozen=True, slots=True)`.
    """
    plain: Any = frozen.__init__
    thawed = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    scope: dict[str, Any] = {
        "_frozen": frozen,
        "_thawed": type(frozen.__name__, (frozen,), thawed),
        "_set": object.__setattr__,
        "_plain": plain,
    }
    parameters = inspect.signature(frozen).parameters
    keywords = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    signature = [
        "self",
        *(name for name in parameters if name not in keywords),
        *(["*"] if keywords else []),
        *keywords,
    ]
    lines = [
        f"def __init__({', '.join(signature)}):",
        # A subclass without an `__init__` of its own has another layout.
        " if self.__class__ is not _frozen:",
        f"  return _plain(self, {', '.join(f'{name}={name}' for name in parameters)})",
        " _set(self, '__class__', _thawed)",
    ]
    for field in fields(frozen):  # type: ignore[arg-type]
        value = name = field.name
        if field.default_factory is not MISSING:
            scope[f"_make_{name}"], scope["_unset"] = field.default_factory, parameters[name].default
            value = f"_make_{name}() if {name} is _unset else {name}"
        lines.append(f" self.{name} = {value}")
    lines.append(" self.__class__ = _frozen")
    if hasattr(frozen, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec("\n".join(lines), scope)
    quick: Any = scope["__init__"]
    for attribute in ("__defaults__", "__kwdefaults__", "__annotations__", "__qualname__", "__module__"):
        setattr(quick, attribute, getattr(plain, attribute))
    frozen.__init__ = quick  # type: ignore[method-assign]
    return frozen
