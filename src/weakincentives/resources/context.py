"""The bindings of a prompt and their resources: created on demand, rolled back with a tool, closed in reverse order."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar, cast

from weakincentives._fence import check_fence, current_calls
from weakincentives.resources.binding import (
    Binding,
    CircularDependencyError,
    ClassOf,
    Constant,
    ResourceCloseError,
    ResourceError,
    ResourceErrors,
    ResourceRestoreError,
    Scope,
    ScopeError,
    Snapshotable,
    UnboundResourceError,
    chain_text,
    is_snapshotable,
    type_name,
)

T = TypeVar("T")
_creating: ContextVar[tuple[object, tuple[type, ...]]] = ContextVar("weakincentives_creating", default=(None, ()))
"""The root context whose providers are running, and the resources that they create, outermost first."""


class ResourceRegistry:
    """Bindings by protocol. Merging returns a new registry.

    A context made from it resolves and closes the resources:

        registry = ResourceRegistry.of(Binding(HTTPClient, lambda r: HTTPClient()))
        registry = registry.merge({Clock: my_clock})
        with registry.create_context() as resources:
            resources.get(HTTPClient)
    """

    def __init__(self, bindings: Mapping[type, Binding[Any]] = MappingProxyType({})) -> None:
        self._bindings = MappingProxyType(dict(bindings))

    @classmethod
    def of(cls, *bindings: Binding[Any]) -> ResourceRegistry:
        """A registry of these bindings; each protocol may appear once."""
        found: dict[Any, Binding[Any]] = {}
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
        return ResourceRegistry(found)

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
        return ResourceRegistry(found)

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
        return ResourceRegistry({**self._bindings, **winners})

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


class ResourceSnapshot(dict[type, Any]):
    """The states of all snapshotable resources at one moment, by protocol, and which resources existed."""

    def __init__(self, states: Mapping[type, Any], existing: Mapping[type, Any]) -> None:
        super().__init__(states)
        self._existing = existing

    def holds(self, protocol: type, value: object) -> bool:
        """True if this very object existed when the snapshot was taken."""
        return self._existing.get(protocol) is value


class ScopedResourceContext:
    """Creates resources at the first `get`, shares singletons, and closes what it created in reverse order.

    `with registry.create_context() as resources:` (or `async with`) starts and closes it. Several threads may use one
    context; a singleton is still created once. `tool_scope()` returns the child context of one tool call.
    """

    def __init__(
        self,
        bindings: Mapping[type, Binding[Any]],
        *,
        root: ScopedResourceContext | None = None,
        own: Mapping[type, Any] = MappingProxyType({}),
    ) -> None:
        self._bindings = bindings
        self._own = own
        self._root = self if root is None else root
        self._lock = threading.RLock()
        self._closed = False
        self._values: dict[type, Any] = {}
        self._created: list[tuple[type, Any]] = []
        # The tool calls for which each was created.
        self._makers: dict[type, tuple[object, ...]] = {}
        self._initial_states: dict[type, Any] | None = None if root is None or root._initial_states is None else {}
        if root is None:
            for protocol, binding in bindings.items():
                if isinstance(binding.provider, Constant):
                    self._add(protocol, binding.provider.value)
        for protocol, value in own.items():
            self._add(protocol, value)

    @property
    def holds_any(self) -> bool:
        """True if there is something to close."""
        return bool(self._created)

    def get(self, protocol: ClassOf[T]) -> T:
        """The resource bound to `protocol`, created if necessary."""
        return cast(T, self._resolve(protocol))

    def get_optional(self, protocol: ClassOf[T]) -> T | None:
        """Like `get`, but None if nothing is bound to `protocol`."""
        return self.get(protocol) if protocol in self._bindings else None

    def start(self) -> None:
        """Create the eager singletons; if one fails, those created before it are closed."""
        try:
            for protocol, binding in self._bindings.items():
                if binding.eager:
                    self._resolve(protocol)
        except BaseException as error:
            self._close_after(error)
            raise

    def tool_scope(self) -> ScopedResourceContext:
        """The context of one tool call: `with context.tool_scope() as scope:`.

        It creates TOOL_CALL resources and closes them at its end; singletons come from this context.
        """
        self._check_open()
        return ScopedResourceContext(self._bindings, root=self._root, own=self._own)

    def with_instances(self, instances: Mapping[type, Any]) -> ScopedResourceContext:
        """A context that has these instances, and shares everything else with this one."""
        return ScopedResourceContext(self._bindings, root=self._root, own=instances)

    def snapshot(self) -> ResourceSnapshot:
        """The current states of all snapshotable resources created or bound so far, except prototypes."""
        return self._states(lambda item: item.snapshot())

    def begin_call(self) -> ResourceSnapshot:
        """`snapshot` for the rollback of the current tool call: a filesystem will undo only what the call changed."""
        return self._states(_begin_call)

    def _states(self, state_of: Callable[[Snapshotable], Any]) -> ResourceSnapshot:
        states: dict[type, Any] = {}
        values: dict[type, Any] = {}
        for context in self._layers():
            with context._lock:
                context._check_open()
                values |= context._values
                states |= {each: state_of(value) for each, value in context._values.items() if is_snapshotable(value)}
                context._initial_states = {}
        return ResourceSnapshot(states, values)

    def restore(self, snapshot: ResourceSnapshot) -> None:
        """Restore every resource, even if some fail.

        A resource created since the snapshot is restored to its initial state, closed and dropped, so the next `get`
        creates a new one: nothing created during a failed call survives it.
        """
        failures: list[tuple[str, BaseException]] = []
        for context in self._layers():
            with context._lock:
                context._restore(snapshot, failures)
        if failure := _failure(ResourceRestoreError, "restore", failures):
            raise failure

    def close(self) -> None:
        """Close what the context created, in reverse order, even if some fail. Calling it again does nothing."""
        self._close_after(None)

    async def aclose(self) -> None:
        """`close()`, awaiting the resources that close asynchronously."""
        await self._close_all(self._start_closing(), _aclose, None)

    def __enter__(self) -> Self:
        if self._root is self:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close_after(error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close_all(self._start_closing(), _aclose, error)

    def __repr__(self) -> str:
        kind = "resources" if self._root is self else "tool scope"
        state = "closed" if self._closed else ", ".join(type_name(protocol) for protocol in self._values)
        return f"<{kind}: {state or 'nothing created'}>"

    def _close_after(self, error: BaseException | None) -> None:
        # Most tool calls create nothing. The coroutine never waits, because `_close` leaves nothing to wait for.
        if created := self._start_closing():
            with suppress(StopIteration):
                self._close_all(created, _close, error).send(None)

    async def _close_all(
        self,
        created: list[tuple[type, Any]],
        close: Callable[[Any], Awaitable[object] | None],
        error: BaseException | None,
    ) -> None:
        """Close everything; a failure becomes a note on the error that ended the block, if there is one."""
        failures: list[tuple[str, BaseException]] = []
        for protocol, value in created:
            try:
                pending = close(value)
                if pending is not None:
                    await pending
            except BaseException as raised:
                failures.append((type_name(protocol), raised))
        failure = _failure(ResourceCloseError, "close", failures)
        if failure and error is None:
            raise failure
        if failure and error:
            error.add_note(str(failure))

    def _resolve(self, protocol: Any) -> Any:
        value = self._values.get(protocol)
        if value is None:
            value = self._root._values.get(protocol)
        if value is not None:
            return value
        self._check_open()
        creating = _creating.get()
        chain = creating[1] if creating[0] is self._root else ()
        binding = self._bindings.get(protocol)
        if binding is None:
            raise UnboundResourceError(protocol, chain)
        if protocol in chain:
            raise CircularDependencyError((*chain[chain.index(protocol) :], protocol))
        if binding.scope is Scope.TOOL_CALL and self._root is self:
            raise _out_of_scope(protocol, chain)
        owner = self._root if binding.scope is Scope.SINGLETON else self
        return owner._create(binding, (*chain, protocol))

    def _create(self, binding: Binding[Any], chain: tuple[type, ...]) -> Any:
        protocol = chain[-1]
        with self._lock:
            self._check_open()
            if binding.scope is not Scope.PROTOTYPE and protocol in self._values:
                return self._values[protocol]
            value = _provide(self, binding, chain)
            if _is_closeable(value) or binding.scope is not Scope.PROTOTYPE:
                self._created.append((protocol, value))
                self._makers[protocol] = current_calls()
            if binding.scope is not Scope.PROTOTYPE:
                self._add(protocol, value)
            return value

    def _add(self, protocol: type, value: Any) -> None:
        if self._initial_states is not None and is_snapshotable(value):
            self._initial_states[protocol] = _begin_call(value)
        self._values[protocol] = value

    def _restore(self, snapshot: ResourceSnapshot, failures: list[tuple[str, BaseException]]) -> None:
        self._check_open()
        initial, self._initial_states = self._initial_states or {}, {}
        for protocol, value in reversed(tuple(self._values.items())):
            known = snapshot.holds(protocol, value)
            if not known and self._is_of_others(protocol):
                continue
            states: Mapping[type, Any] = snapshot if known else initial
            steps: list[Callable[[], object]] = [partial(value.restore, states[protocol])] if protocol in states else []
            if not known and protocol in self._makers:
                self._created = [entry for entry in self._created if entry[1] is not value]
                del self._values[protocol]
                steps += [partial(_close, value)] if _is_closeable(value) else []
            for step in steps:
                try:
                    step()
                except (Exception, SystemExit) as error:
                    failures.append((type_name(protocol), error))

    def _is_of_others(self, protocol: type) -> bool:
        """True if it was created for other tool calls than the current one."""
        makers, calls = self._makers.get(protocol, ()), current_calls()
        return bool(makers and calls) and calls[-1] not in makers

    def _layers(self) -> tuple[ScopedResourceContext, ...]:
        return (self,) if self._root is self else (self, self._root)

    def _start_closing(self) -> list[tuple[type, Any]]:
        with self._lock:
            self._closed = True
            created, self._created = self._created, []
            self._values = {}
        return [entry for entry in reversed(created) if _is_closeable(entry[1])]

    def _check_open(self) -> None:
        if self._closed or self._root._closed:
            check_fence()
            what = "The resource context" if self._root is self or self._root._closed else "The tool scope"
            raise ResourceError(f"{what} is closed; create a new one with create_context() or tool_scope()")


def _begin_call(item: Snapshotable) -> Any:
    begin = getattr(type(item), "begin_call", None)
    return item.snapshot() if begin is None else begin(item)


def _provide(context: ScopedResourceContext, binding: Binding[Any], chain: tuple[type, ...]) -> Any:
    token = _creating.set((context._root, chain))
    try:
        value = binding.provider(context)
    except ResourceError:
        raise
    except SystemExit as error:
        raise ResourceError(_exited(f"The provider of {chain_text(chain)}", error)) from error
    except Exception as error:
        if not any(note.startswith("While creating resource ") for note in getattr(error, "__notes__", ())):
            error.add_note(f"While creating resource {chain_text(chain)}")
        raise
    finally:
        _creating.reset(token)
    if value is None:
        raise ResourceError(f"The provider of {chain_text(chain)} must return the resource, got None")
    if inspect.iscoroutine(value):
        value.close()
        raise ResourceError(f"The provider of {chain_text(chain)} must be an ordinary function, got an async one")
    return value


def _out_of_scope(protocol: type, chain: tuple[type, ...]) -> ScopeError:
    name = type_name(protocol)
    if chain:
        dependent = type_name(chain[-1])
        message = (
            f"{name} lives for one tool call but {dependent} outlives it ({chain_text((*chain, protocol))}); "
            f"bind {dependent} with Scope.TOOL_CALL, or get {name} in the tool"
        )
    else:
        message = f"{name} lives for one tool call; get it inside `with context.tool_scope() as scope:`"
    return ScopeError(message, protocol=protocol, chain=chain)


def _exited(what: str, error: SystemExit) -> str:
    return f"{what} raised {error!r}; raise an Exception instead"


def _failure(kind: type[ResourceErrors], verb: str, failures: list[tuple[str, BaseException]]) -> ResourceErrors | None:
    """The failures as one exception; one that stops the program is raised by itself."""
    found: list[tuple[str, Exception]] = []
    for name, error in failures:
        if isinstance(error, SystemExit):
            error = ResourceError(_exited("it", error))
        if not isinstance(error, Exception):
            raise error
        found.append((name, error))
    summary = "; ".join(f"{name}: {error or type(error).__name__}" for name, error in found)
    return kind(f"Could not {verb} {summary}", [error for _, error in found]) if found else None


def _is_closeable(value: object) -> bool:
    kind = type(value)
    return callable(getattr(kind, "close", None)) or callable(getattr(kind, "aclose", None))


def _close(value: Any) -> None:
    """Call `close()`, else `aclose()`; run an awaitable to completion on its own event loop."""
    close = getattr(value, "close", None)
    result = close() if callable(close) else value.aclose()
    if inspect.isawaitable(result):
        _run(result)


def _aclose(value: Any) -> Awaitable[object] | None:
    """Call `aclose()`, else `close()`; returns what to await, if anything."""
    close = getattr(value, "aclose", None)
    result = close() if callable(close) else value.close()
    return result if inspect.isawaitable(result) else None


def _run(result: Awaitable[object]) -> None:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def wait() -> None:
        await result

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(wait())
        return
    # The loop of this thread is running and cannot be re-entered, so use another thread.
    with ThreadPoolExecutor(1, "close-resource") as pool:
        pool.submit(copy_context().run, asyncio.run, wait()).result()
