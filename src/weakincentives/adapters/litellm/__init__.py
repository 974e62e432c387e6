"""Any model that LiteLLM reaches, through its chat format."""

from weakincentives.adapters.litellm.adapter import LiteLLMAdapter

__all__ = ["LiteLLMAdapter"]
