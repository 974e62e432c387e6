"""The context that the parts of a loop share: the run's prompt, session, adapter and state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, TypeVar

from weakincentives._base.loops import LoopThread
from weakincentives.errors import PromptEvaluationError
from weakincentives.limits import Prices
from weakincentives.prompt import (
    AnyTool,
    BoundPrompt,
    Overrides,
    Presentation,
    SectionPath,
    SectionVisibility,
    Tool,
    View,
)
from weakincentives.resources import ScopedResourceContext
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
from weakincentives.runtime.messages import Message, Settings
from weakincentives.runtime.model import Model
from weakincentives.runtime.past.points import Points
from weakincentives.runtime.providers import prices_for
from weakincentives.runtime.runs import Run, RunScope, ToolRef
from weakincentives.runtime.window.recall import RECALL
from weakincentives.runtime.window.transcript import Transcript
from weakincentives.session import LogEntry, Session

EventT = TypeVar("EventT", ModelCalled, PromptRendered, RunEnded, SectionsExposed, SectionsOpened, ToolInvoked)


@dataclass(frozen=True, slots=True)
class InnerLoopConfig:
    """The settings of one loop: True if tools may appear mid-conversation, those of its model, and its compaction."""

    supports_dynamic_tools: bool = False  #: True if tools may appear mid-conversation
    settings: Settings = field(default_factory=Settings)  #: the model's settings
    compaction: Compaction | None = None  #: when and how to shorten the conversation


@dataclass(frozen=True, slots=True)
class Compaction:
    """How a conversation is kept below the size of its model's context window.

    Requests above `at` times the `window` (in tokens) are shortened to half of that; without a
    window, it is the one that the adapter knows. What an overflow reveals counts if it is less. The
    last `keep` exchanges stay as they are, or fewer if these do not fit; in a run of its own, a turn
    counts as an exchange. `by` makes summaries: "provider" uses the provider's own compaction, or
    the conversation's model where there is none; or pass an adapter, or a function that gets the
    messages and returns text, sync or async. With `when="pays"`, a conversation is also shortened
    when that is cheaper at the model's prices.
    """

    window: int | None = None
    at: float = 0.8
    keep: int = 4
    by: Any = "provider"
    when: Literal["full", "pays"] = "full"

    def __post_init__(self) -> None:
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            raise ValueError(f"Compaction window must be a number of tokens or None, got {self.window!r}")
        if type(self.at) not in (int, float) or not 0 < self.at <= 1:
            raise ValueError(f"Compaction at must be a share of the window, above 0 and up to 1, got {self.at!r}")
        if type(self.keep) is not int or self.keep < 1:
            raise ValueError(f"Compaction keep must be at least 1 exchange, got {self.keep!r}")
        if self.when not in ("full", "pays"):
            raise ValueError(f"Compaction when must be 'full' or 'pays', got {self.when!r}")
        if self.by != "provider" and not callable(self.by) and not isinstance(self.by, Model):
            raise TypeError(f"Compaction by must be 'provider', an adapter or a function, got {self.by!r}")


@dataclass(slots=True)
class RunContext:
    """A run under way. `run` is its state in the session, `message` the user's message until it is added.

    `points` adds those of a conversation.
    """

    prompt: BoundPrompt[Any]
    session: Session
    scope: RunScope
    adapter: Model
    config: InnerLoopConfig
    visibility_overrides: Overrides | None = None
    message: Message | None = None
    presentation: Presentation = field(init=False)
    transcript: Transcript = field(init=False)
    run: Run = field(default_factory=lambda: Run("", "", ""))
    points: Points | None = None

    def __post_init__(self) -> None:
        session, known = self.session, self.scope.presentation
        self.presentation = self.prompt.present(session, self.scope.loaded) if known is None else known
        self.presentation.listed = lambda: _listed(session)
        self.scope.presentation = self.presentation
        self.transcript = Transcript(self.session, self.adapter.name)

    @property
    def name(self) -> str:
        return self.prompt.name

    @property
    def view(self) -> View:
        return self.presentation.view()

    @property
    def exposure(self) -> Exposure:
        return self.session[Exposure].latest() or Exposure()

    @property
    def resources(self) -> ScopedResourceContext:
        resources = self.scope.resources
        if resources is None:
            raise RuntimeError(f"The resources of the run of '{self.name}' are not open.")
        return resources.of_session(self.session)

    @property
    def has_guards(self) -> bool:
        """True if the template or one of its sections has guards."""
        return bool(self.prompt.template.guards or self.presentation.outline.guarded)

    @property
    def guards_tools(self) -> bool:
        """True if guards of this run, or of one around it, may decide about tool calls."""
        sections = (node.section.guards for node in self.presentation.outline.guarded)
        guards = (*self.prompt.template.guards, *chain.from_iterable(sections))
        outer = self.scope.outer
        own = any(guard.has("before_tool") for guard in guards)
        return own or (outer is not None and outer.guards_tools)

    def loop_thread(self) -> LoopThread:
        """The event loop for async code of sync runs."""
        return self.resources.loop.thread()

    @property
    def overrides_by_key(self) -> dict[str, SectionVisibility]:
        """The caller's overrides, by section key."""
        return {".".join(path): shown for path, shown in (self.visibility_overrides or {}).items()}

    @property
    def tags(self) -> dict[str, str]:
        """The session's tags, the run's own, and the arm of its experiment."""
        arm = {"experiment": self.prompt.arm} if self.prompt.arm else {}
        return {**self.session.tags, **self.scope.tags, **arm}

    @property
    def own_tools(self) -> Sequence[Tool[Any, Any]]:
        """The run's own tools: those it was given, and `recall` once something of the conversation is left out."""
        window = self.session[ContextWindow].latest()
        # Without either, a new tool would end the run.
        offerable = self.config.supports_dynamic_tools or self.scope.max_expansions is not None
        shortened = window is not None and window.cut is not None and offerable
        return (*self.scope.tools, RECALL) if shortened else self.scope.tools

    def find_tool(self, section_key: str, name: str) -> AnyTool | None:
        """A tool by its section's key and its name; built-in tools and those of the run have the key ''."""
        if section_key:
            return self.presentation.find_tool(section_key, name)
        without_section = (*self.prompt.template.builtin_tools(), *self.own_tools)
        return next((tool for tool in without_section if tool.name == name), None)

    def save(self, **changes: Any) -> None:
        """Change the run's state in the session."""
        self.run = self.run.updated(changes)
        self.session[Run].seed(self.run)

    def save_tools(self, tools: Sequence[ToolRef], **changes: Any) -> None:
        """Change the tools of the run, and keep the names of those that are gone."""
        run = self.run.with_tools(tuple(tools))
        self.save(tools=run.tools, former_tools=run.former_tools, **changes)

    def emit(self, event: Callable[..., LogEntry], /, **fields: Any) -> None:
        """Record an event of this run, at the session's time, so that a replay records the same times."""
        self.session.dispatch(event(**self.stamp, **fields))

    def announce(self, event: Callable[..., LogEntry], /, **fields: Any) -> None:
        """Show observers an event of this run that the session does not keep."""
        if self.session.observed:
            self.session.announce(event(**self._whose, **fields))

    @property
    def stamp(self) -> dict[str, Any]:
        """The fields that every event of this run has, as of now."""
        return {"timestamp": self.session.timestamp(), **self._whose}

    @property
    def _whose(self) -> dict[str, Any]:
        scope = self.scope
        return {"run_id": scope.run_id, "conversation_id": scope.conversation_id, "parent_run_id": scope.parent_run_id}

    def own(self, kind: type[EventT]) -> Iterator[EventT]:
        """The events of this conversation, newest first: those of runs inside this one, or around it, are not its.

        Nor are those of turns that were undone, except that a rewind records what the model then has.
        """
        undone = self.session[Undone].all() if Undone in self.session and kind is not SectionsExposed else ()
        for event in reversed(self.session[kind].view()):
            if any(each.since < event.timestamp < each.until for each in undone):
                continue
            if event.run_id == self.scope.run_id or not (event.parent_run_id or self.scope.parents):
                yield event

    def opened_since(self, start: int) -> list[SectionPath]:
        """The sections that were opened since this message without the model asking."""
        since = next((call.timestamp for call in self.own(ModelCalled) if call.messages <= start), 0.0)
        paths: list[SectionPath] = []
        for event in self.own(SectionsOpened):
            if event.timestamp <= since:
                break
            paths.extend(tuple(key.split(".")) for key in event.section_keys)
        return paths

    def pay_rankings(self) -> None:
        """Count and record the rankings that models have made for this run."""
        paid = self.presentation.rankings
        while paid:
            ranking = paid.pop(0)
            self.scope.meter.add_usage(ranking.usage, ranking.prices, turns=0)
            fields = {"model": ranking.model, "cost": ranking.prices.cost(ranking.usage), "latency": ranking.seconds}
            self.emit(SectionsRanked, usage=ranking.usage, **fields)

    def add_message(self) -> None:
        """Add the user's message, once: a restart, or the next adapter, finds it in the conversation."""
        message, self.message = self.message, None
        if message is not None:
            if self.points is not None:
                self.points.message(self.scope.run_id, message)
            self.scope.given[message.kind] = message
            self.transcript.say(message)

    def prices(self, model: str) -> Prices:
        """The prices of a model, or of the adapter's if the reply came from one that is not listed."""
        known = prices_for(model) or prices_for(self.adapter.model)
        if known is None:
            raise PromptEvaluationError(
                f"Budget max_cost needs the prices of model '{model}', which are not listed; pass "
                "Budget(max_cost=..., prices=Prices(input=..., output=...)), per million tokens.",
                prompt_name=self.name,
                phase="budget",
            )
        return known

    def error(self, message: str) -> PromptEvaluationError:
        return PromptEvaluationError(message, prompt_name=self.prompt.name, phase="render")


def _listed(session: Session) -> list[SectionPath]:
    exposure = session[Exposure].latest() or Exposure()
    return [path for path, exposed in exposure.items() if exposed.source == "summary" or exposed.listed is not None]
