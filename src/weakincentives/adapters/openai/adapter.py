"""The adapter for OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from weakincentives.adapters.network import ClientAdapter, ClientOptions, Wire
from weakincentives.adapters.openai.models import facts, media_support
from weakincentives.adapters.openai.reply import found_tools, with_call_ids
from weakincentives.adapters.openai.wire import MAX_DESCRIPTION, PROVIDER, ResponsesWire
from weakincentives.runtime import HostedToolCodec, MediaSupport


class OpenAIAdapter(ClientAdapter):
    """Evaluates prompts on OpenAI's models.

        OpenAIAdapter("gpt-5.6").evaluate(prompt, session=session)

    `client` is an `openai.OpenAI` or `AsyncOpenAI` (or a subclass); without one, the SDK reads `OPENAI_API_KEY` and its
    other variables. `parameters` adds fields to the request, such as `{"reasoning": {"effort": "low"}}`.
    `tool_route` sets how tools that appear mid-conversation are announced. With `tool_search=True` a closed section is
    a namespace of deferred tools, and opens when OpenAI's search finds one of them; `SearchSections` then searches with
    its own ranker in place of OpenAI's.
    """

    name = PROVIDER
    package = "openai"
    path = "/responses"
    compact_path = "/responses/compact"
    compacts = True
    cache_seconds = 1800.0
    cache_write = 1.25
    count_path = "/responses/input_tokens"
    count_fields = ("model", "input", "tools", "text", "reasoning", "tool_choice", "instructions")
    reserved = frozenset({"model", "input", "tools", "tool_choice", "stream"})
    client_types = ("OpenAI", "AsyncOpenAI")
    wire_type = ResponsesWire
    max_tool_description = MAX_DESCRIPTION

    def __init__(
        self,
        model: str = "gpt-5.6",  #: the model's name
        *,
        tool_route: Literal["auto", "additional_tools", "append"] = "auto",
        tool_search: bool = False,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(model, **options)
        self._tool_route = facts(model).route if tool_route == "auto" else tool_route
        self._tool_search = tool_search
        if tool_search and not facts(model).tool_search:
            raise ValueError(f"tool_search needs gpt-5.4 or later, and not its nano model, got '{model}'")

    @property
    def supports_operator_text(self) -> bool:
        return True

    @property
    def media(self) -> MediaSupport:
        return media_support(self.model)

    def default_codecs(self) -> Mapping[str, HostedToolCodec[Any, Any]]:
        from weakincentives.adapters.openai.codecs import CODECS

        return CODECS

    @property
    def carries_search(self) -> bool:
        return self._tool_search

    def _wire(self, **options: Any) -> Wire:
        return super()._wire(carries_search=self._tool_search, **options)

    def found_tools(self, items: Sequence[str]) -> tuple[str, ...]:
        return found_tools(items)

    def with_call_ids(self, items: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
        return with_call_ids(items, ids)
