"""The loop that evaluates prompts: messages, tool transactions, events, and what adapters have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._base.imports import public_names
from weakincentives.errors import (
    BudgetExceededError as BudgetExceededError,
    DeadlineExceededError as DeadlineExceededError,
    PromptEvaluationError as PromptEvaluationError,
)
from weakincentives.prompt import DisclosureRequest as DisclosureRequest
from weakincentives.runtime.adapter import ProviderAdapter as ProviderAdapter
from weakincentives.runtime.calls.approval import (
    Answer as Answer,
    Approve as Approve,
    Decisions as Decisions,
    Deny as Deny,
    Edit as Edit,
    PendingCall as PendingCall,
)
from weakincentives.runtime.calls.call import ToolExecutionOutcome as ToolExecutionOutcome
from weakincentives.runtime.calls.difference import (
    Difference as Difference,
    Differences as Differences,
    differences as differences,
)
from weakincentives.runtime.calls.effects import (
    Effects as Effects,
    UndeclaredChangesError as UndeclaredChangesError,
)
from weakincentives.runtime.calls.executor import ToolExecutor as ToolExecutor
from weakincentives.runtime.calls.question import Question as Question, QuestionPart as QuestionPart
from weakincentives.runtime.delegation import delegate as delegate
from weakincentives.runtime.events import (
    CallDecided as CallDecided,
    CheckpointFailed as CheckpointFailed,
    Compacted as Compacted,
    ContextWindow as ContextWindow,
    Exposed as Exposed,
    Exposure as Exposure,
    FilesChanged as FilesChanged,
    GuardDecided as GuardDecided,
    HostedToolInvoked as HostedToolInvoked,
    ModelCalled as ModelCalled,
    ParamsBound as ParamsBound,
    PossibleMiss as PossibleMiss,
    PromptChanged as PromptChanged,
    PromptRendered as PromptRendered,
    ReasoningDropped as ReasoningDropped,
    ResourcesNotClosed as ResourcesNotClosed,
    Rewound as Rewound,
    RunEnded as RunEnded,
    RunStatus as RunStatus,
    SectionLoaded as SectionLoaded,
    SectionsExposed as SectionsExposed,
    SectionsOpened as SectionsOpened,
    SectionsRanked as SectionsRanked,
    ToolInvoked as ToolInvoked,
    ToolsInjected as ToolsInjected,
    ToolsWithdrawn as ToolsWithdrawn,
)
from weakincentives.runtime.explain import Explanation as Explanation
from weakincentives.runtime.hosted import HostedToolCodec as HostedToolCodec
from weakincentives.runtime.live import LiveRun as LiveRun
from weakincentives.runtime.loop.channel import (
    ArgumentsDelta as ArgumentsDelta,
    Channel as Channel,
    ReasoningDelta as ReasoningDelta,
    TextDelta as TextDelta,
)
from weakincentives.runtime.loop.inquiry import GuardContext as GuardContext
from weakincentives.runtime.loop.streams import (
    ApprovalNeeded as ApprovalNeeded,
    AsyncEventStream as AsyncEventStream,
    Completed as Completed,
    EventStream as EventStream,
    PartialOutput as PartialOutput,
    Restarted as Restarted,
    SectionOpened as SectionOpened,
    StreamEvent as StreamEvent,
    ToolEmitted as ToolEmitted,
    ToolEnded as ToolEnded,
    ToolStarted as ToolStarted,
)
from weakincentives.runtime.main_loop import (
    Conversation as Conversation,
    MainLoop as MainLoop,
    run as run,
    run_async as run_async,
)
from weakincentives.runtime.media import MediaSupport as MediaSupport
from weakincentives.runtime.messages import (
    Message as Message,
    ModelReply as ModelReply,
    ModelRequest as ModelRequest,
    PromptResponse as PromptResponse,
    Settings as Settings,
    StopReason as StopReason,
    ToolCall as ToolCall,
)
from weakincentives.runtime.model import Model as Model
from weakincentives.runtime.past.history import (
    HistoryTurn as HistoryTurn,
    RunHistory as RunHistory,
    run_history as run_history,
)
from weakincentives.runtime.past.ledger import (
    Ledger as Ledger,
    LedgerSection as LedgerSection,
    LedgerTurn as LedgerTurn,
    ledger as ledger,
    ledger_of as ledger_of,
)
from weakincentives.runtime.past.points import OutsideCall as OutsideCall, Point as Point
from weakincentives.runtime.past.prefix import (
    PrefixBreak as PrefixBreak,
    assert_prefix_kept as assert_prefix_kept,
    prefix_breaks as prefix_breaks,
)
from weakincentives.runtime.past.rewind import RewindReport as RewindReport
from weakincentives.runtime.providers import AdapterSpec as AdapterSpec
from weakincentives.runtime.window.rules import Compaction as Compaction

if not TYPE_CHECKING:
    __all__ = public_names(globals())
