"""The chat format that LiteLLM accepts for every provider."""

from __future__ import annotations

from typing import Any

from weakincentives.adapters.litellm.models import claude_facts, gpt_facts, vendor_of
from weakincentives.adapters.litellm.reply import ChunkParser, ReplyParser
from weakincentives.adapters.openai_chat import wire as chat
from weakincentives.runtime import ModelRequest

PROVIDER = "litellm"


class ChatWire(chat.ChatWire):
    """One run as the arguments of LiteLLM's `completion`; LiteLLM itself rejects what a model does not accept."""

    provider = PROVIDER

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, origin=vendor_of(model).name, **options)

    def adapt(self, payload: object) -> bool:
        return False

    def _settings(self, request: ModelRequest) -> dict[str, Any]:
        fields, effort = super()._settings(request), request.settings.effort
        if effort == "none" and vendor_of(self._model).name == "anthropic":
            # LiteLLM would send nothing, and the model would think by default.
            del fields["reasoning_effort"]
            fields["thinking"] = {"type": "disabled"}
        elif effort and gpt_facts(self._model).efforts is not None:
            # For these models, LiteLLM sends requests with tools to another API, which would store the conversation.
            fields["store"] = False
        return fields

    @property
    def binds_reasoning(self) -> bool:
        return claude_facts(self._model).binds_thinking

    def rejects_reasoning(self, payload: object) -> bool:
        shown = str(payload)
        return "in thinking block" in shown or "invalid_encrypted_content" in shown

    def event_parser(self) -> ChunkParser:
        return ChunkParser(self._reply_parser())

    def _reply_parser(self) -> ReplyParser:
        return ReplyParser(self.provider, self._origin, self._call_ids)
