"""Anthropic's models through the Messages API."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front
from weakincentives.adapters.anthropic.models import MODELS, SHUT_DOWN
from weakincentives.runtime import AdapterSpec

if TYPE_CHECKING:
    from weakincentives.adapters.anthropic.adapter import AnthropicAdapter

__all__ = ["SPEC", "AnthropicAdapter"]

SPEC = AdapterSpec(
    name="anthropic",
    package=__name__,
    adapter="AnthropicAdapter",
    provider="anthropic",
    package_needed="anthropic",
    key_variables=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    hosted_tools=("web_search", "code_interpreter", "web_fetch", "advisor"),
    cache_safe_routes=frozenset({"tool_addition", "tool_reference", "tool_search"}),
    prefix_keys=("model", "tools", "system", "output_config"),
    conversation_key="messages",
    cache_marker="cache_control",
    deferred_marker="defer_loading",
    prices={name: model.prices for name, model in MODELS.items() if model.prices},
    shut_down=SHUT_DOWN,
)

__getattr__ = lazy_front(__name__, {"adapter": ["AnthropicAdapter"]})
