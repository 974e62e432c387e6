"""The adapter for everything that LiteLLM reaches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from weakincentives.adapters.litellm.codecs import CODECS
from weakincentives.adapters.litellm.codecs.web_search import LiteLLMWebSearchCodec
from weakincentives.adapters.litellm.line import LiteLLMLine, litellm
from weakincentives.adapters.litellm.wire import PROVIDER, ChatWire
from weakincentives.adapters.network.channel import NetworkChannel
from weakincentives.adapters.network.extra import require
from weakincentives.adapters.network.redact import Redactor
from weakincentives.adapters.network.retry import Retries
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.prompt import Tokenizer
from weakincentives.runtime.adapter import ProviderAdapter
from weakincentives.runtime.hosted import HostedToolCodec

_NEEDS_NO_USER_TURN = frozenset({"openai", "azure"})


class LiteLLMAdapter(ProviderAdapter):
    """Evaluates prompts on any model that LiteLLM can name.

        LiteLLMAdapter("gemini/gemini-3-pro").evaluate(prompt, session=session)

    `client` may be a `litellm.Router`. Keys come from the variables that LiteLLM knows for the provider, or from
    `parameters`, which go to `litellm.completion` as they are: `{"api_key": ..., "api_base": ..., "temperature": 0}`.
    """

    name = PROVIDER
    default_codecs = CODECS

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
        sleep_async: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(
            model,
            hosted_tool_codecs={"web_search": LiteLLMWebSearchCodec(model), **(hosted_tool_codecs or {})},
            output_retries=output_retries,
            tokenizer=tokenizer,
        )
        if client is None:
            require("litellm", "litellm")
        self._client = client
        self._parameters = dict(parameters or {})
        self._retries = Retries(limit=max_retries)
        self._clock = clock
        self._sleep_async = sleep_async
        self._redact = Redactor(self._secrets)
        self._opening: bool | None = None

    @property
    def supports_dynamic_tools(self) -> bool:
        return True

    def channel(self) -> NetworkChannel:
        module = litellm()
        if self._opening is None:
            self._opening = self._needs_user_turn(module)
        wire = ChatWire(self.model, codecs=self.hosted_tool_codecs, opening=self._opening)
        return NetworkChannel(
            wire,
            LiteLLMLine(self._client or module, self._parameters),
            retries=self._retries,
            redact=self._redact,
            clock=self._clock,
            sleep_async=self._sleep_async,
        )

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

    def _secrets(self) -> Iterable[str | None]:
        yield self._parameters.get("api_key")
        for name, value in os.environ.items():
            if name.endswith(("_API_KEY", "_TOKEN", "_SECRET", "_SECRET_ACCESS_KEY")):
                yield value
