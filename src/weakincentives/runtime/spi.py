"""The seam for sibling packages: what adapters, telemetry, durable runs and the command line need beyond the front.

Programs import from `weakincentives.runtime`; nothing here is part of what its docs promise to them.
"""

from __future__ import annotations

from weakincentives.runtime.adapter import RunOptions, closing_resources, closing_resources_async
from weakincentives.runtime.approval import (
    Decision,
    DecisionError,
    Settled,
    Undecided,
    edited_arguments,
    rule_of,
    waiting_calls,
)
from weakincentives.runtime.bridge import Cursor, Workers, call_async, call_sync, finish
from weakincentives.runtime.context import LoopAdapter
from weakincentives.runtime.drivers import ModelDelta, load_sections
from weakincentives.runtime.events import RUN_EVENTS, SectionState
from weakincentives.runtime.guards import Verdict
from weakincentives.runtime.history import (
    SHOWS,
    HistoryBuilder,
    RunState,
    Step,
    ToolUse,
    TurnSection,
    related,
    usage_of_children,
)
from weakincentives.runtime.ledger import RequestTokens, request_tokens
from weakincentives.runtime.media import MEGABYTE, TEXT_TYPES
from weakincentives.runtime.messages import (
    CORRECTION,
    INSTRUCTIONS,
    PROMPT_TEXT,
    AskGuards,
    CallModel,
    Effect,
    LoadSections,
    RunTools,
)
from weakincentives.runtime.prefix import first_difference
from weakincentives.runtime.providers import (
    AS_OF,
    adapter_spec,
    adapter_specs,
    cache_safe_routes,
    known_prices,
    prices_for,
)
from weakincentives.runtime.runs import Run, RunScope
from weakincentives.runtime.transactions import CallSuspended

__all__ = [
    "AS_OF",
    "CORRECTION",
    "INSTRUCTIONS",
    "MEGABYTE",
    "PROMPT_TEXT",
    "RUN_EVENTS",
    "SHOWS",
    "TEXT_TYPES",
    "AskGuards",
    "CallModel",
    "CallSuspended",
    "Cursor",
    "Decision",
    "DecisionError",
    "Effect",
    "HistoryBuilder",
    "LoadSections",
    "LoopAdapter",
    "ModelDelta",
    "RequestTokens",
    "Run",
    "RunOptions",
    "RunScope",
    "RunState",
    "RunTools",
    "SectionState",
    "Settled",
    "Step",
    "ToolUse",
    "TurnSection",
    "Undecided",
    "Verdict",
    "Workers",
    "adapter_spec",
    "adapter_specs",
    "cache_safe_routes",
    "call_async",
    "call_sync",
    "closing_resources",
    "closing_resources_async",
    "edited_arguments",
    "finish",
    "first_difference",
    "known_prices",
    "load_sections",
    "prices_for",
    "related",
    "request_tokens",
    "rule_of",
    "usage_of_children",
    "waiting_calls",
]
