"""Any model that LiteLLM reaches, through its chat format."""

from typing import TYPE_CHECKING

from weakincentives._base.imports import lazy_front
from weakincentives.runtime import AdapterSpec

if TYPE_CHECKING:
    from weakincentives.adapters.litellm.adapter import LiteLLMAdapter

__all__ = ["SPEC", "LiteLLMAdapter"]

SPEC = AdapterSpec(
    name="litellm",
    package=__name__,
    adapter="LiteLLMAdapter",
    provider="litellm",
    package_needed="litellm",
    hosted_tools=("web_search",),
    prefix_keys=("model", "tools", "response_format"),
    conversation_key="messages",
    tool_key="function",
)

__getattr__ = lazy_front(__name__, {"adapter": ["LiteLLMAdapter"]})
