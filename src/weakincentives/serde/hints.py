"""The types of a dataclass's fields: string annotations evaluated, type variables filled in."""

from __future__ import annotations

import sys
import typing
from inspect import get_annotations
from types import FrameType
from typing import Any, Generic, TypeVar

from weakincentives.errors import Problem, SerdeError


def field_types(annotation: Any, cls: type, names: frozenset[str]) -> tuple[dict[str, Any], bool]:
    """The types of the named fields of `cls` (or of `Cls[Arg]`), and whether one came from a caller's local scope."""
    types: dict[str, Any] = {}
    arguments = _arguments_by_class(annotation, cls)
    local = False
    for base in reversed(cls.__mro__):
        for name, hint in get_annotations(base).items():
            if name not in names:
                continue
            resolved, from_caller = _resolve(base, name, hint)
            local = local or from_caller
            types[name] = _substitute(resolved, arguments.get(base, {}))
    return types, local


def _resolve(cls: type, field: str, hint: Any) -> tuple[Any, bool]:
    holder = type("Holder", (), {"__annotations__": {field: hint}})
    known: dict[str, Any] = {cls.__name__: cls, **vars(cls)}
    module = sys.modules.get(cls.__module__)
    names = vars(module) if module is not None else {}
    from_caller = isinstance(hint, str) and cls.__name__ in hint and names.get(cls.__name__) is not cls
    while True:
        try:
            hints = typing.get_type_hints(holder, globalns=names, localns=known, include_extras=True)
            return hints[field], from_caller
        except NameError as error:
            frame = _frame_with_local(error.name, names)
            if frame is None:
                message = (
                    f"annotation {hint!r} cannot be resolved: {error}; define the type at module level or "
                    "remove 'from __future__ import annotations'"
                )
                raise SerdeError((Problem(f"{cls.__qualname__}.{field}", message),)) from None
            known[str(error.name)] = frame.f_locals[str(error.name)]
            from_caller = True
        except Exception as error:
            message = f"annotation {hint!r} cannot be resolved: {error}"
            raise SerdeError((Problem(f"{cls.__qualname__}.{field}", message),)) from error


def _frame_with_local(name: str | None, module: dict[str, Any]) -> FrameType | None:
    """The nearest caller in `module` with a local variable `name`: a function that defines classes inside itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_globals is not module or name not in frame.f_locals):
        frame = frame.f_back
    return frame


def _arguments_by_class(annotation: Any, cls: type) -> dict[type, dict[TypeVar, Any]]:
    """For each generic class that `cls` inherits from, what its type variables stand for."""
    found: dict[type, dict[TypeVar, Any]] = {}

    def visit(origin: type, args: tuple[Any, ...]) -> None:
        parameters = getattr(origin, "__parameters__", ())
        filled = dict(zip(parameters, args, strict=False))
        found.setdefault(origin, filled)
        for base in origin.__dict__.get("__orig_bases__", ()):
            base_origin = typing.get_origin(base)
            if isinstance(base_origin, type) and base_origin is not Generic:
                visit(base_origin, tuple(_substitute(arg, filled) for arg in typing.get_args(base)))

    visit(cls, typing.get_args(annotation))
    for base in cls.__mro__:
        if base not in found and "__orig_bases__" in base.__dict__:
            visit(base, ())
    return found


def _substitute(hint: Any, filled: dict[TypeVar, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return filled.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type) or not filled:
        return hint
    return hint[tuple(filled.get(parameter, parameter) for parameter in parameters)]
