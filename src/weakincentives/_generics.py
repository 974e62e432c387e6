"""Generic classes that know T inside the constructor of `X[T](...)`.

`typing` sets the type arguments only after `__init__` has run, and CPython 3.12.1 cannot set them at all on a class
with slots. A class that needs its arguments earlier returns `Specialized` from `__class_getitem__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Union

if TYPE_CHECKING:
    # Type checkers bundle typing_extensions; the default lets `PromptTemplate(...)` go without a type argument.
    from typing_extensions import TypeVar as DefaultingTypeVar

    AnyOutputT = DefaultingTypeVar("AnyOutputT", default=Any)
    OutputT = DefaultingTypeVar("OutputT", default=None)
    ParamsT = DefaultingTypeVar("ParamsT", default=None)
else:
    AnyOutputT = TypeVar("AnyOutputT")
    OutputT = TypeVar("OutputT")
    ParamsT = TypeVar("ParamsT")


class Specialized:
    """A class with its type arguments: call it to build an instance, or subclass it."""

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
    """The type arguments of the `Specialized` base class that `cls` itself names, if any."""
    for base in cls.__dict__.get("__orig_bases__", ()):
        if isinstance(base, Specialized):
            return base.args
    return None
