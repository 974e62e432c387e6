"""What events say about a run as a whole: its status, and the sums in its row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weakincentives.limits import Prices, TokenUsage
from weakincentives.runtime.events import (
    EvaluationFailed,
    ModelCalled,
    PromptExecuted,
    PromptRendered,
    RunRestarted,
    ToolInvoked,
)
from weakincentives.telemetry.prices import prices_for


@dataclass(slots=True)
class OpenRun:
    """A run that has not ended; `asked` is whether its last tool call asked to open something."""

    session_id: str
    asked: bool = False

    @property
    def status(self) -> str:
        """What to call it when nothing more comes: a request to open sections was handed to the caller."""
        return "halted" if self.asked else "interrupted"


@dataclass(slots=True)
class Tally:
    """What a batch of events changes in the row of one run: columns to set, and amounts to add."""

    run_id: str
    session_id: str
    events: int
    turns: int
    updated: float = 0.0
    columns: dict[str, Any] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)

    def count(
        self, event: object, at: float, open_runs: dict[str, OpenRun], prices: Mapping[str, Prices] | None
    ) -> None:
        """Take in one event, and keep account of which runs are open."""
        self.events += 1
        self.updated = at
        match event:
            case PromptRendered():
                self.columns.update(prompt=f"{event.prompt_ns}/{event.prompt_key}", prompt_name=event.prompt_name)
                self.columns.update(adapter=event.adapter, model=event.model)
                self._runs(open_runs)
            case ModelCalled():
                self.turns += 1
                self.columns.update(prompt_name=event.prompt_name, adapter=event.adapter, model=event.model)
                self._spend(event.usage, prices_for(event.model, prices))
                self._runs(open_runs)
            case ToolInvoked():
                self._add(tool_calls=1, tool_failures=not event.success, disclosures=event.disclosure is not None)
                if self.run_id in open_runs:
                    open_runs[self.run_id].asked = event.disclosure is not None
            case RunRestarted():
                self._add(restarts=1)
                self._runs(open_runs)
            case EvaluationFailed():
                self.end("failed", at, open_runs)
                self.columns["error"] = f"{event.error}: {event.message}"
            case PromptExecuted():
                self.end("halted" if event.halted else "ok", at, open_runs)

    def end(self, status: str, at: float, open_runs: dict[str, OpenRun]) -> None:
        self.columns.update(status=status, ended=at)
        open_runs.pop(self.run_id, None)

    def _runs(self, open_runs: dict[str, OpenRun]) -> None:
        self.columns.update(status="running", ended=None, error="")
        open_runs.setdefault(self.run_id, OpenRun(self.session_id))

    def _spend(self, usage: TokenUsage, prices: Prices | None) -> None:
        self._add(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        )
        if prices is not None:
            self._add(cost=prices.cost(usage))

    def _add(self, **amounts: float) -> None:
        for name, amount in amounts.items():
            self.sums[name] = self.sums.get(name, 0) + amount
