"""The adapter for Anthropic's Messages API."""

from __future__ import annotations

from typing import Literal, Unpack

from weakincentives.adapters.anthropic.wire import PROVIDER, MessagesWire, Route, best_route
from weakincentives.adapters.network import ClientAdapter, ClientOptions


class AnthropicAdapter(ClientAdapter):
    """Evaluates prompts on Anthropic's models.

        AnthropicAdapter("claude-opus-5").evaluate(prompt, session=session)

    `client` is an `anthropic.Anthropic` or `AsyncAnthropic` (or a sibling such as `AnthropicBedrock`); without one, the
    SDK reads `ANTHROPIC_API_KEY` and its other variables. `max_tokens` limits one reply. `parameters` are more
    fields of the request, such as `{"thinking": {"type": "enabled", "budget_tokens": 4000}}`.
    """

    name = PROVIDER
    package = "anthropic"
    path = "/v1/messages"
    reserved = frozenset({"model", "messages", "system", "tools", "tool_choice", "stream", "max_tokens"})
    client_types = ("Anthropic", "AsyncAnthropic")
    wire_type = MessagesWire

    def __init__(
        self,
        model: str = "claude-opus-5",
        *,
        max_tokens: int = 16_000,
        tool_route: Literal["auto", "tool_addition", "append"] = "auto",
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(model, **options)
        self.max_tokens = max_tokens
        self._tool_route: Route = best_route(model) if tool_route == "auto" else tool_route

    @property
    def tool_route(self) -> Route:
        """How tools that appear mid-conversation are announced."""
        return self._tool_route

    def _wire(self) -> MessagesWire:
        return MessagesWire(
            self.model,
            route=self.tool_route,
            codecs=self.hosted_tool_codecs,
            parameters=self._parameters,
            max_tokens=self.max_tokens,
        )
