"""Generic classes that know T inside the constructor of `X[T](...)`.

`typing` sets the type arguments only after `__init__` has run, and CPython 3.12.1 cannot set them at all on a class
with slots. A class that needs its arguments earlier returns `Specialized` from `__class_getitem__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    # Type checkers bundle typing_extensions; the default lets `PromptTemplate(...)` go without a type argument.
    from typing_extensions import TypeVar as DefaultingTypeVar

    OutputT = DefaultingTypeVar("OutputT", default=None)
    ParamsT = DefaultingTypeVar("ParamsT", default=None)
else:
    OutputT = TypeVar("OutputT")
    ParamsT = TypeVar("ParamsT")


class Specialized:
    """A class with its type arguments: call it to build an instance, or subclass it."""

    __slots__ = ("args", "build", "origin")

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

    def __repr__(self) -> str:
        names = ", ".join(getattr(arg, "__name__", repr(arg)) for arg in self.args)
        return f"{self.origin.__name__}[{names}]"


def type_args(item: Any) -> tuple[Any, ...]:
    return item if isinstance(item, tuple) else (item,)


def has_type_variables(args: tuple[Any, ...]) -> bool:
    return any(isinstance(arg, TypeVar) for arg in args)


def inherited_type_args(cls: type) -> tuple[Any, ...] | None:
    """The type arguments of the `Specialized` base class that `cls` itself names, if any."""
    for base in cls.__dict__.get("__orig_bases__", ()):
        if isinstance(base, Specialized):
            return base.args
    return None
