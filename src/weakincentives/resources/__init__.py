"""Resources of a prompt: how they are created, how long they live, how they roll back."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import public_names
from weakincentives.resources.binding import (
    Binding as Binding,
    CircularDependencyError as CircularDependencyError,
    ClassOf as ClassOf,
    Resolver as Resolver,
    ResourceChange as ResourceChange,
    ResourceCloseError as ResourceCloseError,
    ResourceError as ResourceError,
    ResourceRestoreError as ResourceRestoreError,
    RolledBackError as RolledBackError,
    Scope as Scope,
    ScopeError as ScopeError,
    Snapshotable as Snapshotable,
    StaleResourceError as StaleResourceError,
    TransactionRefusedError as TransactionRefusedError,
    UnboundResourceError as UnboundResourceError,
    has_snapshots as has_snapshots,
)
from weakincentives.resources.context import (
    ResourceRegistry as ResourceRegistry,
    ScopedResourceContext as ScopedResourceContext,
)
from weakincentives.resources.layer import ResourceSnapshot as ResourceSnapshot
from weakincentives.resources.preview import PreviewScope as PreviewScope
from weakincentives.resources.usage import Use as Use

if not TYPE_CHECKING:
    __all__ = public_names(globals())
