"""How one resource is made, and how long it lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from weakincentives.resources.errors import ResourceError, type_name

T = TypeVar("T")
U = TypeVar("U")


class Scope(Enum):
    """How long a resource lives."""

    SINGLETON = "singleton"
    """Built once, shared by everyone, closed with the context."""
    TOOL_CALL = "tool_call"
    """Built once per tool call, closed at its end."""
    PROTOTYPE = "prototype"
    """Built anew for everyone who asks, closed with the context that built it; not part of snapshots."""


class Resolver(Protocol):
    """What a provider gets its own dependencies from."""

    def get(self, protocol: type[T]) -> T: ...

    def get_optional(self, protocol: type[T]) -> T | None: ...


# No slots: `Binding[Clock](...)` on a frozen class with slots is a TypeError before CPython 3.12.2.
@dataclass(frozen=True)
class Binding(Generic[T]):
    """Says that `provider` makes the resource that is asked for as `protocol`.

    Binding(HTTPClient, lambda r: HTTPClient(timeout=r.get(Config).timeout))

    What a provider returns belongs to the context, which closes it (`close()` or `aclose()`, sync or async). An
    instance given by `Binding.instance` belongs to the caller and is never closed.

    `fallback=True` says that the binding steps back: it never replaces another binding of the same protocol.
    """

    protocol: type[T]
    provider: Callable[[Resolver], T]
    scope: Scope = Scope.SINGLETON
    eager: bool = False
    fallback: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, type):
            raise ResourceError(f"A resource is bound to a class or protocol, not to {self.protocol!r}")
        name = type_name(self.protocol)
        if not callable(self.provider):
            raise ResourceError(
                f"The provider of {name} is not callable: {self.provider!r}; for a ready object use "
                f"Binding.instance({name}, ...)"
            )
        if not isinstance(self.scope, Scope):
            raise ResourceError(f"The scope of {name} is {self.scope!r}; use Scope.SINGLETON, TOOL_CALL or PROTOTYPE")
        if self.eager and self.scope is not Scope.SINGLETON:
            raise ResourceError(f"{name} is bound with eager=True and {self.scope}; only singletons are built at start")

    @staticmethod
    def instance(protocol: type[U], value: U, *, fallback: bool = False) -> Binding[U]:
        """Bind an object that exists already; it stays the caller's to close."""
        if value is None:
            raise ResourceError(f"The resource for {type_name(protocol)} is None; leave it out instead")
        return Binding(protocol, Constant(value), fallback=fallback)


class Constant(Generic[T]):
    """The provider of `Binding.instance`: the context can see that the value is there before anyone asks."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __call__(self, resolver: Resolver) -> T:
        return self.value

    def __repr__(self) -> str:
        return f"Constant({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
