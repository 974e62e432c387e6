"""OpenAI's models through the Responses API."""

from typing import TYPE_CHECKING

from weakincentives._imports import lazy_front
from weakincentives.limits import Prices
from weakincentives.runtime import AdapterSpec

if TYPE_CHECKING:
    from weakincentives.adapters.openai.adapter import OpenAIAdapter

__all__ = ["SPEC", "OpenAIAdapter"]

SPEC = AdapterSpec(
    name="openai",
    adapter="OpenAIAdapter",
    provider="openai",
    package_needed="openai",
    key_variables=("OPENAI_API_KEY",),
    hosted_tools=("web_search", "code_interpreter", "file_search"),
    cache_safe_routes=frozenset({"additional_tools", "tool_search"}),
    prefix_keys=("model", "tools", "instructions", "text", "reasoning"),
    conversation_key="input",
    prices={
        "gpt-6.1-sol": Prices(2.0, 10.0, 0.10),
        "gpt-6-astra": Prices(10.0, 50.0, 1.0),
        "gpt-6-sol": Prices(2.0, 10.0, 0.20),
        "gpt-6-luna": Prices(0.10, 0.50, 0.01),
        "gpt-5.6": Prices(4.0, 20.0, 0.40),
        "gpt-5.6-sol": Prices(4.0, 20.0, 0.40),
        "gpt-5.6-terra": Prices(2.0, 12.0, 0.20),
        "gpt-5.6-luna": Prices(0.20, 1.20, 0.02),
        "gpt-5.5": Prices(5.0, 30.0, 0.50),
        "gpt-5.4": Prices(2.50, 15.0, 0.25),
        "gpt-5.4-mini": Prices(0.75, 4.50, 0.075),
        "gpt-5.4-nano": Prices(0.20, 1.25, 0.02),
        "gpt-5.2": Prices(1.75, 14.0, 0.175),
        "gpt-5.1": Prices(1.25, 10.0, 0.125),
        "gpt-5": Prices(1.25, 10.0, 0.125),
        "gpt-5-mini": Prices(0.25, 2.0, 0.025),
        "gpt-5-nano": Prices(0.05, 0.40, 0.005),
        "gpt-4.1": Prices(2.0, 8.0, 0.50),
        "gpt-4.1-mini": Prices(0.40, 1.60, 0.10),
        "gpt-4.1-nano": Prices(0.10, 0.40, 0.025),
        "gpt-4o": Prices(2.50, 10.0, 1.25),
        "gpt-4o-mini": Prices(0.15, 0.60, 0.075),
        "o3": Prices(2.0, 8.0, 0.50),
        "o4-mini": Prices(1.10, 4.40, 0.275),
    },
)

__getattr__ = lazy_front(__name__, {"adapter": ["OpenAIAdapter"]})
