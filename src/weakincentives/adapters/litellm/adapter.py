"""The adapter for every model LiteLLM reaches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Unpack

import msgspec

from weakincentives.adapters.anthropic.wire import accepts_system_messages, binds_thinking
from weakincentives.adapters.litellm.transport import LiteLLMTransport, litellm
from weakincentives.adapters.litellm.wire import MAX_DESCRIPTION, PROVIDER, ChatWire, vendor_of
from weakincentives.adapters.network import ClientOptions, NetworkAdapter
from weakincentives.content import Audio, Image
from weakincentives.prompt import Prompt
from weakincentives.runtime import HostedToolCodec, MediaSupport, Message
from weakincentives.session import Session

_NEEDS_NO_USER_TURN = frozenset({"openai", "azure"})


class LiteLLMAdapter(NetworkAdapter):
    """Evaluates prompts on any model that LiteLLM supports.

        LiteLLMAdapter("gemini/gemini-3-pro").evaluate(prompt, session=session)

    `client` may be a `litellm.Router`. Keys come from the variables that LiteLLM knows for the provider, or from
    `parameters`, which go to `litellm.completion` as they are: `{"api_key": ..., "api_base": ..., "temperature": 0}`.
    """

    name = PROVIDER
    package = "litellm"
    wire_type = ChatWire
    max_tool_description = MAX_DESCRIPTION

    def __init__(self, model: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(model, **options)
        self._first_user_turn: bool | None = None

    @property
    def supports_operator_text(self) -> bool:
        vendor, _, name = self.model.rpartition("/")
        return vendor_of(self.model) in _NEEDS_NO_USER_TURN or (
            vendor in ("", "anthropic") and accepts_system_messages(name)
        )

    @cached_property
    def media(self) -> MediaSupport:
        """What LiteLLM's table says of the model; one that it does not know is taken to take everything."""
        known: Mapping[str, Any] = {}
        with suppress(Exception):
            known = litellm().get_model_info(self.model)
        # A Router enters the names of its models without saying anything about them.
        if not known.get("mode"):
            known = dict.fromkeys(("supports_vision", "supports_pdf_input", "supports_audio_input"), True)
        vendor = vendor_of(self.model)
        hears = known.get("supports_audio_input") or vendor in ("gemini", "vertex_ai")
        return MediaSupport(
            images=tuple(dict.fromkeys(Image.types.values())) if known.get("supports_vision") else (),
            documents=("application/pdf",) if known.get("supports_pdf_input") else (),
            # On the way to Anthropic, LiteLLM would leave recordings out without a word.
            audio=tuple(Audio.types.values()) if hears and vendor != "anthropic" else (),
            document_urls=False,
        )

    def binds_reasoning(self, message: Message) -> bool:
        return (
            message.provider == PROVIDER
            and binds_thinking(self.model.rpartition("/")[2])
            and any('"thinking_blocks"' in item for item in message.items)
        )

    def default_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        from weakincentives.adapters.litellm.codecs import LiteLLMWebSearchCodec

        return {"web_search": LiteLLMWebSearchCodec(self.model)}

    def count(self, prompt: Prompt[Any], session: Session | None = None) -> int:
        """The tokens of the next request, as LiteLLM estimates them for the model."""
        body = msgspec.json.decode(self._wire().encode_request(self.first_request(prompt, session)).body())
        return int(litellm().token_counter(self.model, messages=body["messages"], tools=body.get("tools")))

    def _wire(self) -> ChatWire:
        if self._first_user_turn is None:
            self._first_user_turn = self._needs_user_turn(litellm())
        return ChatWire(
            self.model, codecs=self.hosted_tool_codecs, media=self.media, first_user_turn=self._first_user_turn
        )

    def _transport(self) -> LiteLLMTransport:
        return LiteLLMTransport(self._client or litellm(), self._parameters)

    def _needs_user_turn(self, module: Any) -> bool:
        if self._client is not None:
            return True
        try:
            provider = module.get_llm_provider(self.model, api_base=self._parameters.get("api_base"))[1]
        except Exception:
            # A provider that LiteLLM does not know; a user turn does no harm.
            return True
        return provider not in _NEEDS_NO_USER_TURN

    def _keys(self) -> Iterable[str | None]:
        yield self._parameters.get("api_key")
        for name, value in os.environ.items():
            if name.endswith(("_API_KEY", "_TOKEN", "_SECRET", "_SECRET_ACCESS_KEY")):
                yield value
