"""The adapter for every model LiteLLM reaches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from weakincentives._imports import require_extra
from weakincentives.adapters.litellm.transport import LiteLLMTransport, litellm
from weakincentives.adapters.litellm.wire import MAX_DESCRIPTION, PROVIDER, ChatWire
from weakincentives.adapters.network import KeyRedactor, NetworkChannel, Retries, define_hosted_tool
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.prompt import AnyTool, HostedTool, Tokenizer
from weakincentives.runtime import HostedToolCodec, ProviderAdapter

_NEEDS_NO_USER_TURN = frozenset({"openai", "azure"})


class LiteLLMAdapter(ProviderAdapter):
    """Evaluates prompts on any model that LiteLLM supports.

        LiteLLMAdapter("gemini/gemini-3-pro").evaluate(prompt, session=session)

    `client` may be a `litellm.Router`. Keys come from the variables that LiteLLM knows for the provider, or from
    `parameters`, which go to `litellm.completion` as they are: `{"api_key": ..., "api_base": ..., "temperature": 0}`.
    """

    name = PROVIDER
    max_tool_description = MAX_DESCRIPTION

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        hosted_tool_codecs: Mapping[str, HostedToolCodec[Any, Any]] | None = None,
        output_retries: int = 1,
        tokenizer: Tokenizer | None = None,
        max_retries: int = 2,
        parameters: Mapping[str, Any] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(
            model,
            hosted_tool_codecs=hosted_tool_codecs,
            output_retries=output_retries,
            tokenizer=tokenizer,
        )
        if client is None:
            require_extra("litellm", "litellm", "LiteLLMAdapter")
        self._client = client
        self._parameters = dict(parameters or {})
        self._retries = Retries(limit=max_retries)
        self._clock = clock
        self._redactor = KeyRedactor(self._keys)
        self._first_user_turn: bool | None = None

    @property
    def supports_dynamic_tools(self) -> bool:
        return True

    def channel(self) -> NetworkChannel:
        module = litellm()
        if self._first_user_turn is None:
            self._first_user_turn = self._needs_user_turn(module)
        wire = ChatWire(self.model, codecs=self.hosted_tool_codecs, first_user_turn=self._first_user_turn)
        return NetworkChannel(
            wire,
            LiteLLMTransport(self._client or module, self._parameters),
            retries=self._retries,
            redactor=self._redactor,
            clock=self._clock,
        )

    def define_tool(self, tool: AnyTool) -> str:
        if isinstance(tool, HostedTool):
            return define_hosted_tool(tool, self.hosted_tool_codecs)
        return ChatWire.tools.text(tool)

    def default_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        from weakincentives.adapters.litellm.codecs import LiteLLMWebSearchCodec

        return {"web_search": LiteLLMWebSearchCodec(self.model)}

    def close(self) -> None:
        """Nothing to close: LiteLLM keeps its own connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _needs_user_turn(self, module: Any) -> bool:
        if self._client is not None:
            return True
        try:
            provider = module.get_llm_provider(self.model, api_base=self._parameters.get("api_base"))[1]
        except Exception:
            return True
        return provider not in _NEEDS_NO_USER_TURN

    def _keys(self) -> Iterable[str | None]:
        yield self._parameters.get("api_key")
        for name, value in os.environ.items():
            if name.endswith(("_API_KEY", "_TOKEN", "_SECRET", "_SECRET_ACCESS_KEY")):
                yield value
