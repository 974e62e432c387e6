"""The loop that evaluates prompts: messages, tool transactions, events, adapters' common ground."""

from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError
from weakincentives.prompt import DisclosureRequest
from weakincentives.runtime.accounts import (
    Ledger,
    LedgerSection,
    LedgerTurn,
    RequestTokens,
    ledger,
    ledger_of,
    request_tokens,
)
from weakincentives.runtime.adapter import ProviderAdapter
from weakincentives.runtime.drivers import Channel, Completed, StreamEvent, TextDelta, ToolEnded, ToolStarted
from weakincentives.runtime.events import (
    EvaluationFailed,
    HostedToolInvoked,
    ModelCalled,
    PromptExecuted,
    PromptRendered,
    RunRestarted,
    SectionState,
    ToolInvoked,
    ToolsInjected,
    ToolsWithdrawn,
)
from weakincentives.runtime.executor import ToolExecutionOutcome, ToolExecutor
from weakincentives.runtime.explain import Explanation
from weakincentives.runtime.history import (
    HistoryBuilder,
    HistoryTurn,
    RunHistory,
    RunState,
    Step,
    ToolUse,
    TurnSection,
    run_history,
)
from weakincentives.runtime.hosted import HostedToolCodec
from weakincentives.runtime.inner_loop import InnerLoop, InnerLoopConfig
from weakincentives.runtime.main_loop import MainLoop
from weakincentives.runtime.messages import (
    CallModel,
    Effect,
    Message,
    ModelReply,
    ModelRequest,
    PromptResponse,
    RunTools,
    StopReason,
    ToolCall,
)
from weakincentives.runtime.prefix import PrefixBreak, assert_prefix_kept, prefix_breaks
from weakincentives.runtime.providers import AdapterSpec, adapter_spec, adapter_specs, cache_safe_routes
from weakincentives.runtime.run import Run, RunScope

__all__ = [
    "AdapterSpec",
    "BudgetExceededError",
    "CallModel",
    "Channel",
    "Completed",
    "DeadlineExceededError",
    "DisclosureRequest",
    "Effect",
    "EvaluationFailed",
    "Explanation",
    "HistoryBuilder",
    "HistoryTurn",
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
    "PromptEvaluationError",
    "PromptExecuted",
    "PromptRendered",
    "PromptResponse",
    "ProviderAdapter",
    "RequestTokens",
    "Run",
    "RunHistory",
    "RunRestarted",
    "RunScope",
    "RunState",
    "RunTools",
    "SectionState",
    "Step",
    "StopReason",
    "StreamEvent",
    "TextDelta",
    "ToolCall",
    "ToolEnded",
    "ToolExecutionOutcome",
    "ToolExecutor",
    "ToolInvoked",
    "ToolStarted",
    "ToolUse",
    "ToolsInjected",
    "ToolsWithdrawn",
    "TurnSection",
    "adapter_spec",
    "adapter_specs",
    "assert_prefix_kept",
    "cache_safe_routes",
    "ledger",
    "ledger_of",
    "prefix_breaks",
    "request_tokens",
    "run_history",
]
