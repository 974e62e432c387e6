"""Calling `X[T](...)` with T known inside the constructor.

`typing` sets the type arguments only after `__init__` has run, and on CPython 3.12.1 fails to set them at all on a
class with slots. A class that needs its arguments early returns `Specialized` from `__class_getitem__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Union

if TYPE_CHECKING:
    # Type checkers bring it along; the defaults let `PromptTemplate(...)` and its like stand without an annotation.
    from typing_extensions import TypeVar as DefaultingTypeVar

    AnyOutputT = DefaultingTypeVar("AnyOutputT", default=Any)
    OutputT = DefaultingTypeVar("OutputT", default=None)
    ParamsT = DefaultingTypeVar("ParamsT", default=None)
else:
    AnyOutputT = TypeVar("AnyOutputT")
    OutputT = TypeVar("OutputT")
    ParamsT = TypeVar("ParamsT")


class Specialized:
    """A class with its type arguments: call it to build an instance, or derive from it."""

    __slots__ = ("args", "build", "origin")
    __parameters__ = ()

    def __init__(self, origin: type, args: tuple[Any, ...], build: Callable[..., Any]) -> None:
        self.origin = origin
        self.args = args
        self.build = build

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.build(*args, **kwargs)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (self.origin,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.origin, name)

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007

    def __repr__(self) -> str:
        names = ", ".join(getattr(arg, "__name__", repr(arg)) for arg in self.args)
        return f"{self.origin.__name__}[{names}]"


def type_args(item: Any) -> tuple[Any, ...]:
    return item if isinstance(item, tuple) else (item,)


def has_type_variables(args: tuple[Any, ...]) -> bool:
    return any(isinstance(arg, TypeVar) for arg in args)


def is_open(item: Any) -> bool:
    """Whether `X[item]` names no type: a type variable, or Any in an annotation such as `list[Section[Any]]`."""
    return isinstance(item, TypeVar) or item is Any


def inherited_type_args(cls: type) -> tuple[Any, ...] | None:
    """The arguments of the `Specialized` base that `cls` itself derives from, if it has one."""
    for base in cls.__dict__.get("__orig_bases__", ()):
        if isinstance(base, Specialized):
            return base.args
    return None
