"""The seam for sibling packages: what adapters, telemetry, durable runs and the command line need beyond the front.

Programs import from `weakincentives.runtime`; nothing here is part of what its docs promise to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._base.imports import public_names
from weakincentives._base.steps import Cursor as Cursor, run_steps as run_steps
from weakincentives.prompt.guards import GuardedCall as GuardedCall
from weakincentives.runtime.adapter import RunOptions as RunOptions, driver as driver
from weakincentives.runtime.calls.approval import (
    Decision as Decision,
    DecisionError as DecisionError,
    Settled as Settled,
    Undecided as Undecided,
    edited_arguments as edited_arguments,
    rule_steps as rule_steps,
    waiting_calls as waiting_calls,
)
from weakincentives.runtime.calls.call import CallOutcome as CallOutcome, Waits as Waits
from weakincentives.runtime.calls.transactions import CallSuspended as CallSuspended
from weakincentives.runtime.events import RUN_EVENTS as RUN_EVENTS, SectionState as SectionState
from weakincentives.runtime.live import LiveRun as LiveRun
from weakincentives.runtime.loop.bridge import (
    Workers as Workers,
    call_async as call_async,
    call_sync as call_sync,
    finish as finish,
)
from weakincentives.runtime.loop.channel import ModelDelta as ModelDelta, reply_deltas as reply_deltas
from weakincentives.runtime.loop.drive import (
    NO_REPLY as NO_REPLY,
    RunDriver as RunDriver,
    closing_resources as closing_resources,
    closing_resources_async as closing_resources_async,
    load_sections as load_sections,
    summarize as summarize,
)
from weakincentives.runtime.loop.effects import (
    AskGuards as AskGuards,
    CallModel as CallModel,
    Compute as Compute,
    Effect as Effect,
    Evaluate as Evaluate,
    LoadSections as LoadSections,
    RunTools as RunTools,
    Summarize as Summarize,
    UseModel as UseModel,
)
from weakincentives.runtime.loop.inner_loop import (
    end_event as end_event,
    next_request as next_request,
    run_loop as run_loop,
)
from weakincentives.runtime.loop.inquiry import Inquiry as Inquiry, Verdict as Verdict, held_guards as held_guards
from weakincentives.runtime.loop.streams import (
    Emissions as Emissions,
    PartialParser as PartialParser,
    completed_events as completed_events,
    delta_events as delta_events,
    ended_events as ended_events,
    request_events as request_events,
    started_events as started_events,
)
from weakincentives.runtime.loop.words import (
    pass_decisions as pass_decisions,
    refuses_decision as refuses_decision,
)
from weakincentives.runtime.media import MEGABYTE as MEGABYTE, TEXT_TYPES as TEXT_TYPES
from weakincentives.runtime.messages import (
    CORRECTION as CORRECTION,
    INSTRUCTIONS as INSTRUCTIONS,
    PROMPT_TEXT as PROMPT_TEXT,
    SUMMARY as SUMMARY,
    user_message as user_message,
    without_answer as without_answer,
)
from weakincentives.runtime.model import MODEL_FACTS as MODEL_FACTS, Model as Model
from weakincentives.runtime.past.history import (
    SHOWS as SHOWS,
    HistoryBuilder as HistoryBuilder,
    PromptState as PromptState,
    Step as Step,
    ToolUse as ToolUse,
    TurnSection as TurnSection,
    related as related,
    usage_of_children as usage_of_children,
)
from weakincentives.runtime.past.ledger import RequestTokens as RequestTokens, request_tokens as request_tokens
from weakincentives.runtime.past.prefix import first_difference as first_difference
from weakincentives.runtime.providers import (
    AS_OF as AS_OF,
    adapter_spec as adapter_spec,
    adapter_specs as adapter_specs,
    cache_safe_routes as cache_safe_routes,
    known_prices as known_prices,
    prices_for as prices_for,
)
from weakincentives.runtime.spec import RunSpec as RunSpec
from weakincentives.runtime.state import RunState as RunState
from weakincentives.runtime.window.excerpt import sent_messages as sent_messages
from weakincentives.runtime.window.quotation import quote as quote

if not TYPE_CHECKING:
    __all__ = public_names(globals())
