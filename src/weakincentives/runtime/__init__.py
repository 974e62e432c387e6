"""The loop that evaluates prompts: messages, tool transactions, events, adapters' common ground."""

from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError
from weakincentives.prompt import DisclosureRequest
from weakincentives.runtime.adapter import ProviderAdapter
from weakincentives.runtime.drivers import (
    AsyncEventStream,
    Channel,
    Completed,
    EventStream,
    StreamEvent,
    TextDelta,
    ToolEnded,
    ToolStarted,
)
from weakincentives.runtime.events import (
    EvaluationFailed,
    EvaluationStopped,
    HostedToolInvoked,
    ModelCalled,
    PromptChanged,
    PromptExecuted,
    PromptRendered,
    ResourcesNotClosed,
    RunRestarted,
    SectionState,
    ToolInvoked,
    ToolsInjected,
    ToolsWithdrawn,
)
from weakincentives.runtime.executor import CallSuspended, ToolExecutionOutcome, ToolExecutor
from weakincentives.runtime.explain import Explanation
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.inner_loop import InnerLoop, InnerLoopConfig
from weakincentives.runtime.ledger import Ledger, LedgerSection, LedgerTurn, ledger, ledger_of
from weakincentives.runtime.main_loop import MainLoop
from weakincentives.runtime.messages import (
    CallModel,
    Effect,
    Message,
    ModelReply,
    ModelRequest,
    PromptResponse,
    RunTools,
    ToolCall,
)
from weakincentives.runtime.prefix import PrefixBreak, assert_prefix_kept, prefix_breaks
from weakincentives.runtime.run import Run, RunScope

__all__ = [
    "AsyncEventStream",
    "BudgetExceededError",
    "CallModel",
    "CallSuspended",
    "Channel",
    "Completed",
    "DeadlineExceededError",
    "DisclosureRequest",
    "Effect",
    "EvaluationFailed",
    "EvaluationStopped",
    "EventStream",
    "Explanation",
    "HostedToolCodec",
    "HostedToolInvoked",
    "InnerLoop",
    "InnerLoopConfig",
    "Ledger",
    "LedgerSection",
    "LedgerTurn",
    "MainLoop",
    "Message",
    "ModelCalled",
    "ModelReply",
    "ModelRequest",
    "PrefixBreak",
    "PromptChanged",
    "PromptEvaluationError",
    "PromptExecuted",
    "PromptRendered",
    "PromptResponse",
    "ProviderAdapter",
    "ResourcesNotClosed",
    "Run",
    "RunRestarted",
    "RunScope",
    "RunTools",
    "SectionState",
    "StreamEvent",
    "TextDelta",
    "ToolCall",
    "ToolEnded",
    "ToolExecutionOutcome",
    "ToolExecutor",
    "ToolInvoked",
    "ToolStarted",
    "ToolsInjected",
    "ToolsWithdrawn",
    "assert_prefix_kept",
    "ledger",
    "ledger_of",
    "prefix_breaks",
]
