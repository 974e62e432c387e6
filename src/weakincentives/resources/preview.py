"""The resources of a call that is shown to a person before it counts: branches, which it alone changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from weakincentives._base.fence import working_for
from weakincentives.resources.binding import (
    Binding,
    ResourceChange,
    ResourceError,
    ResourceRestoreError,
    Scope,
    has_snapshots,
    is_snapshotable,
    type_name,
)
from weakincentives.resources.context import ScopedResourceContext, failure_of
from weakincentives.resources.layer import begin_call, change_of
from weakincentives.resources.lifecycle import Held, Steps
from weakincentives.resources.usage import Use, same_state, take_use


@dataclass(slots=True, eq=False)
class Watched:
    """A resource that the call might change past its branch, or that it changes because it has none.

    `saved` are the states to which it is taken back, oldest first, and `base` is the state from
    which the changes of the call count.
    """

    protocols: list[type]
    value: Any
    in_place: bool
    use: Use | None = None
    base: Any = None
    saved: list[Any] = field(default_factory=list)

    @property
    def changed_past(self) -> bool:
        """True if the call has changed the resource, of which it has a branch.

        That shows only in a whole state, and only if no other call may have changed that.
        """
        if self.in_place or self.use is None or self.use.company:
            return False
        return not same_state(self.value.snapshot(), self.base)


@dataclass(slots=True, eq=False)
class Branched:
    """A branch of a resource; `base` is its state from which the changes of the call count."""

    protocols: list[type]
    value: Any
    base: Any = None


class PreviewScope(ScopedResourceContext):
    """The context of a call whose changes are captured: `begin`, `save`, `settle`, and then the call.

    A resource with `branch()` is branched when the call first gets it. One without, or that is to be
    `in_place`, is changed itself, while no call of another run may do so, and `take_back` restores
    it. Changes that were captured before may be applied until `settle`, from which on those of the
    call count.
    """

    def __init__(
        self,
        around: ScopedResourceContext,
        branch_of: Callable[[Any], Any],
        *,
        in_place: Collection[type] = (),
    ) -> None:
        super().__init__(around._bindings, root=around._root)
        self._in_place = in_place
        self._opens_managers = False
        self._instances = around._own
        self._branch_of = branch_of
        self._watched: dict[int, Watched] = {}
        self._branches: dict[int, Branched] = {}
        # Stands for the calls whose changes are applied first.
        self._earlier = object()
        self._settled = False

    def __contains__(self, protocol: object) -> bool:
        return protocol in self._instances or super().__contains__(protocol)

    @property
    def protected(self) -> tuple[object, ...]:
        """The resources that the call may change only by their branches, as `Fence.protect` takes them."""
        identities: list[object] = []
        for watched in self._watched.values():
            if not watched.in_place:
                identities.append(getattr(watched.value, "identity", watched.value))
        return tuple(identities)

    def has_branch(self, branch: object) -> bool:
        """True if this is a branch that the call has got of a resource."""
        return any(branched.value is branch for branched in self._branches.values())

    def begin(self) -> Generator[Callable[[], Any], Any, None]:
        """Take the resources there are, once no call of another run is in the way."""
        for protocol, value in self._real_values():
            if not is_snapshotable(value):
                continue
            watched = self._watched.get(id(value))
            if watched is not None:
                watched.protocols.append(protocol)
                continue
            in_place = protocol in self._in_place or not hasattr(value, "branch")
            watched = Watched([protocol], value, in_place)
            self._watched[id(value)] = watched
            if not hasattr(type(value), "begin_call"):
                watched.use = yield from take_use(protocol, value, alone=in_place)

    def save(self) -> None:
        """Save the states to which the resources are taken back."""
        with working_for(self._earlier):
            for watched in self._watched.values():
                if watched.in_place or watched.use is not None:
                    watched.base = begin_call(watched.value)
                    watched.saved.append(watched.base)

    def settle(self) -> None:
        """Count the changes of the call from here on."""
        with self._layer.lock:
            self._settled = True
            for branched in self._branches.values():
                branched.base = begin_call(branched.value)
            for watched in self._watched.values():
                if watched.in_place:
                    watched.base = begin_call(watched.value)
                    watched.saved.append(watched.base)

    def changed(self, declared: Collection[type]) -> tuple[ResourceChange, ...]:
        """The changes of the call, each under a declared name of its resource if there is one."""
        changes: list[ResourceChange] = []
        places: list[Watched | Branched] = [*self._branches.values()]
        for watched in self._watched.values():
            if watched.in_place:
                places.append(watched)
        for place in places:
            names = [protocol for protocol in place.protocols if protocol in declared]
            protocol = (names or place.protocols)[0]
            changes.extend(change_of(protocol, place.value, place.base))
        return tuple(changes)

    def changed_past(self) -> tuple[type, ...]:
        """The resources that the call has changed although it has branches of them; they are restored."""
        protocols: list[type] = []
        for watched in self._watched.values():
            if watched.changed_past:
                protocols.append(watched.protocols[0])
                watched.value.restore(watched.base)
        return tuple(protocols)

    def take_back(self) -> None:
        """Restore what was changed in place, and let others use it again."""
        failures: list[tuple[str, BaseException]] = []
        for watched in self._watched.values():
            if watched.in_place:
                failures.extend(_restored(watched))
            if watched.use is not None:
                watched.use.end(well=False)
        self._watched = {}
        if failure := failure_of(ResourceRestoreError, "restore", failures):
            raise failure

    def apply(self, changes: Iterable[ResourceChange]) -> None:
        """Make changes that the call is to find, before `settle`."""
        with working_for(self._earlier):
            super().apply(changes)

    def _real_values(self) -> Iterator[tuple[type, Any]]:
        """The resources outside of this call: those of the run, and its instances."""
        with self._layers[-1].lock:
            held = {protocol: held.value for protocol, held in self._layers[-1].held.items()}
        yield from (held | dict(self._instances)).items()

    def _existing(self, protocol: Any) -> Held | None:
        held = self._layer.held.get(protocol)
        if held is not None:
            return held
        if protocol in self._instances:
            return self._entered(protocol, self._instances[protocol])
        shared = self._layers[-1].held.get(protocol)
        return None if shared is None else self._entered(protocol, shared.value)

    def _resolve(self, protocol: Any) -> Steps[Any]:
        binding = self._bindings.get(protocol)
        if binding is not None and binding.scope is Scope.PROTOTYPE and _has_snapshots(binding):
            raise ResourceError(f"Changes of {type_name(protocol)} cannot be shown: {PROTOTYPE}")
        value = yield from super()._resolve(protocol)
        if binding is not None and binding.scope is Scope.PROTOTYPE and is_snapshotable(value):
            raise ResourceError(f"Changes of {type_name(protocol)} cannot be shown: {PROTOTYPE}")
        return self._entered(protocol, value).value

    def _entered(self, protocol: Any, value: Any) -> Held:
        """What the call gets of a resource: its branch, if it is one whose changes count."""
        if not is_snapshotable(value):
            return Held(protocol, value)
        with self._layer.lock:
            watched, branched = self._watched.get(id(value)), self._branches.get(id(value))
            if branched is not None:
                if protocol not in branched.protocols:
                    branched.protocols.append(protocol)
            elif watched is not None and watched.in_place:
                pass
            elif hasattr(value, "branch") and protocol not in self._in_place:
                branched = Branched([protocol], self._branch_of(value))
                if self._settled:
                    branched.base = begin_call(branched.value)
                self._branches[id(value)] = branched
            else:
                # It was created for this call.
                state = begin_call(value)
                watched = Watched([protocol], value, in_place=True, base=state, saved=[state])
                self._watched[id(value)] = watched
            held = Held(protocol, value if branched is None else branched.value)
            self._layer.held[protocol] = held
            return held


PROTOTYPE = "it is bound as a PROTOTYPE, which is created anew for each get"


def _has_snapshots(binding: Binding[Any]) -> bool:
    kind: Any = binding.provider
    return isinstance(kind, type) and has_snapshots(kind)


def _restored(watched: Watched) -> Iterator[tuple[str, BaseException]]:
    """Restore a resource to the state before the call; yields what fails."""
    for state in reversed(watched.saved):
        try:
            watched.value.restore(state)
        except (Exception, SystemExit) as error:
            yield type_name(watched.protocols[0]), error
