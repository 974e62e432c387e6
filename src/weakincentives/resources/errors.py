"""What can go wrong between declaring a resource and closing it.

ResourceError
├── UnboundResourceError        nothing is bound to what was asked for
├── CircularDependencyError     providers ask for each other in a circle
├── ScopeError                  a TOOL_CALL resource asked for where no tool call is, or by a SINGLETON
├── ResourceCloseError          one or more resources failed to close; also an ExceptionGroup
└── ResourceRestoreError        one or more resources failed to restore; also an ExceptionGroup
"""

from __future__ import annotations

from collections.abc import Sequence

from weakincentives.errors import WinkError


class ResourceError(WinkError):
    """A resource is declared wrongly, cannot be built, or is used outside its life."""


class UnboundResourceError(ResourceError):
    """Nothing is bound to `protocol`; `chain` is who asked for it, outermost first."""

    def __init__(self, protocol: type, chain: tuple[type, ...]) -> None:
        name = type_name(protocol)
        way = f" (needed by {chain_text((*chain, protocol))})" if chain else ""
        super().__init__(
            f"No resource is bound to {name}{way}; add Binding({name}, ...) to the registry, "
            f"or pass it to prompt.bind(resources={{{name}: ...}})"
        )
        self.protocol = protocol
        self.chain = chain


class CircularDependencyError(ResourceError):
    """Providers ask for each other in a circle; `chain` starts and ends with the same protocol."""

    def __init__(self, chain: tuple[type, ...]) -> None:
        super().__init__(f"Resources depend on each other in a circle: {chain_text(chain)}")
        self.chain = chain


class ScopeError(ResourceError):
    """A TOOL_CALL resource was asked for by something that outlives a tool call."""

    def __init__(self, message: str, *, protocol: type, chain: tuple[type, ...]) -> None:
        super().__init__(message)
        self.protocol = protocol
        self.chain = chain


class _ResourceErrors(ResourceError, ExceptionGroup[Exception]):
    """Several resources failed at once; every failure is in `exceptions`."""

    def derive(self, excs: Sequence[Exception]) -> _ResourceErrors:  # type: ignore[override]
        return type(self)(self.message, excs)


class ResourceCloseError(_ResourceErrors):
    """Every resource was asked to close; those in the message failed."""


class ResourceRestoreError(_ResourceErrors):
    """Every resource was asked to restore; those in the message failed."""


def type_name(protocol: object) -> str:
    return getattr(protocol, "__qualname__", None) or repr(protocol)


def chain_text(chain: tuple[type, ...]) -> str:
    return " -> ".join(type_name(protocol) for protocol in chain)
