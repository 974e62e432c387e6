"""Bindings of resources: their providers, scopes and part in transactions, and the errors of resources.

ResourceError
├── UnboundResourceError        nothing is bound to the requested protocol
├── CircularDependencyError     providers depend on each other in a circle
├── RolledBackError             passed to the context manager of a resource whose tool call failed
├── TransactionRefusedError     a transaction in a call that is shown before it counts
├── ScopeError                  a TOOL_CALL resource requested outside a tool call, or by a SINGLETON
├── ResourceCloseError          one or more resources failed to close; also an ExceptionGroup
└── ResourceRestoreError        one or more resources failed to restore; also an ExceptionGroup
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

from weakincentives.errors import WinkError

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)


class Scope(Enum):
    """The lifetime of a resource."""

    SINGLETON = "singleton"
    """Created once, shared, and closed with the context."""
    TOOL_CALL = "tool_call"
    """Created once per tool call and closed at its end."""
    PROTOTYPE = "prototype"
    """Created for every `get`, closed with the context that created it, and not part of snapshots."""


class _AbstractClass(Protocol[T_co]):
    """A class that may be abstract, or a protocol, which mypy does not accept as a `type[T]`."""

    def mro(self) -> list[type]: ...

    def __call__(self, *args: Any, **named: Any) -> T_co: ...


ClassOf: TypeAlias = type[T] | _AbstractClass[T]


class Resolver(Protocol):
    """Gives a provider its own dependencies."""

    def get(self, protocol: ClassOf[T]) -> T: ...

    def get_optional(self, protocol: ClassOf[T]) -> T | None: ...

    async def get_async(self, protocol: ClassOf[T]) -> T: ...


Provided: TypeAlias = T | Awaitable[T] | AbstractContextManager[T] | AbstractAsyncContextManager[T]


# No slots: `Binding[Clock](...)` on a frozen class with slots is a TypeError before CPython 3.12.2.
@dataclass(frozen=True)
class Binding(Generic[T]):
    """Binds a protocol to the provider that creates its resource.

    Binding(HTTPClient, lambda r: HTTPClient(timeout=r.get(Config).timeout))

    What a provider returns belongs to the context: it is awaited if the provider is async, a context manager (sync or
    async) is entered and left, and anything else is closed (`close()` or `aclose()`, sync or async). An instance passed
    to `Binding.instance` belongs to the caller and is never entered or closed.

    A binding with `fallback=True` never replaces another binding of the same protocol.
    """

    protocol: ClassOf[T]  #: the type by which the resource is requested
    provider: Callable[[Resolver], Provided[T]]  #: creates the resource, from others if it needs them
    scope: Scope = Scope.SINGLETON  #: how long the resource lives
    eager: bool = False  #: create it when the context opens, not at first use
    fallback: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, type):
            raise ResourceError(f"A resource must be bound to a class or protocol, got {self.protocol!r}")
        name = type_name(self.protocol)
        if not callable(self.provider):
            raise ResourceError(
                f"The provider of {name} must be callable, got {self.provider!r}; to bind an object use "
                f"Binding.instance({name}, ...)"
            )
        if not isinstance(self.scope, Scope):
            raise ResourceError(
                f"The scope of {name} must be Scope.SINGLETON, TOOL_CALL or PROTOTYPE, got {self.scope!r}"
            )
        if self.eager and self.scope is not Scope.SINGLETON:
            raise ResourceError(f"{name} has eager=True but {self.scope}; only singletons can be created at start")

    @property
    def capture_problem(self) -> str:
        """Why its changes cannot be captured; empty if they can, or if only the provider knows."""
        if self.scope is Scope.PROTOTYPE:
            return "it is bound as a PROTOTYPE, which is created anew for each get"
        kind: Any = self.provider
        if isinstance(kind, Constant):
            kind = type(kind.value)
        if isinstance(kind, type) and not has_snapshots(kind):
            return f"{kind.__qualname__} has no snapshot() and restore(state)"
        return ""

    @staticmethod
    def instance(protocol: ClassOf[U], value: U, *, fallback: bool = False) -> Binding[U]:
        """Bind an existing object. The caller remains responsible for closing it."""
        if value is None:
            raise ResourceError(f"The resource for {type_name(protocol)} must not be None; leave it out instead")
        return Binding(protocol, Constant(value), fallback=fallback)


@dataclass(frozen=True, eq=False)
class Constant(Generic[T]):
    """The provider of `Binding.instance`, whose value the context knows before the first `get`."""

    value: T

    def __call__(self, resolver: Resolver) -> T:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@runtime_checkable
class Snapshotable(Protocol):
    """A resource that takes part in a tool's transaction: it can save its state and go back to it.

    `snapshot()` runs before every tool call that is not read-only, so it should be cheap. If there is also a `branch()`
    that returns a copy with the same state, tools with `concurrent=True` may overlap.
    """

    def snapshot(self) -> Any: ...

    def restore(self, snapshot: Any, /) -> object: ...


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """A change of a snapshotable resource: what it says itself of it (`changes`), else its states before and after."""

    protocol: type  #: the type it is bound to
    changes: tuple[Any, ...] = ()
    before: Any = None  #: the state before
    after: Any = None  #: the state after


def is_snapshotable(value: object) -> TypeGuard[Snapshotable]:
    """Like `isinstance(value, Snapshotable)`, but cheaper, and False for classes."""
    return has_snapshots(type(value))


def has_snapshots(kind: type) -> bool:
    """True for the class of resources whose changes can be captured and taken back."""
    return callable(getattr(kind, "snapshot", None)) and callable(getattr(kind, "restore", None))


class ResourceError(WinkError):
    """A resource is declared wrongly, cannot be created, or is used outside its lifetime."""


class StaleResourceError(ResourceError):
    """A resource is no longer as it was when changes to it were captured, so they cannot be applied."""


class UnboundResourceError(ResourceError):
    """Nothing is bound to `protocol`; `chain` lists what requested it, outermost first."""

    def __init__(self, protocol: type, chain: tuple[type, ...]) -> None:
        name = type_name(protocol)
        needed_by = f" (needed by {chain_text((*chain, protocol))})" if chain else ""
        super().__init__(
            f"No resource is bound to {name}{needed_by}; add Binding({name}, ...) to the registry, "
            f"or pass it to prompt.bind(resources={{{name}: ...}})"
        )
        self.protocol = protocol
        self.chain = chain


class CircularDependencyError(ResourceError):
    """Providers depend on each other in a circle; `chain` starts and ends with the same protocol."""

    def __init__(self, chain: tuple[type, ...]) -> None:
        super().__init__(f"Resources depend on each other in a circle: {chain_text(chain)}")
        self.chain = chain


class ScopeError(ResourceError):
    """A TOOL_CALL resource was requested by something that outlives a tool call."""

    def __init__(self, message: str, *, protocol: type, chain: tuple[type, ...]) -> None:
        super().__init__(message)
        self.protocol = protocol
        self.chain = chain


class TransactionRefusedError(ResourceError):
    """A transaction was requested in a call whose effects are shown before they count."""


class RolledBackError(ResourceError):
    """Passed to the context manager of a resource that was created in a failed tool call, to undo its work."""


class ResourceErrors(ResourceError, ExceptionGroup[Exception]):
    """One or more resources failed; `exceptions` holds every failure."""

    def derive(self, excs: Sequence[Exception]) -> ResourceErrors:  # type: ignore[override]
        return type(self)(self.message, excs)


class ResourceCloseError(ResourceErrors):
    """Closing failed for the resources in the message; all others were closed."""


class ResourceRestoreError(ResourceErrors):
    """Restoring failed for the resources in the message; all others were restored."""


def type_name(protocol: object) -> str:
    return getattr(protocol, "__qualname__", None) or repr(protocol)


def chain_text(chain: tuple[type, ...]) -> str:
    return " -> ".join(type_name(protocol) for protocol in chain)
