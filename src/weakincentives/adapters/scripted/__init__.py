"""A model that follows a script, to test agents without a provider."""

from typing import TYPE_CHECKING

from weakincentives._imports import lazy_front
from weakincentives.runtime import AdapterSpec

if TYPE_CHECKING:
    from weakincentives.adapters.scripted.adapter import ScriptedAdapter, call

__all__ = ["SPEC", "ScriptedAdapter", "call"]

SPEC = AdapterSpec(name="scripted", adapter="ScriptedAdapter", provider="scripted", model="FILE")

__getattr__ = lazy_front(__name__, {"ScriptedAdapter": "adapter", "call": "adapter"})
