"""The loop that evaluates prompts: messages, tool transactions, events, and what adapters have in common."""

from __future__ import annotations

from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError
from weakincentives.prompt import DisclosureRequest
from weakincentives.runtime.adapter import ProviderAdapter
from weakincentives.runtime.approval import Answer, Approve, Decisions, Deny, Edit, PendingCall
from weakincentives.runtime.context import InnerLoopConfig
from weakincentives.runtime.delegation import delegate
from weakincentives.runtime.drivers import (
    ApprovalNeeded,
    ArgumentsDelta,
    AsyncEventStream,
    Channel,
    Completed,
    EventStream,
    PartialOutput,
    ReasoningDelta,
    Restarted,
    SectionOpened,
    StreamEvent,
    TextDelta,
    ToolEmitted,
    ToolEnded,
    ToolStarted,
)
from weakincentives.runtime.effects import Effects
from weakincentives.runtime.events import (
    CallDecided,
    Exposed,
    Exposure,
    GuardDecided,
    HostedToolInvoked,
    ModelCalled,
    PossibleMiss,
    PromptChanged,
    PromptRendered,
    ReasoningDropped,
    ResourcesNotClosed,
    RunEnded,
    RunStatus,
    SectionLoaded,
    SectionsExposed,
    SectionsOpened,
    ToolInvoked,
    ToolsInjected,
    ToolsWithdrawn,
)
from weakincentives.runtime.executor import ToolExecutor
from weakincentives.runtime.explain import Explanation
from weakincentives.runtime.guards import GuardContext
from weakincentives.runtime.history import HistoryTurn, RunHistory, run_history
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.inner_loop import InnerLoop
from weakincentives.runtime.ledger import Ledger, LedgerSection, LedgerTurn, ledger, ledger_of
from weakincentives.runtime.main_loop import Conversation, MainLoop, run, run_async
from weakincentives.runtime.media import MediaSupport
from weakincentives.runtime.messages import (
    Message,
    ModelReply,
    ModelRequest,
    PromptResponse,
    Settings,
    StopReason,
    ToolCall,
)
from weakincentives.runtime.prefix import PrefixBreak, assert_prefix_kept, prefix_breaks
from weakincentives.runtime.providers import AdapterSpec
from weakincentives.runtime.results import ToolExecutionOutcome

__all__ = [
    "AdapterSpec",
    "Answer",
    "ApprovalNeeded",
    "Approve",
    "ArgumentsDelta",
    "AsyncEventStream",
    "BudgetExceededError",
    "CallDecided",
    "Channel",
    "Completed",
    "Conversation",
    "DeadlineExceededError",
    "Decisions",
    "Deny",
    "DisclosureRequest",
    "Edit",
    "Effects",
    "EventStream",
    "Explanation",
    "Exposed",
    "Exposure",
    "GuardContext",
    "GuardDecided",
    "HistoryTurn",
    "HostedToolCodec",
    "HostedToolInvoked",
    "InnerLoop",
    "InnerLoopConfig",
    "Ledger",
    "LedgerSection",
    "LedgerTurn",
    "MainLoop",
    "MediaSupport",
    "Message",
    "ModelCalled",
    "ModelReply",
    "ModelRequest",
    "PartialOutput",
    "PendingCall",
    "PossibleMiss",
    "PrefixBreak",
    "PromptChanged",
    "PromptEvaluationError",
    "PromptRendered",
    "PromptResponse",
    "ProviderAdapter",
    "ReasoningDelta",
    "ReasoningDropped",
    "ResourcesNotClosed",
    "Restarted",
    "RunEnded",
    "RunHistory",
    "RunStatus",
    "SectionLoaded",
    "SectionOpened",
    "SectionsExposed",
    "SectionsOpened",
    "Settings",
    "StopReason",
    "StreamEvent",
    "TextDelta",
    "ToolCall",
    "ToolEmitted",
    "ToolEnded",
    "ToolExecutionOutcome",
    "ToolExecutor",
    "ToolInvoked",
    "ToolStarted",
    "ToolsInjected",
    "ToolsWithdrawn",
    "assert_prefix_kept",
    "delegate",
    "ledger",
    "ledger_of",
    "prefix_breaks",
    "run",
    "run_async",
    "run_history",
]
