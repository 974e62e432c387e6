"""The loop that evaluates prompts: messages, tool transactions, events, adapters' common ground."""

from weakincentives.errors import BudgetExceededError, DeadlineExceededError, PromptEvaluationError
from weakincentives.prompt import DisclosureRequest
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
    "Run",
    "RunRestarted",
    "RunScope",
    "RunTools",
    "SectionState",
    "StopReason",
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
    "adapter_spec",
    "adapter_specs",
    "assert_prefix_kept",
    "cache_safe_routes",
    "ledger",
    "ledger_of",
    "prefix_breaks",
]
