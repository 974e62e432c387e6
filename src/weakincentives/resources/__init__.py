"""Resources of a prompt: how they are created, how long they live, how they roll back."""

from weakincentives.resources.binding import (
    Binding,
    CircularDependencyError,
    ClassOf,
    Resolver,
    ResourceChange,
    ResourceCloseError,
    ResourceError,
    ResourceRestoreError,
    RolledBackError,
    Scope,
    ScopeError,
    Snapshotable,
    StaleResourceError,
    UnboundResourceError,
)
from weakincentives.resources.context import ResourceRegistry, ResourceSnapshot, ScopedResourceContext

__all__ = [
    "Binding",
    "CircularDependencyError",
    "ClassOf",
    "Resolver",
    "ResourceChange",
    "ResourceCloseError",
    "ResourceError",
    "ResourceRegistry",
    "ResourceRestoreError",
    "ResourceSnapshot",
    "RolledBackError",
    "Scope",
    "ScopeError",
    "ScopedResourceContext",
    "Snapshotable",
    "StaleResourceError",
    "UnboundResourceError",
]
