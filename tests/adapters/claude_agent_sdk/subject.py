"""This adapter in the scenarios that every adapter goes through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.servers.claude_cli import CliServer
from tests.servers.loopback import Step
from tests.servers.turn import Raw
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.clock import SYSTEM_CLOCK

ASKED_THREE_TIMES = 3


@dataclass(frozen=True)
class Claude:
    """The CLI behind a scripted server; it waits by the real clock, and needs a moment to start."""

    name: str = "claude agent sdk"
    patience: float = 3.0
    exempt: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def stage(self, *steps: Step) -> Iterator[Any]:
        from tests.adapters.scenarios import Stage

        with CliServer([step for given in steps for step in _as_the_cli_asks(given)]) as server:
            adapter = ClaudeAgentSDKAdapter("claude-opus-5", api_key="not-a-key", base_url=server.url)
            yield Stage(adapter, SYSTEM_CLOCK, lambda: len(server.requests))  # type: ignore[arg-type]


def _as_the_cli_asks(step: Step) -> list[Step]:
    """The CLI asks three times before it believes a 400."""
    return [step] * (ASKED_THREE_TIMES if isinstance(step, Raw) and step.status == 400 else 1)


SUBJECT = Claude()
