"""The context that the parts of a loop share: the run's prompt, session, adapter and state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from weakincentives._loops import LoopThread
from weakincentives.content import Media, Part
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import (
    AnyTool,
    Overrides,
    Presentation,
    Prompt,
    SectionPath,
    SectionVisibility,
    Tokenizer,
    Tool,
    View,
    default_tokenizer,
    portable_name,
)
from weakincentives.resources import ScopedResourceContext
from weakincentives.runtime.events import Exposure, ModelCalled, PromptRendered, RunEnded, SectionsExposed, ToolInvoked
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.media import MediaSupport
from weakincentives.runtime.messages import Message, Settings, Transcript
from weakincentives.runtime.runs import Run, RunScope
from weakincentives.session import LogEntry, Session

EventT = TypeVar("EventT", ModelCalled, PromptRendered, RunEnded, SectionsExposed, ToolInvoked)


@dataclass(frozen=True, slots=True)
class InnerLoopConfig:
    """The settings of one loop: True if tools may appear mid-conversation, and those of its model."""

    supports_dynamic_tools: bool = False
    settings: Settings = field(default_factory=Settings)


class LoopAdapter:
    """The part of an adapter that the loop uses; the defaults describe a model that only reads text."""

    name: ClassVar[str] = ""
    model: str = ""
    output_retries: int = 1
    max_tool_description: ClassVar[int | None] = None
    """The longest tool description that the provider accepts, in characters; longer ones are also sent as text."""
    reserved_names: Collection[str] = ()
    """The names of tools that the provider adds itself."""
    own_tools: Mapping[str, Tool[Any, Any]] = MappingProxyType({})
    """Those of them whose calls may reach the loop, because they wait for a person; they are never sent."""
    raised_errors: tuple[type[Exception], ...] = ()
    """The exceptions of tool handlers that end the run and are raised, instead of being sent to the model."""
    sends_tools: ClassVar[bool] = True
    """True if requests include the definitions of tools, so that they count as input."""

    @property
    def supports_dynamic_tools(self) -> bool:
        """True if tools can be added to a conversation; if not, opening a section with tools restarts it."""
        return False

    @property
    def tool_route(self) -> str:
        """The route by which tools appear mid-conversation."""
        return "append" if self.supports_dynamic_tools else "restart"

    @property
    def supports_operator_text(self) -> bool:
        """True if the model accepts system messages mid-conversation."""
        return False

    @property
    def defers_tools(self) -> bool:
        """True if the tools of closed sections are sent too, so that the provider's own search can find them."""
        return False

    @property
    def hosted_tool_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        """The codecs of the hosted tools this adapter can offer, by kind."""
        return {}

    @property
    def tokenizer(self) -> Tokenizer:
        return default_tokenizer()

    def count_tokens(self, text: str) -> int:
        return self.tokenizer.count(text)

    @property
    def media(self) -> MediaSupport:
        """The media that the model accepts."""
        return MediaSupport()

    def count_media(self, part: Media) -> int:
        """The tokens of a medium, by the vendor's formula."""
        return self.media.count(part)

    def define_tool(self, tool: AnyTool) -> str:
        """The tool as JSON text, as this adapter sends it to the model."""
        return tool.definition

    def found_tools(self, items: Sequence[str]) -> tuple[str, ...]:
        """The tools that the provider's search found, according to the items of a reply."""
        return ()

    def binds_reasoning(self, message: Message) -> bool:
        """True if a message has reasoning that the provider accepts only with the prompt it was written under."""
        return False

    def check_content(self, parts: Sequence[Part]) -> None:
        """Raise `PromptEvaluationError` for media that this adapter's model does not accept."""
        self.media.check(parts, self._described)

    def check_parts(self, parts: Sequence[Part], earlier: Iterable[Message] = ()) -> None:
        """Raise if the model does not accept these parts, or not as many together with those of earlier messages."""
        if any(isinstance(part, Media) for part in parts):
            self.check_content(parts)
            said = [part for message in earlier for part in message.parts]
            self.media.check_amount([*said, *parts], self._described)

    @property
    def _described(self) -> str:
        return f"The {self.name} adapter with model '{self.model}'"

    def sent_tool(self, tool: AnyTool) -> str:
        """A tool as it reaches the model: its definition, and its full description if that is sent as text."""
        return self.define_tool(tool) + self.long_description(tool) if self.sends_tools else ""

    def count_tools(self, tools: Iterable[AnyTool]) -> int:
        """The tokens of tools as they reach the model."""
        return sum(self.count_tokens(self.sent_tool(tool)) for tool in tools)

    def long_description(self, tool: AnyTool) -> str:
        """The full description as text, if the provider accepts only its beginning."""
        limit = self.max_tool_description
        if limit is None or len(tool.description) <= limit:
            return ""
        return f"The tool {portable_name(tool.name)}, in full: {tool.description}"


@dataclass(slots=True)
class RunContext:
    """A run under way. `run` is its state in the session, `message` the user's message until it is added."""

    prompt: Prompt[Any]
    session: Session
    scope: RunScope
    adapter: LoopAdapter
    config: InnerLoopConfig
    visibility_overrides: Overrides | None = None
    message: Message | None = None
    presentation: Presentation = field(init=False)
    transcript: Transcript = field(init=False)
    run: Run = field(default_factory=lambda: Run("", "", ""))

    def __post_init__(self) -> None:
        session, known = self.session, self.scope.presentation
        self.presentation = self.prompt.present(session) if known is None else known
        self.presentation.listed = lambda: _listed(session)
        self.scope.presentation = self.presentation
        self.transcript = Transcript(self.session)

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
        return self.prompt.resources.of_run(self.session)

    @property
    def has_guards(self) -> bool:
        """True if the template or one of its sections has guards."""
        return bool(self.prompt.template.guards or self.presentation.outline.guarded)

    def loop_thread(self) -> LoopThread:
        """The event loop for async code of sync runs."""
        return self.resources.loop.thread()

    @property
    def overrides_by_key(self) -> dict[str, SectionVisibility]:
        """The caller's overrides, by section key."""
        return {".".join(path): shown for path, shown in (self.visibility_overrides or {}).items()}

    @property
    def tags(self) -> dict[str, str]:
        """The session's tags and the run's own."""
        return {**self.session.tags, **self.scope.tags}

    def find_tool(self, section_key: str, name: str) -> AnyTool | None:
        """A tool by its section's key and its name; built-in tools and those of the run have the key ''."""
        if section_key:
            return self.presentation.find_tool(section_key, name)
        without_section = (*self.prompt.template.builtin_tools(), *self.scope.tools)
        return next((tool for tool in without_section if tool.name == name), None)

    def save(self, **changes: Any) -> None:
        """Change the run's state in the session."""
        self.run = self.run.updated(changes)
        self.session[Run].seed(self.run)

    def emit(self, event: Callable[..., LogEntry], /, **fields: Any) -> None:
        """Record an event of this run, at the session's time, so that a replay records the same times."""
        self.session.dispatch(event(**self.stamp, **fields))

    @property
    def stamp(self) -> dict[str, Any]:
        """The fields that every event of this run has, as of now."""
        scope = self.scope
        whose = {"run_id": scope.run_id, "conversation_id": scope.conversation_id, "parent_run_id": scope.parent_run_id}
        return {"timestamp": self.session.timestamp(), **whose}

    def own(self, kind: type[EventT]) -> Iterator[EventT]:
        """The events of this conversation, newest first: those of runs inside this one, or around it, are not its."""
        for event in reversed(self.session[kind].view()):
            if event.run_id == self.scope.run_id or not (event.parent_run_id or self.scope.parents):
                yield event

    def add_message(self) -> None:
        """Add the user's message, once: a restart, or the next adapter, finds it in the conversation."""
        message, self.message = self.message, None
        if message is not None:
            self.scope.given[message.kind] = message
            self.transcript.say(message)

    def error(self, message: str) -> PromptEvaluationError:
        return PromptEvaluationError(message, prompt_name=self.prompt.name, phase="render")


def _listed(session: Session) -> list[SectionPath]:
    exposure = session[Exposure].latest() or Exposure()
    return [path for path, exposed in exposure.items() if exposed.source == "summary" or exposed.listed is not None]
