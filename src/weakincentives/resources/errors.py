"""Errors in declaring, creating, restoring or closing resources.

ResourceError
├── UnboundResourceError        nothing is bound to the requested protocol
├── CircularDependencyError     providers depend on each other in a circle
├── ScopeError                  a TOOL_CALL resource requested outside a tool call, or by a SINGLETON
├── ResourceCloseError          one or more resources failed to close; also an ExceptionGroup
└── ResourceRestoreError        one or more resources failed to restore; also an ExceptionGroup
"""

from __future__ import annotations

from collections.abc import Sequence

from weakincentives.errors import WinkError


class ResourceError(WinkError):
    """A resource is declared wrongly, cannot be created, or is used outside its lifetime."""


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


class _ResourceErrors(ResourceError, ExceptionGroup[Exception]):
    """One or more resources failed; `exceptions` holds every failure."""

    def derive(self, excs: Sequence[Exception]) -> _ResourceErrors:  # type: ignore[override]
        return type(self)(self.message, excs)


class ResourceCloseError(_ResourceErrors):
    """Closing failed for the resources in the message; all others were closed."""


class ResourceRestoreError(_ResourceErrors):
    """Restoring failed for the resources in the message; all others were restored."""


def type_name(protocol: object) -> str:
    return getattr(protocol, "__qualname__", None) or repr(protocol)


def chain_text(chain: tuple[type, ...]) -> str:
    return " -> ".join(type_name(protocol) for protocol in chain)
