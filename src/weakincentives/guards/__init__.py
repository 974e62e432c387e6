"""Rules that no prompt can talk away: guards of a template or section, their outcomes, and four that come along."""

from __future__ import annotations

from weakincentives.errors import GuardRefusedError
from weakincentives.guards.rules import MaxCalls, OutputCheck, ReadBeforeWrite, RequiresTool
from weakincentives.prompt import Guard
from weakincentives.prompt.guards import Ask, GuardedCall, Outcome, Refuse, Replace, Retry, Stop
from weakincentives.runtime import GuardContext, GuardDecided

__all__ = [
    "Ask",
    "Guard",
    "GuardContext",
    "GuardDecided",
    "GuardRefusedError",
    "GuardedCall",
    "MaxCalls",
    "Outcome",
    "OutputCheck",
    "ReadBeforeWrite",
    "Refuse",
    "Replace",
    "RequiresTool",
    "Retry",
    "Stop",
]
