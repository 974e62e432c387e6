"""The state of a run that its session keeps, so that another process can take it up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from weakincentives.limits import Meter, TokenUsage


@dataclass(frozen=True, slots=True)
class ToolRef:
    """A tool by where it lives: its section's key ('' for the built-in ones) and its name."""

    section_key: str
    name: str


@dataclass(frozen=True, slots=True)
class Run:
    """One evaluation, as far as it has come. `visibility` is what it began with, by section key."""

    run_id: str
    prompt_ns: str
    prompt_key: str
    visibility: Mapping[str, str]
    tools: tuple[ToolRef, ...] = ()
    hosted_tools: tuple[ToolRef, ...] = ()
    initial_tools: int = 0
    initial_hosted_tools: int = 0
    revoked: frozenset[str] = frozenset()
    last_used: Mapping[str, int] = field(default_factory=dict)
    turns: int = 0
    tool_calls: int = 0
    output_retries: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass(slots=True)
class RunScope:
    """What all evaluations of one execution share: the id, the meter, and how many times it was tried."""

    meter: Meter
    run_id: str = field(default_factory=lambda: os.urandom(8).hex())
    attempt: int = 1
