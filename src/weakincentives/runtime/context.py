"""What the parts of a loop share: the run's prompt, session, adapter and state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import AnyTool, Overrides, Presentation, Prompt, SectionVisibility, View
from weakincentives.resources import ScopedResourceContext
from weakincentives.runtime.config import InnerLoopConfig, LoopAdapter
from weakincentives.runtime.events import Exposure
from weakincentives.runtime.messages import Message, Transcript
from weakincentives.runtime.runs import Run, RunScope
from weakincentives.session import LogEntry, Session


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
        known = self.scope.presentation
        self.presentation = self.prompt.present(self.session) if known is None else known
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
    def overrides_by_key(self) -> dict[str, SectionVisibility]:
        """The caller's overrides, by section key."""
        return {".".join(path): shown for path, shown in (self.visibility_overrides or {}).items()}

    def find_tool(self, section_key: str, name: str) -> AnyTool | None:
        """A tool by its section's key and its name; built-in tools have the key ''."""
        if section_key:
            return self.presentation.find_tool(section_key, name)
        return next((tool for tool in self.prompt.template.builtin_tools() if tool.name == name), None)

    def save(self, **changes: Any) -> None:
        """Change the run's state in the session."""
        self.run = self.run.updated(changes)
        self.session[Run].seed(self.run)

    def emit(self, event: Callable[..., LogEntry], /, **fields: Any) -> None:
        """Record an event of this run, at the session's time, so that a replay records the same times."""
        fields["run_id"], fields["conversation_id"] = self.scope.run_id, self.scope.conversation_id
        self.session.dispatch(event(timestamp=self.session.timestamp(), **fields))

    def add_message(self) -> None:
        """Add the user's message, once: a restart, or the next adapter, finds it in the conversation."""
        message, self.message = self.message, None
        if message is not None:
            self.scope.given[message.kind] = message
            self.transcript.say(message)

    def error(self, message: str) -> PromptEvaluationError:
        return PromptEvaluationError(message, prompt_name=self.prompt.name, phase="render")
