"""Other words for a prompt without touching its code: descriptors, overrides and where they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weakincentives._imports import lazy_front
from weakincentives.prompt.overrides.application import Applied, StaleOverride, apply_override, check_override
from weakincentives.prompt.overrides.descriptor import PromptDescriptor, SectionDescriptor, ToolDescriptor
from weakincentives.prompt.overrides.override import LATEST, PromptOverride, SectionOverride, ToolOverride
from weakincentives.prompt.overrides.store import PromptOverridesError, PromptOverridesStore

if TYPE_CHECKING:
    from weakincentives.prompt.overrides.diff import diff
    from weakincentives.prompt.overrides.json_store import JsonPromptOverridesStore

__all__ = [
    "LATEST",
    "Applied",
    "JsonPromptOverridesStore",
    "PromptDescriptor",
    "PromptOverride",
    "PromptOverridesError",
    "PromptOverridesStore",
    "SectionDescriptor",
    "SectionOverride",
    "StaleOverride",
    "ToolDescriptor",
    "ToolOverride",
    "apply_override",
    "check_override",
    "diff",
]

# Most programs keep no overrides, and nothing else needs these two.
__getattr__ = lazy_front(__name__, {"JsonPromptOverridesStore": "json_store", "diff": "diff"})
