"""One subpackage per provider; each imports its vendor's SDK only when an adapter is created."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front

if TYPE_CHECKING:
    from weakincentives.adapters.selection import FallbackAdapter, adapter_for
    from weakincentives.adapters.wrapped import SendTo, WrappedAdapter

__all__ = ["FallbackAdapter", "SendTo", "WrappedAdapter", "adapter_for"]

__getattr__ = lazy_front(
    __name__, {"selection": ["FallbackAdapter", "adapter_for"], "wrapped": ["SendTo", "WrappedAdapter"]}
)
