"""The adapter for Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, Unpack
from urllib.parse import quote

from weakincentives.adapters.anthropic.models import facts, is_unknown, media_support
from weakincentives.adapters.anthropic.reply import found_tools, with_call_ids
from weakincentives.adapters.anthropic.wire import CACHED, PROVIDER, SEARCH_TOOL, MessagesWire, has_thinking
from weakincentives.adapters.network import ClientAdapter, ClientOptions, Wire
from weakincentives.errors import PromptEvaluationError
from weakincentives.runtime import HostedToolCodec, MediaSupport, Message


class AnthropicAdapter(ClientAdapter):
    """Evaluates prompts on Anthropic's models.

        AnthropicAdapter("claude-opus-5").evaluate(prompt, session=session)

    `client` is an `anthropic.Anthropic` or `AsyncAnthropic` (or a sibling such as `AnthropicBedrock`); without one, the
    SDK reads `ANTHROPIC_API_KEY` and its other variables. `max_tokens` limits each reply. `parameters` adds
    fields to the request, such as `{"thinking": {"type": "enabled", "budget_tokens": 4000}}`. With `tool_search=True`
    the tools of closed sections are sent deferred, and a section opens when Anthropic's search finds its tools.
    """

    name = PROVIDER
    package = "anthropic"
    path = "/v1/messages"
    compaction_keeps_tools = True
    cache_write = 1.25
    count_path = "/v1/messages/count_tokens"
    count_fields = ("model", "messages", "system", "tools", "thinking", "tool_choice", "output_config", "cache_control")
    reserved = frozenset({"model", "messages", "system", "tools", "tool_choice", "stream", "max_tokens"})
    client_types = ("Anthropic", "AsyncAnthropic")
    wire_type = MessagesWire

    def __init__(
        self,
        model: str = "claude-opus-5",  #: the model's name
        *,
        max_tokens: int = 16_000,
        tool_route: Literal["auto", "tool_addition", "tool_reference", "append"] = "auto",  #: how new tools are sent
        tool_search: bool = False,
        **options: Unpack[ClientOptions],
    ) -> None:
        known = facts(model)
        if tool_route in ("append", "tool_reference") and known.binds_thinking:
            raise ValueError(
                f"tool_route must be 'auto' or 'tool_addition' for '{model}', which binds its thinking to the list of "
                f"tools, got '{tool_route}'"
            )
        super().__init__(model, **options)
        self.max_tokens = max_tokens
        self._facts = known
        self._model_path = f"/v1/models/{quote(model, safe='')}" if is_unknown(model) else ""
        self._tool_route = known.route if tool_route == "auto" else tool_route
        self._tool_search = tool_search
        if tool_search and not known.tool_search:
            raise ValueError(f"tool_search needs Claude 4.5 or later, got '{model}'")
        self.reserved_names = (SEARCH_TOOL,) if tool_search else ()

    @property
    def supports_operator_text(self) -> bool:
        return self._facts.system_messages

    @property
    def identity(self) -> tuple[Any, ...]:
        return (*super().identity, self.max_tokens)

    @property
    def compacts(self) -> bool:
        return self._facts.compaction

    @property
    def context_window(self) -> int | None:
        return self._facts.window

    @property
    def cache_seconds(self) -> float:
        marker = self._parameters.get("cache_control", CACHED)
        return 0.0 if marker is None else 3600.0 if marker.get("ttl") == "1h" else 300.0

    @property
    def media(self) -> MediaSupport:
        return media_support(self.model)

    def binds_reasoning(self, message: Message) -> bool:
        return self._facts.binds_thinking and has_thinking(message)

    def default_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        from weakincentives.adapters.anthropic.codecs import CODECS

        return CODECS

    def found_tools(self, items: Sequence[str]) -> tuple[str, ...]:
        return found_tools(items)

    def with_call_ids(self, items: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
        return with_call_ids(items, ids)

    def _from_environment(self, sdk: ModuleType) -> Any:
        client = super()._from_environment(sdk)
        # The SDK creates a client without a key, which would fail only when it sends a request.
        headers = {name.lower() for name, value in client.default_headers.items() if value}
        if not headers & {"x-api-key", "authorization"} and getattr(client, "credentials", None) is None:
            raise PromptEvaluationError(
                "Set ANTHROPIC_API_KEY, or pass client=Anthropic(api_key=...). There is no key in the environment.",
                phase="request",
            )
        return client

    def _wire(self, **options: Any) -> Wire:
        return super()._wire(max_tokens=self.max_tokens, known=self._facts, **options)

    def _learn(self, wire: Wire, described: Any) -> None:
        assert isinstance(wire, MessagesWire)
        self._facts = self._facts.described(described)
        wire.learn(self._facts)
