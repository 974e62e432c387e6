"""Anthropic's models through the Messages API."""

from typing import TYPE_CHECKING

from weakincentives._imports import lazy_front
from weakincentives.limits import Prices
from weakincentives.runtime import AdapterSpec

if TYPE_CHECKING:
    from weakincentives.adapters.anthropic.adapter import AnthropicAdapter

__all__ = ["SPEC", "AnthropicAdapter"]

SPEC = AdapterSpec(
    name="anthropic",
    adapter="AnthropicAdapter",
    provider="anthropic",
    package_needed="anthropic",
    key_variables=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    hosted_tools=("web_search", "code_interpreter", "web_fetch"),
    cache_safe_routes=frozenset({"tool_addition", "tool_search"}),
    prefix_keys=("model", "tools", "system", "output_config"),
    conversation_key="messages",
    prices={
        "claude-fable-5-1": Prices(10.0, 50.0, 0.25),
        "claude-fable-5": Prices(10.0, 50.0, 1.0),
        "claude-mythos-5-1": Prices(10.0, 50.0, 0.25),
        "claude-mythos-5": Prices(10.0, 50.0, 1.0),
        "claude-opus-5-5": Prices(4.0, 20.0, 0.20),
        "claude-opus-5": Prices(5.0, 25.0, 0.50),
        "claude-opus-4-8": Prices(5.0, 25.0, 0.50),
        "claude-opus-4-7": Prices(5.0, 25.0, 0.50),
        "claude-opus-4-6": Prices(5.0, 25.0, 0.50),
        "claude-opus-4-5": Prices(5.0, 25.0, 0.50),
        "claude-sonnet-5-5": Prices(2.0, 10.0, 0.10),
        "claude-sonnet-5": Prices(2.0, 10.0, 0.20),
        "claude-sonnet-4-6": Prices(3.0, 15.0, 0.30),
        "claude-sonnet-4-5": Prices(3.0, 15.0, 0.30),
        "claude-haiku-5-5": Prices(0.10, 0.50, 0.01),
        "claude-haiku-4-5": Prices(1.0, 5.0, 0.10),
    },
)

__getattr__ = lazy_front(__name__, {"adapter": ["AnthropicAdapter"]})
