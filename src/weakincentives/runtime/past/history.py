"""The history of a run, folded once from its events: what sections showed and why, tools, openings, rollbacks.

The ledger, the advice, the command line and the viewer are queries on a `RunHistory`. It is built from the events of a
session (`run_history`) or of a recording, which reads only the events that a `HistoryBuilder` needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, get_args

from weakincentives.limits import TokenUsage
from weakincentives.prompt import (
    CollapseSection,
    DisclosureRequest,
    SectionPath,
    SectionVisibility,
    VisibilityChange,
    VisibilityOverrides,
    effective,
    with_ancestors,
)
from weakincentives.runtime import events
from weakincentives.runtime.providers import cache_safe_routes
from weakincentives.session import Session

RESTART = "restart"
COMPACTION = "compaction"

# What a section shows, by where its text stands.
SHOWS = {"prompt": "full", "conversation": "read", "summary": "summary", "none": "hidden"}
StepKind = Literal["open", "close", "injected", "withdrawn", "restart", "collapsed", "compacted"]


@dataclass(frozen=True, slots=True)
class TurnSection:
    """A section at one turn.

    `rendered` is what the prompt's text shows of it, and `visibility` what it has been opened or closed to since.
    `seen` is where its text stands, and `call_id` the call whose result holds it, in `read_tokens` tokens; `decided_by`
    and `reason` say why. `shown_tokens` and `hidden_tokens` include its tools.
    """

    key: str
    path: SectionPath
    title: str
    rendered: SectionVisibility
    visibility: SectionVisibility
    decided_by: str
    reason: str
    shown_tokens: int
    hidden_tokens: int
    full_tokens: int
    tools: tuple[str, ...]
    tools_offered: tuple[str, ...]
    tool_tokens: int
    seen: Literal["prompt", "conversation", "summary", "none"]
    call_id: str = ""
    read_tokens: int = 0

    @property
    def read(self) -> bool:
        """True if its text stands in the conversation, after the prompt."""
        return self.seen == "conversation"


@dataclass(frozen=True)
class PromptState:
    """The sections and tools that the model has at one point in a run.

    `declared` are the sections as the prompt has them. `reasons` are those for which sections were opened or closed, by
    key; `offered` are the tools that may be called; `definitions` has those that no longer may be, too, as sent.
    """

    declared: Mapping[SectionPath, events.SectionState] = field(default_factory=dict)
    exposure: events.Exposure = field(default_factory=events.Exposure)
    overrides: VisibilityOverrides = field(default_factory=VisibilityOverrides)
    reasons: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
    offered: Mapping[str, None] = field(default_factory=dict)

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that may be called."""
        return tuple(self.offered)

    @property
    def withdrawn(self) -> tuple[str, ...]:
        """The tools that may no longer be called."""
        return tuple(name for name in self.definitions if name not in self.offered)

    @cached_property
    def sections(self) -> tuple[TurnSection, ...]:
        base = {path: each.base for path, each in self.declared.items()}
        chosen = with_ancestors(self.overrides.overrides, base)
        shows = effective(base, chosen)
        return tuple(
            self._section(section, shows[path], "session" if path in chosen else section.base_decided_by)
            for path, section in self.declared.items()
        )

    def _section(self, section: events.SectionState, shows: SectionVisibility, decided_by: str) -> TurnSection:
        key, exposed = ".".join(section.path), self.exposure[section.path]
        offered = tuple(name for name in section.tools if name in self.offered)
        tool_tokens = section.tool_tokens if offered else 0
        # Text in the conversation is sent in addition to the summary that is still in the prompt.
        read, has_text = exposed.source == "conversation", exposed.source in ("prompt", "conversation")
        return TurnSection(
            key=key,
            path=section.path,
            title=section.title,
            rendered=section.visibility,
            visibility=shows,
            decided_by=decided_by,
            reason=self.reasons.get(key, "") if decided_by == "session" or read else "",
            shown_tokens=section.shown_tokens + (exposed.tokens if read else 0) + tool_tokens,
            hidden_tokens=(0 if has_text else section.full_tokens) + section.tool_tokens - tool_tokens,
            full_tokens=section.full_tokens + section.tool_tokens,
            tools=section.tools,
            tools_offered=offered,
            tool_tokens=section.tool_tokens,
            seen=exposed.source,
            call_id=exposed.call_id if read else "",
            read_tokens=exposed.tokens if read and exposed.call_id else 0,
        )


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call, as the event numbered `seq`; `disclosure` is what it asked to open or close.

    `arguments` and `text`, which is what the model read, are kept only for disclosures, because the ledger counts them.
    """

    name: str
    section_key: str = ""
    success: bool = True
    rolled_back: bool = False
    call_id: str = ""
    seq: int = 0
    disclosure: DisclosureRequest | None = None
    arguments: str = ""
    text: str = ""

    @property
    def opened(self) -> tuple[str, ...]:
        """The sections that it opened."""
        asked = self.disclosure
        return asked.keys if asked is not None and self.success and asked.action == "open" else ()

    @classmethod
    def of(cls, event: events.ToolInvoked, seq: int) -> ToolUse:
        use = cls(event.name, event.section_key, event.success, event.rolled_back, event.call_id, seq)
        if event.disclosure is None:
            return use
        return replace(use, disclosure=event.disclosure, arguments=event.arguments, text=event.text)


@dataclass(frozen=True, slots=True)
class HistoryTurn:
    """One model call: what the model had, and the tool calls that followed.

    `number` counts across all attempts of the run, and `first` marks the first call of an attempt; `seq` and
    `time` are those of its event. `injected` are the sections whose tools appeared before it. `cache_lost_tokens`
    missed the cache because the request's prefix changed, if the run reported a cache at all; `route` is how, and
    `lost_for` for which sections. `rankings` are those a model made before it, since the turn before, and of the last
    turn those made after it.
    """

    number: int
    attempt: int  #: the number of its attempt, from 1
    first: bool
    seq: int
    time: float
    called: events.ModelCalled  #: the event of the call
    state: PromptState  #: the sections and tools that the model had
    injected: tuple[str, ...] = ()
    route: str = ""
    lost_for: tuple[str, ...] = ()
    cache_lost_tokens: int = 0
    uses: tuple[ToolUse, ...] = ()  #: the tool calls that followed
    rankings: tuple[events.SectionsRanked, ...] = ()

    @property
    def only_opened(self) -> bool:
        """True if it did nothing but open or close sections."""
        return bool(self.uses) and all(use.disclosure is not None for use in self.uses)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of disclosure: a request by `tool`, tools added or withdrawn, a restart, a section that was closed, or a
    conversation that was shortened."""

    kind: StepKind
    sections: tuple[str, ...]
    turn: int
    seq: int
    time: float
    tool: str = ""
    reason: str = ""
    route: str = ""
    success: bool = True
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run: its renders, turns and disclosure steps, and its current state.

    `outcome` is how the run ended, if it has; `misses` are closed sections that it may have needed. `children` is what
    the runs used that its calls made, each with those inside it, by run id; it is no part of the turns. The turns from
    `undone_from` on were undone when the conversation went back; 0 is the whole run, with its message.
    """

    run_id: str = ""  #: the run
    renders: tuple[events.PromptRendered, ...] = ()  #: one for each attempt
    turns: tuple[HistoryTurn, ...] = ()  #: every model call
    steps: tuple[Step, ...] = ()  #: every step of disclosure
    now: PromptState = field(default_factory=PromptState)  #: the sections and tools that the model has
    outcome: events.RunEnded | None = None
    misses: tuple[events.PossibleMiss, ...] = ()
    children: Mapping[str, TokenUsage] = field(default_factory=dict)
    undone_from: int | None = None

    @property
    def restarts(self) -> int:
        return sum(step.kind == "restart" for step in self.steps)

    def opened_for(self, turn: HistoryTurn) -> tuple[str, ...]:
        """The sections that a turn opened, if it did nothing else."""
        if not turn.only_opened:
            return ()
        asked = (key for use in turn.uses if use.disclosure for key in use.disclosure.keys)
        known = {section.key for section in turn.state.sections}
        return tuple(key for key in dict.fromkeys(asked) if key in known)

    def openings(self) -> tuple[Step, ...]:
        """The steps, with tools and restarts merged into the request that caused them."""
        found: list[Step] = []
        for step in self.steps:
            if step.kind == "open" and step.success and not step.route:
                step = replace(step, route="tool result")
            if step.kind not in ("injected", "restart"):
                found.append(step)
                continue
            asked = {at for key in step.sections if (at := _request_for(found, key, step.turn)) is not None}
            for at in asked:
                found[at] = replace(found[at], route=step.route, tools=(*found[at].tools, *step.tools))
            if not asked:
                found.append(step)
        return tuple(found)


def run_history(session: Session, run_id: str | None = None) -> RunHistory:
    """The history of a run of the session, by default the last one that is not inside another."""
    last = next((each.run_id for each in reversed(session[events.PromptRendered].view()) if not each.parent_run_id), "")
    run_id = last if run_id is None else run_id
    kinds: list[type[Any]] = [kind for kind in _TAKES if issubclass(kind, events.RunEvent)]
    logged = [event for kind in kinds for event in session[kind].view() if event.run_id == run_id]
    logged.sort(key=lambda event: event.timestamp)
    builder = HistoryBuilder(run_id)
    for event in logged:
        builder.add(event)
    if run_id == last:
        # What code has opened or closed since the last call is not an event of the run.
        builder.override(session[VisibilityOverrides].latest() or VisibilityOverrides())
    paid: tuple[type[Any], ...] = (events.ModelCalled, events.SectionsRanked)
    calls = (each for kind in paid for each in session[kind].view())
    return builder.build(usage_of_children(run_id, ((each.run_id, each.parent_run_id, each.usage) for each in calls)))


def usage_of_children(run_id: str, spent: Iterable[tuple[str, str, TokenUsage]]) -> dict[str, TokenUsage]:
    """The usage of each child of a run, with what is inside it, from pieces of it by run and parent."""
    pieces = [piece for piece in spent if piece[1]]
    parents = {run: parent for run, parent, _ in pieces}
    found: dict[str, TokenUsage] = {}
    for run, _, usage in pieces:
        while run in parents and parents[run] != run_id:
            run = parents[run]
        if run in parents:
            found[run] = found.get(run, TokenUsage()) + usage
    return found


class HistoryBuilder:
    """Folds events, in the order they happened, into a `RunHistory`."""

    def __init__(self, run_id: str = "") -> None:
        self.state = PromptState()
        self._run_id = run_id
        self._at = (0, 0.0)
        self._number = 0
        self._renders: list[events.PromptRendered] = []
        self._turns: list[HistoryTurn] = []
        self._steps: list[Step] = []
        self._outcome: events.RunEnded | None = None
        self._misses: list[events.PossibleMiss] = []
        self._rankings: list[events.SectionsRanked] = []
        self._rewinds: list[int] = []
        # What a call that is rolled back returns to: the overrides, and the number of steps.
        self._before_call = (self.state.overrides, 0)
        # How the next request's prefix changes: the sections whose tools appear, the route, and for which sections.
        self._prefix: tuple[tuple[str, ...], str, tuple[str, ...]] = ((), "", ())

    def add(self, event: object, *, seq: int | None = None, time: float | None = None) -> None:
        """Add one event; `seq` and `time` are those of the recording. Events of other kinds are ignored."""
        time = getattr(event, "timestamp", None) if time is None else time
        self._at = (self._at[0] + 1 if seq is None else seq, self._at[1] if time is None else time)
        take = _TAKES.get(type(event))
        if take is not None:
            take(self, event)

    def add_use(self, use: ToolUse, *, time: float) -> None:
        """Add a tool call that was read only in part."""
        self._at = (use.seq, time)
        self._use(use)

    def skip_turn(self) -> None:
        """Count a model call that cannot be read."""
        self._number += 1

    def build(self, children: Mapping[str, TokenUsage] = MappingProxyType({})) -> RunHistory:
        """The history so far; more events may follow."""
        if self._rankings and self._turns:
            *earlier, last = self._turns
            self._turns = [*earlier, replace(last, rankings=(*last.rankings, *self._rankings))]
            self._rankings = []
        return RunHistory(
            run_id=self._run_id,
            renders=tuple(self._renders),
            turns=self._finished_turns(),
            steps=tuple(self._steps),
            now=self.state,
            outcome=self._outcome,
            misses=tuple(self._misses),
            children=children,
            undone_from=min(self._rewinds, default=None),
        )

    def _finished_turns(self) -> tuple[HistoryTurn, ...]:
        """The turns; if none has reported a cache, none can have lost one."""
        if any(turn.called.usage.cached_tokens for turn in self._turns):
            return tuple(self._turns)
        return tuple(replace(turn, cache_lost_tokens=0) if turn.cache_lost_tokens else turn for turn in self._turns)

    def _rewind(self, event: events.Rewound) -> None:
        if event.back:
            self._rewinds.append(event.turn)
        elif self._rewinds:
            self._rewinds.pop()

    def _begin(self, event: events.PromptRendered) -> None:
        self._renders.append(event)
        tools = (*event.tools, *event.hosted_tools)
        self.state = PromptState(
            declared={section.path: section for section in event.sections},
            exposure=events.Exposure(event.exposed),
            overrides=VisibilityOverrides(event.overrides),
            reasons=self.state.reasons,
            definitions=dict(zip(tools, event.definitions, strict=False)),
            offered=dict.fromkeys(tools),
        )
        self._outcome, self._prefix = None, ((), *self._prefix[1:])
        self._checkpoint()

    def _load(self, event: events.SectionLoaded) -> None:
        """Add loaded sections to the render too: the full prompt would have had them from the beginning."""
        known = self.state.declared
        # What the prompt's text shows of sections that were known stays as it was.
        loaded = {section.path: section.after(known.get(section.path)) for section in event.sections}
        self._change(declared={**known, **loaded})
        if self._renders:
            self._renders[-1] = replace(self._renders[-1], sections=tuple(self.state.declared.values()))

    def _open_without_model(self, event: events.SectionsOpened) -> None:
        """Sections that a rule, the user's words, the program or the provider's search opened."""
        reason = _OPENED_BY.get(event.decided_by, event.decided_by)
        self._explain(event.section_keys, reason)
        self._step("open", event.section_keys, reason=reason, route=event.decided_by)

    def _call(self, event: events.ModelCalled) -> None:
        self.override(VisibilityOverrides(event.overrides))
        if event.tools != tuple(self.state.offered):
            self._change(offered=dict.fromkeys(event.tools))
        self._number += 1
        injected, route, lost_for = self._prefix
        last = self._turns[-1] if self._turns else None
        lost = 0
        if route and last is not None:
            sent = min(last.called.usage.input_tokens, event.usage.input_tokens)
            lost = max(0, sent - event.usage.cached_tokens)
        attempt = max(1, len(self._renders))
        self._turns.append(
            HistoryTurn(
                number=self._number,
                attempt=attempt,
                first=last is None or last.attempt != attempt,
                seq=self._at[0],
                time=self._at[1],
                called=event,
                state=self.state,
                injected=injected,
                route=route if last else "",
                lost_for=lost_for,
                cache_lost_tokens=lost,
                rankings=tuple(self._rankings),
            )
        )
        self._rankings = []
        self._outcome, self._prefix = None, ((), "", ())
        self._checkpoint()

    def _use(self, use: ToolUse) -> None:
        if use.rolled_back:
            overrides, steps = self._before_call
            self.override(overrides)
            del self._steps[steps:]
        if self._turns:
            self._turns[-1] = replace(self._turns[-1], uses=(*self._turns[-1].uses, use))
        if use.disclosure is not None:
            self._disclose(use, use.disclosure)
        self._checkpoint()

    def _disclose(self, use: ToolUse, asked: DisclosureRequest) -> None:
        if use.success and asked.action == "close":
            # The tool's request already reports that it closed them.
            start = self._before_call[1]
            own = [
                step for step in self._steps[start:] if step.kind != "collapsed" or step.sections[0] not in asked.keys
            ]
            self._steps[start:] = own
        elif use.success and not use.rolled_back:
            self._explain(asked.keys, asked.reason)
        route = "file" if asked.files and use.success else ""
        self._step(asked.action, asked.keys, tool=use.name, reason=asked.reason, route=route, success=use.success)

    def _inject(self, event: events.ToolsInjected) -> None:
        definitions = dict(zip(event.tool_names, event.definitions, strict=False))
        offered = {**self.state.offered, **dict.fromkeys(event.tool_names)}
        self._change(offered=offered, definitions={**self.state.definitions, **definitions})
        # Built-in tools belong to no section.
        keys = (event.section_key,) if event.section_key else ()
        injected, route, lost_for = self._prefix
        if event.route not in cache_safe_routes():
            route, lost_for = event.route or "append", (*lost_for, *keys)
        self._prefix = ((*injected, *keys), route, lost_for)
        self._step("injected", keys, route=event.route, tools=event.tool_names)

    def _withdraw(self, event: events.ToolsWithdrawn) -> None:
        self._change(offered=dict.fromkeys(name for name in self.state.offered if name not in event.tool_names))
        self._step("withdrawn", (event.section_key,), route=event.route, tools=event.tool_names)

    def _end(self, event: events.RunEnded) -> None:
        self._outcome = event
        if event.status == "restarted":
            self._explain(event.section_keys, event.reason)
            self._prefix = (self._prefix[0], RESTART, event.section_keys)
            self._step("restart", event.section_keys, reason=event.reason, route=RESTART)
        elif event.status == "halted" and self._steps and self._steps[-1].turn == self._number:
            self._steps[-1] = replace(self._steps[-1], route="halt")

    def _compact(self, event: events.Compacted) -> None:
        self._prefix = (self._prefix[0], COMPACTION, self._prefix[2])
        self._step("compacted", (), reason=str(event), route=event.by)

    def _open_or_close(self, event: VisibilityChange) -> None:
        self.override(self.state.overrides.after(event))
        if isinstance(event, CollapseSection):
            key = ".".join(event.path)
            self._explain([key], event.reason)
            self._step("collapsed", (key,), reason=event.reason)

    def _expose(self, event: events.SectionsExposed) -> None:
        self._change(exposure=self.state.exposure.handle(event))

    def _explain(self, keys: Iterable[str], reason: str) -> None:
        """Remember why sections were opened or closed."""
        self._change(reasons={**self.state.reasons, **dict.fromkeys(keys, reason)})

    def override(self, overrides: VisibilityOverrides) -> None:
        """Set the session's overrides."""
        if self.state.overrides.overrides != overrides.overrides:
            self._change(overrides=overrides)

    def _change(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def _checkpoint(self) -> None:
        """Remember the state that a rolled-back call returns to."""
        self._before_call = (self.state.overrides, len(self._steps))

    def _step(self, kind: StepKind, sections: Iterable[str], **facts: Any) -> None:
        self._steps.append(Step(kind, tuple(sections), self._number, *self._at, **facts))


_OPENED_BY = {
    "rule": "its rule applies",
    "search": "the user's words call for it",
    "provider": "the provider's search found it",
    "code": "the program opened it",
}
_TAKES: dict[type, Callable[[HistoryBuilder, Any], None]] = {
    events.PromptRendered: HistoryBuilder._begin,
    events.SectionLoaded: HistoryBuilder._load,
    events.SectionsExposed: HistoryBuilder._expose,
    events.SectionsOpened: HistoryBuilder._open_without_model,
    events.PossibleMiss: lambda self, event: self._misses.append(event),
    events.SectionsRanked: lambda self, event: self._rankings.append(event),
    events.ModelCalled: HistoryBuilder._call,
    events.ToolInvoked: lambda self, event: self._use(ToolUse.of(event, self._at[0])),
    events.ToolsInjected: HistoryBuilder._inject,
    events.ToolsWithdrawn: HistoryBuilder._withdraw,
    events.Compacted: HistoryBuilder._compact,
    events.RunEnded: HistoryBuilder._end,
    events.Rewound: HistoryBuilder._rewind,
    **dict.fromkeys(get_args(VisibilityChange), HistoryBuilder._open_or_close),
}


def _request_for(steps: Sequence[Step], key: str, turn: int) -> int | None:
    """The position of this turn's request for a section, or for one inside or around it."""
    for at in range(len(steps) - 1, -1, -1):
        step = steps[at]
        if step.turn != turn:
            return None
        if step.kind != "withdrawn" and any(related(key, asked) for asked in step.sections):
            return at
    return None


def related(key: str, other: str) -> bool:
    """True if one of two sections is the other, or inside it."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")
