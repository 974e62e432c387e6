"""Generic classes that know T inside the constructor of `X[T](...)`.

`typing` sets the type arguments only after `__init__` has run, and CPython 3.12.1 cannot set them at all on a class
with slots. A class that needs its arguments earlier derives from `Specializable`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Union

from weakincentives.errors import PromptValidationError

if TYPE_CHECKING:
    # Type checkers bundle typing_extensions; the default lets `PromptTemplate(...)` go without a type argument.
    from typing_extensions import TypeVar as DefaultingTypeVar

    AnyOutputT = DefaultingTypeVar("AnyOutputT", default=Any)
    OutputT = DefaultingTypeVar("OutputT", default=None)
    # Covariant, so that a list of sections with different params is a list of sections to mypy, and not of objects.
    ParamsT_co = DefaultingTypeVar("ParamsT_co", default=None, covariant=True)
else:
    AnyOutputT = TypeVar("AnyOutputT")
    OutputT = TypeVar("OutputT")
    ParamsT_co = TypeVar("ParamsT_co", covariant=True)


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


class Specializable:
    """A generic class whose instances have its type arguments before `__init__` runs.

    `_type_names` are the equivalent keyword arguments; `X[T]` sets the attribute `_name` for each. `None` and `Any` are
    no types.
    """

    _type_names: ClassVar[tuple[str, ...]] = ()

    def __class_getitem__(cls, item: Any) -> Any:
        args = item if isinstance(item, tuple) else (item,)
        # A type variable, or Any in an annotation such as `list[Section[Any]]`, does not name a type.
        if item is Any or any(isinstance(arg, TypeVar) for arg in args):
            return super().__class_getitem__(item)  # type: ignore[misc]
        attributes = cls._attributes_for(args)

        def build(*positional: Any, **named: Any) -> Any:
            if twice := [name for name in cls._type_names if name in named]:
                raise TypeError(f"{cls.__name__}[...]() has its types in brackets, got {', '.join(twice)} as well")
            instance = cls.__new__(cls)
            vars(instance).update(attributes)
            instance.__init__(*positional, **named)  # type: ignore[misc]
            return instance

        return Specialized(cls, args, build)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        named = (base for base in cls.__dict__.get("__orig_bases__", ()) if isinstance(base, Specialized))
        for base in islice(named, 1):
            for name, value in cls._attributes_for(base.args).items():
                setattr(cls, name, value)

    @classmethod
    def _attributes_for(cls, args: tuple[Any, ...]) -> dict[str, Any]:
        if len(args) != len(cls._type_names):
            names = ", ".join(cls._type_names)
            raise PromptValidationError(f"{cls.__name__} takes [{names}], got {len(args)} types.")
        return {f"_{n}": None if arg in (NoneType, Any) else arg for n, arg in zip(cls._type_names, args, strict=True)}
