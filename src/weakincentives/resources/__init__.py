"""Resources of a prompt: how they are created, how long they live, how they roll back."""

from weakincentives.resources.binding import Binding, Resolver, Scope, Snapshotable
from weakincentives.resources.context import ResourceSnapshot, ScopedResourceContext
from weakincentives.resources.errors import (
    CircularDependencyError,
    ResourceCloseError,
    ResourceError,
    ResourceRestoreError,
    ScopeError,
    UnboundResourceError,
)
from weakincentives.resources.registry import ResourceRegistry

__all__ = [
    "Binding",
    "CircularDependencyError",
    "Resolver",
    "ResourceCloseError",
    "ResourceError",
    "ResourceRegistry",
    "ResourceRestoreError",
    "ResourceSnapshot",
    "Scope",
    "ScopeError",
    "ScopedResourceContext",
    "Snapshotable",
    "UnboundResourceError",
]
