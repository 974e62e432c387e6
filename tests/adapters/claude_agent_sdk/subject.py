"""This adapter in the scenarios that every adapter goes through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.adapters.claude_agent_sdk.cli_runs import adapter as cli_adapter
from tests.servers.claude_cli import CliServer
from tests.servers.loopback import Step
from tests.servers.turn import Raw
from weakincentives.clock import SYSTEM_CLOCK

ASKED_THREE_TIMES = 3
ASKED_AND_COMPACTED = 5
FULL = (
    b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 208310 tokens > 200000"}}'
)


@dataclass(frozen=True)
class Claude:
    """The CLI behind a scripted server; it waits by the real clock, and needs a moment to start."""

    name: str = "claude agent sdk"
    patience: float = 8.0
    exempt: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[str, str] = field(default_factory=lambda: {"compaction after an overflow": "by the CLI"})
    overflow: Raw = field(default=Raw(400, FULL))

    @contextmanager
    def stage(self, *steps: Step) -> Iterator[Any]:
        from tests.adapters.scenarios import Stage

        with CliServer([step for given in steps for step in _as_the_cli_asks(given)]) as server:
            adapter = cli_adapter(server)
            try:
                bodies = lambda: [request.body.decode() for request in server.requests]  # noqa: E731
                yield Stage(adapter, SYSTEM_CLOCK, lambda: len(server.requests), bodies)  # type: ignore[arg-type]
            finally:
                adapter.close()


def _as_the_cli_asks(step: Step) -> list[Step]:
    """The CLI asks three times before it believes a 400, and tries to compact a conversation that is too long."""
    if not isinstance(step, Raw) or step.status != 400:
        return [step]
    return [step] * (ASKED_AND_COMPACTED if step.body == FULL else ASKED_THREE_TIMES)


SUBJECT = Claude()
