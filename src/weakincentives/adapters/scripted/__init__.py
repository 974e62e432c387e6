"""A model that follows a script, to test agents without a provider."""

from weakincentives.adapters.scripted.adapter import ScriptedAdapter, call

__all__ = ["ScriptedAdapter", "call"]
