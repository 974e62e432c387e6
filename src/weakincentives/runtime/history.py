"""What happened in a run, folded once from its events: what sections showed and why, tools, openings, rollbacks.

The ledger, the advice, the command line and the viewer are queries on a `RunHistory`. It is built from the events of a
session (`run_history`) or of a recording, which reads only the events that a `HistoryBuilder` needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

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

# What a section shows, by where its text stands.
SHOWS = {"prompt": "full", "conversation": "read", "summary": "summary", "none": "hidden"}
StepKind = Literal["open", "close", "injected", "withdrawn", "restart", "collapsed"]


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


@dataclass(frozen=True, slots=True)
class RunState:
    """What the model has at one point in a run.

    `tools` may be called; `withdrawn` may no longer be called; `definitions` has all of them as sent, by name.
    """

    sections: tuple[TurnSection, ...] = ()
    tools: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    definitions: Mapping[str, str] = field(default_factory=dict)


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

    `number` counts across all evaluations of the run, and `first` marks the first call of an evaluation; `seq` and
    `time` are those of its event. `injected` are the sections whose tools appeared before it. `route` and `lost_for`
    say how, and for which sections, the beginning of the request changed, so that `cache_lost_tokens` sent before could
    not be read from the cache.
    """

    number: int
    attempt: int
    first: bool
    seq: int
    time: float
    called: events.ModelCalled
    state: RunState
    injected: tuple[str, ...] = ()
    route: str = ""
    lost_for: tuple[str, ...] = ()
    cache_lost_tokens: int = 0
    uses: tuple[ToolUse, ...] = ()

    @property
    def only_opened(self) -> bool:
        """Whether it did nothing but open or close sections."""
        return bool(self.uses) and all(use.disclosure is not None for use in self.uses)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of disclosure: a request by `tool`, tools added or withdrawn, a restart, a section that was closed."""

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

    `outcome` is how the run ended, if it has; `misses` are closed sections that it may have needed.
    """

    run_id: str = ""
    renders: tuple[events.PromptRendered, ...] = ()
    turns: tuple[HistoryTurn, ...] = ()
    steps: tuple[Step, ...] = ()
    now: RunState = field(default_factory=RunState)
    outcome: events.RunEnded | None = None
    misses: tuple[events.PossibleMiss, ...] = ()

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
    """The history of a run of the session, by default the last one."""
    renders = session[events.PromptRendered].view()
    if run_id is None:
        run_id = renders[-1].run_id if renders else ""
    kinds: list[type[Any]] = [kind for kind in _TAKES if issubclass(kind, events.RunEvent)]
    logged = [event for kind in kinds for event in session[kind].view() if event.run_id == run_id]
    logged.sort(key=lambda event: event.timestamp)
    builder = HistoryBuilder(run_id)
    for event in logged:
        builder.add(event)
    if renders and run_id == renders[-1].run_id:
        # What code has opened or closed since the last call is not an event of the run.
        builder.scene.override(session[VisibilityOverrides].latest() or VisibilityOverrides())
    return builder.build()


class _Scene:
    """What the model has at one point of a run: the sections with what it has of each, and its tools."""

    def __init__(self) -> None:
        self.sections: dict[SectionPath, events.SectionState] = {}
        self.exposure = events.Exposure()
        self.overrides = VisibilityOverrides()
        self.reasons: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.callable: dict[str, None] = {}
        self._state: RunState | None = None

    def begin(self, event: events.PromptRendered) -> None:
        self.sections = {section.path: section for section in event.sections}
        self.exposure = events.Exposure(event.exposed)
        self.overrides = VisibilityOverrides(event.overrides)
        self.callable = dict.fromkeys((*event.tools, *event.hosted_tools))
        self.definitions = dict(zip(self.callable, event.definitions, strict=False))
        self._state = None

    def load(self, sections: Iterable[events.SectionState]) -> None:
        """Add loaded sections; what the prompt's text shows of sections already known stays as it was."""
        for section in sections:
            self.sections[section.path] = section.after(self.sections.get(section.path))
        self._state = None

    def expose(self, event: events.SectionsExposed) -> None:
        self.exposure = self.exposure.handle(event)
        self._state = None

    def override(self, overrides: VisibilityOverrides) -> None:
        before, self.overrides = self.overrides.overrides, overrides
        if before is not overrides.overrides and before != overrides.overrides:
            self._state = None

    def explain(self, keys: Iterable[str], reason: str) -> None:
        """Remember why sections were opened or closed."""
        self.reasons.update(dict.fromkeys(keys, reason))
        self._state = None

    def offer(self, names: Iterable[str], definitions: Iterable[str]) -> None:
        self.callable.update(dict.fromkeys(names))
        self.definitions = {**self.definitions, **dict(zip(names, definitions, strict=False))}
        self._state = None

    def withdraw(self, names: Iterable[str]) -> None:
        for name in names:
            self.callable.pop(name, None)
        self._state = None

    def state(self, tools: tuple[str, ...] | None = None) -> RunState:
        """The state in which these tools, or else all that are offered, may be called."""
        tools = tuple(self.callable) if tools is None else tools
        if self._state is None or self._state.tools != tools:
            self._state = RunState(
                sections=self._turn_sections(tools),
                tools=tools,
                withdrawn=tuple(name for name in self.definitions if name not in tools),
                definitions=self.definitions,
            )
        return self._state

    def _turn_sections(self, tools: tuple[str, ...]) -> tuple[TurnSection, ...]:
        base = {path: each.base for path, each in self.sections.items()}
        chosen = with_ancestors(self.overrides.overrides, base)
        shows = effective(base, chosen)
        return tuple(
            self._turn_section(section, shows[path], "session" if path in chosen else section.base_decided_by, tools)
            for path, section in self.sections.items()
        )

    def _turn_section(
        self, section: events.SectionState, shows: SectionVisibility, decided_by: str, tools: Collection[str]
    ) -> TurnSection:
        key, exposed = ".".join(section.path), self.exposure[section.path]
        offered = tuple(name for name in section.tools if name in tools)
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


class HistoryBuilder:
    """Folds events, in the order they happened, into a `RunHistory`."""

    def __init__(self, run_id: str = "") -> None:
        self.scene = _Scene()
        self._run_id = run_id
        self._at = (0, 0.0)
        self._number = 0
        self._renders: list[events.PromptRendered] = []
        self._turns: list[HistoryTurn] = []
        self._steps: list[Step] = []
        self._outcome: events.RunEnded | None = None
        self._misses: list[events.PossibleMiss] = []
        # What a call that is rolled back returns to: the overrides, and the number of steps.
        self._before_call = (self.scene.overrides, 0)
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

    def build(self) -> RunHistory:
        """The history so far; more events may follow."""
        return RunHistory(
            run_id=self._run_id,
            renders=tuple(self._renders),
            turns=tuple(self._turns),
            steps=tuple(self._steps),
            now=self.scene.state(),
            outcome=self._outcome,
            misses=tuple(self._misses),
        )

    def _begin(self, event: events.PromptRendered) -> None:
        self._renders.append(event)
        self.scene.begin(event)
        self._outcome, self._prefix = None, ((), *self._prefix[1:])
        self._checkpoint()

    def _load(self, event: events.SectionLoaded) -> None:
        """Add loaded sections to the render too: the full prompt would have had them from the beginning."""
        self.scene.load(event.sections)
        if self._renders:
            self._renders[-1] = replace(self._renders[-1], sections=tuple(self.scene.sections.values()))

    def _open_without_model(self, event: events.SectionsOpened) -> None:
        """Sections that a rule, the user's words, the program or the provider's search opened."""
        reason = _OPENED_BY.get(event.decided_by, event.decided_by)
        self.scene.explain(event.section_keys, reason)
        self._step("open", event.section_keys, reason=reason, route=event.decided_by)

    def _call(self, event: events.ModelCalled) -> None:
        self.scene.override(VisibilityOverrides(event.overrides))
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
                state=self.scene.state(event.tools),
                injected=injected,
                route=route if last else "",
                lost_for=lost_for,
                cache_lost_tokens=lost,
            )
        )
        self._outcome, self._prefix = None, ((), "", ())
        self._checkpoint()

    def _use(self, use: ToolUse) -> None:
        if use.rolled_back:
            overrides, steps = self._before_call
            self.scene.override(overrides)
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
            self.scene.explain(asked.keys, asked.reason)
        route = "file" if asked.files and use.success else ""
        self._step(asked.action, asked.keys, tool=use.name, reason=asked.reason, route=route, success=use.success)

    def _inject(self, event: events.ToolsInjected) -> None:
        self.scene.offer(event.tool_names, event.definitions)
        # Built-in tools belong to no section.
        keys = (event.section_key,) if event.section_key else ()
        injected, route, lost_for = self._prefix
        if event.route not in cache_safe_routes():
            route, lost_for = event.route or "append", (*lost_for, *keys)
        self._prefix = ((*injected, *keys), route, lost_for)
        self._step("injected", keys, route=event.route, tools=event.tool_names)

    def _withdraw(self, event: events.ToolsWithdrawn) -> None:
        self.scene.withdraw(event.tool_names)
        self._step("withdrawn", (event.section_key,), route=event.route, tools=event.tool_names)

    def _end(self, event: events.RunEnded) -> None:
        self._outcome = event
        if event.status == "restarted":
            self.scene.explain(event.section_keys, event.reason)
            self._prefix = (self._prefix[0], RESTART, event.section_keys)
            self._step("restart", event.section_keys, reason=event.reason, route=RESTART)
        elif event.status == "halted" and self._steps and self._steps[-1].turn == self._number:
            self._steps[-1] = replace(self._steps[-1], route="halt")

    def _change(self, event: VisibilityChange) -> None:
        self.scene.override(self.scene.overrides.after(event))
        if isinstance(event, CollapseSection):
            key = ".".join(event.path)
            self.scene.explain([key], event.reason)
            self._step("collapsed", (key,), reason=event.reason)

    def _checkpoint(self) -> None:
        """Remember the state that a rolled-back call returns to."""
        self._before_call = (self.scene.overrides, len(self._steps))

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
    events.SectionsExposed: lambda self, event: self.scene.expose(event),
    events.SectionsOpened: HistoryBuilder._open_without_model,
    events.PossibleMiss: lambda self, event: self._misses.append(event),
    events.ModelCalled: HistoryBuilder._call,
    events.ToolInvoked: lambda self, event: self._use(ToolUse.of(event, self._at[0])),
    events.ToolsInjected: HistoryBuilder._inject,
    events.ToolsWithdrawn: HistoryBuilder._withdraw,
    events.RunEnded: HistoryBuilder._end,
    **dict.fromkeys(get_args(VisibilityChange), HistoryBuilder._change),
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
    """Whether one of two sections is the other, or inside it."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")
