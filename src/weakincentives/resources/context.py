"""The bindings of a prompt and their resources: created on demand, rolled back with a tool, closed in reverse order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from math import inf
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from weakincentives._fence import check_fence, current_calls, seconds_left
from weakincentives.errors import SerdeError
from weakincentives.resources.binding import (
    Binding,
    CircularDependencyError,
    ClassOf,
    Constant,
    ResourceChange,
    ResourceCloseError,
    ResourceError,
    ResourceErrors,
    ResourceRestoreError,
    RolledBackError,
    Scope,
    ScopeError,
    Snapshotable,
    StaleResourceError,
    UnboundResourceError,
    chain_text,
    is_snapshotable,
    type_name,
)
from weakincentives.resources.lifecycle import (
    Creation,
    Held,
    Steps,
    Work,
    awaited,
    creating,
    exited,
    provide,
)
from weakincentives.serde import dump_tagged

if TYPE_CHECKING:
    from weakincentives.resources.loop import ContextLoop

T = TypeVar("T")
# How often a thread that runs an event loop checks whether the creation it waits for needs that loop.
POLL_SECONDS = 0.02


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

    def create_context(self, loop: ContextLoop | None = None) -> ScopedResourceContext:
        """A new context, in which nothing has been created yet; its async resources use the loop, or one of its own."""
        return ScopedResourceContext(self._bindings, loop=loop)

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

    Async resources live on one event loop: the one that runs `async with`, else one in a thread of the context.
    """

    def __init__(
        self,
        bindings: Mapping[type, Binding[Any]],
        *,
        root: ScopedResourceContext | None = None,
        own: Mapping[type, Any] = MappingProxyType({}),
        loop: ContextLoop | None = None,
    ) -> None:
        self._bindings = bindings
        self._own = own
        self._root = self if root is None else root
        self._lock = threading.RLock()
        self._closed = False
        self._values: dict[type, Any] = {}
        self._created: list[Held] = []
        self._pending: dict[type, Creation] = {}
        if root is None:
            # Which resource each one that is being created waits for.
            self._needs: dict[type, type] = {}
            # Async resources of failed calls, which could not be closed when they were rolled back.
            self._dropped: list[Held] = []
            self._loop, self._owns_loop = loop, loop is None
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
        return bool(self._created or self._root._dropped)

    @property
    def can_overlap(self) -> bool:
        """True if no resource has snapshots: calls at the same time would see each other's unfinished changes of it."""
        return not any(is_snapshotable(value) for context in self._layers() for value in context._values.values())

    @property
    def holds_managers(self) -> bool:
        """True if a context manager was entered here, such as a transaction that ends with an error if undone."""
        return any(held.is_managed for held in self._created)

    @property
    def loop(self) -> ContextLoop:
        """The event loop of the context's async resources, which async tools of sync runs use too."""
        root = self._root
        with root._lock:
            if root._loop is None:
                from weakincentives.resources.loop import ContextLoop

                root._loop = ContextLoop()
            return root._loop

    def get(self, protocol: ClassOf[T]) -> T:
        """The resource bound to `protocol`, created if necessary."""
        value = self._existing(protocol)
        return cast(T, self._run(self._resolve(protocol)) if value is None else value)

    async def get_async(self, protocol: ClassOf[T]) -> T:
        """`get` in async code, which must not block while a resource is created asynchronously."""
        value = self._existing(protocol)
        return cast(T, await self._run_async(self._resolve(protocol)) if value is None else value)

    def get_optional(self, protocol: ClassOf[T]) -> T | None:
        """Like `get`, but None if nothing is bound to `protocol`."""
        return self.get(protocol) if protocol in self._bindings else None

    def start(self) -> None:
        """Create the eager singletons; if one fails, those created before it are closed."""
        if self._loop is not None:
            self._loop.home = None
        try:
            for protocol in self._eager():
                self.get(protocol)
        except BaseException as error:
            self._run(self._ending(error, "close"))
            raise

    async def start_async(self) -> None:
        """`start` on the running event loop, on which async resources live from now on."""
        from asyncio import get_running_loop

        self.loop.home = get_running_loop()
        try:
            for protocol in self._eager():
                await self.get_async(protocol)
        except BaseException as error:
            await self._run_async(self._ending(error, "aclose"))
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

    def changes(self, snapshot: ResourceSnapshot) -> tuple[ResourceChange, ...]:
        """The changes of snapshotable resources since `begin_call` of the current tool call, as data.

        A resource with `changes_since(state)` and `apply(changes)`, such as a filesystem, says itself what changed; of
        any other, the states are compared.
        """
        found: list[ResourceChange] = []
        for context in self._layers():
            with context._lock:
                for protocol, value in context._values.items():
                    known = snapshot.holds(protocol, value)
                    states: Mapping[type, Any] = snapshot if known else context._initial_states or {}
                    if protocol in states and (known or not context._is_of_others(protocol)):
                        found.extend(_change(protocol, value, states[protocol]))
        return tuple(found)

    def apply(self, changes: Iterable[ResourceChange]) -> None:
        """Make the changes that `changes` returned; raises `StaleResourceError` if a resource is not as it was."""
        for each in changes:
            value: Any = self.get(each.protocol)
            if each.changes:
                value.apply(each.changes)
            elif _written(each.protocol, value.snapshot()) != _written(each.protocol, each.before):
                raise StaleResourceError(f"{type_name(each.protocol)} changed since")
            else:
                value.restore(each.after)

    def close(self) -> None:
        """Close what the context created, in reverse order, even if some fail. Calling it again does nothing."""
        # Most tool calls create nothing.
        if self._root is self or self.holds_any:
            self._run(self._ending(None, "close"))
        else:
            self._start_closing()

    async def aclose(self) -> None:
        """`close()`, awaiting the resources that close asynchronously."""
        await self._run_async(self._ending(None, "aclose"))

    def __enter__(self) -> Self:
        if self._root is self:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._ending(error, "close"))

    async def __aenter__(self) -> Self:
        if self._root is self:
            await self.start_async()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._run_async(self._ending(error, "aclose"))

    def __repr__(self) -> str:
        kind = "resources" if self._root is self else "tool scope"
        state = "closed" if self._closed else ", ".join(type_name(protocol) for protocol in self._values)
        return f"<{kind}: {state or 'nothing created'}>"

    def _run(self, steps: Steps[T]) -> T:
        """Take the steps while this thread waits."""
        outcome = error = None
        while True:
            try:
                step = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as stop:
                return cast(T, stop.value)
            outcome = error = None
            try:
                if isinstance(step, Work):
                    self._note_awaiting()
                    # An end is never cut short.
                    seconds = seconds_left() if creating.get()[1] else inf
                    outcome = self.loop.block(step.run, step.loop, anywhere=self._closed, seconds=seconds)
                elif step.done is not None:
                    self._join(step, step.done)
            except BaseException as raised:
                error = raised

    async def _run_async(self, steps: Steps[T]) -> T:
        """Take the steps on the running event loop."""
        outcome = error = None
        while True:
            try:
                step = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as stop:
                return cast(T, stop.value)
            outcome = error = None
            try:
                if isinstance(step, Work):
                    self._note_awaiting()
                    outcome = await self.loop.wait(step.run, step.loop)
                elif step.done is not None:
                    from asyncio import shield, wrap_future

                    # Others wait for the same creation, also if this caller is cancelled.
                    await shield(wrap_future(step.done))
            except BaseException as raised:
                error = raised

    def _join(self, creation: Creation, done: Future[None]) -> None:
        """Wait until another thread or task has created the resource, unless that needs the loop of this thread."""
        from weakincentives.resources.loop import OnOwnLoop

        here = self._root._loop is not None and self._root._loop.is_here()
        while True:
            try:
                return done.result(POLL_SECONDS if here else None)
            except TimeoutError:
                if creation.awaits:
                    raise OnOwnLoop from None

    def _note_awaiting(self) -> None:
        """Note that what is being created here needs the event loop."""
        for protocol in creating.get()[1]:
            for context in self._layers():
                if creation := context._pending.get(protocol):
                    creation.awaits = True

    def _eager(self) -> list[type]:
        return [protocol for protocol, binding in self._bindings.items() if binding.eager]

    def _ending(self, error: BaseException | None, closer: str) -> Steps[None]:
        """Close everything; a failure becomes a note on the error that ended the block, if there is one."""
        failures: list[tuple[str, BaseException]] = []
        dropped, created = self._start_closing()
        for held in (*dropped, *reversed(created)):
            try:
                yield from held.end(_rolled_back(held) if held in dropped else error, closer)
            except BaseException as raised:
                failures.append((type_name(held.protocol), raised))
        if self._root is self and self._owns_loop and self._loop is not None:
            self._loop.close()
        failure = _failure(ResourceCloseError, "close", failures)
        if failure and error is None:
            raise failure
        if failure and error:
            error.add_note(str(failure))

    def _existing(self, protocol: Any) -> Any:
        value = self._values.get(protocol)
        return self._root._values.get(protocol) if value is None else value

    def _resolve(self, protocol: Any) -> Steps[Any]:
        self._check_open()
        whose = creating.get()
        chain = whose[1] if whose[0] is self._root else ()
        binding = self._bindings.get(protocol)
        if binding is None:
            raise UnboundResourceError(protocol, chain)
        if protocol in chain:
            raise CircularDependencyError((*chain[chain.index(protocol) :], protocol))
        if binding.scope is Scope.TOOL_CALL and self._root is self:
            raise _out_of_scope(protocol, chain)
        owner = self._root if binding.scope is Scope.SINGLETON else self
        create = owner._create_each if binding.scope is Scope.PROTOTYPE else owner._create
        return (yield from create(binding, (*chain, protocol)))

    def _create_each(self, binding: Binding[Any], chain: tuple[type, ...]) -> Steps[Any]:
        held = yield from provide(self, self._root, binding, chain)
        if self._closed:
            return (yield from self._refuse(held))
        if held.ends:
            self._created.append(held)
        return held.value

    def _create(self, binding: Binding[Any], chain: tuple[type, ...]) -> Steps[Any]:
        """Create a shared resource, or wait until another thread or task has done so."""
        protocol, creation = chain[-1], Creation()
        while True:
            with self._lock:
                self._check_open()
                if protocol in self._values:
                    return self._values[protocol]
                other = self._pending.setdefault(protocol, creation)
                if other is not creation and other.abandoned:
                    self._pending[protocol] = creation
                    other.end()
                    other = creation
                if other is not creation:
                    self._check_circle(chain)
                    other.done = other.done or Future()
                if len(chain) > 1:
                    self._root._needs[chain[-2]] = protocol
            if other is creation:
                break
            yield from awaited(other, chain)
        try:
            held = yield from provide(self, self._root, binding, chain)
            with self._lock:
                if not self._closed and not creation.abandoned:
                    self._created.append(held)
                    self._makers[protocol] = current_calls()
                    self._add(protocol, held.value)
                    return held.value
        finally:
            with self._lock:
                if self._pending.get(protocol) is creation:
                    del self._pending[protocol]
                    self._root._needs.pop(protocol, None)
                creation.end()
        return (yield from self._refuse(held))

    def _refuse(self, held: Held) -> Steps[None]:
        """End a resource that was created too late."""
        yield from held.end(None, "close")
        check_fence()
        self._check_open()

    def _check_circle(self, chain: tuple[type, ...]) -> None:
        """Raise if the resource to wait for is itself waiting, in another thread or task, for one of the chain."""
        path = [*chain]
        while (needed := self._root._needs.get(path[-1])) is not None:
            path.append(needed)
            if needed in chain:
                raise CircularDependencyError(tuple(path[path.index(needed) :]))

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
                held = next(held for held in self._created if held.value is value)
                self._created.remove(held)
                del self._values[protocol]
                steps.append(partial(self._drop, held))
            for step in steps:
                try:
                    step()
                except (Exception, SystemExit) as error:
                    failures.append((type_name(protocol), error))

    def _drop(self, held: Held) -> None:
        """End a resource of a failed call, or leave that to the end of the call if this thread runs its event loop."""
        loop = self._root._loop
        if loop is not None and held.ends_async and loop.is_here():
            self._root._dropped.append(held)
        else:
            self._run(held.end(_rolled_back(held), "close"))

    def _is_of_others(self, protocol: type) -> bool:
        """True if it was created for other tool calls than the current one."""
        makers, calls = self._makers.get(protocol, ()), current_calls()
        return bool(makers and calls) and calls[-1] not in makers

    def _layers(self) -> tuple[ScopedResourceContext, ...]:
        return (self,) if self._root is self else (self, self._root)

    def _start_closing(self) -> tuple[list[Held], list[Held]]:
        root = self._root
        with self._lock:
            self._closed = True
            created, self._created = self._created, []
            self._values = {}
        with root._lock:
            dropped, root._dropped = root._dropped, []
        return dropped, created

    def _check_open(self) -> None:
        if self._closed or self._root._closed:
            check_fence()
            what = "The resource context" if self._root is self or self._root._closed else "The tool scope"
            raise ResourceError(f"{what} is closed; create a new one with create_context() or tool_scope()")


def _change(protocol: type, value: Any, before: Any) -> Iterator[ResourceChange]:
    if callable(changes_since := getattr(type(value), "changes_since", None)):
        if changes := tuple(changes_since(value, before)):
            yield ResourceChange(protocol, changes)
        return
    after = value.snapshot()
    if _written(protocol, before) != _written(protocol, after):
        yield ResourceChange(protocol, (), before, after)


def _written(protocol: type, state: Any) -> Any:
    """A state as data that can be compared and stored."""
    try:
        return dump_tagged(state)
    except SerdeError as error:
        raise ResourceError(
            f"The changes of {type_name(protocol)} cannot be shown, because its snapshot() cannot be stored: {error}; "
            "return a dataclass or plain data, or give it changes_since(state) and apply(changes)."
        ) from error


def _begin_call(item: Snapshotable) -> Any:
    begin = getattr(type(item), "begin_call", None)
    return item.snapshot() if begin is None else begin(item)


def _rolled_back(held: Held) -> RolledBackError:
    return RolledBackError(f"The tool call that created {type_name(held.protocol)} failed, so its work is rolled back")


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


def _failure(kind: type[ResourceErrors], verb: str, failures: list[tuple[str, BaseException]]) -> ResourceErrors | None:
    """The failures as one exception; one that stops the program is raised by itself."""
    found: list[tuple[str, Exception]] = []
    for name, error in failures:
        if isinstance(error, SystemExit):
            error = ResourceError(exited("it", error))
        if not isinstance(error, Exception):
            raise error
        found.append((name, error))
    summary = "; ".join(f"{name}: {error or type(error).__name__}" for name, error in found)
    return kind(f"Could not {verb} {summary}", [error for _, error in found]) if found else None
