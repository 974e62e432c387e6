"""Anthropic's models through the Messages API."""

from weakincentives.adapters.anthropic.adapter import AnthropicAdapter

__all__ = ["AnthropicAdapter"]
