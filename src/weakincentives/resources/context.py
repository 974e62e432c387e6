"""The life of a set of resources: built when asked for, rolled back with a tool, closed in reverse order."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from weakincentives.resources import closing
from weakincentives.resources.binding import Binding, Constant, Scope
from weakincentives.resources.errors import (
    CircularDependencyError,
    ResourceCloseError,
    ResourceError,
    ResourceRestoreError,
    ScopeError,
    UnboundResourceError,
    chain_text,
    type_name,
)
from weakincentives.resources.snapshotable import Snapshotable, is_snapshotable

T = TypeVar("T")


class ResourceSnapshot(Mapping[type, Any]):
    """What every snapshotable resource held at one moment, by protocol, and which resources existed."""

    __slots__ = ("_states", "_values")

    def __init__(self, states: dict[type, Any], values: dict[type, Any]) -> None:
        self._states = states
        self._values = values

    def holds(self, protocol: type, value: object) -> bool:
        """Whether this very object existed when the snapshot was taken."""
        return self._values.get(protocol) is value

    def __getitem__(self, protocol: type) -> Any:
        return self._states[protocol]

    def __iter__(self) -> Iterator[type]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)


class ScopedResourceContext:
    """Builds resources at the first `get`, shares singletons, and closes what it built, last built first.

    `with registry.create_context() as resources:` (or `async with`) starts and closes it. One context may be used
    by several threads: a singleton is built once. `tool_scope()` gives the child context of one tool call.
    """

    __slots__ = ("_bindings", "_births", "_built", "_closed", "_lock", "_root", "_snapshotables", "_values")

    def __init__(self, bindings: Mapping[type, Binding[Any]], *, root: ScopedResourceContext | None = None) -> None:
        self._bindings = bindings
        self._root = self if root is None else root
        self._lock = threading.RLock()
        self._closed = False
        self._values: dict[type, Any] = {}
        self._built: list[tuple[type, Any]] = []
        self._snapshotables: dict[type, Snapshotable] = {}
        self._births: dict[type, Any] | None = None if root is None or root._births is None else {}
        if root is None:
            for protocol, binding in bindings.items():
                if isinstance(binding.provider, Constant):
                    self._keep(protocol, binding.provider.value)

    def get(self, protocol: type[T]) -> T:
        """The resource bound to `protocol`, built now if it is not there yet."""
        return cast(T, self._resolve(protocol, ()))

    def get_optional(self, protocol: type[T]) -> T | None:
        """Like `get`, but None when nothing is bound to `protocol`."""
        return self.get(protocol) if protocol in self._bindings else None

    def start(self) -> None:
        """Build the eager singletons; if one fails, those built before it are closed."""
        try:
            for protocol, binding in self._bindings.items():
                if binding.eager:
                    self._resolve(protocol, ())
        except BaseException as error:
            self._end(error)
            raise

    def tool_scope(self) -> ScopedResourceContext:
        """The context of one tool call: `with context.tool_scope() as scope:`.

        TOOL_CALL resources are built in it and closed at its end; singletons are those of this context.
        """
        self._check_open()
        return ScopedResourceContext(self._bindings, root=self._root)

    def snapshot(self) -> ResourceSnapshot:
        """What every built snapshotable resource (and every bound instance) holds now; prototypes are left out."""
        states: dict[type, Any] = {}
        values: dict[type, Any] = {}
        for context in self._layers():
            with context._lock:
                context._check_open()
                states.update((protocol, item.snapshot()) for protocol, item in context._snapshotables.items())
                values.update(context._values)
                context._births = {}
        return ResourceSnapshot(states, values)

    def restore(self, snapshot: ResourceSnapshot) -> None:
        """Bring every resource back to the snapshot, all of them even if one fails.

        A resource built since is first taken back to how it was when it was built, then closed and dropped, so that
        the next `get` builds it anew: nothing made during a failed call survives it.
        """
        failures: list[tuple[str, Exception]] = []
        for context in self._layers():
            with context._lock:
                context._restore(snapshot, failures)
        if failures:
            raise _failed("restore", ResourceRestoreError, failures)

    def close(self) -> None:
        """Close what the context built, last built first, all of it even if one fails. May be called again."""
        failures: list[tuple[str, BaseException]] = []
        for protocol, value in self._take():
            try:
                closing.close(value)
            except BaseException as error:
                failures.append((type_name(protocol), error))
        _report(failures)

    async def aclose(self) -> None:
        """`close()`, awaiting the resources that close asynchronously."""
        failures: list[tuple[str, BaseException]] = []
        for protocol, value in self._take():
            try:
                await closing.aclose(value)
            except BaseException as error:
                failures.append((type_name(protocol), error))
        _report(failures)

    def __enter__(self) -> Self:
        if self._root is self:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except ResourceCloseError as failure:
            _yield_to(error, failure)

    def __repr__(self) -> str:
        kind = "resources" if self._root is self else "tool scope"
        state = "closed" if self._closed else ", ".join(type_name(protocol) for protocol in self._values)
        return f"<{kind}: {state or 'nothing built'}>"

    def _end(self, error: BaseException | None) -> None:
        try:
            self.close()
        except ResourceCloseError as failure:
            _yield_to(error, failure)

    def _resolve(self, protocol: type, chain: tuple[type, ...]) -> Any:
        value = self._values.get(protocol)
        if value is None:
            value = self._root._values.get(protocol)
        if value is not None:
            return value
        self._check_open()
        binding = self._bindings.get(protocol)
        if binding is None:
            raise UnboundResourceError(protocol, chain)
        if protocol in chain:
            raise CircularDependencyError((*chain[chain.index(protocol) :], protocol))
        if binding.scope is Scope.TOOL_CALL and self._root is self:
            raise _out_of_scope(protocol, chain)
        owner = self._root if binding.scope is Scope.SINGLETON else self
        return owner._build(binding, (*chain, protocol))

    def _build(self, binding: Binding[Any], chain: tuple[type, ...]) -> Any:
        protocol = binding.protocol
        with self._lock:
            self._check_open()
            if binding.scope is not Scope.PROTOTYPE and protocol in self._values:
                return self._values[protocol]
            value = _provide(self, binding, chain)
            if closing.is_closeable(value) or binding.scope is not Scope.PROTOTYPE:
                self._built.append((protocol, value))
            if binding.scope is not Scope.PROTOTYPE:
                self._keep(protocol, value)
            return value

    def _keep(self, protocol: type, value: Any) -> None:
        if is_snapshotable(value):
            self._snapshotables[protocol] = value
            if self._births is not None:
                self._births[protocol] = value.snapshot()
        self._values[protocol] = value

    def _restore(self, snapshot: ResourceSnapshot, failures: list[tuple[str, Exception]]) -> None:
        self._check_open()
        births, self._births = self._births or {}, {}
        for protocol in reversed(tuple(self._snapshotables)):
            known = snapshot.holds(protocol, self._values[protocol])
            states: Mapping[type, Any] = snapshot if known else births
            if protocol in states:
                try:
                    self._snapshotables[protocol].restore(states[protocol])
                except Exception as error:
                    failures.append((type_name(protocol), error))
        for entry in reversed(tuple(self._built)):
            protocol, value = entry
            if self._values.get(protocol) is not value or snapshot.holds(protocol, value):
                continue
            self._built.remove(entry)
            del self._values[protocol]
            self._snapshotables.pop(protocol, None)
            if closing.is_closeable(value):
                try:
                    closing.close(value)
                except Exception as error:
                    failures.append((type_name(protocol), error))

    def _layers(self) -> tuple[ScopedResourceContext, ...]:
        return (self,) if self._root is self else (self, self._root)

    def _take(self) -> list[tuple[type, Any]]:
        with self._lock:
            self._closed = True
            built, self._built = self._built, []
            self._values = {}
            self._snapshotables = {}
        return [entry for entry in reversed(built) if closing.is_closeable(entry[1])]

    def _check_open(self) -> None:
        if self._closed or self._root._closed:
            what = "The resource context" if self._root is self or self._root._closed else "The tool scope"
            raise ResourceError(f"{what} is closed; create a new one with create_context() or tool_scope()")


class _ProviderResolver:
    """What a provider resolves from: its owner's context, with the chain that led to it."""

    __slots__ = ("_chain", "_context")

    def __init__(self, context: ScopedResourceContext, chain: tuple[type, ...]) -> None:
        self._context = context
        self._chain = chain

    def get(self, protocol: type[T]) -> T:
        return cast(T, self._context._resolve(protocol, self._chain))

    def get_optional(self, protocol: type[T]) -> T | None:
        return self.get(protocol) if protocol in self._context._bindings else None

    def detach(self) -> None:
        """A provider may keep its resolver for later; what it then asks for is no longer part of its own building."""
        self._chain = ()


def _provide(context: ScopedResourceContext, binding: Binding[Any], chain: tuple[type, ...]) -> Any:
    resolver = _ProviderResolver(context, chain)
    try:
        value = binding.provider(resolver)
    except ResourceError:
        raise
    except Exception as error:
        if not any(note.startswith("While building resource ") for note in getattr(error, "__notes__", ())):
            error.add_note(f"While building resource {chain_text(chain)}")
        raise
    finally:
        resolver.detach()
    if value is None:
        raise ResourceError(f"The provider of {chain_text(chain)} returned None")
    if inspect.iscoroutine(value):
        value.close()
        raise ResourceError(f"The provider of {chain_text(chain)} is async; a provider is an ordinary function")
    return value


def _out_of_scope(protocol: type, chain: tuple[type, ...]) -> ScopeError:
    name = type_name(protocol)
    if chain:
        asker = type_name(chain[-1])
        message = (
            f"{name} lives for one tool call but {asker} outlives it ({chain_text((*chain, protocol))}); "
            f"bind {asker} with Scope.TOOL_CALL, or ask for {name} in the tool"
        )
    else:
        message = f"{name} lives for one tool call; ask for it inside `with context.tool_scope() as scope:`"
    return ScopeError(message, protocol=protocol, chain=chain)


def _report(failures: list[tuple[str, BaseException]]) -> None:
    ordinary: list[tuple[str, Exception]] = []
    for name, error in failures:
        if not isinstance(error, Exception):
            raise error
        ordinary.append((name, error))
    if ordinary:
        raise _failed("close", ResourceCloseError, ordinary)


def _failed(
    verb: str, kind: type[ResourceCloseError] | type[ResourceRestoreError], failures: list[tuple[str, Exception]]
) -> ResourceCloseError | ResourceRestoreError:
    named = "; ".join(f"{name}: {error or type(error).__name__}" for name, error in failures)
    return kind(f"Could not {verb} {named}", [error for _, error in failures])


def _yield_to(error: BaseException | None, failure: ResourceCloseError) -> None:
    """Let the error that ended the block through, with the failure as a note; without one, raise the failure."""
    if error is None:
        raise failure
    error.add_note(str(failure))
