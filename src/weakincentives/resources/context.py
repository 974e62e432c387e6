"""The bindings of a prompt and their resources: created on demand, rolled back with a tool, closed in reverse order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Self, TypeVar, cast

from weakincentives._base.fence import check_fence
from weakincentives._base.steps import run_steps, run_steps_async
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
from weakincentives.resources.layer import Layer, ResourceSnapshot, begin_call, written
from weakincentives.resources.lifecycle import Creation, Held, Step, Steps, exited
from weakincentives.resources.loop import ContextLoop
from weakincentives.resources.usage import Use, take_use

T = TypeVar("T")


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


class ScopedResourceContext:
    """Creates resources at the first `get`, shares singletons, and closes what it created in reverse order.

    `with registry.create_context() as resources:` (or `async with`) starts and closes it. Several threads may use one
    context; a singleton is still created once. `tool_scope()` returns the child context of one tool call.

    Async resources live on one event loop, `loop`: the one that runs `async with`, else one in a thread of the context.
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
        # False if calls here may open no transaction.
        self._opens_managers = True
        # What else was there as a branch began: calls at the same time may create what they then share.
        self._branched: tuple[dict[int, Held], int] | None = None
        self._root = self if root is None else root
        self._layer: Layer = Layer(None if root is None else root._layer)
        self._layers = (self._layer,) if root is None else (self._layer, root._layer)
        self.loop: ContextLoop = root.loop if root is not None else loop or ContextLoop()
        self._ends_loop = root is None and loop is None
        instances = dict(own)
        for protocol, binding in bindings.items() if root is None else ():
            if isinstance(binding.provider, Constant):
                instances.setdefault(protocol, binding.provider.value)
        for protocol, value in instances.items():
            self._layer.add(Held(protocol, value))

    def __contains__(self, protocol: object) -> bool:
        """True if something is bound to the protocol."""
        return protocol in self._bindings or protocol in self._own

    @property
    def holds_any(self) -> bool:
        """True if there is something to close."""
        return bool(self._layer.created or self.loop.dropped)

    @property
    def can_overlap(self) -> bool:
        """True if each resource with snapshots can be branched: calls at the same time would see unfinished changes."""
        values = (held.value for layer in self._layers for held in layer.held.values())
        return all(hasattr(value, "branch") for value in values if is_snapshotable(value))

    @property
    def holds_managers(self) -> bool:
        """True if a context manager was entered here, such as a transaction that ends with an error if undone."""
        return any(held.is_managed for held in self._layer.created)

    def get(self, protocol: ClassOf[T]) -> T:
        """The resource bound to `protocol`, created if necessary."""
        held = self._existing(protocol)
        return cast(T, run_steps(self._resolve(protocol), self._perform) if held is None else held.value)

    async def get_async(self, protocol: ClassOf[T]) -> T:
        """`get` in async code, which must not block while a resource is created asynchronously."""
        held = self._existing(protocol)
        if held is not None:
            return cast(T, held.value)
        return cast(T, await run_steps_async(self._resolve(protocol), self.loop.wait))

    def get_optional(self, protocol: ClassOf[T]) -> T | None:
        """Like `get`, but None if nothing is bound to `protocol`."""
        return self.get(protocol) if protocol in self._bindings else None

    def start(self) -> None:
        """Create the eager singletons; if one fails, those created before it are closed."""
        self.loop.home = None
        run_steps(self._starting("close"), self._perform)

    async def start_async(self) -> None:
        """`start` on the running event loop, on which async resources live from now on."""
        from asyncio import get_running_loop

        self.loop.home = get_running_loop()
        await run_steps_async(self._starting("aclose"), self.loop.wait)

    def tool_scope(
        self,
        *,
        branch: bool = False,
        transactions: bool = True,
    ) -> ScopedResourceContext:
        """The context of one tool call: `with context.tool_scope() as scope:`.

        It creates TOOL_CALL resources and closes them at its end; singletons come from this context.
        With `branch`, it has branches of those with snapshots, for a call at the same time as others.
        Without `transactions`, a context manager that would live for the call is refused.
        """
        self.check_open()
        if not branch:
            scope = ScopedResourceContext(self._bindings, root=self._root, own=self._own)
            scope._opens_managers = transactions
            return scope
        shared = self._layers[-1]
        values = {**{each: held.value for each, held in shared.held.items()}, **self._own}
        values = {each: value for each, value in values.items() if is_snapshotable(value)}
        # One object may be bound to several protocols.
        branches = {id(value): value.branch() for value in values.values()}
        own = {**self._own, **{each: branches[id(value)] for each, value in values.items()}}
        scope = ScopedResourceContext(self._bindings, root=self._root, own=own)
        scope._branched = {id(held): held for held in shared.held.values()}, shared.bypasses
        return scope

    def with_instances(self, instances: Mapping[type, Any]) -> ScopedResourceContext:
        """A context that has these instances, and shares everything else with this one."""
        return ScopedResourceContext(self._bindings, root=self._root, own=instances)

    def snapshot(self) -> ResourceSnapshot:
        """The current states of all snapshotable resources created or bound so far, except prototypes."""
        return self._states(lambda item: item.snapshot())

    def begin_call(self) -> ResourceSnapshot:
        """`snapshot` for the rollback of the current tool call: a filesystem will undo only what the call changed."""
        return self._states(begin_call)

    def _states(self, state_of: Callable[[Snapshotable], Any]) -> ResourceSnapshot:
        self.check_open()
        snapshot = ResourceSnapshot()
        for layer in self._layers:
            layer.save(snapshot, state_of)
        return snapshot

    def share(self) -> Generator[Callable[[], Any], Any, tuple[Use, ...]]:
        """Begin to use the resources with a whole state, beside calls of other runs."""
        uses: list[Use] = []
        for layer in self._layers:
            for protocol, held in list(layer.held.items()):
                value = held.value
                is_whole = is_snapshotable(value) and not hasattr(type(value), "begin_call")
                if is_whole and all(use.usage.value is not value for use in uses):
                    uses.append((yield from take_use(protocol, value, alone=False)))
        return tuple(uses)

    def restore(self, snapshot: ResourceSnapshot, keep: Sequence[Any] = ()) -> None:
        """Restore every resource, even if some fail, but none of those to `keep`.

        A resource created since the snapshot is restored to its initial state, closed and dropped, so the next `get`
        creates a new one: nothing created during a failed call survives it.
        """
        self.check_open()
        layers = self._layers
        if self._branched is not None:
            layers = layers if layers[-1].changed(snapshot, *self._branched) else layers[:1]
            self._layers[-1].bypasses += len(layers) - 1
        failures = list(chain.from_iterable(layer.restore(snapshot, self._drop, keep) for layer in layers))
        if failure := failure_of(ResourceRestoreError, "restore", failures):
            raise failure

    def changes(self, snapshot: ResourceSnapshot, only: type | None = None) -> tuple[ResourceChange, ...]:
        """The changes of snapshotable resources, or of this one, since `begin_call` of the current tool call, as data.

        A resource with `changes_since(state)` and `apply(changes)`, such as a filesystem, says itself what changed; of
        any other, the states are compared. If the call has a branch, and more was changed, this is a
        `StaleResourceError`.
        """
        if self._branched is None:
            return tuple(chain.from_iterable(layer.changes(snapshot, only) for layer in self._layers))
        if self._layers[-1].changed(snapshot, *self._branched):
            raise StaleResourceError("resources were changed or created past the branch of this call")
        return tuple(self._layer.changes(snapshot, only))

    def since(self, snapshot: ResourceSnapshot) -> Iterator[tuple[type, Any, Any]]:
        """The snapshotable resources, each with its state at `begin_call` of the current tool call."""
        return chain.from_iterable(layer.since(snapshot) for layer in self._layers)

    def apply(self, changes: Iterable[ResourceChange]) -> None:
        """Make the changes that `changes` returned; raises `StaleResourceError` if a resource is not as it was."""
        for each in changes:
            value: Any = self.get(each.protocol)
            if each.changes:
                value.apply(each.changes)
            elif written(each.protocol, value.snapshot()) != written(each.protocol, each.before):
                raise StaleResourceError(f"{type_name(each.protocol)} changed since")
            else:
                value.restore(each.after)

    def close(self) -> None:
        """Close what the context created, in reverse order, even if some fail. Calling it again does nothing."""
        # Most tool calls create nothing.
        if self._root is self or self.holds_any:
            self.__exit__(None, None, None)
        else:
            self._layer.take_created()

    async def aclose(self) -> None:
        """`close()`, awaiting the resources that close asynchronously."""
        await self.__aexit__(None, None, None)

    def __enter__(self) -> Self:
        if self._root is self:
            self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        run_steps(self._ending(error, "close"), self._perform)

    async def __aenter__(self) -> Self:
        if self._root is self:
            await self.start_async()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await run_steps_async(self._ending(error, "aclose"), self.loop.wait)

    def __repr__(self) -> str:
        kind = "resources" if self._root is self else "tool scope"
        state = "closed" if self._layer.closed else ", ".join(map(type_name, self._layer.held))
        return f"<{kind}: {state or 'nothing created'}>"

    def check_open(self) -> None:
        if any(layer.closed for layer in self._layers):
            check_fence()
            what = "The resource context" if self._layers[-1].closed else "The tool scope"
            raise ResourceError(f"{what} is closed; create a new one with create_context() or tool_scope()")

    def _perform(self, step: Step) -> Any:
        return self.loop.block(step, anywhere=self._layer.closed)

    def _starting(self, closer: str) -> Steps[None]:
        try:
            for protocol, binding in self._bindings.items():
                if binding.eager:
                    yield from self._resolve(protocol)
        except BaseException as error:
            yield from self._ending(error, closer)
            raise

    def _ending(self, error: BaseException | None, closer: str) -> Steps[None]:
        """Close everything; a failure becomes a note on the error that ended the block, if there is one."""
        failures: list[tuple[str, BaseException]] = []
        dropped, self.loop.dropped = self.loop.dropped, []
        created = self._layer.take_created()
        for held in (*dropped, *reversed(created)):
            try:
                yield from held.end(_rolled_back(held) if held in dropped else error, closer)
            except BaseException as raised:
                failures.append((type_name(held.protocol), raised))
        if self._ends_loop:
            self.loop.close()
        failure = failure_of(ResourceCloseError, "close", failures)
        if failure and error is None:
            raise failure
        if failure and error:
            error.add_note(str(failure))

    def _existing(self, protocol: Any) -> Held | None:
        held = self._layer.held.get(protocol)
        return self._layers[-1].held.get(protocol) if held is None else held

    def _resolve(self, protocol: Any) -> Steps[Any]:
        self.check_open()
        creation = Creation(protocol, self._root)
        around = creation.chain[:-1]
        binding = self._bindings.get(protocol)
        if binding is None:
            raise UnboundResourceError(protocol, around)
        if protocol in around:
            raise CircularDependencyError(creation.chain[around.index(protocol) :])
        if binding.scope is Scope.TOOL_CALL and self._root is self:
            raise _out_of_scope(protocol, around)
        owner = self._root if binding.scope is Scope.SINGLETON else self
        creation.opens = owner._opens_managers
        return (yield from owner._layer.create(owner, binding, creation))

    def _drop(self, held: Held) -> None:
        """End a resource of a failed call, or leave that to the end of the call if this thread runs its event loop."""
        if held.ends_async and self.loop.is_here():
            self.loop.dropped.append(held)
        else:
            run_steps(held.end(_rolled_back(held), "close"), self._perform)


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


def failure_of(
    kind: type[ResourceErrors], verb: str, failures: list[tuple[str, BaseException]]
) -> ResourceErrors | None:
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
