"""The price of a prompt's requests, and what a change does to the provider's cache, in the words of a bill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

from weakincentives.limits import TokenUsage
from weakincentives.prompt import AnyTool, RenderedPrompt
from weakincentives.runtime import ProviderAdapter
from weakincentives.runtime.spi import adapter_spec, cache_safe_routes, first_difference
from weakincentives.telemetry import prices_for

# The fewest tokens that a provider caches: OpenAI's and most of Anthropic's models, and those that need more.
MIN_CACHED = 1_024
MIN_CACHED_BY_MODEL = {
    "claude-opus-4-7": 2_048,
    "claude-opus-4-6": 4_096,
    "claude-opus-4-5": 4_096,
    "claude-haiku-4-5": 4_096,
}


@dataclass(frozen=True, slots=True)
class Kept:
    """How much of one request is also the beginning of another; `whole` if nothing of it follows that differs."""

    tokens: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Bill:
    """The requests of an adapter; `named` is the adapter as the user named it. `least` says the counts are minimums."""

    adapter: ProviderAdapter
    named: str = ""
    least: bool = False

    def price(self, total: int) -> str:
        """The cost of a run's requests: the first, and those after it."""
        if self._free:
            return self._free
        if (costs := self._requests(total)) is None:
            return f"No price is known for {self.adapter.model}."
        first, following = costs
        if total < self.minimum:
            return f"Each request {self._least}{first}: nothing is cached below {self.minimum:,} tokens."
        must = f"the first {self.minimum:,} tokens must match to be cached"
        return f"First request {self._least}{first}; next ones {self._least}{following} ({must})."

    def open_price(self, total: int, full: int) -> str:
        """The cost of the same requests with everything open; empty if nothing is closed, or nothing is known."""
        costs = None if self._free or full <= total else self._requests(full)
        if costs is None:
            return ""
        return (
            f"With everything open {self._least}{costs[0]}{f', then {costs[1]}' if full >= self.minimum else ' each'}."
        )

    def _requests(self, tokens: int) -> tuple[str, str] | None:
        prices = prices_for(self.adapter.model)
        if prices is None:
            return None
        cached = tokens if tokens >= self.minimum else 0
        first = prices.cost(TokenUsage(input_tokens=tokens))
        return _money(first), _money(prices.cost(TokenUsage(input_tokens=tokens, cached_tokens=cached)))

    def cache(self, changes: Sequence[str], kept: Kept, declared: int) -> str:
        """The effect of changes, such as "Opening “Logs”", on the cache of the declared prompt's requests."""
        if not changes or declared < self.minimum:
            return ""
        if kept.whole:
            return "All of it stands at the beginning of the declared prompt too: the cache stays."
        others = len(changes) - 1
        change = f"{changes[0]} and {others} more" if others else changes[0]
        verb = "change" if others else "changes"
        if kept.tokens < self.minimum:
            return f"{change} {verb} the beginning: the cache starts anew."
        return f"{change} {verb} what comes after {kept.tokens:,} tokens: only these stay cached."

    @property
    def opening(self) -> str:
        """The effect on the cache when the model itself opens a section that has tools."""
        if not self.adapter.supports_dynamic_tools:
            return "When the model opens a section with tools, the run restarts: the cache starts anew."
        if self.adapter.tool_route in cache_safe_routes():
            return "When the model opens a section, its tools are added at the end: the cache stays."
        return "When the model opens a section with tools, the list of tools changes: the cache starts anew."

    @property
    def minimum(self) -> int:
        """The fewest tokens that are cached; a model in this process may keep any number."""
        if self._free:
            return 1
        name = self.adapter.model.rpartition("/")[2]
        known = (least for model, least in MIN_CACHED_BY_MODEL.items() if name.startswith(model))
        return next(known, MIN_CACHED)

    @property
    def _free(self) -> str:
        spec = adapter_spec(self.named.partition(":")[0]) or adapter_spec(self.adapter.name)
        if spec is not None and spec.in_process:
            return "Free: the model runs on this machine."
        if spec is not None and str(spec.options.get("base_url", "")).startswith("http://127.0.0.1"):
            return "Free: the model runs on a server of your own."
        return ""

    @property
    def _least(self) -> str:
        return "at least " if self.least else ""


def prefix_kept(before: RenderedPrompt[Any], now: RenderedPrompt[Any], adapter: ProviderAdapter) -> Kept:
    """How much of a request is also the beginning of an earlier one; tools come first, then the text."""
    old, new = (_sent_tools(one, adapter.sent_tool) for one in (before, now))
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    tokens = sum(map(adapter.count_tokens, new[:same]))
    if same < max(len(old), len(new)):
        return Kept(tokens, whole=False)
    equal = first_difference(before.text, now.text)
    return Kept(tokens + adapter.count_tokens(now.text[:equal]), whole=equal == len(now.text))


def _sent_tools(rendered: RenderedPrompt[Any], define: Callable[[AnyTool], str]) -> list[str]:
    """The tools as they are sent, without those that are not."""
    tools = cast(tuple[AnyTool, ...], (*rendered.tools, *rendered.hosted_tools))
    return [sent for tool in tools if (sent := define(tool))]


def _money(dollars: float) -> str:
    if 0 < dollars < 0.0001:
        return "less than $0.0001"
    return f"${dollars:.4f}" if dollars < 0.01 else f"${dollars:.3f}"
