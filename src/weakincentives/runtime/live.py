"""A run under way in this process: what of it cannot be stored, and the way to what can."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

from weakincentives._base.fence import Fence
from weakincentives._base.loops import LoopThread
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Meter, Prices
from weakincentives.prompt import (
    AnyTool,
    BoundPrompt,
    SectionPath,
    SectionVisibility,
    SetVisibilityOverride,
    Tool,
    View,
    VisibilityExpansionRequired,
)
from weakincentives.prompt.disclosure.ranking import section_headline
from weakincentives.prompt.resources import OpenResources
from weakincentives.resources import ScopedResourceContext
from weakincentives.runtime.calls.call import ToolExecutionOutcome
from weakincentives.runtime.calls.ids import CallIds
from weakincentives.runtime.calls.live import LiveCall
from weakincentives.runtime.events import (
    ContextWindow,
    Exposure,
    ModelCalled,
    PromptRendered,
    RunEnded,
    SectionsExposed,
    SectionsOpened,
    SectionsRanked,
    ToolInvoked,
    Undone,
)
from weakincentives.runtime.known.toolbox import Toolbox
from weakincentives.runtime.loop.channel import Channel
from weakincentives.runtime.messages import Message, Settings, ToolCall
from weakincentives.runtime.model import Model
from weakincentives.runtime.past.points import Points
from weakincentives.runtime.providers import prices_for
from weakincentives.runtime.spec import Beginning, RunSpec
from weakincentives.runtime.state import RunState, ToolRef, conversation_of
from weakincentives.runtime.window.recall import RECALL
from weakincentives.session import LogEntry, Session

EventT = TypeVar("EventT", ModelCalled, PromptRendered, RunEnded, SectionsExposed, SectionsOpened, ToolInvoked)


@dataclass(slots=True)
class StreamState:
    """The facts about a run that a streaming driver needs.

    `text` is the part of the current reply that was shown, and `shown` says that any part of it was. `restarted` is the
    reason why the model begins again, and `opened` are the keys of sections opened without its asking. While `held`, no
    text is shown before guards have passed the answer; `replaced` says that they have replaced it.
    """

    text: list[str] = field(default_factory=list)
    shown: bool = False
    restarted: str | None = None
    opened: list[str] = field(default_factory=list)
    held: bool = False
    replaced: bool = False


@dataclass(slots=True)
class LiveCalls:
    """The tool calls of a run, as far as they cannot be stored.

    `ended` has the outcomes of the last calls by id, also if running them raised an error. `recorded_before` has those
    of calls that had ended when the run stopped, and whose results the conversation did not have yet. `held` are calls
    beside others that have run, and whose changes are held back; `started` are those under way. `emitted`, set by a
    driver that streams, receives the data that a call emits. `idempotency_key` gives a call another key than its own.
    `unattended` says why nobody can be asked: calls that need approval then fail without being run.
    """

    ended: dict[str, ToolExecutionOutcome] = field(default_factory=dict)
    recorded_before: dict[str, ToolExecutionOutcome] = field(default_factory=dict)
    held: dict[str, LiveCall] = field(default_factory=dict)
    started: list[LiveCall] = field(default_factory=list)
    emitted: Callable[[ToolCall, Any], None] | None = None
    idempotency_key: Callable[[ToolCall], str] | None = None
    unattended: str = ""


@dataclass(slots=True)
class Attempt:
    """One attempt at a run on one model, as far as it cannot be stored; the next begins without any of it.

    `dynamic` says that tools may appear in mid-conversation. `message` is the user's, until it is added. `toolbox`
    has the tools offered, and `announced` those of them that the model knows. `registered` is the view whose tools
    are in the toolbox, and `noticed` the one that the model was informed of. `removed` are the tools that are gone
    since the run stopped, until the next request announces that; `unloadable` are sections that could not be loaded
    as it was taken up, and of those that were loaded, the first `recorded_loads` are recorded. The first `ordered`
    messages are in the order in which the loop wants them, and `written` are those that it has added since; others
    were added by somebody else.
    """

    beginning: Beginning
    model: Model
    settings: Settings
    dynamic: bool
    message: Message | None
    started: float
    toolbox: Toolbox
    announced: Toolbox
    registered: View | None = None
    noticed: View | None = None
    removed: Sequence[str] | None = None
    unloadable: dict[SectionPath, Exception] = field(default_factory=dict)
    recorded_loads: int = 0
    ordered: int = 0
    written: list[Message] = field(default_factory=list)
    call_ids: CallIds | None = None


class LiveRun:
    """A run under way: its spec and its state, and what cannot be stored of it.

    `parent` is the run that this one is inside of, whose guards hold for its tools too. `abandon` stops the run
    from any thread, while its loop runs; `fence` then refuses what its own thread still writes. `interrupt` ends a
    stream that the run's own thread is reading, for channels that can do so. `decisions` about calls that wait are
    there until they have acted. `channel` is that to the model in use, `entered` are the contexts that the run
    leaves when it ends, and `claim` holds the session. `passed` maps the user's words to those that the guards let
    pass. `given` are the messages with what the user gave to this run, by kind: each is added once. `children` run
    inside this one. `failures` say how the models before the one in use have failed. `follows_sections` is False if
    a replay must not depend on when a section says that it is out of date, and in a `dry_run` nothing is loaded and
    nobody is asked.
    """

    def __init__(self, spec: RunSpec, session: Session, parent: LiveRun | None = None) -> None:
        if not isinstance(session, Session):
            raise TypeError(f"session must be a Session, got {session!r}; pass session=Session()")
        self.spec = spec
        self.session = session
        self.parent = parent
        self.meter: Meter = Meter(
            spec.budget,
            spec.deadline,
            total=spec.total,
            before=spec.spent_before,
            parent=None if parent is None else parent.meter,
        )
        self.presentation = spec.prompt.present(session, spec.loaded, listed=self._listed)
        self.resources_opened: OpenResources | None = None
        self.channel: Channel | None = None
        self.entered: list[Any] = []
        self.claim = ExitStack()
        self.points: Points | None = None
        self.abandon: Callable[[], None] | None = None
        self.interrupt: Callable[[], object] = _nothing
        self.fence = Fence()
        self.decisions: dict[str, Any] = dict(spec.decisions)
        self.passed: dict[str, str] = {}
        self.given: dict[str, Message] = {}
        self.children: list[Any] = []
        self.failures: list[str] = []
        self.stream = StreamState()
        self.calls = LiveCalls()
        self.warned: set[tuple[str, str]] = set()
        self.follows_sections = True
        self.dry_run = False
        self.state = self._first_state()
        self.attempt = self._first_attempt()
        self.owner = f"{self.name} ({self.run_id})"
        """The name under which the run claims its session."""

    @classmethod
    def inside(cls, outer: LiveRun, models: tuple[Model, ...], asked: Model) -> LiveRun:
        """The run that a model makes to evaluate a prompt by itself: a part of this one, on other models."""
        spec = replace(
            outer.spec,
            models=models,
            asked=asked,
            beginning=outer.attempt.beginning,
            message=None,
            run_id=outer.run_id,
        )
        live = cls(spec, outer.session, outer.parent)
        live.meter, live.fence, live.calls, live.stream = outer.meter, outer.fence, outer.calls, outer.stream
        live.given, live.passed, live.children = outer.given, outer.passed, outer.children
        live.state = live.state.updated({"attempt": outer.state.attempt})
        return live

    def _first_state(self) -> RunState:
        """The state before the run has begun; that in the session is of an earlier run, or where this one stopped."""
        spec = self.spec
        return RunState(
            spec.run_id or os.urandom(8).hex(),
            spec.prompt.ns,
            spec.prompt.key,
            conversation_id=spec.conversation_id or conversation_of(self.session),
        )

    def _first_attempt(self) -> Attempt:
        stored = self.session[RunState].latest()
        model = 0
        if stored is not None and self.spec.beginning == "resume" and stored.is_of(self.prompt.ns, self.prompt.key):
            # The model that was in use, unless there are fewer of them now.
            model = stored.model if stored.model < len(self.spec.models) else 0
        self.state = self.state.updated({"model": model})
        return self.new_attempt(self.spec.beginning, message=self.spec.message)

    def new_attempt(
        self, beginning: Beginning, *, message: Message | None = None, dynamic: bool | None = None
    ) -> Attempt:
        """An attempt on the model in use."""
        model = self.spec.models[self.state.model]
        toolbox = Toolbox(
            model.hosted_tool_codecs,
            frozenset(model.reserved_names),
            model.own_tools,
            self._describe_section,
        )
        return Attempt(
            beginning,
            model,
            model.settings.merged(self.spec.settings),
            model.supports_dynamic_tools if dynamic is None else dynamic,
            None if message is None or message.kind in self.given else message,
            self.session.clock.monotonic(),
            toolbox,
            toolbox,
        )

    def _listed(self) -> list[SectionPath]:
        """The sections whose summary the model has."""
        paths: list[SectionPath] = []
        for path, exposed in self.exposure.items():
            if exposed.source == "summary" or exposed.listed is not None:
                paths.append(path)
        return paths

    def _describe_section(self, section_key: str) -> str:
        node = self.presentation.outline.by_key.get(section_key)
        return section_key if node is None else section_headline(node)

    # Facts.

    @property
    def prompt(self) -> BoundPrompt[Any]:
        return self.spec.prompt

    @property
    def name(self) -> str:
        return self.spec.prompt.name

    @property
    def run_id(self) -> str:
        return self.state.run_id

    @property
    def conversation_id(self) -> str:
        return self.state.conversation_id

    @property
    def model(self) -> Model:
        """The model in use."""
        return self.attempt.model

    @property
    def evaluates_itself(self) -> bool:
        """True if the model in use evaluates the prompt by itself, unless it is that which was asked for this run."""
        model = self.model
        return model.evaluates_itself and (model is not self.spec.asked or not model.has_channel)

    @property
    def codecs(self) -> dict[str, Mapping[str, Any]]:
        """The codecs of each model so far, by the name of its adapter."""
        return {model.name: model.hosted_tool_codecs for model in self.spec.models[: self.state.model + 1]}

    @property
    def toolbox(self) -> Toolbox:
        """The tools that this attempt has offered."""
        return self.attempt.toolbox

    @property
    def view(self) -> View:
        return self.presentation.view()

    @property
    def exposure(self) -> Exposure:
        return self.session[Exposure].latest() or Exposure()

    @property
    def resources(self) -> ScopedResourceContext:
        if self.resources_opened is None:
            raise RuntimeError(f"The resources of the run of '{self.name}' are not open.")
        return self.resources_opened.of_session(self.session)

    @property
    def parent_run_id(self) -> str:
        return self.spec.parents[-1] if self.spec.parents else ""

    @property
    def in_conversation(self) -> bool:
        """True if the run is an exchange of a conversation."""
        return self.spec.in_conversation

    @property
    def restarts_itself(self) -> bool:
        """True if the run opens sections by restarting; otherwise its caller decides."""
        return self.spec.max_expansions is not None

    @property
    def has_guards(self) -> bool:
        """True if the template or one of its sections has guards."""
        return bool(self.prompt.template.guards or self.presentation.outline.guarded)

    @property
    def guards_tools(self) -> bool:
        """True if guards of this run, or of one around it, may decide about tool calls."""
        section_guards = (node.section.guards for node in self.presentation.outline.guarded)
        guards = (*self.prompt.template.guards, *chain.from_iterable(section_guards))
        own = any(guard.has("before_tool") for guard in guards)
        return own or (self.parent is not None and self.parent.guards_tools)

    def loop_thread(self) -> LoopThread:
        """The event loop for async code of sync runs."""
        return self.resources.loop.thread()

    @property
    def overrides_by_key(self) -> dict[str, SectionVisibility]:
        """The caller's overrides, by section key."""
        overrides = self.spec.visibility_overrides or {}
        return {".".join(path): visibility for path, visibility in overrides.items()}

    @property
    def tags(self) -> dict[str, str]:
        """The session's tags, the run's own, and the arm of its experiment."""
        arm = {"experiment": self.prompt.arm} if self.prompt.arm else {}
        return {**self.session.tags, **self.spec.tags, **arm}

    @property
    def own_tools(self) -> Sequence[Tool[Any, Any]]:
        """The run's own tools: those it was given, and `recall` once something of the conversation is left out."""
        window = self.session[ContextWindow].latest()
        # Without either, a new tool would end the run.
        is_offerable = self.attempt.dynamic or self.restarts_itself
        if is_offerable and window is not None and window.cut is not None:
            return (*self.spec.tools, RECALL)
        return self.spec.tools

    def find_tool(self, section_key: str, name: str) -> AnyTool | None:
        """A tool by its section's key and its name; built-in tools and those of the run have the key ''."""
        if section_key:
            return self.presentation.find_tool(section_key, name)
        without_section = (*self.prompt.template.builtin_tools(), *self.own_tools)
        return next((tool for tool in without_section if tool.name == name), None)

    # State.

    def begin(self, state: RunState) -> None:
        """Have this as the state of the run, in the session too."""
        self.state = state
        self.session[RunState].seed(state)

    def adopt_state(self, state: RunState) -> None:
        """Go on from a state that another run may have left, whose models may be others; the session has it still."""
        self.state = state.updated({"model": self.state.model})

    def save(self, **changes: Any) -> None:
        """Change the run's state in the session."""
        self.begin(self.state.updated(changes))

    def save_tools(self, tools: Iterable[ToolRef], **changes: Any) -> None:
        """Change the tools of the run, and keep the names of those that are gone."""
        self.begin(self.state.with_tools(tuple(tools)).updated(changes))

    def add_message(self, say: Callable[[Message], None]) -> None:
        """Add the user's message, once: a restart, or the next model, finds it in the conversation."""
        message, self.attempt.message = self.attempt.message, None
        if message is not None:
            if self.points is not None:
                self.points.message(self.run_id, message)
            self.given[message.kind] = message
            say(message)

    def check_expansions(self, signal: VisibilityExpansionRequired) -> None:
        """Raise if the run has restarted as often as it may."""
        limit = self.spec.max_expansions
        if limit is not None and self.state.attempt > limit:
            raise PromptEvaluationError(
                f"'{self.name}' asked to open sections more than {limit} times "
                f"(now: {', '.join(signal.section_keys)}); raise max_expansions or show these sections in full.",
                prompt_name=self.name,
                phase="tool",
            )

    def open(self, overrides: Mapping[SectionPath, SectionVisibility]) -> None:
        """Open what an attempt asked for, for the next one to show."""
        for path, visibility in overrides.items():
            self.session.dispatch(SetVisibilityOverride(path, visibility))

    def abandon_children(self) -> None:
        """Stop the runs inside this one, from another thread than theirs."""
        for child in list(self.children):
            child.abandon()

    # The record.

    def emit(self, event: Callable[..., LogEntry], /, **fields: Any) -> None:
        """Record an event of this run, at the session's time, so that a replay records the same times."""
        self.session.dispatch(event(**self.stamp, **fields))

    def announce(self, event: Callable[..., LogEntry], /, **fields: Any) -> None:
        """Show observers an event of this run that the session does not keep."""
        if self.session.observed:
            self.session.announce(event(**self._identity, **fields))

    @property
    def stamp(self) -> dict[str, Any]:
        """The fields that every event of this run has, as of now."""
        return {"timestamp": self.session.timestamp(), **self._identity}

    @property
    def _identity(self) -> dict[str, Any]:
        state = self.state
        return {
            "run_id": state.run_id,
            "conversation_id": state.conversation_id,
            "parent_run_id": self.parent_run_id,
        }

    def events(self, kind: type[EventT]) -> Iterator[EventT]:
        """The events of this conversation, newest first: those of runs inside this one, or around it, are not its.

        Nor are those of turns that were undone, except that a rewind records what the model then has.
        """
        undone = self.session[Undone].all() if Undone in self.session and kind is not SectionsExposed else ()
        for event in reversed(self.session[kind].view()):
            if any(time.since < event.timestamp < time.until for time in undone):
                continue
            if event.run_id == self.run_id or not (event.parent_run_id or self.spec.parents):
                yield event

    def opened_since(self, start: int) -> list[SectionPath]:
        """The sections that were opened since this message without the model asking."""
        since = next((call.timestamp for call in self.events(ModelCalled) if call.messages <= start), 0.0)
        paths: list[SectionPath] = []
        for event in self.events(SectionsOpened):
            if event.timestamp <= since:
                break
            paths.extend(tuple(key.split(".")) for key in event.section_keys)
        return paths

    def pay_rankings(self) -> None:
        """Count and record the rankings that models have made for this run."""
        paid = self.presentation.rankings
        while paid:
            ranking = paid.pop(0)
            self.meter.add_usage(ranking.usage, ranking.prices, turns=0)
            fields = {"model": ranking.model, "cost": ranking.prices.cost(ranking.usage), "latency": ranking.seconds}
            self.emit(SectionsRanked, usage=ranking.usage, **fields)

    def prices(self, model: str) -> Prices:
        """The prices of a model, or of the adapter's if the reply came from one that is not listed."""
        prices = prices_for(model) or prices_for(self.model.model)
        if prices is None:
            raise PromptEvaluationError(
                f"Budget max_cost needs the prices of model '{model}', which are not listed; pass "
                "Budget(max_cost=..., prices=Prices(input=..., output=...)), per million tokens.",
                prompt_name=self.name,
                phase="budget",
            )
        return prices

    def error(self, message: str) -> PromptEvaluationError:
        return PromptEvaluationError(message, prompt_name=self.name, phase="render")


def _nothing() -> None:
    """Interrupts nothing."""
