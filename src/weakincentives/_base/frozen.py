"""Frozen dataclasses that are quick to create."""

from __future__ import annotations

import inspect
import sys
from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def quick_init(frozen: type[T]) -> type[T]:
    """Speed up the `__init__` of a frozen dataclass with slots, for a class that a run creates many times.

    The `__init__` of a frozen dataclass sets fields with `object.__setattr__`, which costs several times as much as an
    assignment; with twenty such objects per turn, that was a quarter of the turn. Here the object belongs to an
    unfrozen subclass while its fields are assigned. Apply it above `@dataclass(frozen=True, slots=True)`.
    """
    plain: Any = frozen.__init__
    parameters = inspect.signature(frozen).parameters
    if parameters.keys() != {field.name for field in fields(frozen)}:  # type: ignore[arg-type]
        raise TypeError(f"quick_init needs every field of {frozen.__name__}, and nothing else, as a parameter")
    thawed = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    scope: dict[str, Any] = {
        "_frozen": frozen,
        "_thawed": type(f"<thawed {frozen.__name__}>", (frozen,), thawed),
        "_set": object.__setattr__,
        "_plain": plain,
    }
    keywords = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    positional = [name for name in parameters if name not in keywords]
    lines = [
        f"def __init__({', '.join(['self', *positional, *(['*'] if keywords else []), *keywords])}):",
        # A subclass that inherits this may have another layout, so its class cannot be swapped.
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
    # Made in the class's module, where its annotations can be resolved.
    source = "\n ".join([f"def make({', '.join(scope)}):", *lines, "return __init__"])
    made: dict[str, Any] = {}
    exec(source, vars(sys.modules[frozen.__module__]), made)
    quick = made["make"](**scope)
    for attribute in ("__defaults__", "__kwdefaults__", "__annotations__", "__qualname__", "__module__"):
        setattr(quick, attribute, getattr(plain, attribute))
    frozen.__init__ = quick  # type: ignore[method-assign]
    return frozen
