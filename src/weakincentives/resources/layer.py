"""The resources that one context holds: created once, restored or dropped with a tool call that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from weakincentives._base.fence import check_fence, current_calls
from weakincentives.errors import SerdeError
from weakincentives.resources.binding import (
    Binding,
    CircularDependencyError,
    Resolver,
    ResourceChange,
    ResourceError,
    Scope,
    Snapshotable,
    is_snapshotable,
    type_name,
)
from weakincentives.resources.lifecycle import Creation, Held, Steps, awaited, provide
from weakincentives.serde import dump_tagged


class ResourceSnapshot(dict[type, Any]):
    """The states of all snapshotable resources at one moment, by protocol, and which resources existed.

    A branch has the protocol of its resource, so `existing` is by id: each with its state, if it has one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.existing: dict[int, tuple[Held, tuple[Any, ...]]] = {}


class Owner(Resolver, Protocol):
    """The context whose resources a layer holds."""

    def check_open(self) -> None: ...


class Layer:
    """The resources of one context by protocol, what it has created, and what is being created.

    Once there was a snapshot, it tracks the initial states of new resources. The layer of a tool call has that of the
    run `below`.
    """

    def __init__(self, below: Layer | None = None) -> None:
        self.lock = threading.RLock()
        self.closed = False
        self.held: dict[type, Held] = {}
        self.created: list[Held] = []
        self.pending: dict[type, Creation] = {}
        # Counts the calls that were undone although they had a branch, because they had changed more than that.
        self.bypasses = 0
        self._below = below
        self._tracks: bool = below is not None and below._tracks

    def add(self, held: Held) -> None:
        if self._tracks and is_snapshotable(held.value):
            held.initial = (begin_call(held.value),)
        self.held[held.protocol] = held

    def create(self, owner: Owner, binding: Binding[Any], creation: Creation) -> Steps[Any]:
        """Create a resource; if it is shared, at most once: another thread or task may be at it."""
        protocol, shared = creation.chain[-1], binding.scope is not Scope.PROTOTYPE
        while shared and (other := self._begin(owner, creation)) is not creation:
            if isinstance(other, Held):
                return other.value
            yield from awaited(other, creation.chain)
        try:
            held = yield from provide(owner, binding, creation)
            held.makers = current_calls()
            with self.lock:
                if not self.closed and not (shared and creation.abandoned):
                    if shared or held.ends:
                        self.created.append(held)
                    if shared:
                        self.add(held)
                    return held.value
        finally:
            with self.lock:
                if self.pending.get(protocol) is creation:
                    del self.pending[protocol]
                creation.end()
        # It was created too late.
        yield from held.end(None, "close")
        check_fence()
        owner.check_open()

    def _begin(self, owner: Owner, creation: Creation) -> Held | Creation:
        """The resource if it is there; else the creation to wait for, or this one if it is the first."""
        protocol = creation.chain[-1]
        with self.lock:
            owner.check_open()
            if protocol in self.held:
                return self.held[protocol]
            other = self.pending.setdefault(protocol, creation)
            if other is not creation and other.abandoned:
                self.pending[protocol] = creation
                other.end()
                other = creation
            if other is not creation:
                self._check_circle(creation.chain)
                other.done = other.done or Future()
            creation.note_needed()
            return other

    def _check_circle(self, chain: tuple[type, ...]) -> None:
        """Raise if the resource to wait for is itself waiting, in another thread or task, for one of the chain."""
        path = [*chain]
        pending = self.pending if self._below is None else self._below.pending | self.pending
        while (other := pending.get(path[-1])) is not None and other.needs is not None:
            path.append(other.needs)
            if other.needs in chain:
                raise CircularDependencyError(tuple(path[path.index(other.needs) :]))

    def save(self, snapshot: ResourceSnapshot, state_of: Callable[[Snapshotable], Any]) -> None:
        """Add the current states to a snapshot."""
        with self.lock:
            self._tracks = True
            for protocol, held in self.held.items():
                held.initial = None
                states = (state_of(held.value),) if is_snapshotable(held.value) else ()
                snapshot.existing[id(held)] = held, states
                for state in states:
                    snapshot.setdefault(protocol, state)

    def changes(self, snapshot: ResourceSnapshot, only: type | None = None) -> Iterator[ResourceChange]:
        """The changes of the current tool call since a snapshot, of all resources or of one."""
        for held, state in self._each_since(snapshot, only):
            yield from change_of(held.protocol, held.value, state)

    def since(self, snapshot: ResourceSnapshot) -> Iterator[tuple[type, Any, Any]]:
        """The resources of the current tool call, each with its protocol and its state at a snapshot."""
        for held, state in self._each_since(snapshot):
            yield held.protocol, held.value, state

    def _each_since(self, snapshot: ResourceSnapshot, only: type | None = None) -> Iterator[tuple[Held, Any]]:
        seen: set[int] = set()
        with self.lock:
            for held, states, _ in self._since(snapshot):
                if only not in (None, held.protocol):
                    continue
                # One object may be bound to several protocols.
                for state in states if id(held.value) not in seen else ():
                    yield held, state
                seen.add(id(held.value))

    def changed(self, snapshot: ResourceSnapshot, known: Container[int], bypasses: int) -> bool:
        """True if a call with a branch has changed a resource here, or may have, because calls at its time did."""
        with self.lock:
            if self.bypasses != bypasses:
                return True
            for held in self.held.values():
                if not is_snapshotable(held.value):
                    continue
                if id(held) not in known:
                    return True
                for state in snapshot.existing[id(held)][1]:
                    if change_of(held.protocol, held.value, state):
                        return True
            return False

    def restore(
        self,
        snapshot: ResourceSnapshot,
        drop: Callable[[Held], None],
        keep: Sequence[Any] = (),
    ) -> Iterator[tuple[str, BaseException]]:
        """Restore the resources, but those to `keep`, and drop those created since; yields what fails."""
        with self.lock:
            for held, states, is_new in reversed([*self._since(snapshot)]):
                if any(value is held.value for value in keep):
                    continue
                steps = [partial(held.value.restore, state) for state in states]
                held.initial = None
                if is_new and held in self.created:
                    self.created.remove(held)
                    del self.held[held.protocol]
                    steps.append(partial(drop, held))
                for step in steps:
                    try:
                        step()
                    except (Exception, SystemExit) as error:
                        yield type_name(held.protocol), error

    def _since(self, snapshot: ResourceSnapshot) -> Iterator[tuple[Held, tuple[Any, ...], bool]]:
        """The resources that the current tool call may change, the state to go back to if there is one, and if new."""
        calls = current_calls()
        for held in self.held.values():
            if (known := snapshot.existing.get(id(held))) is not None:
                yield held, known[1], False
            elif not (held.makers and calls) or calls[-1] in held.makers:
                yield held, held.initial or (), True

    def take_created(self) -> list[Held]:
        """Close the layer; returns what is to be ended."""
        with self.lock:
            self.closed = True
            created, self.created, self.held = self.created, [], {}
        return created


def begin_call(item: Snapshotable) -> Any:
    begin = getattr(type(item), "begin_call", None)
    return item.snapshot() if begin is None else begin(item)


def change_of(protocol: type, value: Any, before: Any) -> tuple[ResourceChange, ...]:
    """What has changed of a resource since a state that `begin_call` returned."""
    if callable(changes_since := getattr(type(value), "changes_since", None)):
        changes = tuple(changes_since(value, before))
        return (ResourceChange(protocol, changes),) if changes else ()
    after = value.snapshot()
    same = written(protocol, before) == written(protocol, after)
    return () if same else (ResourceChange(protocol, (), before, after),)


def written(protocol: type, state: Any) -> Any:
    """A state as data that can be compared and stored."""
    try:
        return dump_tagged(state)
    except SerdeError as error:
        raise ResourceError(
            f"The changes of {type_name(protocol)} cannot be shown, because its snapshot() cannot be stored: {error}; "
            "return a dataclass or plain data, or give it changes_since(state) and apply(changes)."
        ) from error
