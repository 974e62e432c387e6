"""What happened in a run: log entries of the session, and the source of everything that is recorded or shown."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weakincentives.limits import TokenUsage
from weakincentives.prompt.tool import ToolResult
from weakincentives.prompt.view import Span
from weakincentives.prompt.visibility import SectionPath, SectionVisibility
from weakincentives.runtime.messages import StopReason
from weakincentives.session import LogEntry


@dataclass(frozen=True, slots=True)
class SectionState:
    """One section of the tree at render: what it shows, who decided, and its tokens shown and in full.

    `visibility` is None for a section that is hidden inside a summarized one. The counts are those of the section by
    itself (no children); `tool_tokens` is what its tools add when it is open.
    """

    path: SectionPath
    title: str
    visibility: SectionVisibility | None
    decided_by: str
    shown_tokens: int
    full_tokens: int
    tools: tuple[str, ...] = ()
    tool_tokens: int = 0
    collapsible: bool = False


@dataclass(frozen=True, slots=True)
class PromptRendered(LogEntry):
    """An evaluation begins with this text and these tools; `definitions` is each as JSON text, hosted ones last."""

    run_id: str
    prompt_ns: str
    prompt_key: str
    prompt_name: str
    adapter: str
    model: str
    attempt: int
    text: str
    tools: tuple[str, ...]
    hosted_tools: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    sections: tuple[SectionState, ...] = ()
    tokenizer: str = ""
    builtin_tool_tokens: int = 0
    definitions: tuple[str, ...] = ()
    timestamp: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class ModelCalled(LogEntry):
    """The model was asked once; the request was the first `messages` messages with these tools."""

    run_id: str
    prompt_name: str
    adapter: str
    model: str
    turn: int
    usage: TokenUsage
    stop_reason: StopReason
    latency: float
    retries: int = 0
    response_id: str = ""
    messages: int = 0
    tools: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    timestamp: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class DisclosureRequest:
    """What a disclosure tool was asked for, and what was shown at that moment."""

    requested_sections: tuple[str, ...]
    reason: str
    current_visibility_state: Mapping[SectionPath, SectionVisibility]


@dataclass(frozen=True, slots=True)
class ToolInvoked(LogEntry):
    """A tool call was carried out, or refused; kept also when its changes were rolled back."""

    name: str
    params: Any
    result: ToolResult[Any]
    call_id: str
    run_id: str = ""
    arguments: str = ""
    rolled_back: bool = False
    duration: float = 0.0
    section_key: str = ""
    disclosure: DisclosureRequest | None = None
    compensation: str = ""
    timestamp: float = field(default_factory=time.time)

    @property
    def success(self) -> bool:
        return self.result.success


@dataclass(frozen=True, slots=True)
class ToolsInjected(LogEntry):
    """Tools appeared in the middle of a conversation, by `route`; `definitions` is each of them as JSON text."""

    tool_names: tuple[str, ...]
    section_key: str
    timestamp: float = field(default_factory=time.time)
    run_id: str = ""
    route: str = ""
    definitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolsWithdrawn(LogEntry):
    """Tools may no longer be called, since their section was closed."""

    tool_names: tuple[str, ...]
    section_key: str
    timestamp: float = field(default_factory=time.time)
    run_id: str = ""
    route: str = ""


@dataclass(frozen=True, slots=True)
class HostedToolInvoked(LogEntry):
    """The provider ran a hosted tool in this run; `output` is all that it gave."""

    name: str
    kind: str
    output: Any
    run_id: str = ""
    timestamp: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class RunRestarted(LogEntry):
    """The evaluation starts again with more sections open."""

    run_id: str
    section_keys: tuple[str, ...]
    reason: str
    requested_overrides: Mapping[SectionPath, SectionVisibility]
    timestamp: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class EvaluationFailed(LogEntry):
    """The evaluation ended with an error that went to the caller."""

    run_id: str
    prompt_name: str
    error: str
    message: str
    phase: str = ""
    timestamp: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class PromptExecuted(LogEntry):
    """The evaluation ended with an answer, or halted for its caller."""

    run_id: str
    prompt_name: str
    adapter: str
    model: str
    text: str
    output: Any
    usage: TokenUsage
    turns: int
    halted: bool = False
    duration: float = 0.0
    timestamp: float = field(default_factory=time.time)
