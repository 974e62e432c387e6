"""The immutable set of bindings of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from weakincentives.resources.binding import Binding
from weakincentives.resources.context import ScopedResourceContext
from weakincentives.resources.errors import ResourceError, type_name


class ResourceRegistry:
    """Bindings by protocol. Merging returns a new registry.

    A context made from it resolves and closes the resources:

        registry = ResourceRegistry.of(Binding(HTTPClient, lambda r: HTTPClient()))
        registry = registry.merge({Clock: my_clock})
        with registry.create_context() as resources:
            resources.get(HTTPClient)
    """

    __slots__ = ("_bindings",)

    def __init__(self) -> None:
        self._bindings: Mapping[type, Binding[Any]] = MappingProxyType({})

    @classmethod
    def of(cls, *bindings: Binding[Any]) -> ResourceRegistry:
        """A registry of these bindings; each protocol may appear once."""
        found: dict[type, Binding[Any]] = {}
        for binding in bindings:
            if not isinstance(binding, Binding):
                raise ResourceError(
                    f"ResourceRegistry.of must be given Binding objects, got {binding!r}; use build() for instances"
                )
            if binding.protocol in found:
                raise ResourceError(
                    f"{type_name(binding.protocol)} is bound twice; keep one, or merge() two registries to override"
                )
            found[binding.protocol] = binding
        return _registry(found)

    @classmethod
    def build(cls, instances: Mapping[type, Any]) -> ResourceRegistry:
        """A registry of existing objects. The caller remains responsible for closing them."""
        found: dict[type, Binding[Any]] = {}
        for protocol, value in instances.items():
            if isinstance(value, Binding):
                raise ResourceError(
                    f"The instance for {type_name(protocol)} must not be a Binding; pass bindings to of()"
                )
            found[protocol] = Binding.instance(protocol, value)
        return _registry(found)

    def merge(self, other: ResourceRegistry | Mapping[type, Any] | None) -> ResourceRegistry:
        """A registry of both sets of bindings. For a protocol in both, `other` wins unless its binding is a fallback.

        The values of a mapping are instances.
        """
        if other is None:
            return self
        if not isinstance(other, ResourceRegistry):
            if not isinstance(other, Mapping):
                raise ResourceError(
                    f"Resources must be a ResourceRegistry or a mapping of class to instance, got {other!r}"
                )
            other = ResourceRegistry.build(other)
        if not other._bindings:
            return self
        if not self._bindings:
            return other
        winners = {
            protocol: binding
            for protocol, binding in other._bindings.items()
            if not (binding.fallback and protocol in self._bindings)
        }
        return _registry({**self._bindings, **winners})

    @property
    def bindings(self) -> Mapping[type, Binding[Any]]:
        """The bindings by protocol, read-only."""
        return self._bindings

    def create_context(self) -> ScopedResourceContext:
        """A new context, in which nothing has been created yet."""
        return ScopedResourceContext(self._bindings)

    def __contains__(self, protocol: object) -> bool:
        return protocol in self._bindings

    def __iter__(self) -> Iterator[type]:
        return iter(self._bindings)

    def __len__(self) -> int:
        return len(self._bindings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResourceRegistry) and other._bindings == self._bindings

    def __repr__(self) -> str:
        return f"ResourceRegistry({', '.join(type_name(protocol) for protocol in self._bindings)})"


def _registry(bindings: Mapping[type, Binding[Any]]) -> ResourceRegistry:
    registry = ResourceRegistry()
    registry._bindings = MappingProxyType(bindings)
    return registry
