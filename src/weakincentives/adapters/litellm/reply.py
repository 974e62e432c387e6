"""Replies in the chat format as LiteLLM writes it, with what its providers add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from weakincentives.adapters.openai_chat import reply as chat
from weakincentives.runtime import ModelReply
from weakincentives.runtime.spi import ModelDelta

SERVER_CALL = "srvtoolu_"
"""Id prefix of calls that Anthropic runs itself, which LiteLLM lists among the model's calls."""


class _Message(chat.ChatMessage):
    provider_specific_fields: dict[str, Any] | None = None
    thinking_blocks: list[dict[str, Any]] | None = None
    reasoning_items: list[Any] | None = None

    @property
    def shown_reasoning(self) -> str:
        return self.reasoning_content or ""

    @property
    def has_reasoning(self) -> bool:
        reasoning = self.thinking_blocks or self.reasoning_items or self.reasoning_content
        return bool(reasoning or self.provider_specific_fields)


class ReplyParser(chat.ReplyParser):
    """Parses what LiteLLM returns."""

    decode_message = staticmethod(msgspec.json.Decoder(_Message).decode)
    decode_chunk = staticmethod(msgspec.json.Decoder(chat.Chunk[_Message]).decode)

    def runs_itself(self, call: chat.Call) -> bool:
        return (call.id or "").startswith(SERVER_CALL)

    def echo(self, message: chat.ChatMessage, raw: msgspec.Raw, calls: Sequence[chat.Call]) -> dict[str, Any]:
        """All fields that have a value: LiteLLM knows what each of its providers wants back."""
        given = msgspec.json.decode(raw, type=dict[str, Any])
        kept = {key: value for key, value in given.items() if value is not None and key != "annotations"}
        for entry, call in zip(kept.get("tool_calls") or (), calls, strict=False):
            entry |= {"id": call.id, "function": {**entry["function"], "arguments": call.function.arguments}}
        return {"role": "assistant", "content": None, **kept}

    def sources(self, message: chat.ChatMessage) -> dict[str, Any]:
        fields = (message.provider_specific_fields if isinstance(message, _Message) else None) or {}
        searched = {"citations": fields.get("citations"), "results": fields.get("web_search_results")}
        return {**super().sources(message), **searched}


class ChunkParser(chat.ChunkParser):
    """Assembles a stream of LiteLLM's, whose end our own transport marks."""

    trusts_end = False

    def __init__(self, replies: ReplyParser) -> None:
        super().__init__(replies)
        self._blocks: list[dict[str, Any]] = []
        self._reasoning_items: list[Any] = []
        self._citations: list[Any] = []
        self._results: list[Any] = []

    def add(self, delta: _Message) -> list[ModelDelta | ModelReply]:
        for block in delta.thinking_blocks or ():
            self._add_thinking(block)
        self._reasoning_items += delta.reasoning_items or ()
        fields = delta.provider_specific_fields or {}
        if "citation" in fields:
            self._citations.append([fields["citation"]])
        self._results = fields.get("web_search_results") or self._results
        return super().add(delta)

    def message(self) -> dict[str, Any]:
        sources = {"citations": self._citations, "web_search_results": self._results}
        parts = {
            "thinking_blocks": self._blocks,
            "reasoning_items": self._reasoning_items,
            "provider_specific_fields": {name: value for name, value in sources.items() if value},
        }
        return {**super().message(), **{name: value for name, value in parts.items() if value}}

    def _add_thinking(self, block: dict[str, Any]) -> None:
        """Add a piece of a thinking block: its text arrives in many pieces, and its signature ends it."""
        piece = {name: value for name, value in block.items() if value is not None and name != "index"}
        last = self._blocks[-1] if self._blocks else {}
        if piece.get("type") != "thinking" or last.get("type") != "thinking" or last.get("signature"):
            self._blocks.append(piece)
            return
        last["thinking"] = last.get("thinking", "") + piece.get("thinking", "")
        if piece.get("signature"):
            last["signature"] = piece["signature"]
