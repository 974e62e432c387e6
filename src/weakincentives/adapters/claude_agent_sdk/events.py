"""What a run on the CLI tells beyond the events that every run has."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from weakincentives.session import LogEntry


@dataclass(frozen=True, slots=True)
class CliRunEnded(LogEntry):
    """The CLI was let go. `cost_usd` is its own account of the run, None where it did not come to one."""

    run_id: str
    cli_version: str
    cost_usd: float | None
    timestamp: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class CliToolUse:
    """A tool of the CLI's own that it ran for the model."""

    call_id: str
    name: str
    arguments: str
    output: str
    success: bool
    duration: float
