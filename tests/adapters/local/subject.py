"""The local adapter in the scenarios that every adapter goes through, with a script in place of the weights."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.servers.loopback import Step
from tests.servers.turn import Raw, Turn, words
from weakincentives.adapters.local import LocalAdapter
from weakincentives.adapters.local.gguf.engine import EngineError
from weakincentives.clock import FakeClock
from weakincentives.limits import TokenUsage
from weakincentives.runtime import ModelReply, ModelRequest, ToolCall

NO_NETWORK = "no network"


class Script:
    """Replies with the next step, as a model in this process would: text piece by piece, until it is stopped."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._steps = iter(steps)
        self.replies = 0

    def reply(self, request: ModelRequest, outlook: Any, watch: Any, heard: Any) -> ModelReply:
        step = next(self._steps)
        self.replies += 1
        if isinstance(step, Raw):
            raise EngineError("the model failed")
        until = time.monotonic() + step.delay
        while time.monotonic() < until:
            watch.check()
        for piece in words(step.text) if step.text else ():
            heard(piece)
        return _reply(step, self.replies)


def _reply(turn: Turn, number: int) -> ModelReply:
    calls = tuple(
        ToolCall(f"call_{number}_{index}", call.name, json.dumps(call.arguments))
        for index, call in enumerate(turn.calls)
    )
    usage = TokenUsage(turn.input_tokens, turn.output_tokens)
    return ModelReply(turn.text, calls, usage, "tool_calls" if calls else "end")


class ScriptedLocalAdapter(LocalAdapter):
    """The adapter with another way to come to a reply; everything around that is the real thing."""

    replier: Any = None
    # As with a large language model, so that the loop compacts the conversation.
    composes = True


@dataclass(frozen=True)
class Local:
    """The adapter over a script."""

    name: str = "local"
    exempt: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(("retry after 429", "retry after 503"), NO_NETWORK)
    )

    @contextmanager
    def stage(self, *steps: Step) -> Iterator[Any]:
        from tests.adapters.scenarios import Stage

        adapter = ScriptedLocalAdapter()
        adapter.replier = script = Script(steps)
        with adapter:
            yield Stage(adapter, FakeClock(), lambda: script.replies)


SUBJECT = Local()
