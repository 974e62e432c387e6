"""The tools that a run has offered so far, and what their names mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from weakincentives.prompt import AnyTool, HostedTool, Tool, namespace_name, portable_name
from weakincentives.prompt.guards import GuardedCall
from weakincentives.prompt.tool_names import qualified_names
from weakincentives.runtime.calls.approval import PendingCall
from weakincentives.runtime.messages import ModelReply, Namespace, ToolCall
from weakincentives.runtime.state import RunState, ToolRef, by_section

ToolKey = tuple[str, str]
"""The key of a section, and the name of one of its tools."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _nothing() -> Mapping[str, Any]:
    return _NOTHING


class Offer(NamedTuple):
    """A tool that was offered to the model, and its reference in the session."""

    ref: ToolRef
    tool: AnyTool


class SkippedOffer(NamedTuple):
    """An offer whose name is taken, and the key of the section that has it; '' for the provider."""

    ref: ToolRef
    owner: str


class Changes(NamedTuple):
    """The offers after which the model has exactly the tools that sections offer now."""

    new: list[Offer]
    changed: list[Offer]
    skipped: list[SkippedOffer]


# No slots: what is asked often is computed once.
@dataclass(frozen=True, eq=False)
class Toolbox:
    """The tools a run has offered, by portable name, in order of appearance; they are revoked, never removed.

    A provider may offer hosted tools under names of its own, the `sent_names` of their codecs, and use `reserved` names
    itself; `provider_tools` are those of them whose calls may reach the loop. `describe` says what a section is about.
    `former` and `decided` are the keys of tools that have had a name before, by portable name.
    """

    codecs: Mapping[str, Any] = field(default_factory=_nothing)
    reserved: frozenset[str] = frozenset()
    provider_tools: Mapping[str, Tool[Any, Any]] = field(default_factory=_nothing)
    describe: Callable[[str], str] = str
    former: Mapping[str, ToolKey] = field(default_factory=_nothing)
    decided: Mapping[str, ToolKey] = field(default_factory=_nothing)
    offers: Mapping[str, Offer] = field(default_factory=_nothing)

    def with_offers(self, *offers: Offer) -> Toolbox:
        """The same with these tools offered, or put in the place of those with the same names."""
        if not offers:
            return self
        by_name = {portable_name(offer.ref.name): offer for offer in offers}
        return replace(self, offers={**self.offers, **by_name})

    def without_offers(self) -> Toolbox:
        """The same before any tool was offered."""
        return replace(self, offers=_NOTHING)

    def in_order(self, announced: Toolbox, wanted: Sequence[Offer]) -> Toolbox:
        """The same, with the tools of sections that were not announced yet in the order of these offers."""
        positions = {offer.ref.key: position for position, offer in enumerate(wanted)}
        new: list[str] = []
        for name, offer in self.offers.items():
            if name not in announced.offers and offer.ref.key in positions:
                new.append(name)
        ordered = sorted(new, key=lambda name: positions[self.offers[name].ref.key])
        if ordered == new:
            return self
        names = iter(ordered)
        offers: dict[str, Offer] = {}
        for name in self.offers:
            placed_name = next(names) if name in new else name
            offers[placed_name] = self.offers[placed_name]
        return replace(self, offers=offers)

    def keeping_names(self, state: RunState) -> Toolbox:
        """The same, with the names that a run has used left to the tools that had them."""
        former = dict(self.former)
        for ref in state.former_tools:
            if ref.own_name:
                former[portable_name(ref.name)] = ref.key
        decided = dict(self.decided)
        for ref in state.tools:
            if not ref.free:
                decided[portable_name(ref.name)] = ref.key
        return replace(self, former=former, decided=decided)

    def found(self, names: Iterable[str]) -> tuple[Toolbox, dict[str, tuple[str, ...]]]:
        """The same after the provider's search has found these, and what is new, by section."""
        offers: list[Offer] = []
        for name in dict.fromkeys(map(self.name_of, names)):
            offer = self.get(name)
            if offer is not None and offer.ref.unfound and not offer.ref.revoked:
                offers.append(Offer(replace(offer.ref, found=True), offer.tool))
        return self.with_offers(*offers), by_section(offer.ref for offer in offers)

    def get(self, name: str) -> Offer | None:
        offer = self.offers.get(portable_name(name))
        return offer if offer is not None and offer.ref.name == name else None

    def section_of(self, name: str) -> str:
        """The key of the section that a tool belongs to; '' for built-in and unknown tools."""
        offer = self.get(name)
        return "" if offer is None else offer.ref.section_key

    def own_name(self, name: str) -> str:
        """The name that the section of a tool has given it."""
        offer = self.get(name)
        return name if offer is None else offer.ref.own_name or name

    def names_of(self, name: str) -> frozenset[str]:
        """Every name by which a guard may know a tool, whatever it is offered as.

        That is its own name, alone or after the key of its section or of one around that, the name
        that it has in a new conversation, and the one under which it is offered.
        """
        offer = self.get(name)
        if offer is None or not isinstance(offer.tool, Tool):
            return frozenset((name,))
        qualified = qualified_names(offer.ref.section_key, offer.tool.own_name)
        return frozenset((name, *offer.tool.earlier_names, *qualified))

    def knows(self, name: str) -> bool:
        """True if a guard may know a tool by this name that was offered, or that is the provider's own."""
        if self.tool(name) is not None:
            return True
        return any(name in self.names_of(ref.name) for ref in self.refs)

    def guarded(self, call: ToolCall, arguments: str, params: Any) -> GuardedCall:
        """A call as guards see it."""
        key, own_name = self.section_of(call.name), self.own_name(call.name)
        return GuardedCall(call.id, own_name, arguments, params, key, call.name)

    def asked_about(self, call: PendingCall) -> Tool[Any, Any] | None:
        """The tool that a waiting call is of, unless its name is another tool's by now."""
        is_same = self.section_of(call.tool) == call.section_key
        is_same = is_same and self.own_name(call.tool) == (call.own_name or call.tool)
        return self.tool(call.tool) if is_same else None

    def names_below(self, section_key: str) -> tuple[str, ...]:
        """The tools of a section and its descendants that may be called."""
        names: list[str] = []
        for ref in self.refs:
            if f"{ref.section_key}.".startswith(f"{section_key}.") and ref.name in self.callable_names:
                names.append(ref.name)
        return tuple(names)

    def tool(self, name: str) -> Tool[Any, Any] | None:
        """A tool of ours by name, whether it may still be called or not, or the provider's own."""
        offer = self.get(name)
        if offer is None:
            return self.provider_tools.get(name)
        return offer.tool if isinstance(offer.tool, Tool) else None

    def name_of(self, sent_name: str) -> str:
        """The name of the tool that a provider knows by this one, after its namespace and a colon if it has one."""
        space, _, name = sent_name.rpartition(":")
        offer = self.offers.get(name)
        if offer is None or (space and space != namespace_name(offer.ref.section_key)):
            return sent_name
        return offer.ref.name

    def with_names(self, reply: ModelReply) -> ModelReply:
        """The reply with our own tool names in place of those sent to the provider."""
        calls = tuple(replace(call, name=self.name_of(call.name)) for call in reply.tool_calls)
        return reply if calls == reply.tool_calls else replace(reply, tool_calls=calls)

    @cached_property
    def refs(self) -> tuple[ToolRef, ...]:
        return tuple(offer.ref for offer in self.offers.values())

    @cached_property
    def offered(self) -> dict[str, Any]:
        """The fields of a `ModelRequest` that list tools."""
        ours: list[Offer] = []
        hosted: list[Offer] = []
        for offer in self.offers.values():
            (ours if isinstance(offer.tool, Tool) else hosted).append(offer)
        deferred: dict[str, Namespace] = {}
        for ref in self.refs:
            if ref.deferred:
                deferred[ref.name] = Namespace(ref.section_key, self.describe(ref.section_key))
        return {
            "tools": tuple(offer.tool for offer in ours),
            "hosted_tools": tuple(offer.tool for offer in hosted),
            "initial_tools": sum(offer.ref.initial for offer in ours),
            "initial_hosted_tools": sum(offer.ref.initial for offer in hosted),
            "revoked": frozenset(ref.name for ref in self.refs if ref.revoked),
            "deferred": deferred,
        }

    @property
    def hosted_tools(self) -> tuple[HostedTool[Any], ...]:
        hosted: tuple[HostedTool[Any], ...] = self.offered["hosted_tools"]
        return hosted

    @property
    def all_tools(self) -> tuple[AnyTool, ...]:
        """The tools we run, then the hosted ones."""
        return (*self.offered["tools"], *self.hosted_tools)

    @cached_property
    def callable_names(self) -> tuple[str, ...]:
        """The names that may be called now: our tools, then the hosted ones."""
        offers = sorted(self.offers.values(), key=lambda offer: isinstance(offer.tool, HostedTool))
        return tuple(ref.name for ref, _ in offers if ref.is_callable)

    def freed(self, shown: Sequence[Offer], searchable: Iterable[Offer]) -> Toolbox:
        """The same as a new exchange begins: the names of tools that sections no longer offer are free for others."""
        shown_keys = {offer.ref.key for offer in shown}
        closed_keys = {offer.ref.key for offer in searchable}
        freed: list[Offer] = []
        for ref, tool in self.offers.values():
            free = _is_withdrawn(ref, shown_keys, closed_keys) and not ref.own_name
            if free is not ref.free:
                freed.append(Offer(replace(ref, free=free), tool))
        return self.with_offers(*freed)

    def changes(self, wanted: Sequence[Offer], searchable: Iterable[Offer] = ()) -> Changes:
        """The offers after which the model has exactly the tools that sections offer now.

        Of several tools with the same name, the one to keep comes first.
        Once registered, a name stays with its section for the turn; a tool of another section is skipped. A tool that
        the provider has not found yet may be in a closed section, as long as it is `searchable`.
        """
        shown = {offer.ref.key for offer in wanted}
        closed = {offer.ref.key for offer in searchable}
        owners: dict[str, ToolKey] = {**dict.fromkeys(self.reserved, ("", "")), **self.former}
        changed: list[Offer] = []
        for ref, tool in self.offers.values():
            is_shown = not ref.section_key or ref.key in shown
            revoked = _is_withdrawn(ref, shown, closed)
            free = revoked and ref.free
            owners.update(dict.fromkeys(self._sent_names(tool)[free:], ref.key))
            if revoked is not ref.revoked or free is not ref.free or (is_shown and ref.unfound):
                is_found = ref.found or (is_shown and ref.deferred)
                changed.append(Offer(replace(ref, revoked=revoked, found=is_found, free=free), tool))
        self._add_owners(owners, wanted)
        new: list[Offer] = []
        skipped: list[SkippedOffer] = []
        for ref, tool in wanted:
            names = self._sent_names(tool)
            owner = next((owners[name] for name in names if name in owners), ref.key)
            if owner != ref.key:
                skipped.append(SkippedOffer(ref, owner[0]))
                continue
            owners.update(dict.fromkeys(names, ref.key))
            before = self.offers.get(names[0])
            if before is None:
                new.append(Offer(ref, tool))
            elif before.ref.key != ref.key:
                # It takes the old one's place, since a name is sent only once.
                new.append(Offer(replace(ref, initial=before.ref.initial), tool))
        return Changes(new, changed, skipped)

    def _add_owners(self, owners: dict[str, ToolKey], wanted: Sequence[Offer]) -> None:
        """Add the owners of names that are decided before the order of the sections is."""
        for ref, tool in wanted:
            # A restart decides as the attempt before it has.
            name = portable_name(tool.name)
            if self.decided.get(name) == ref.key:
                owners.setdefault(name, ref.key)
        for ref, tool in wanted:
            # The provider's own names come first, wherever the hosted tool stands in the prompt.
            for name in self._sent_names(tool)[1:]:
                owners.setdefault(name, ref.key)

    def is_new(self, tool: AnyTool) -> bool:
        """True if the tool has not been offered, and its name is not taken."""
        offer = self.get(tool.name)
        return self._owner(tool) is None and (offer is None or offer.tool is not tool)

    def available(self, tools: Iterable[AnyTool]) -> tuple[AnyTool, ...]:
        """The tools whose names are not used by another tool."""
        return tuple(tool for tool in tools if self._owner(tool) in (None, tool))

    def _owner(self, tool: AnyTool) -> AnyTool | str | None:
        """The tool that has the name of this one, or the name if the provider uses it itself."""
        names = self._sent_names(tool)
        return next((self._names[name] for name in names if name in self._names), None)

    @cached_property
    def _names(self) -> Mapping[str, AnyTool | str]:
        """The names that are taken at the provider."""
        taken: dict[str, AnyTool | str] = {name: name for name in self.reserved}
        for ref, tool in self.offers.values():
            taken.update(dict.fromkeys(self._sent_names(tool)[ref.free :], tool))
        return taken

    def _sent_names(self, tool: AnyTool) -> tuple[str, ...]:
        """The names that a tool takes: its own, which may become free, and those of its codec."""
        codec = self.codecs.get(tool.kind) if isinstance(tool, HostedTool) else None
        return (portable_name(tool.name), *getattr(codec, "sent_names", ()))


def _is_withdrawn(ref: ToolRef, shown: Iterable[ToolKey], closed: Iterable[ToolKey]) -> bool:
    """True if no open section offers the tool, and the provider may not find it in a closed one either."""
    is_shown = not ref.section_key or ref.key in shown
    return not is_shown and not (ref.unfound and ref.key in closed)
