"""Resources that a prompt needs: how they are made, how long they live, how they roll back."""

from weakincentives.resources.binding import Binding, Resolver, Scope
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
from weakincentives.resources.snapshotable import Snapshotable

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
