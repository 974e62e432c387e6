"""Doubles for hosted tools: a made-up kind with its codec, and the stored answers of providers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from weakincentives.adapters.anthropic.wire import MessagesWire
from weakincentives.adapters.litellm.wire import ChatWire
from weakincentives.adapters.openai.wire import ResponsesWire
from weakincentives.prompt import HostedTool
from weakincentives.runtime import HostedToolCodec, ModelReply

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hosted_tools"
CASES = ("normal", "many_calls", "error_inside", "no_call", "malformed_item", "unknown_item_type")


@dataclass(frozen=True, slots=True)
class OracleConfig:
    """The configuration of a kind that no provider has."""

    mood: str = "calm"


@dataclass(frozen=True, slots=True)
class OracleResult:
    """What the oracle said, call by call."""

    sayings: tuple[str, ...]


@dataclass
class OracleCodec:
    """A codec for items like `{"type": "oracle_call", "saying": ...}`; keeps what it was given."""

    kind: str = "oracle"
    serialized: list[HostedTool[OracleConfig]] = field(default_factory=list)
    parsed: list[Sequence[Any]] = field(default_factory=list)

    def serialize(self, tool: HostedTool[OracleConfig]) -> dict[str, Any]:
        self.serialized.append(tool)
        return {"type": "oracle", "name": tool.name, "mood": tool.config.mood}

    def parse_output(self, response_items: Sequence[Any], tool: HostedTool[OracleConfig]) -> OracleResult | None:
        self.parsed.append(response_items)
        sayings = tuple(item["saying"] for item in response_items if item.get("type") == "oracle_call")
        return OracleResult(sayings) if sayings else None


def oracle_tool(config: OracleConfig = OracleConfig(), *, name: str = "oracle") -> HostedTool[OracleConfig]:
    return HostedTool(kind="oracle", name=name, description="Ask the oracle.", config=config)


def oracle_reply(*sayings: str, text: str = "So be it.", **fields: Any) -> ModelReply:
    """A scripted model's answer after asking the oracle."""
    items = tuple(json.dumps({"type": "oracle_call", "saying": saying}) for saying in sayings)
    return ModelReply(text=text, items=items, **fields)


@cache
def stored(provider: str, kind: str, case: str) -> bytes:
    """The body of a stored answer."""
    return (FIXTURES / provider / kind / f"{case}.json").read_bytes()


def reply(provider: str, kind: str, case: str) -> ModelReply:
    """A stored answer as the adapter's wire reads it."""
    return _WIRES[provider].parse_reply(stored(provider, kind, case))


def parsed(codec: HostedToolCodec[Any, Any], tool: HostedTool[Any], provider: str, *cases: str) -> Any:
    """What a codec makes of the items of stored answers, taken as one run."""
    items = [json.loads(item) for case in cases for item in reply(provider, tool.kind, case).items]
    return codec.parse_output(items, tool)


_WIRES: dict[str, Any] = {
    "openai": ResponsesWire("gpt-5.6", route="append", codecs={}, parameters={}),
    "anthropic": MessagesWire("claude-opus-5", route="append", codecs={}, parameters={}, max_tokens=100),
    "litellm": ChatWire("openai/scripted", codecs={}, first_user_turn=False),
}
