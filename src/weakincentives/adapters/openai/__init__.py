"""OpenAI's models through the Responses API."""

from weakincentives.adapters.openai.adapter import OpenAIAdapter

__all__ = ["OpenAIAdapter"]
