"""What the inner loop asks its driver to do."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.runtime.messages import ModelRequest, ToolCall


@dataclass(frozen=True, slots=True)
class CallModel:
    """Send the request; the driver answers with a `ModelReply`."""

    request: ModelRequest


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run these calls; the driver answers with a `ToolExecutionOutcome` for each that ran.

    More than one call means that all are read-only, so that they may run side by side.
    """

    calls: tuple[ToolCall, ...]


Effect = CallModel | RunTools
