"""What happened in a run, folded once from its events: what sections showed and why, tools, openings, rollbacks.

The ledger, the advice, the command line and the viewer are queries on a `RunHistory`. It is built from the events of a
session (`run_history`) or of a recording, which reads only the events that a `HistoryBuilder` needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, Literal, get_args

from weakincentives.prompt import (
    CollapseSection,
    DisclosureRequest,
    OpenSectionsResult,
    SectionPath,
    SectionVisibility,
    VisibilityChange,
    VisibilityOverrides,
    ancestors,
    with_ancestors,
)
from weakincentives.runtime import events
from weakincentives.runtime.messages import Message
from weakincentives.runtime.providers import cache_safe_routes
from weakincentives.session import Session

RESTART = "restart"
FULL, SUMMARY, HIDDEN = SectionVisibility.FULL, SectionVisibility.SUMMARY, SectionVisibility.HIDDEN

Seen = Literal["prompt", "conversation", "summary", "never"]
# What a section shows, by where the model got its content.
SHOWS: dict[Seen, str] = {"prompt": "full", "conversation": "read", "summary": "summary", "never": "hidden"}
StepKind = Literal["open", "close", "injected", "withdrawn", "restart", "collapsed"]


@dataclass(frozen=True, slots=True)
class TurnSection:
    """A section at one turn.

    `rendered` is what the prompt's text shows of it, and `visibility` what it has been opened or closed to since.
    `read` says that its content was returned as the result of the tool call `call_id`. `seen` says how the model got
    its content; `decided_by` and `reason` say why. `shown_tokens` and `hidden_tokens` include its tools.
    """

    key: str
    path: SectionPath
    title: str
    rendered: SectionVisibility
    visibility: SectionVisibility
    decided_by: str
    reason: str
    read: bool
    shown_tokens: int
    hidden_tokens: int
    full_tokens: int
    tools: tuple[str, ...]
    tools_offered: tuple[str, ...]
    tool_tokens: int
    seen: Seen
    call_id: str = ""


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
    wrote_files: bool = False

    @property
    def opened(self) -> tuple[str, ...]:
        """The sections that it opened."""
        asked = self.disclosure
        return asked.requested_sections if asked is not None and self.success and asked.action == "open" else ()

    @classmethod
    def of(cls, event: events.ToolInvoked, seq: int) -> ToolUse:
        use = cls(event.name, event.section_key, event.success, event.rolled_back, event.call_id, seq)
        if event.disclosure is None:
            return use
        value = event.result.value
        return replace(
            use,
            disclosure=event.disclosure,
            arguments=event.arguments,
            text=event.result_text,
            wrote_files=isinstance(value, OpenSectionsResult) and bool(value.written_files),
        )


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
    outcome: events.PromptExecuted | events.EvaluationFailed | None = None
    misses: tuple[events.PossibleMiss, ...] = ()

    @property
    def restarts(self) -> int:
        return sum(step.kind == "restart" for step in self.steps)

    def opened_for(self, turn: HistoryTurn) -> tuple[str, ...]:
        """The sections that a turn opened, if it did nothing else."""
        if not turn.only_opened:
            return ()
        asked = (key for use in turn.uses if use.disclosure for key in use.disclosure.requested_sections)
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
    later = takewhile(lambda render: render.run_id != run_id, reversed(renders))
    # A run that continues no other begins a new conversation in place of the one before.
    messages = session[Message].view() if all(render.continues for render in later) else ()
    kinds: list[type[Any]] = [kind for kind in _TAKES if issubclass(kind, events.RunEvent)]
    logged = [event for kind in kinds for event in session[kind].view() if event.run_id == run_id]
    logged.sort(key=lambda event: event.timestamp)
    builder = HistoryBuilder(run_id)
    before = [event.messages for event in logged if isinstance(event, events.ModelCalled)]
    ends = iter([*before[1:], None])
    for event in logged:
        cut = isinstance(event, events.PromptRendered) and not event.text
        builder.add(whole_render(session, event) if cut else event)
        if isinstance(event, events.ModelCalled):
            # Messages have no time, but each call says how many came before it.
            for message in messages[event.messages : next(ends)]:
                builder.add(message)
    if renders and run_id == renders[-1].run_id:
        # What code has opened or closed since the last call is not an event of the run.
        builder._replace_overrides(session[VisibilityOverrides].latest() or VisibilityOverrides())
    return builder.build()


def whole_render(session: Session, render: events.PromptRendered) -> events.PromptRendered:
    """A render with what the session keeps only in the later one that continues it."""
    following = {other.continues: other for other in session[events.PromptRendered].view()}
    later, sections = render, render.sections
    while not later.text and later.run_id in following:
        later = following[later.run_id]
        sections = sections or later.sections
    sent = dict(zip((*later.tools, *later.hosted_tools), later.definitions, strict=False))
    definitions = tuple(sent.get(name, "") for name in (*render.tools, *render.hosted_tools))
    return replace(render, text=later.text, spans=later.spans, sections=sections, definitions=definitions)


class HistoryBuilder:
    """Folds events, in the order they happened, into a `RunHistory`."""

    def __init__(self, run_id: str = "") -> None:
        self._run_id = run_id
        self._number = self._seq = 0
        self._time = 0.0
        self._renders: list[events.PromptRendered] = []
        self._turns: list[HistoryTurn] = []
        self._steps: list[Step] = []
        self._outcome: events.PromptExecuted | events.EvaluationFailed | None = None
        self._texts: dict[str, str] = {}
        self._open_turn: Callable[..., HistoryTurn] | None = None
        self._uses: list[ToolUse] = []
        self._first = True
        self._sections: dict[SectionPath, events.SectionState] = {}
        self._paths: dict[str, SectionPath] = {}
        self._overrides = VisibilityOverrides()
        self._before_call = (self._overrides, 0)
        self._read: set[SectionPath] = set()
        self._brought: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._definitions: dict[str, str] = {}
        self._callable: dict[str, None] = {}
        self._injected: tuple[str, ...] = ()
        self._route, self._lost_for = "", tuple[str, ...]()
        self._last_input = 0
        self._state: RunState | None = None
        self._misses: list[events.PossibleMiss] = []

    def add(self, event: object, *, seq: int | None = None, time: float | None = None) -> None:
        """Add one event; `seq` and `time` are those of the recording. Events of other kinds are ignored."""
        self._at(seq, getattr(event, "timestamp", None) if time is None else time)
        take = _TAKES.get(type(event))
        if take is not None:
            take(self, event)

    def add_use(self, use: ToolUse, *, time: float) -> None:
        """Add a tool call that was read only in part."""
        self._at(use.seq, time)
        self._use(use)

    def carry(self, brought: Mapping[str, str]) -> None:
        """Add the calls that opened sections, by key, in the runs that this one continues."""
        self._brought.update(brought)

    def skip_turn(self) -> None:
        """Count a model call that cannot be read."""
        self._close_turn()
        self._number += 1

    def build(self) -> RunHistory:
        """The history so far; more events may follow."""
        return RunHistory(
            run_id=self._run_id,
            renders=tuple(self._renders),
            turns=(*self._turns, *([self._closed_turn()] if self._open_turn else ())),
            steps=tuple(self._steps),
            now=self._state_with(tuple(self._callable)),
            outcome=self._outcome,
            misses=tuple(self._misses),
        )

    @property
    def _attempt(self) -> int:
        return max(1, len(self._renders))

    def _at(self, seq: int | None, time: float | None) -> None:
        self._seq = self._seq + 1 if seq is None else seq
        self._time = self._time if time is None else time

    def _begin(self, event: events.PromptRendered) -> None:
        self._close_turn()
        self._renders.append(event)
        self._sections = {section.path: section for section in event.sections}
        self._paths = {".".join(path): path for path in self._sections}
        self._overrides = VisibilityOverrides(event.overrides)
        self._read.update(self._known(event.read))
        self._callable = dict.fromkeys((*event.tools, *event.hosted_tools))
        self._definitions = dict(zip(self._callable, event.definitions, strict=False))
        self._first, self._state, self._outcome, self._injected = True, None, None, ()
        self._checkpoint()

    def _load(self, event: events.SectionLoaded) -> None:
        """Add the sections loaded with one; what the prompt's text shows of sections already known stays as it was.

        The full prompt would have had them from the beginning, so they belong to the render too.
        """
        for section in event.sections:
            self._sections[section.path] = section.after(self._sections.get(section.path))
            self._paths[".".join(section.path)] = section.path
        if self._renders:
            self._renders[-1] = replace(self._renders[-1], sections=tuple(self._sections.values()))
        self._state = None

    def _open_without_model(self, event: events.SectionsOpened) -> None:
        """Sections that a rule, the user's words or the provider's search opened; their text is there already."""
        reason = _OPENED_BY.get(event.decided_by, event.decided_by)
        self._reasons.update(dict.fromkeys(event.section_keys, reason))
        for path in self._known(event.section_keys):
            self._read.update(self._content_of(path, everything=False))
        self._state = None
        self._step("open", event.section_keys, reason=reason, route=event.decided_by)

    def _call(self, event: events.ModelCalled) -> None:
        self._close_turn()
        self._replace_overrides(VisibilityOverrides(event.overrides))
        self._number += 1
        sent, lost = event.usage.input_tokens, 0
        if self._route and self._turns:
            lost = max(0, min(self._last_input, sent) - event.usage.cached_tokens)
        self._open_turn = partial(
            HistoryTurn,
            number=self._number,
            attempt=self._attempt,
            first=self._first,
            seq=self._seq,
            time=self._time,
            called=event,
            state=self._state_with(event.tools),
            injected=self._injected,
            route=self._route if self._turns else "",
            lost_for=self._lost_for,
            cache_lost_tokens=lost,
        )
        self._last_input, self._first, self._outcome = sent, False, None
        self._injected, self._route, self._lost_for = (), "", ()
        self._checkpoint()

    def _hear(self, event: Message) -> None:
        if event.role == "tool":
            self._texts.setdefault(event.call_id, event.text)

    def _use(self, use: ToolUse) -> None:
        if use.rolled_back:
            overrides, steps = self._before_call
            self._replace_overrides(overrides)
            del self._steps[steps:]
        self._uses.append(use)
        if use.disclosure is not None:
            self._disclose(use, use.disclosure)
        self._checkpoint()

    def _disclose(self, use: ToolUse, asked: DisclosureRequest) -> None:
        keys = asked.requested_sections
        if use.success and asked.action == "close":
            # The tool's request already reports that it closed them.
            own = self._steps[self._before_call[1] :]
            self._steps[self._before_call[1] :] = [s for s in own if s.kind != "collapsed" or s.sections[0] not in keys]
            self._forget(self._known(keys))
        elif use.success and not use.rolled_back:
            for path in self._known(keys):
                self._read.update(self._content_of(path, everything=use.wrote_files))
                self._brought[".".join(path)] = use.call_id
            self._reasons.update(dict.fromkeys(keys, asked.reason))
            self._state = None
        route = "file" if use.wrote_files and use.success else ""
        self._step(asked.action, keys, tool=use.name, reason=asked.reason, route=route, success=use.success)

    def _inject(self, event: events.ToolsInjected) -> None:
        self._callable.update(dict.fromkeys(event.tool_names))
        self._definitions = {**self._definitions, **dict(zip(event.tool_names, event.definitions, strict=False))}
        # Built-in tools belong to no section.
        keys = (event.section_key,) if event.section_key else ()
        self._injected += keys
        self._state = None
        self._step("injected", keys, route=event.route, tools=event.tool_names)
        if event.route not in cache_safe_routes():
            self._route, self._lost_for = event.route or "append", (*self._lost_for, *keys)

    def _withdraw(self, event: events.ToolsWithdrawn) -> None:
        for name in event.tool_names:
            self._callable.pop(name, None)
        self._state = None
        self._step("withdrawn", (event.section_key,), route=event.route, tools=event.tool_names)

    def _restart(self, event: events.RunRestarted) -> None:
        self._reasons.update(dict.fromkeys(event.section_keys, event.reason))
        self._route, self._lost_for = RESTART, event.section_keys
        self._step("restart", event.section_keys, reason=event.reason, route=RESTART)

    def _end(self, event: events.PromptExecuted | events.EvaluationFailed) -> None:
        self._outcome = event
        halted = isinstance(event, events.PromptExecuted) and event.halted
        if halted and self._steps and self._steps[-1].turn == self._number:
            self._steps[-1] = replace(self._steps[-1], route="halt")

    def _change(self, event: VisibilityChange) -> None:
        self._replace_overrides(self._overrides.after(event))
        if isinstance(event, CollapseSection):
            key = ".".join(event.path)
            self._forget([event.path])
            self._reasons[key] = event.reason
            self._step("collapsed", (key,), reason=event.reason)

    def _replace_overrides(self, new: VisibilityOverrides) -> None:
        before, self._overrides = self._overrides.overrides, new
        if before is new.overrides or before == new.overrides:
            return
        self._forget(
            [path for path, now in new.overrides.items() if now is SUMMARY and before.get(path) is not SUMMARY]
        )

    def _forget(self, closed: Collection[SectionPath]) -> None:
        """Closed sections, and everything in them, count as summarized again."""
        self._read = {read for read in self._read if not any(read[: len(path)] == path for path in closed)}
        self._state = None

    def _checkpoint(self) -> None:
        """The state that a rolled-back call returns to."""
        self._before_call = (self._overrides, len(self._steps))

    def _known(self, keys: Iterable[str]) -> list[SectionPath]:
        return [self._paths[key] for key in keys if key in self._paths]

    def _content_of(self, path: SectionPath, *, everything: bool) -> Iterator[SectionPath]:
        """The sections whose content is part of a section's content: itself, and what is open inside it."""
        own = self._own_visibility()
        for inner in own:
            between = [inner[:length] for length in range(len(path) + 1, len(inner) + 1)]
            if inner[: len(path)] == path and (everything or all(own.get(step) is FULL for step in between)):
                yield inner

    def _own_visibility(self) -> dict[SectionPath, SectionVisibility]:
        """What each section would show if its ancestors were open."""
        chosen = with_ancestors(self._overrides.overrides)
        return {path: chosen.get(path, section.base) for path, section in self._sections.items()}

    def _state_with(self, tools: tuple[str, ...]) -> RunState:
        if self._state is None or self._state.tools != tools:
            self._state = RunState(
                sections=self._sections_with(tools),
                tools=tools,
                withdrawn=tuple(name for name in self._definitions if name not in tools),
                definitions=self._definitions,
            )
        return self._state

    def _sections_with(self, tools: tuple[str, ...]) -> tuple[TurnSection, ...]:
        own, chosen = self._own_visibility(), with_ancestors(self._overrides.overrides)
        found = []
        content: dict[SectionPath, bool] = {}
        for path, section in self._sections.items():
            key, read = ".".join(path), path in self._read
            visibility = HIDDEN if any(own.get(up) is SUMMARY for up in ancestors(path)) else own[path]
            decided_by = "session" if path in chosen else section.base_decided_by
            offered = tuple(name for name in section.tools if name in tools)
            tool_tokens = section.tool_tokens if offered else 0
            # What was opened in the conversation is shown in addition to the summary that is still in the prompt.
            came = section.visibility is not FULL and (visibility is FULL or read)
            has_text = came or section.visibility is FULL
            inside = content.get(path[:-1], False) and own[path] is SUMMARY
            content[path] = has_text
            seen: Seen = "summary" if inside or visibility is SUMMARY else "never"
            if has_text:
                seen = "prompt" if section.visibility is FULL else "conversation"
            found.append(
                TurnSection(
                    key=key,
                    path=path,
                    title=section.title,
                    rendered=section.visibility,
                    visibility=visibility,
                    decided_by=decided_by,
                    reason=self._reasons.get(key, "") if decided_by == "session" or read else "",
                    read=read,
                    shown_tokens=section.shown_tokens + (section.full_tokens if came else 0) + tool_tokens,
                    hidden_tokens=(0 if has_text else section.full_tokens) + section.tool_tokens - tool_tokens,
                    full_tokens=section.full_tokens + section.tool_tokens,
                    tools=section.tools,
                    tools_offered=offered,
                    tool_tokens=section.tool_tokens,
                    seen=seen,
                    call_id=self._call_of(path) if came else "",
                )
            )
        return tuple(found)

    def _call_of(self, path: SectionPath) -> str:
        """The call whose result contains the section: it asked for the section, or for one of its ancestors."""
        around = (".".join(path[:length]) for length in range(len(path), 0, -1))
        return next((self._brought[up] for up in around if up in self._brought), "")

    def _close_turn(self) -> None:
        if self._open_turn is not None:
            self._turns.append(self._closed_turn())
        self._open_turn = None
        # Call ids may repeat in later turns.
        self._uses, self._texts = [], {}

    def _closed_turn(self) -> HistoryTurn:
        assert self._open_turn is not None
        told = [
            replace(use, text=self._texts[use.call_id]) if use.disclosure and use.call_id in self._texts else use
            for use in self._uses
        ]
        return self._open_turn(uses=tuple(told))

    def _step(self, kind: StepKind, sections: Iterable[str], **facts: Any) -> None:
        self._steps.append(Step(kind, tuple(sections), self._number, self._seq, self._time, **facts))


_OPENED_BY = {
    "rule": "its rule applies",
    "search": "the user's words call for it",
    "provider": "the provider's search found it",
    "code": "the program opened it",
}
_TAKES: dict[type, Callable[[HistoryBuilder, Any], None]] = {
    events.PromptRendered: HistoryBuilder._begin,
    events.SectionLoaded: HistoryBuilder._load,
    events.SectionsOpened: HistoryBuilder._open_without_model,
    events.PossibleMiss: lambda self, event: self._misses.append(event),
    events.ModelCalled: HistoryBuilder._call,
    events.ToolInvoked: lambda self, event: self._use(ToolUse.of(event, self._seq)),
    events.ToolsInjected: HistoryBuilder._inject,
    events.ToolsWithdrawn: HistoryBuilder._withdraw,
    events.RunRestarted: HistoryBuilder._restart,
    events.EvaluationFailed: HistoryBuilder._end,
    events.PromptExecuted: HistoryBuilder._end,
    Message: HistoryBuilder._hear,
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
