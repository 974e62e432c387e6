"""The state of a run that its session keeps, so that another process can continue it, and the tools it has offered."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from weakincentives._base.fence import Fence
from weakincentives._base.frozen import quick_init
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Meter, Spent
from weakincentives.prompt import (
    AnyTool,
    BoundPrompt,
    HostedTool,
    LoadedSections,
    Overrides,
    Presentation,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    VisibilityExpansionRequired,
    namespace_name,
    portable_name,
)
from weakincentives.prompt.guards import GuardedCall
from weakincentives.prompt.resources import OpenResources
from weakincentives.prompt.tool_names import ToolId, UsedNames, qualified_names
from weakincentives.runtime.calls.approval import PendingCall
from weakincentives.runtime.messages import Message, ModelReply, Namespace, ToolCall
from weakincentives.session import Session

logger = logging.getLogger("weakincentives.runtime")


@quick_init
@dataclass(frozen=True, slots=True)
class ToolRef:
    """A reference to an offered tool: its section's key ('' for built-in tools) and its name.

    A `deferred` tool belongs to a closed section and is sent for the provider to search; `found` says that it was
    found. If the section no longer offered it as the turn began, its name is `free` for another section to take.
    `own_name` is the section's own name for it, if the section was loaded late or the tool is offered under another:
    its name then stays its own for the whole conversation.
    """

    section_key: str
    name: str
    initial: bool = True
    revoked: bool = False
    deferred: bool = False
    found: bool = False
    free: bool = False
    own_name: str = ""

    @classmethod
    def of(cls, section_key: str, tool: AnyTool, **state: bool) -> ToolRef:
        is_named = isinstance(tool, Tool) and tool.earlier_names
        own_name = tool.own_name if isinstance(tool, Tool) and is_named else ""
        return cls(section_key, tool.name, own_name=own_name, **state)

    @property
    def unfound(self) -> bool:
        """True if the model does not have the tool yet: its section is closed, and the provider has not found it."""
        return self.deferred and not self.found


def by_section(refs: Iterable[ToolRef]) -> dict[str, tuple[str, ...]]:
    """The names of tools by the key of their section."""
    grouped: dict[str, tuple[str, ...]] = {}
    for ref in refs:
        grouped[ref.section_key] = (*grouped.get(ref.section_key, ()), ref.name)
    return grouped


@quick_init
@dataclass(frozen=True, slots=True)
class Run:
    """A run so far. `chosen`, `selected` and `overrides` are the visibilities it began with, if they were not
    declared, by section key: those opened by a rule, the user's words or the token budget, those that the code of
    sections decided, and those that its caller asked for.

    `opening` says that it stopped so that a new attempt can open sections. `shown` is what each section showed when
    the model was last informed. `unfinished` says that the last message is what was shown of a reply that broke off.
    `answers` is the number of assistant messages before the run, counted if there may be hosted tools. `params` is a
    digest of its params, and `attempt` counts its restarts. `former_tools` are those that it no longer has, and whose
    names the conversation keeps for them. `unsent` are the texts that calls of the turn have read and
    that follow its results as the operator's.
    """

    run_id: str
    prompt_ns: str
    prompt_key: str
    chosen: Mapping[str, SectionVisibility] = field(default_factory=dict)
    selected: Mapping[str, SectionVisibility] = field(default_factory=dict)
    overrides: Mapping[str, SectionVisibility] = field(default_factory=dict)
    tools: tuple[ToolRef, ...] = ()
    last_used: Mapping[str, int] = field(default_factory=dict)  # Only so that older snapshots can be read.
    shown: Overrides = field(default_factory=dict)
    output_retries: int = 0
    opening: bool = False
    unfinished: bool = False
    conversation_id: str = ""
    answers: int = 0
    spent: Spent = field(default_factory=Spent)
    params: str = ""
    attempt: int = 1
    former_tools: tuple[ToolRef, ...] = ()
    unsent: tuple[str, ...] = ()

    @property
    def used_names(self) -> UsedNames:
        """The names that the conversation keeps."""
        by_tool: dict[ToolId, str] = {}
        others: dict[str, str] = {}
        for ref in (*self.former_tools, *self.tools):
            if ref.own_name:
                by_tool[ref.section_key, ref.own_name] = ref.name
            else:
                others[portable_name(ref.name)] = ref.section_key
        return UsedNames(by_tool, others)

    def own_name(self, name: str) -> str:
        """The name that the section of a tool has given it, whatever it is offered as."""
        for ref in self.tools:
            if ref.name == name:
                return ref.own_name or name
        return name

    def with_tools(self, refs: tuple[ToolRef, ...]) -> Run:
        """The same with these tools; the names of those that are gone stay taken."""
        now = {(ref.section_key, ref.name) for ref in refs}
        former: dict[tuple[str, str], ToolRef] = {}
        for ref in (*self.former_tools, *self.tools):
            if (ref.section_key, ref.name) not in now:
                former[ref.section_key, ref.name] = replace(ref, revoked=True, initial=False)
        return self.updated({"tools": refs, "former_tools": tuple(former.values())})

    def as_new(self, run_id: str, answers: int = 0) -> Run:
        """The same state at the beginning of another run, after this many assistant messages."""
        fresh = {"selected": {}, "overrides": {}, "spent": Spent(), "output_retries": 0, "opening": False, "attempt": 1}
        return self.updated({**fresh, "run_id": run_id, "answers": answers})

    def updated(self, changes: Mapping[str, Any]) -> Run:
        """Like `dataclasses.replace`, at half the cost: a run is saved twice per turn."""
        return Run(**{**dict(zip(_FIELDS, _values(self), strict=True)), **changes})


_FIELDS = tuple(each.name for each in fields(Run))
_values = attrgetter(*_FIELDS)


@dataclass(slots=True)
class RunScope:
    """The state that all attempts of a run share: the id, the meter, and the number of the attempt.

    `adapter` is the number of the one of the `models` that is in use, and `codecs` are those of every model so far,
    by the name of its adapter; `max_expansions` says how often a main loop restarts the run to open sections;
    without one, its caller opens them. `abandon`, set by the attempt under way, stops it from any thread; `fence`
    then refuses what its own thread still writes. `given` are the messages with what the user gave to this run, by
    name: each is added once, and every adapter must accept its content. `prompt` is what was bound when the run
    began, `loaded` what sections have loaded in earlier runs of its conversation, `resources` what is open for it,
    and `presentation` the prompt as it shows it. `tags` are added to the session's. `decisions` about calls that
    wait are there until they have acted. `tools` are offered besides those of the prompt. `parents` are the runs
    that this one is inside of, outermost first; `depth` is how deep that counts as, and `children` are those that
    run inside it; `call_key` is the idempotency key of its call. `passed` maps the user's words to those that the
    guards let pass. `outer` is the context of the run that this one is inside of, whose guards hold for its tools
    too. `handler_of` replaces the handlers of tools, for a replay. `in_conversation` says that the run is an
    exchange of a conversation.
    """

    meter: Meter
    run_id: str = field(default_factory=lambda: os.urandom(8).hex())
    attempt: int = 1
    models: tuple[Any, ...] = ()
    adapter: int = 0
    codecs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    max_expansions: int | None = None
    conversation_id: str = ""
    abandon: Callable[[], None] | None = None
    given: dict[str, Message] = field(default_factory=dict)
    fence: Fence = field(default_factory=Fence)
    prompt: BoundPrompt[Any] | None = None
    loaded: LoadedSections | None = None
    resources: OpenResources | None = None
    presentation: Presentation | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    decisions: dict[str, Any] | None = None
    tools: Sequence[Tool[Any, Any]] = ()
    passed: dict[str, str] = field(default_factory=dict)
    outer: Any = None
    handler_of: Callable[[Tool[Any, Any]], Callable[..., Any]] | None = None
    depth: int = 0
    call_key: str = ""
    parents: tuple[str, ...] = ()
    children: list[Any] = field(default_factory=list)
    in_conversation: bool = False

    @property
    def parent_run_id(self) -> str:
        return self.parents[-1] if self.parents else ""

    def abandon_children(self) -> None:
        """Stop the runs inside this one, from another thread than theirs."""
        for child in list(self.children):
            child.abandon()

    def check_expansions(self, signal: VisibilityExpansionRequired, prompt_name: str) -> None:
        """Raise if the run has restarted as often as it may."""
        if self.max_expansions is not None and self.attempt > self.max_expansions:
            raise PromptEvaluationError(
                f"'{prompt_name}' asked to open sections more than {self.max_expansions} times "
                f"(now: {', '.join(signal.section_keys)}); raise max_expansions or show these sections in full.",
                prompt_name=prompt_name,
                phase="tool",
            )

    def open(self, signal: VisibilityExpansionRequired, session: Session) -> None:
        """Open what an attempt asked for, for the next one to show."""
        for path, visibility in signal.requested_overrides.items():
            session.dispatch(SetVisibilityOverride(path, visibility))
        self.attempt += 1


class Offer(NamedTuple):
    """A tool that was offered to the model, and its reference in the session."""

    ref: ToolRef
    tool: AnyTool


class Toolbox:
    """The tools a run has offered, by portable name, in order of appearance; they are revoked, never removed.

    A provider may offer hosted tools under names of its own, the `sent_names` of their codecs, and use `reserved` names
    itself. `describe` says what a section is about. `version` grows with every change.
    """

    def __init__(
        self,
        codecs: Mapping[str, Any] = MappingProxyType({}),
        reserved: Iterable[str] = (),
        own: Mapping[str, Tool[Any, Any]] = MappingProxyType({}),
        describe: Callable[[str], str] = str,
    ) -> None:
        self._codecs = codecs
        self._describe = describe
        self._own = own
        self._reserved = dict.fromkeys(reserved, ("", ""))
        # The section's key and the name of those tools that have a name, by portable name.
        self._former: dict[str, tuple[str, str]] = {}
        self._decided: dict[str, tuple[str, str]] = {}
        self._offers: dict[str, Offer] = {}
        self._warned: set[tuple[str, str]] = set()
        self.version = 0

    def add(self, *offers: Offer) -> None:
        """Offer these tools, or put them in the place of those with the same names."""
        self._offers.update((portable_name(offer.ref.name), offer) for offer in offers)
        if offers:
            self._changed()

    def keep_names(self, run: Run) -> None:
        """Leave the names that a run has used to the tools that had them."""
        for ref in run.former_tools:
            if ref.own_name:
                self._former[portable_name(ref.name)] = (ref.section_key, ref.name)
        for ref in run.tools:
            if not ref.free:
                self._decided[portable_name(ref.name)] = (ref.section_key, ref.name)

    def clear(self) -> None:
        """Forget every tool."""
        self._offers = {}
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        for cached in ("offered", "callable_names", "_names"):
            self.__dict__.pop(cached, None)

    def find(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Record what the provider's search has found; return what is new, by section."""
        fresh: list[ToolRef] = []
        for name in dict.fromkeys(map(self.name_of, names)):
            ref, tool = self.get(name) or (None, None)
            if ref is not None and tool is not None and ref.unfound and not ref.revoked:
                self.add(Offer(replace(ref, found=True), tool))
                fresh.append(ref)
        return by_section(fresh)

    def get(self, name: str) -> Offer | None:
        offer = self._offers.get(portable_name(name))
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
        below = (ref for ref in self.refs if f"{ref.section_key}.".startswith(f"{section_key}."))
        return tuple(ref.name for ref in below if ref.name in self.callable_names)

    def tool(self, name: str) -> Tool[Any, Any] | None:
        """A tool of ours by name, whether it may still be called or not, or the provider's own."""
        offer = self.get(name)
        if offer is None:
            return self._own.get(name)
        return offer.tool if isinstance(offer.tool, Tool) else None

    def name_of(self, sent: str) -> str:
        """The name of the tool that a provider knows as `sent`, after its namespace and a colon if it has one."""
        space, _, name = sent.rpartition(":")
        offer = self._offers.get(name)
        if offer is None or (space and space != namespace_name(offer.ref.section_key)):
            return sent
        return offer.ref.name

    def with_names(self, reply: ModelReply) -> ModelReply:
        """The reply with our own tool names in place of those sent to the provider."""
        if all(self.name_of(call.name) == call.name for call in reply.tool_calls):
            return reply
        return replace(
            reply, tool_calls=tuple(replace(each, name=self.name_of(each.name)) for each in reply.tool_calls)
        )

    @property
    def refs(self) -> tuple[ToolRef, ...]:
        return tuple(offer.ref for offer in self._offers.values())

    @cached_property
    def offered(self) -> dict[str, Any]:
        """The fields of a `ModelRequest` that list tools."""
        ours = [offer for offer in self._offers.values() if isinstance(offer.tool, Tool)]
        hosted = [offer for offer in self._offers.values() if isinstance(offer.tool, HostedTool)]
        return {
            "tools": tuple(offer.tool for offer in ours),
            "hosted_tools": tuple(offer.tool for offer in hosted),
            "initial_tools": sum(offer.ref.initial for offer in ours),
            "initial_hosted_tools": sum(offer.ref.initial for offer in hosted),
            "revoked": frozenset(ref.name for ref in self.refs if ref.revoked),
            "deferred": {
                ref.name: Namespace(ref.section_key, self._describe(ref.section_key))
                for ref in self.refs
                if ref.deferred
            },
        }

    @property
    def hosted_tools(self) -> tuple[HostedTool[Any], ...]:
        hosted: tuple[HostedTool[Any], ...] = self.offered["hosted_tools"]
        return hosted

    @cached_property
    def callable_names(self) -> tuple[str, ...]:
        """The names that may be called now: our tools, then the hosted ones."""
        offers = sorted(self._offers.values(), key=lambda offer: isinstance(offer.tool, HostedTool))
        return tuple(ref.name for ref, _ in offers if not (ref.revoked or ref.unfound))

    def changes(
        self, wanted: Sequence[Offer], searchable: Iterable[Offer] = (), *, new_exchange: bool = False
    ) -> tuple[list[Offer], list[Offer]]:
        """The new and the changed offers after which the model has exactly the tools that sections offer now.

        Of several tools with the same name, the one to keep comes first.
        Once registered, a name stays with its section for the turn; a tool of another section is skipped with a
        warning. A tool that the provider has not found yet may be in a closed section, as long as it is `searchable`.
        """
        shown = {(ref.section_key, ref.name) for ref, _ in wanted}
        closed = {(ref.section_key, ref.name) for ref, _ in searchable}
        owners = {**self._reserved, **self._former}
        changed: list[Offer] = []
        for ref, tool in self._offers.values():
            key = ref.section_key, ref.name
            is_shown = not ref.section_key or key in shown
            revoked = not is_shown and not (ref.unfound and key in closed)
            free = revoked and not ref.own_name and (new_exchange or ref.free)
            owners.update(dict.fromkeys(self._sent_names(tool)[free:], key))
            if revoked is not ref.revoked or free is not ref.free or (is_shown and ref.unfound):
                found = ref.found or (is_shown and ref.deferred)
                changed.append(Offer(replace(ref, revoked=revoked, found=found, free=free), tool))
        for ref, tool in wanted:
            # A restart decides as the attempt before it has.
            name = portable_name(tool.name)
            if self._decided.get(name) == (ref.section_key, ref.name):
                owners.setdefault(name, (ref.section_key, ref.name))
        for ref, tool in wanted:
            # The provider's own names come first, wherever the hosted tool stands in the prompt.
            for name in self._sent_names(tool)[1:]:
                owners.setdefault(name, (ref.section_key, ref.name))
        new: list[Offer] = []
        for offer in wanted:
            ref, tool = offer
            key, names = (ref.section_key, ref.name), self._sent_names(tool)
            known, owner = self._offers.get(names[0]), next((owners[name] for name in names if name in owners), key)
            if owner != key:
                self._warn(ref.name, ref.section_key, owner[0])
                continue
            owners.update(dict.fromkeys(names, key))
            if known is None:
                new.append(offer)
            elif (known.ref.section_key, known.ref.name) != key:
                # It takes the old one's place, since a name is sent only once.
                new.append(Offer(replace(ref, initial=known.ref.initial), tool))
        return new, changed

    def is_new(self, tool: AnyTool) -> bool:
        """True if the tool has not been offered, and its name is not taken."""
        known = self.get(tool.name)
        return self._owner(tool) is None and (known is None or known.tool is not tool)

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
        taken: dict[str, AnyTool | str] = {name: name for name in self._reserved}
        for ref, tool in self._offers.values():
            taken.update(dict.fromkeys(self._sent_names(tool)[ref.free :], tool))
        return taken

    def _sent_names(self, tool: AnyTool) -> tuple[str, ...]:
        """The names that a tool takes: its own, which may become free, and those of its codec."""
        codec = self._codecs.get(tool.kind) if isinstance(tool, HostedTool) else None
        return (portable_name(tool.name), *getattr(codec, "sent_names", ()))

    def _warn(self, name: str, section_key: str, owner: str) -> None:
        if (name, section_key) not in self._warned:
            self._warned.add((name, section_key))
            has_it = f"section '{owner}'" if owner else "the provider"
            message = "Skipping duplicate tool '%s' of section '%s': %s has it already."
            fields = {"section_key": section_key, "tool_name": name}
            logger.warning(message, name, section_key, has_it, extra=fields)
